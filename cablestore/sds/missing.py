"""Missing messages: retrieved, requested, declared lost (SDS, "Incoming Buffer Sweep"; SDS-R). Pure.

A repair is requested at T_req. Without an answer, it is requested again after growing pauses. If another member
requests the same message, our request is postponed as if we had sent it. The specification drops the request in both
cases, so that the message is lost if the answer is lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from cablestore.limits import MAX_SDS_CAUSES, MAX_SDS_TIMERS
from cablestore.sds import causes
from cablestore.sds.effects import Missing, RepairRequested, Retrieve
from cablestore.sds.message import HistoryEntry
from cablestore.sds.outbox import add_notification
from cablestore.sds.records import Gap, gap_of
from cablestore.sds.repair import request_delay_ms
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import Table, time_part


def find(state: ChannelState, message_id: str) -> Gap | None:
    """Return the gap with this id, or None if the message is not missing."""
    row = state.missing.get(message_id.encode()) if state.counters.missing else None
    return None if row is None else gap_of(row)


def note(state: ChannelState, entry: HistoryEntry, now_ms: int, *, by: str, is_notice: bool = False) -> None:
    """Record that the sender `by` listed a missing message, and notify the application once.

    A later entry may add the hint or author. With `is_notice`, the listing message does not wait for the missing one.
    """
    gap = find(state, entry.message_id)
    if gap is not None:
        _note_again(state, gap, entry, by, is_awaited=not is_notice)
        return
    settings = state.settings
    gap = Gap(
        entry,
        retrieve_ms=now_ms + settings.retrieve.after_ms(1),
        retrieved=1,
        lost_ms=None if settings.lost_after_ms is None else now_ms + settings.lost_after_ms,
        request_ms=None if settings.repair is None else now_ms + _request_delay_ms(state, entry.message_id),
        requested=0,
        notified_by=by if is_notice else None,
        causes=[by],
    )
    _put(state, gap)
    state.set_timer(state.lost, entry.message_id.encode(), None, gap.lost_ms)
    causes.charge(state, by, gaps=1)
    state.counters.missing += 1
    state.counters.notified += is_notice
    add_notification(state, Missing(entry))


def _note_again(state: ChannelState, gap: Gap, entry: HistoryEntry, by: str, *, is_awaited: bool) -> None:
    known, before = gap.entry, gap.packed()
    gap.entry = HistoryEntry(
        entry.message_id, known.retrieval_hint or entry.retrieval_hint, known.sender_id or entry.sender_id
    )
    if is_awaited and gap.notified_by is not None:
        gap.notified_by = None
        state.counters.notified -= 1
    if gap.packed() != before:
        state.missing.put(entry.message_id.encode(), gap.packed())
    add_cause(state, gap, by)


def add_cause(state: ChannelState, gap: Gap, by: str) -> None:
    """Record the sender `by` as a cause of a gap. Of too many causes, `by` included, remove the one served last."""
    if by in gap.causes:
        return
    removed = causes.dearest(state, [*gap.causes, by][::-1]) if len(gap.causes) >= MAX_SDS_CAUSES else None
    if removed == by:
        return
    _remove(state, gap)
    if removed is not None:
        gap.causes.remove(removed)
        causes.charge(state, removed, gaps=-1, requests=-gap.requested)
    gap.causes.append(by)
    causes.charge(state, by, gaps=1, requests=gap.requested)
    _put(state, gap)


def _put(state: ChannelState, gap: Gap) -> None:
    """Store a gap, and add its times to the timers and to the queues of its causes."""
    part = gap.entry.message_id.encode()
    state.missing.put(part, gap.packed())
    for timers, queues, due_ms in _times(state, gap):
        _schedule(gap, timers, queues, due_ms)
    if gap.request_ms is not None:
        state.support.put(causes.supported(gap), b"")


def _schedule(gap: Gap, timers: Table, queues: Table, due_ms: int) -> None:
    timers.put(time_part(due_ms) + gap.entry.message_id.encode(), b"")
    for cause in gap.causes:
        queues.put(causes.queued(cause, due_ms, gap.entry.message_id), b"")


def _remove(state: ChannelState, gap: Gap) -> None:
    part = gap.entry.message_id.encode()
    state.missing.delete(part)
    for timers, queues, due_ms in _times(state, gap):
        _unschedule(gap, timers, queues, due_ms)
    if gap.request_ms is not None:
        state.support.delete(causes.supported(gap))


def _unschedule(gap: Gap, timers: Table, queues: Table, due_ms: int) -> None:
    timers.delete(time_part(due_ms) + gap.entry.message_id.encode())
    for cause in gap.causes:
        queues.delete(causes.queued(cause, due_ms, gap.entry.message_id))


def _times(state: ChannelState, gap: Gap) -> Iterator[tuple[Table, Table, int]]:
    yield state.retrieve, state.retrievals, gap.retrieve_ms
    if gap.request_ms is not None:
        yield state.request, state.requests, gap.request_ms


def close(state: ChannelState, message_id: str, *, is_here: bool = False) -> Gap | None:
    """Remove a gap. Return it, or None if it did not exist.

    With `is_here`, the message arrived or is treated as met. The requests for it are then subtracted from the accounts
    of the senders that listed it.
    """
    gap = find(state, message_id)
    if gap is not None:
        _remove(state, gap)
        state.set_timer(state.lost, message_id.encode(), gap.lost_ms, None)
        for cause in gap.causes:
            causes.charge(state, cause, gaps=-1, requests=-gap.requested if is_here else 0)
        state.counters.missing -= 1
        state.counters.notified -= gap.notified_by is not None
    return gap


def retrieve_due(state: ChannelState, now_ms: int) -> None:
    """Request the application again to retrieve messages that are still missing."""
    due = [part[8:] for part, _ in state.retrieve.some(b"", time_part(now_ms + 1), MAX_SDS_TIMERS)]
    if len(due) == MAX_SDS_TIMERS:  # perhaps too many for one write
        due = causes.due(state, state.retrievals, now_ms, MAX_SDS_TIMERS)
    for part in due:
        gap = gap_of(state.missing.take(part))
        _unschedule(gap, state.retrieve, state.retrievals, gap.retrieve_ms)
        gap.retrieved += 1
        gap.retrieve_ms = now_ms + state.settings.retrieve.after_ms(gap.retrieved)
        state.missing.put(part, gap.packed())
        _schedule(gap, state.retrieve, state.retrievals, gap.retrieve_ms)
        add_notification(state, Retrieve(gap.entry, gap.retrieved))


def has_requests(state: ChannelState, now_ms: int) -> bool:
    """Return True if a repair must be requested: its T_req has passed."""
    return bool(state.counters.missing and state.request.some(b"", time_part(now_ms + 1), 1))


def requests_to_send(state: ChannelState, message_id: str, now_ms: int) -> tuple[HistoryEntry, ...]:
    """Return the repairs that the message with this id requests, in the order of `causes`, and record the requests."""
    settings = state.settings
    if settings.repair is None or not has_requests(state, now_ms):
        return ()
    entries = []
    for part in causes.requests_due(state, now_ms, settings.repairs_per_message):
        gap = gap_of(state.missing.take(part))
        for cause in gap.causes:
            causes.charge(state, cause, requests=1)
        _move_request(state, gap, now_ms, is_own=True)
        entries.append(gap.entry)
    if entries:
        add_notification(state, RepairRequested(message_id, tuple(entries)))
    return tuple(entries)


def requested_by_another(state: ChannelState, message_id: str, now_ms: int) -> None:
    """Postpone our request after another member's request.

    Only one request of others is considered until our next request. Otherwise, a member could postpone our request
    forever.
    """
    gap = find(state, message_id)
    if gap is not None and gap.request_ms is not None and not gap.is_postponed:
        _move_request(state, gap, now_ms, is_own=False)


def _move_request(state: ChannelState, gap: Gap, now_ms: int, *, is_own: bool) -> None:
    _remove(state, gap)
    gap.requested += is_own
    gap.is_postponed = not is_own
    pause_ms = state.settings.repair_backoff.after_ms(max(1, gap.requested))
    gap.request_ms = now_ms + pause_ms + _request_delay_ms(state, gap.entry.message_id)
    _put(state, gap)


def _request_delay_ms(state: ChannelState, message_id: str) -> int:
    parameters = state.settings.repair
    if parameters is None:
        return 0
    return request_delay_ms(state.sender_id, message_id, parameters, state.settings.dialect)
