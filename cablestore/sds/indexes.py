"""Indexes by sender, added to a channel that a version before 0.13 wrote. Pure."""

from __future__ import annotations

from cablestore.sds import delivery, history, missing
from cablestore.sds.records import INDEXED, gap_of, head_of
from cablestore.sds.state import ChannelState


def add(state: ChannelState) -> None:
    """Add each gap to the queues of the senders that listed it, and each head to the index of its share."""
    for part, row in list(state.missing.rows()):
        gap = gap_of(row)
        named_by = (
            [gap.notified_by] if gap.notified_by is not None else delivery.senders_that_need(state, part.decode())
        )
        for sender_id in named_by:
            missing.add_cause(state, gap, sender_id)
    for place, row in list(state.heads.rows()):
        history.index(state, place, head_of(row))
    state.counters.indexed = INDEXED
