"""Effects as rows of the outbox, and back. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from cablestore.errors import CorruptStoreError
from cablestore.index.packing import pack, unpack
from cablestore.sds import effects
from cablestore.sds.codec import encode
from cablestore.sds.effects import (
    Acknowledged,
    Deliver,
    DeliverEphemeral,
    Effect,
    Lost,
    Missing,
    PossiblyAcknowledged,
    Reason,
    RepairRequested,
    Retrieve,
    Send,
    Unacknowledged,
)
from cablestore.sds.message import HistoryEntry, SdsMessage
from cablestore.sds.records import entries_of, entry_parts
from cablestore.sds.state import ChannelState

Told = Acknowledged | PossiblyAcknowledged | Unacknowledged | Missing | Retrieve | Lost | RepairRequested
"""Effects without a message of their own: the row has all of it."""

_CODES: Final[dict[type, int]] = {
    Acknowledged: effects.ACKNOWLEDGED,
    PossiblyAcknowledged: effects.POSSIBLY_ACKNOWLEDGED,
    Unacknowledged: effects.UNACKNOWLEDGED,
    Missing: effects.MISSING,
    Retrieve: effects.RETRIEVE,
    Lost: effects.LOST,
    RepairRequested: effects.REPAIR_REQUESTED,
}


def tell(state: ChannelState, effect: Told) -> None:
    """Put an effect into the outbox."""
    parts: list[Any]
    if isinstance(effect, Missing | Lost):
        parts = entry_parts([effect.entry])
    elif isinstance(effect, Retrieve):
        parts = [*entry_parts([effect.entry]), effect.attempt]
    elif isinstance(effect, RepairRequested):
        parts = [effect.message_id, entry_parts(effect.entries)]
    elif isinstance(effect, PossiblyAcknowledged):
        parts = [effect.message_id, effect.members, effect.doubt]
    elif isinstance(effect, Unacknowledged):
        parts = [effect.message_id, effect.sent, effect.is_possibly_acknowledged]
    else:
        parts = [effect.message_id]
    state.append_effect(pack([_CODES[type(effect)], *parts]))


def tell_delivered(state: ChannelState, place: bytes) -> None:
    """Put the delivery of the message at a place of the log into the outbox."""
    state.append_effect(pack([effects.DELIVER, place]))


def tell_ephemeral(state: ChannelState, message: SdsMessage) -> None:
    """Put the delivery of an ephemeral message into the outbox."""
    state.append_effect(pack([effects.DELIVER_EPHEMERAL, message.sender_id, message.message_id, message.content]))


def tell_send(state: ChannelState, place: bytes, reason: Reason, requests: tuple[HistoryEntry, ...] = ()) -> None:
    """Put the sending of the message at a place of the log into the outbox."""
    state.append_effect(pack([effects.SEND_LOGGED, reason.value, place, entry_parts(requests)]))


def tell_send_other(state: ChannelState, message: SdsMessage, reason: Reason) -> None:
    """Put the sending of a message that is in no log into the outbox."""
    history, requests = entry_parts(message.causal_history), entry_parts(message.repair_request)
    parts = [message.message_id, message.lamport_ms, history, requests, message.content]
    state.append_effect(pack([effects.SEND_OTHER, reason.value, *parts]))


def effect_of(state: ChannelState, row: bytes) -> Effect:
    """Return the effect of a row, with the messages that it names read from the state."""
    code, *parts = unpack(row)
    if code == effects.SEND_LOGGED:
        reason, place, requests = parts
        message = replace(state.kept(place).message, repair_request=entries_of(requests))
        return _send(state, message, Reason(reason))
    if code == effects.SEND_OTHER:
        reason, message_id, lamport_ms, history, requests, content = parts
        message = SdsMessage(
            message_id,
            state.channel_id,
            state.sender_id,
            lamport_ms,
            causal_history=entries_of(history),
            repair_request=entries_of(requests),
            content=content,
        )
        return _send(state, message, Reason(reason))
    if code == effects.DELIVER:
        return Deliver(state.kept(parts[0]).message)
    if code == effects.DELIVER_EPHEMERAL:
        sender_id, message_id, content = parts
        return DeliverEphemeral(SdsMessage(message_id, state.channel_id, sender_id, content=content))
    return _told(code, parts)


def _send(state: ChannelState, message: SdsMessage, reason: Reason) -> Send:
    """Return the effect with its bytes. Messages of others have no filter: theirs is gone, ours would be taken for theirs."""
    if message.sender_id == state.sender_id and reason is not Reason.EPHEMERAL:
        message = replace(message, bloom_filter=state.filter.wire())
    return Send(message.message_id, reason, encode(message, state.settings.dialect))


def _told(code: int, parts: list[Any]) -> Effect:
    if code == effects.ACKNOWLEDGED:
        return Acknowledged(*parts)
    if code == effects.POSSIBLY_ACKNOWLEDGED:
        return PossiblyAcknowledged(*parts)
    if code == effects.UNACKNOWLEDGED:
        return Unacknowledged(*parts)
    if code == effects.REPAIR_REQUESTED:
        return RepairRequested(parts[0], entries_of(parts[1]))
    entry = entries_of(parts[:1])[0]
    if code == effects.RETRIEVE:
        return Retrieve(entry, parts[1])
    if code in {effects.MISSING, effects.LOST}:
        return (Missing if code == effects.MISSING else Lost)(entry)
    raise CorruptStoreError(
        f"a row of the outbox has the unknown kind {code}: use the newer version of cablestore that wrote it"
    )
