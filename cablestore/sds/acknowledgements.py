"""Acknowledgement of this member's messages by histories and filters (SDS, "Review ACK Status"). Pure.

A message is resent until it is acknowledged.

A causal history acknowledges its messages and their dependencies: a member that lists a message has delivered all its
dependencies. Every received message acknowledges the messages of this member that it lists. Therefore only the
dependencies of this member's messages must be followed, not those of other members' messages.
"""

from __future__ import annotations

import hashlib
from typing import Final

from cablestore.limits import MAX_SDS_REVIEWED, MAX_SDS_TIMERS
from cablestore.sds import missing
from cablestore.sds.bloom import ForeignFilter, positions
from cablestore.sds.effects import Acknowledged, PossiblyAcknowledged, Reason, Unacknowledged
from cablestore.sds.message import SdsMessage
from cablestore.sds.outbox import add_notification, add_send
from cablestore.sds.records import Outgoing, outgoing_of
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import id_of, time_part

_MOST_MEMBERS: Final = 8
"""Maximum number of members whose filters are counted. More filters hardly add certainty."""


def sent(state: ChannelState, place: bytes, now_ms: int) -> None:
    """Add this member's new message at `place` of the log to the outgoing buffer."""
    outgoing = Outgoing(due_ms=now_ms + state.settings.resend.after_ms(1))
    state.outgoing.put(place, outgoing.packed())
    state.set_timer(state.resend, place, None, outgoing.due_ms)
    state.counters.outgoing += 1


def review(state: ChannelState, message: SdsMessage, now_ms: int) -> None:
    """Record which of this member's messages another member's message acknowledges."""
    review_history(state, message)
    if message.bloom_filter and state.counters.outgoing:
        settings = state.settings
        foreign = ForeignFilter.read(message.bloom_filter, settings.filter, settings.dialect)
        if foreign is not None:
            _review_filter(state, foreign, message.sender_id, now_ms)


def review_history(state: ChannelState, message: SdsMessage) -> None:
    """Record that the sender of a message has all messages of its causal history."""
    if state.counters.outgoing:
        for entry in message.causal_history:
            _acknowledge(state, entry.message_id)


def _acknowledge(state: ChannelState, message_id: str) -> None:
    """Remove this member's message, and those of its messages that it depends on, from the outgoing buffer."""
    pending = [message_id]
    while pending and state.counters.outgoing:
        message_id = pending.pop()
        place = state.logged_place(message_id)
        if place is None or (row := state.outgoing.get(place)) is None:
            continue
        _remove(state, place, outgoing_of(row))
        add_notification(state, Acknowledged(message_id))
        pending += [entry.message_id for entry in state.kept(place).message.causal_history]


def _remove(state: ChannelState, place: bytes, outgoing: Outgoing) -> None:
    state.outgoing.delete(place)
    state.set_timer(state.resend, place, outgoing.due_ms, None)
    state.counters.outgoing -= 1


def _review_filter(state: ChannelState, foreign: ForeignFilter, sender_id: str, now_ms: int) -> None:
    member = hashlib.blake2b(sender_id.encode(), digest_size=8).digest()
    words, rate = foreign.words, None
    for place, found in _reviewed(state, foreign):
        first = found[0]
        if words[first >> 3] >> (first & 7) & 1 and foreign.contains(found):
            if rate is None:
                rate = foreign.false_positive_rate
            row = state.outgoing.get(place)
            if row is not None:
                _note_possibly(state, place, outgoing_of(row), member, rate, now_ms)


def _reviewed(state: ChannelState, foreign: ForeignFilter) -> list[tuple[bytes, tuple[int, ...]]]:
    """Return the places of messages of this member to compare with a filter, each with the positions of its id.

    All filters of one write are compared with the same messages, at most MAX_SDS_REVIEWED. The next write continues
    with the messages after them.
    """
    counters = state.counters
    key = (counters.outgoing, foreign.bits, foreign.hashes)
    if state.reviewed is not None and state.reviewed[0] == key:
        return state.reviewed[1]
    if counters.outgoing <= MAX_SDS_REVIEWED:
        rows = state.outgoing.some(b"", None, MAX_SDS_REVIEWED)
    else:
        rows = state.outgoing.some(counters.reviewed + b"\0", None, MAX_SDS_REVIEWED)
        if len(rows) < MAX_SDS_REVIEWED:
            rows += state.outgoing.some(b"", counters.reviewed + b"\0", MAX_SDS_REVIEWED - len(rows))
        counters.reviewed = rows[-1][0]
    dialect = state.settings.dialect
    found = [(place, positions(id_of(place), foreign, dialect)) for place, _ in rows]
    state.reviewed = (key, found)
    return found


def _note_possibly(
    state: ChannelState, place: bytes, outgoing: Outgoing, member: bytes, rate: float, now_ms: int
) -> None:
    """Record that a filter of `member`, with false positive rate `rate`, contains the message at `place`.

    A member counts once, because its filters hardly differ. If enough members count, the message is acknowledged.
    """
    if rate >= 1.0 or member in outgoing.members or len(outgoing.members) >= _MOST_MEMBERS:
        return
    due_ms = outgoing.due_ms
    if not outgoing.members:
        outgoing.due_ms = max(due_ms, now_ms + state.settings.resend_possibly.after_ms(outgoing.sent))
    outgoing.members.append(member)
    outgoing.doubt *= rate
    needed = state.settings.filters_that_acknowledge
    if needed is not None and len(outgoing.members) >= needed and outgoing.doubt <= state.settings.most_doubt:
        state.set_timer(state.resend, place, due_ms, outgoing.due_ms)
        _acknowledge(state, id_of(place))
        return
    state.outgoing.put(place, outgoing.packed())
    state.set_timer(state.resend, place, due_ms, outgoing.due_ms)
    add_notification(state, PossiblyAcknowledged(id_of(place), len(outgoing.members), outgoing.doubt))


def resend_due(state: ChannelState, now_ms: int) -> None:
    """Resend due messages, or remove them after too many attempts (SDS, "Periodic Outgoing Buffer Sweep")."""
    settings = state.settings
    for part, _ in state.resend.some(b"", time_part(now_ms + 1), MAX_SDS_TIMERS):
        place = part[8:]
        outgoing = outgoing_of(state.outgoing.take(place))
        if outgoing.sent > settings.resends:
            _remove(state, place, outgoing)
            add_notification(state, Unacknowledged(id_of(place), outgoing.sent, outgoing.is_possibly_acknowledged))
            continue
        due_ms = outgoing.due_ms
        outgoing.sent += 1
        backoff = settings.resend_possibly if outgoing.is_possibly_acknowledged else settings.resend
        outgoing.due_ms = now_ms + backoff.after_ms(outgoing.sent)
        state.outgoing.put(place, outgoing.packed())
        state.set_timer(state.resend, place, due_ms, outgoing.due_ms)
        add_send(state, place, Reason.RESEND, missing.requests_to_send(state, id_of(place), now_ms))
