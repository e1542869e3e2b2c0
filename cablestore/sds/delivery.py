"""Delivery into the log, when all dependencies are in the log (SDS, "Receive Message", "Deliver Message"). Pure.

A waiting message has a row for each dependency that is not in the log. When a message enters the log, the rows of the
messages that wait for it are removed. Messages without such rows are delivered in the order of the log, after their
dependencies.

The Lamport time of an honest message is later than the times of all messages in its history. A dependency that is not
earlier is ignored, so that messages cannot wait for each other in a cycle.

When the space is full, messages of the largest share are dropped (`shares`). If other messages wait for a dropped
message, it is missing again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from cablestore.limits import (
    MAX_SDS_CAUSES,
    MAX_SDS_HISTORY,
    MAX_SDS_MISSING,
    MAX_SDS_TIMERS,
    MAX_SDS_UNMET,
    MAX_SDS_WAITING,
    MAX_SDS_WAITING_SIZE_BYTES,
)
from cablestore.sds import causes, history, missing, shares
from cablestore.sds.effects import Lost
from cablestore.sds.message import HistoryEntry, SdsMessage
from cablestore.sds.outbox import add_delivered, add_notification
from cablestore.sds.records import KeptMessage, Known, MessageState, gap_of
from cablestore.sds.shares import FREED_PART, Claim
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import id_of, lamport_of, place_of, sized_prefix, time_part

_LAST_MS: Final = 2**64 - 2
"""Time later than all accepted Lamport times."""


class ReceiveResult(Enum):
    """Result of receiving bytes."""

    __hash__ = object.__hash__

    DELIVERED = "delivered"
    WAITING = "waiting"
    """A dependency is missing."""
    DUPLICATE = "duplicate"
    OWN = "own"
    """Sent by this member; ignored."""
    SYNC = "sync"
    EPHEMERAL = "ephemeral"
    REFUSED = "refused"
    """Malformed, of another channel, above a limit, or invalid for `Settings.check`; see the reason."""


class Received(NamedTuple):
    """Result of receiving bytes, with its reason. `message_id` is None if the bytes are not a message."""

    verdict: ReceiveResult
    message_id: str | None
    reason: str | None = None


def accept(state: ChannelState, kept: KeptMessage, lamport_ms: int, now_ms: int) -> Received:
    """Deliver a message with content, let it wait, or reject it. Its id must not be in the log or waiting."""
    message, message_id = kept.message, kept.message.message_id
    unmet = _unmet(state, message, lamport_ms)
    if not unmet:
        enter(state, kept, lamport_ms, is_own=False)
        return Received(ReceiveResult.DELIVERED, message_id)
    if len(unmet) > MAX_SDS_UNMET:
        _note_missing(state, message, now_ms)
        return Received(
            ReceiveResult.REFUSED,
            message_id,
            f"too many missing dependencies: the maximum is {MAX_SDS_UNMET}. Send the message again after they arrived",
        )
    place, row = place_of(lamport_ms, message_id), kept.packed()
    claim = Claim(place, shares.share_of(state, message.sender_id), message.sender_id, len(row))
    gone = _without_room(state, claim, sum(known is None for _, known in unmet))
    for each in sorted(gone - {place}, reverse=True):
        _drop(state, each, now_ms)
    if place in gone:
        return Received(
            ReceiveResult.REFUSED,
            message_id,
            "too many waiting messages, and the sender has the largest share of them. Send the message again later",
        )
    if gone:
        return accept(state, kept, lamport_ms, now_ms)  # the new message may depend on a dropped message
    known = state.known(message_id)
    is_awaited = _note_arrived(state, message_id, known)
    is_named = known is not None and known.is_named
    _wait(state, place, row, unmet, by=message.sender_id, is_named=is_named, now_ms=now_ms)
    if is_awaited:  # a message that is not later does not depend on this message, even if it lists it
        _deliver(state, _released(state, message_id, lamport_ms))
        if state.logged_place(message_id) is not None:  # it was in a cycle and waited only for itself
            return Received(ReceiveResult.DELIVERED, message_id)
    return Received(ReceiveResult.WAITING, message_id)


def enter(state: ChannelState, kept: KeptMessage, lamport_ms: int, *, is_own: bool) -> bytes:
    """Add a new message to the log, then the messages that waited for it. Return the place of the new message.

    With `is_own`, this member sent the new message, so it is not delivered to the application.
    """
    message_id = kept.message.message_id
    known = state.known(message_id)
    is_awaited = _note_arrived(state, message_id, known)
    place = place_of(lamport_ms, message_id)
    _put(state, place, kept, is_named=known is not None and known.is_named)
    if not is_own:
        add_delivered(state, place)
    if is_awaited:
        _deliver(state, _released(state, message_id))
    return place


def _note_arrived(state: ChannelState, message_id: str, known: Known | None) -> bool:
    """Record that a message is no longer missing or lost. Return True if it was missing."""
    state.counters.lost -= known is not None and known.is_lost
    return missing.close(state, message_id, is_here=True) is not None


def note_sync(state: ChannelState, message: SdsMessage, now_ms: int) -> None:
    """Record the missing messages that a sync message lists, and deliver messages that waited for the sync message."""
    _note_missing(state, message, now_ms)
    if state.settings.dialect.logs_sync and not state.is_here(message.message_id):
        _note_arrived(state, message.message_id, state.known(message.message_id))
        history.remember_sync(state, message)
        _deliver(state, _released(state, message.message_id))


def _note_missing(state: ChannelState, message: SdsMessage, now_ms: int) -> None:
    """Record the missing messages that a message lists, although it does not wait for them.

    At most half of the missing messages may be recorded in this way.
    """
    new: list[HistoryEntry] = []
    waiting: list[bytes] = []
    for entry in {entry.message_id: entry for entry in message.causal_history}.values():
        known = state.known(entry.message_id)
        if known is not None:
            if known.state is MessageState.WAITING:
                waiting.append(place_of(known.lamport_ms, entry.message_id))
        elif (gap := missing.find(state, entry.message_id)) is not None:
            missing.add_cause(state, gap, message.sender_id)
        elif len(new) < MAX_SDS_UNMET:
            new.append(entry)
    _vouch(state, message.sender_id, waiting)
    surplus = state.counters.notified + len(new) - MAX_SDS_MISSING // 2
    if surplus > 0:
        share = shares.share_of(state, message.sender_id)
        claims = [Claim(entry.message_id.encode(), share, message.sender_id, 1) for entry in new]
        gone = shares.losers([*_claims_of_gaps(state), *claims], surplus + MAX_SDS_MISSING // 2 // FREED_PART)
        new = [entry for entry in new if entry.message_id.encode() not in gone]
        for part in gone:
            missing.close(state, part.decode())
    for entry in new:
        missing.note(state, entry, now_ms, by=message.sender_id, is_notice=True)


def lost_due(state: ChannelState, now_ms: int) -> None:
    """Declare messages lost that were missing for `lost_after_ms`, and deliver the messages that wait for them."""
    for part, _ in state.lost.some(b"", time_part(now_ms + 1), MAX_SDS_TIMERS):
        gap = give_up(state, part[8:].decode(), is_lost=True)
        if gap is not None:
            add_notification(state, Lost(gap))


def give_up(state: ChannelState, message_id: str, *, is_lost: bool = False) -> HistoryEntry | None:
    """Treat dependencies on `message_id` as met, also later ones. Return its entry, or None if it was not missing.

    Messages that waited only for it are delivered. Has no effect if the id already has a state.
    """
    known = state.known(message_id)
    if known is not None:
        return None
    gap = missing.close(state, message_id, is_here=not is_lost)
    state.put_known(message_id, Known(MessageState.GIVEN_UP, is_lost=is_lost))
    state.counters.lost += is_lost
    if gap is None:
        return None
    _deliver(state, _released(state, message_id))
    return gap.entry


def _unmet(state: ChannelState, message: SdsMessage, lamport_ms: int) -> list[tuple[HistoryEntry, Known | None]]:
    """Return the dependencies for which a message at `lamport_ms` must wait: missing messages, and earlier waiting ones.

    Each is paired with its state, or None if it is missing.
    """
    unmet: dict[str, tuple[HistoryEntry, Known | None]] = {}
    for entry in message.causal_history:
        known = state.known(entry.message_id)
        if known is None:
            if entry.message_id != message.message_id:
                unmet[entry.message_id] = (entry, None)
        elif known.state is MessageState.WAITING and known.lamport_ms < lamport_ms:
            unmet[entry.message_id] = (entry, known)
    return list(unmet.values())


def _put(state: ChannelState, place: bytes, kept: KeptMessage, *, is_named: bool) -> None:
    """Add a message to the log at its place."""
    message_id, lamport_ms = kept.message.message_id, lamport_of(place)
    state.put_logged(place, kept.packed())
    state.put_known(message_id, Known(MessageState.LOGGED, lamport_ms))
    state.counters.lamport_ms = max(state.counters.lamport_ms, lamport_ms)
    history.logged(state, place, kept.message, is_named=is_named)
    causes.entered(state, kept.message.sender_id)


def _wait(
    state: ChannelState,
    place: bytes,
    row: bytes,
    unmet: list[tuple[HistoryEntry, Known | None]],
    *,
    by: str,
    is_named: bool,
    now_ms: int,
) -> None:
    state.waiting.put(place, row)
    state.counters.waiting += 1
    state.counters.waiting_size_bytes += len(row)
    state.put_known(id_of(place), Known(MessageState.WAITING, lamport_of(place), len(unmet), is_named))
    for entry, known in unmet:
        state.needs.put(sized_prefix(entry.message_id) + place, b"")
        if known is None:
            missing.note(state, entry, now_ms, by=by)
    _vouch(state, by, [place_of(known.lamport_ms, entry.message_id) for entry, known in unmet if known is not None])


def _vouch(state: ChannelState, by: str, pending: list[bytes]) -> None:
    """Make the sender `by` a cause of the gaps on which the waiting messages at `pending`, which it lists, depend.

    An honest sender has all messages that it lists, and their dependencies. Only waiting messages of strangers, or of
    senders that are served much later, need this.
    """
    looked_up = vouched = 0
    while pending and looked_up < MAX_SDS_HISTORY and vouched < MAX_SDS_CAUSES:
        message = state.kept_waiting(pending.pop()).message
        if not (causes.is_stranger(state, message.sender_id) or causes.is_much_cheaper(state, by, message.sender_id)):
            continue
        for entry in message.causal_history:
            looked_up += 1
            known = state.known(entry.message_id)
            if known is not None and known.state is MessageState.WAITING:
                pending.append(place_of(known.lamport_ms, entry.message_id))
            elif known is None and (gap := missing.find(state, entry.message_id)) is not None:
                missing.add_cause(state, gap, by)
                vouched += 1


def _needs_of(state: ChannelState, message_id: str, last_ms: int = _LAST_MS) -> Iterator[bytes]:
    """Yield the places, up to Lamport time `last_ms`, of the messages that wait for `message_id`."""
    prefix = sized_prefix(message_id)
    for part, _ in state.needs.rows(prefix, prefix + place_of(last_ms + 1, "")):
        yield part[len(prefix) :]


def senders_that_need(state: ChannelState, message_id: str) -> list[str]:
    """Return the senders of up to MAX_SDS_CAUSES messages that wait for `message_id`, possibly repeated."""
    places = islice(_needs_of(state, message_id), MAX_SDS_CAUSES)
    return [state.kept_waiting(place).message.sender_id for place in places]


def is_named_by_another(state: ChannelState, message_id: str) -> bool:
    """Return True if a message of another member lists this missing message."""
    gap = missing.find(state, message_id)
    return gap is not None and any(cause != state.sender_id for cause in gap.causes)


def _released(state: ChannelState, message_id: str, last_ms: int = _LAST_MS) -> list[bytes]:
    """Record for the messages that wait for `message_id`, up to Lamport time `last_ms`, that it is met.

    Return the places of those that do not wait for other messages.
    """
    free = []
    for place in list(_needs_of(state, message_id, last_ms)):
        state.needs.delete(sized_prefix(message_id) + place)
        waiter = state.known(id_of(place))
        if waiter is None or waiter.state is not MessageState.WAITING:
            continue
        state.put_known(id_of(place), waiter._replace(unmet=waiter.unmet - 1))
        if waiter.unmet == 1:
            free.append(place)
    return free


def _deliver(state: ChannelState, free: list[bytes]) -> None:
    """Deliver the waiting messages at the places `free`, whose dependencies are met, then those that waited for them."""
    heapify(free)
    while free:
        place = heappop(free)
        message_id = id_of(place)
        kept = state.kept_waiting(place)
        known = state.known(message_id)
        _stop_waiting(state, place)
        _put(state, place, kept, is_named=known is not None and known.is_named)
        add_delivered(state, place)
        for released in _released(state, message_id):
            heappush(free, released)


def _stop_waiting(state: ChannelState, place: bytes) -> None:
    state.counters.waiting -= 1
    state.counters.waiting_size_bytes -= len(state.waiting.take(place))
    state.waiting.delete(place)


def _without_room(state: ChannelState, new: Claim, new_gaps: int) -> set[bytes]:
    """Return the places of the messages to drop so that a new message with `new_gaps` new gaps fits.

    The place of the new message may be among them. The result is empty if there is room.
    """
    counters = state.counters
    gone: set[bytes] = set()
    for used, most, size, claims in (
        (counters.waiting, MAX_SDS_WAITING, 1, _claims_of_waiting),
        (counters.waiting_size_bytes, MAX_SDS_WAITING_SIZE_BYTES, new.size, _claims_of_bytes),
        (counters.missing, MAX_SDS_MISSING, new_gaps, _claims_of_missing),
    ):
        if used + size > most:
            surplus = used + size - most + most // FREED_PART
            gone |= shares.losers([*claims(state), new._replace(size=size)], surplus)
    return gone


def _claims_of_waiting(state: ChannelState) -> Iterator[Claim]:
    return (claim._replace(size=1) for claim in _claims_of_bytes(state))


def _claims_of_bytes(state: ChannelState) -> Iterator[Claim]:
    for place, row in state.waiting.rows():
        sender_id = state.read(place, row).message.sender_id
        yield Claim(place, shares.share_of(state, sender_id), sender_id, len(row))


def _claims_of_missing(state: ChannelState) -> Iterator[Claim]:
    """Yield a claim for each waiting message: its `size` is the number of gaps for which it is the first to wait."""
    held: Counter[bytes] = Counter()
    for part, _ in state.missing.rows():
        first = next(_needs_of(state, part.decode()), None)
        if first is not None:
            held[first] += 1
    return (claim._replace(size=held[claim.key]) for claim in _claims_of_bytes(state))


def _claims_of_gaps(state: ChannelState) -> Iterator[Claim]:
    """Yield a claim for each gap that no message waits for. Its sender is the cause of the gap that is served first."""
    for part, row in state.missing.rows():
        gap = gap_of(row)
        if gap.notified_by is not None:
            sender_id = causes.cheapest(state, gap.causes)
            yield Claim(part, shares.share_of(state, sender_id), sender_id, 1)


def _drop(state: ChannelState, place: bytes, now_ms: int) -> None:
    """Drop a waiting message, and the gaps for which only this message waited.

    If other messages wait for it, it is missing again. If it was given up before it arrived, they no longer wait.
    """
    message_id, kept = id_of(place), state.kept_waiting(place)
    known = state.known(message_id)
    is_named = known is not None and known.is_named
    _stop_waiting(state, place)
    for dependency in {entry.message_id for entry in kept.message.causal_history}:
        need = sized_prefix(dependency) + place
        if state.needs.get(need) is not None:
            state.needs.delete(need)
            if next(_needs_of(state, dependency), None) is None:
                missing.close(state, dependency)
    if is_named:  # it was declared lost before it arrived, so messages need not wait for it
        state.put_known(message_id, Known(MessageState.GIVEN_UP, is_named=True))
        _deliver(state, _released(state, message_id))
        return
    state.ids.delete(message_id.encode())
    for sender_id in senders_that_need(state, message_id):
        missing.note(state, kept.entry, now_ms, by=sender_id)
