"""Missing messages, which others named: retrieved, requested, given up (SDS, "Incoming Buffer Sweep"; SDS-R). Pure.

A repair is requested at T_req. If nobody answers, it is requested again after growing pauses. If another member
requests the same, our request waits as if we had made it. The specification drops the request in both cases, so that
the message is lost if the answer is lost.
"""

from __future__ import annotations

from cablestore.limits import MAX_SDS_TIMERS
from cablestore.sds.effects import Missing, RepairRequested, Retrieve
from cablestore.sds.message import HistoryEntry
from cablestore.sds.outbox import tell
from cablestore.sds.records import Gap, gap_of
from cablestore.sds.repair import request_delay_ms
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import time_part


def find(state: ChannelState, message_id: str) -> Gap | None:
    """Return the gap with this id, None if the message is not missing."""
    row = state.missing.get(message_id.encode()) if state.counters.missing else None
    return None if row is None else gap_of(row)


def note(state: ChannelState, entry: HistoryEntry, now_ms: int, *, told_by: str | None = None) -> None:
    """Note that a message is missing, and tell the application once. A later entry may add its hint or sender.

    `told_by` is the sender of a sync message that names it; None if a message waits for it.
    """
    gap = find(state, entry.message_id)
    if gap is not None:
        _note_again(state, gap, entry, is_awaited=told_by is None)
        return
    settings, part = state.settings, entry.message_id.encode()
    gap = Gap(
        entry,
        retrieve_ms=now_ms + settings.retrieve.after_ms(1),
        retrieved=1,
        lost_ms=None if settings.lost_after_ms is None else now_ms + settings.lost_after_ms,
        request_ms=None if settings.repair is None else now_ms + _request_delay_ms(state, entry.message_id),
        requested=0,
        told_by=told_by,
    )
    state.missing.put(part, gap.packed())
    state.set_timer(state.retrieve, part, None, gap.retrieve_ms)
    state.set_timer(state.lost, part, None, gap.lost_ms)
    state.set_timer(state.request, part, None, gap.request_ms)
    state.counters.missing += 1
    state.counters.told += told_by is not None
    tell(state, Missing(entry))


def _note_again(state: ChannelState, gap: Gap, entry: HistoryEntry, *, is_awaited: bool) -> None:
    known, before = gap.entry, gap.packed()
    gap.entry = HistoryEntry(
        entry.message_id, known.retrieval_hint or entry.retrieval_hint, known.sender_id or entry.sender_id
    )
    if is_awaited and gap.told_by is not None:
        gap.told_by = None
        state.counters.told -= 1
    if gap.packed() != before:
        state.missing.put(entry.message_id.encode(), gap.packed())


def close(state: ChannelState, message_id: str) -> Gap | None:
    """Remove a gap, because the message came or nothing waits for it. Return it, None if there was none."""
    gap = find(state, message_id)
    if gap is not None:
        part = message_id.encode()
        state.missing.delete(part)
        state.set_timer(state.retrieve, part, gap.retrieve_ms, None)
        state.set_timer(state.lost, part, gap.lost_ms, None)
        state.set_timer(state.request, part, gap.request_ms, None)
        state.counters.missing -= 1
        state.counters.told -= gap.told_by is not None
    return gap


def retrieve_due(state: ChannelState, now_ms: int) -> None:
    """Ask the application again to retrieve what is still missing."""
    for part, _ in state.retrieve.some(b"", time_part(now_ms + 1), MAX_SDS_TIMERS):
        gap = gap_of(state.missing.take(part[8:]))
        before_ms = gap.retrieve_ms
        gap.retrieved += 1
        gap.retrieve_ms = now_ms + state.settings.retrieve.after_ms(gap.retrieved)
        state.missing.put(part[8:], gap.packed())
        state.set_timer(state.retrieve, part[8:], before_ms, gap.retrieve_ms)
        tell(state, Retrieve(gap.entry, gap.retrieved))


def has_requests(state: ChannelState, now_ms: int) -> bool:
    """Tell whether a T_req has passed."""
    return bool(state.counters.missing and state.request.some(b"", time_part(now_ms + 1), 1))


def take_requests(state: ChannelState, message_id: str, now_ms: int) -> tuple[HistoryEntry, ...]:
    """Return the repairs that the message with this id requests, the most overdue first, and note the requests."""
    settings = state.settings
    if settings.repair is None or not state.counters.missing:
        return ()
    entries = []
    for part, _ in state.request.some(b"", time_part(now_ms + 1), settings.repairs_per_message):
        gap = gap_of(state.missing.take(part[8:]))
        gap.requested += 1
        _move_request(state, gap, now_ms + settings.repair_backoff.after_ms(gap.requested))
        entries.append(gap.entry)
    if entries:
        tell(state, RepairRequested(message_id, tuple(entries)))
    return tuple(entries)


def requested_by_another(state: ChannelState, message_id: str, now_ms: int) -> None:
    """Postpone our request: another member has made it."""
    gap = find(state, message_id)
    if gap is not None and gap.request_ms is not None:
        _move_request(state, gap, now_ms + state.settings.repair_backoff.after_ms(max(1, gap.requested)))


def _move_request(state: ChannelState, gap: Gap, from_ms: int) -> None:
    part, before_ms = gap.entry.message_id.encode(), gap.request_ms
    gap.request_ms = from_ms + _request_delay_ms(state, gap.entry.message_id)
    state.missing.put(part, gap.packed())
    state.set_timer(state.request, part, before_ms, gap.request_ms)


def _request_delay_ms(state: ChannelState, message_id: str) -> int:
    parameters = state.settings.repair
    if parameters is None:
        return 0
    return request_delay_ms(state.sender_id, message_id, parameters, state.settings.dialect)
