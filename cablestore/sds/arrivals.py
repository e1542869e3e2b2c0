"""Messages into the log: at once, or when all that they depend on is there (SDS, "Receive Message", "Deliver Message"). Pure.

A message waits with a row for each dependency that is not in the log. An arrival unlocks whoever waits for it; of those
that can be delivered the first in the log's order goes first, so nothing comes before what it depends on.

An honest message is later than all that it names: its sender's clock is. A dependency that turns out not to be earlier is
none, and so no circle of messages waits for itself.

When too many wait, the last in the log goes: what is needed first stays, and whoever named the other one names it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final

from cablestore.limits import MAX_SDS_MISSING, MAX_SDS_TIMERS, MAX_SDS_WAITING, MAX_SDS_WAITING_SIZE_BYTES
from cablestore.sds import gaps, naming
from cablestore.sds.effects import Lost
from cablestore.sds.message import HistoryEntry, Message
from cablestore.sds.outbox import tell, tell_delivered
from cablestore.sds.records import Held, Known, Place
from cablestore.sds.state import State
from cablestore.sds.tables import id_of, lamport_of, need_prefix, place_of, time_part

_LAST_MS: Final = 2**64 - 2
"""Behind all Lamport times that are taken."""


class Arrival(Enum):
    """What became of a message that was not here."""

    __hash__ = object.__hash__

    DELIVERED = "delivered"
    WAITING = "waiting"
    NO_ROOM = "no room"


def take(state: State, held: Held, lamport_ms: int, now_ms: int) -> Arrival:
    """Deliver a message with content, or have it wait. Its id is not in the log and not waiting."""
    message = held.message
    known = state.known(message.message_id)
    is_named = known is not None and known.is_named
    place = place_of(lamport_ms, message.message_id)
    unmet = _unmet(state, message, lamport_ms)
    if not unmet:
        is_awaited = _has_come(state, message.message_id, known)
        _enter(state, place, held, is_named=is_named)
        tell_delivered(state, place)
        if is_awaited:
            _deliver(state, _released(state, message.message_id))
        return Arrival.DELIVERED
    row = held.packed()
    if not _make_room(state, place, len(row), sum(known is None for _, known in unmet)):
        return Arrival.NO_ROOM
    is_awaited = _has_come(state, message.message_id, known)
    _wait(state, place, row, unmet, is_named=is_named, now_ms=now_ms)
    if is_awaited:  # those that are not later than it do not depend on it, whatever they say
        _deliver(state, _released(state, message.message_id, until_lamport_ms=lamport_ms))
    return Arrival.WAITING


def log_own(state: State, held: Held, lamport_ms: int) -> bytes:
    """Put an own new message into the log, and return its place."""
    message_id = held.message.message_id
    known = state.known(message_id)
    is_awaited = _has_come(state, message_id, known)
    place = place_of(lamport_ms, message_id)
    _enter(state, place, held, is_named=known is not None and known.is_named)
    if is_awaited:
        _deliver(state, _released(state, message_id))
    return place


def _has_come(state: State, message_id: str, known: Known | None) -> bool:
    """Note that a message is missed or lost no more. Tells whether it was missed."""
    state.counters.lost -= known is not None and known.is_lost
    return gaps.close(state, message_id) is not None


def missing_of_sync(state: State, message: Message, now_ms: int) -> None:
    """Note what a sync message names and is not here. Nothing waits for it, so it takes half of the room at most."""
    for entry in message.causal_history:
        if state.counters.missing < MAX_SDS_MISSING // 2 and state.known(entry.message_id) is None:
            gaps.note(state, entry, now_ms)


def lost_due(state: State, now_ms: int) -> None:
    """Give up what has been missing for too long, and deliver what waits for it."""
    for part, _ in state.lost.some(b"", time_part(now_ms + 1), MAX_SDS_TIMERS):
        gap = give_up(state, part[8:].decode(), is_lost=True)
        if gap is not None:
            tell(state, Lost(gap))


def give_up(state: State, message_id: str, *, is_lost: bool = False) -> HistoryEntry | None:
    """Take a dependency that is not here as met. Returns what was known of it if somebody missed it."""
    known = state.known(message_id)
    if known is not None:
        return None
    gap = gaps.close(state, message_id)
    state.put_known(message_id, Known(Place.GIVEN_UP, is_lost=is_lost))
    state.counters.lost += is_lost
    if gap is None:
        return None
    _deliver(state, _released(state, message_id))
    return gap.entry


def _unmet(state: State, message: Message, lamport_ms: int) -> list[tuple[HistoryEntry, Known | None]]:
    """Return the dependencies that are not in the log, with what is known of them."""
    unmet: dict[str, tuple[HistoryEntry, Known | None]] = {}
    for entry in message.causal_history:
        known = state.known(entry.message_id)
        if known is None:
            if entry.message_id != message.message_id:
                unmet[entry.message_id] = (entry, None)
        elif known.place is Place.WAITING and known.lamport_ms < lamport_ms:
            unmet[entry.message_id] = (entry, known)
    return list(unmet.values())


def _enter(state: State, place: bytes, held: Held, *, is_named: bool) -> None:
    """Put a message into the log, by its place."""
    message_id, lamport_ms = held.message.message_id, lamport_of(place)
    state.put_logged(place, held.packed())
    state.put_known(message_id, Known(Place.LOGGED, lamport_ms))
    state.counters.lamport_ms = max(state.counters.lamport_ms, lamport_ms)
    naming.logged(state, place, held.message, is_named=is_named)


def _wait(
    state: State,
    place: bytes,
    row: bytes,
    unmet: list[tuple[HistoryEntry, Known | None]],
    *,
    is_named: bool,
    now_ms: int,
) -> None:
    state.waiting.put(place, row)
    state.counters.waiting += 1
    state.counters.waiting_size_bytes += len(row)
    state.put_known(id_of(place), Known(Place.WAITING, lamport_of(place), len(unmet), is_named))
    for entry, known in unmet:
        state.needs.put(need_prefix(entry.message_id) + place, b"")
        if known is None:
            gaps.note(state, entry, now_ms)


def _needs_of(state: State, message_id: str, last_ms: int = _LAST_MS) -> Iterator[bytes]:
    """Yield the place of each message up to a Lamport time that waits for this one."""
    prefix = need_prefix(message_id)
    for part, _ in state.needs.rows(prefix, prefix + place_of(last_ms + 1, "")):
        yield part[len(prefix) :]


def _released(state: State, message_id: str, *, until_lamport_ms: int | None = None) -> list[bytes]:
    """Take the needs of a message away; return the places of those that now wait for nothing."""
    free = []
    last_ms = _LAST_MS if until_lamport_ms is None else until_lamport_ms
    for place in list(_needs_of(state, message_id, last_ms)):
        state.needs.delete(need_prefix(message_id) + place)
        waiter = state.known(id_of(place))
        if waiter is None or waiter.place is not Place.WAITING:
            continue
        state.put_known(id_of(place), waiter._replace(unmet=waiter.unmet - 1))
        if waiter.unmet == 1:
            free.append(place)
    return free


def _deliver(state: State, free: list[bytes]) -> None:
    """Deliver waiting messages that wait for nothing, and those that wait for them."""
    heapify(free)
    while free:
        place = heappop(free)
        message_id = id_of(place)
        held = state.held_waiting(place)
        known = state.known(message_id)
        _stop_waiting(state, place)
        _enter(state, place, held, is_named=known is not None and known.is_named)
        tell_delivered(state, place)
        for released in _released(state, message_id):
            heappush(free, released)


def _stop_waiting(state: State, place: bytes) -> None:
    state.counters.waiting -= 1
    state.counters.waiting_size_bytes -= len(state.waiting.take(place))
    state.waiting.delete(place)


def _make_room(state: State, place: bytes, size_bytes: int, new_gaps: int) -> bool:
    """Drop waiting messages behind this place until one more fits. False where that does not help."""
    counters = state.counters
    while (
        counters.waiting >= MAX_SDS_WAITING
        or counters.waiting_size_bytes + size_bytes > MAX_SDS_WAITING_SIZE_BYTES
        or counters.missing + new_gaps > MAX_SDS_MISSING
    ):
        last = state.waiting.first(reverse=True)
        if last is None or last[0] <= place:
            return False
        _drop(state, last[0])
    return True


def _drop(state: State, place: bytes) -> None:
    """Forget the last waiting message, and what only it waited for. None waits for it: that would be behind it."""
    message_id, held = id_of(place), state.held_waiting(place)
    known = state.known(message_id)
    _stop_waiting(state, place)
    if known is not None and known.is_named:
        state.put_known(message_id, Known(Place.GIVEN_UP, is_named=True))
    else:
        state.ids.delete(message_id.encode())
    for dependency in {entry.message_id for entry in held.message.causal_history}:
        need = need_prefix(dependency) + place
        if state.needs.get(need) is not None:
            state.needs.delete(need)
            if next(_needs_of(state, dependency), None) is None:
                gaps.close(state, dependency)
