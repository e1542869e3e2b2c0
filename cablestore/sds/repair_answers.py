"""Repairs that others request: answered from the log at T_resp, unless another member was faster (SDS-R). Pure."""

from __future__ import annotations

from cablestore.limits import MAX_SDS_ANSWERS, MAX_SDS_TIMERS
from cablestore.sds import missing
from cablestore.sds.effects import Reason
from cablestore.sds.message import SdsMessage
from cablestore.sds.outbox import tell_send
from cablestore.sds.repair import is_in_response_group, response_delay_ms
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import time_part


def note_requests(state: ChannelState, message: SdsMessage, now_ms: int) -> None:
    """Note the requests of a received message for messages that are in the log and that we must answer.

    The author of a requested message is taken from the log, not from the request.
    """
    if state.settings.repair is None:
        return
    for entry in message.repair_request:
        missing.requested_by_another(state, entry.message_id, now_ms)
        place = state.logged_place(entry.message_id)
        if place is not None:
            _note(state, place, now_ms)


def _note(state: ChannelState, place: bytes, now_ms: int) -> None:
    part, counters, parameters = place[8:], state.counters, state.settings.repair
    if parameters is None or counters.answers >= MAX_SDS_ANSWERS or state.answers.get(part) is not None:
        return
    message = state.kept(place).message
    who = (state.sender_id, message.sender_id, message.message_id, parameters, state.settings.dialect)
    if not is_in_response_group(*who):
        return
    due_ms = now_ms + response_delay_ms(*who)
    state.answers.put(part, time_part(due_ms))
    state.set_timer(state.answer, part, None, due_ms)
    counters.answers += 1


def answered(state: ChannelState, message_id: str) -> None:
    """Remove a request: another member sent the message."""
    part = message_id.encode()
    row = state.answers.get(part) if state.counters.answers else None
    if row is not None:
        _forget(state, part, row)


def _forget(state: ChannelState, part: bytes, due: bytes) -> None:
    state.answers.delete(part)
    state.answer.delete(due + part)
    state.counters.answers -= 1


def answer_due(state: ChannelState, now_ms: int) -> None:
    """Send the repairs that are due."""
    for part, _ in state.answer.some(b"", time_part(now_ms + 1), MAX_SDS_TIMERS):
        due, message_part = part[:8], part[8:]
        _forget(state, message_part, due)
        place = state.logged_place(message_part.decode())
        if place is not None:
            tell_send(state, place, Reason.REPAIR)
