"""Ids of sync messages, for a dialect whose members log and name them. They are remembered so that nothing waits for one. Pure.

The newest ids of each share are kept, so that a flood from one sender does not displace those of others.
"""

from __future__ import annotations

from cablestore.limits import MAX_SDS_SYNC_IDS
from cablestore.protocol.keys import after_prefix
from cablestore.sds.message import SdsMessage
from cablestore.sds.records import Known, MessageState
from cablestore.sds.shares import share_of
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import id_of, place_of, sized_prefix


def remember(state: ChannelState, message: SdsMessage) -> None:
    """Remember the id of a sync message, own or received. If its share has too many, forget the oldest."""
    prefix = sized_prefix(share_of(state, message.sender_id))
    kept = state.sync_ids.some(prefix, after_prefix(prefix), MAX_SDS_SYNC_IDS)
    if len(kept) == MAX_SDS_SYNC_IDS:
        oldest, _ = kept[0]
        message_id = id_of(oldest[len(prefix) :])
        state.sync_ids.delete(oldest)
        known = state.known(message_id)
        if known is not None and known.state is MessageState.SYNC:
            state.ids.delete(message_id.encode())
    state.sync_ids.put(prefix + place_of(message.lamport_ms or 0, message.message_id), b"")
    state.put_known(message.message_id, Known(MessageState.SYNC))
