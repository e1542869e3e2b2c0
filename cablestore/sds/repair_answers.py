"""Repairs requested by others: sent from the log at T_resp, unless another member was faster (SDS-R). Pure."""

from __future__ import annotations

from cablestore.limits import MAX_SDS_ANSWERS, MAX_SDS_TIMERS
from cablestore.sds import missing, shares
from cablestore.sds.effects import Reason
from cablestore.sds.message import SdsMessage
from cablestore.sds.outbox import add_send
from cablestore.sds.repair import is_in_response_group, response_delay_ms
from cablestore.sds.shares import Claim
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import TIME_SIZE_BYTES, id_of, place_of, time_part


def note_requests(state: ChannelState, message: SdsMessage, now_ms: int) -> None:
    """Record requests of a received message that we must answer from the log, and postpone our requests for the same.

    The author of a requested message is read from the log, not from the request.
    """
    if state.settings.repair is None:
        return
    for entry in message.repair_request:
        missing.requested_by_another(state, entry.message_id, now_ms)
        place = state.logged_place(entry.message_id)
        if place is not None:
            _note(state, place, message.sender_id, now_ms)


def _note(state: ChannelState, place: bytes, by: str, now_ms: int) -> None:
    part, counters, parameters = place[8:], state.counters, state.settings.repair
    if parameters is None or state.answers.get(part) is not None:
        return
    message = state.kept(place).message
    who = (state.sender_id, message.sender_id, message.message_id, parameters, state.settings.dialect)
    if not is_in_response_group(*who):
        return
    if counters.answers >= MAX_SDS_ANSWERS and not _made_room(state, by):
        return
    due_ms = now_ms + response_delay_ms(*who)
    state.answers.put(part, time_part(due_ms) + by.encode())
    state.set_timer(state.answer, part, None, due_ms)
    counters.answers += 1


def _made_room(state: ChannelState, by: str) -> bool:
    """Remove requests of the fullest shares for a new request by `by`. Return False if that must not be added."""
    new = _claim(state, b"", by)
    claims = [_claim(state, part, row[TIME_SIZE_BYTES:].decode()) for part, row in state.answers.rows()]
    gone = shares.losers([*claims, new], 1 + MAX_SDS_ANSWERS // shares.FREED_PART)
    for part in gone - {new.key}:
        _forget(state, part)
    return new.key not in gone


def _claim(state: ChannelState, part: bytes, by: str) -> Claim:
    return Claim(part, shares.share_of(state, by), by, 1)


def answered(state: ChannelState, message: SdsMessage) -> None:
    """Remove the request for `message`, which another member sent. A different message with the same id is ignored."""
    if not state.counters.answers or state.answers.get(message.message_id.encode()) is None:
        return
    place = place_of(message.lamport_ms or 0, message.message_id)
    if place != state.logged_place(message.message_id):
        return
    known = state.kept(place).message
    if (known.sender_id, known.content) == (message.sender_id, message.content):
        _forget(state, place[TIME_SIZE_BYTES:])


def _forget(state: ChannelState, part: bytes) -> None:
    state.answer.delete(state.answers.take(part)[:TIME_SIZE_BYTES] + part)
    state.answers.delete(part)
    state.counters.answers -= 1


def answer_due(state: ChannelState, now_ms: int) -> None:
    """Send the repairs that are due."""
    for part, _ in state.answer.some(b"", time_part(now_ms + 1), MAX_SDS_TIMERS):
        _forget(state, part[TIME_SIZE_BYTES:])
        place = state.logged_place(id_of(part))
        if place is not None:
            add_send(state, place, Reason.REPAIR)
