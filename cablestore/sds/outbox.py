"""Encoding of effects as rows of the outbox. Pure.

The outbox does not copy bytes of the log. It refers to a message of the log by its place, and adds the filter when the
effect is read, so that the filter is current.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from cablestore.errors import CorruptStoreError, SdsError
from cablestore.index.packing import pack, unpack
from cablestore.limits import MAX_SDS_HINT_SIZE_BYTES, MAX_SDS_ID_SIZE_BYTES
from cablestore.sds import effects
from cablestore.sds.codec import encode
from cablestore.sds.effects import Deliver, DeliverEphemeral, Effect, Notification, Reason, Send
from cablestore.sds.message import HistoryEntry, SdsMessage
from cablestore.sds.records import entries_of
from cablestore.sds.state import ChannelState

_MOST_HEADS_SIZE_BYTES: Final = 64
"""Maximum size of the tags, lengths and numbers around a filter's words, or around an entry's two ids and hint."""
_MOST_ENTRY_SIZE_BYTES: Final = 2 * MAX_SDS_ID_SIZE_BYTES + MAX_SDS_HINT_SIZE_BYTES + _MOST_HEADS_SIZE_BYTES

_SEND_LOGGED: Final = 1
_SEND_OTHER: Final = 2
_DELIVER: Final = 3
_DELIVER_EPHEMERAL: Final = 4
_NOTIFICATIONS: Final[dict[int, type[Notification]]] = {
    5: effects.Acknowledged,
    6: effects.PossiblyAcknowledged,
    7: effects.Unacknowledged,
    8: effects.Missing,
    9: effects.Retrieve,
    10: effects.Lost,
    11: effects.RepairRequested,
}
"""Kinds at the beginning of outbox rows. After the kind, such a row contains the attributes of the effect in order."""
_NOTIFICATION_KINDS: Final = {notified: kind for kind, notified in _NOTIFICATIONS.items()}


def add_notification(state: ChannelState, effect: Notification) -> None:
    """Add an effect to the outbox."""
    values = [getattr(effect, name) for name in effect.__slots__]
    state.append_effect(pack([_NOTIFICATION_KINDS[type(effect)], *values]))


def _unpacked(value: Any) -> Any:
    """Return an attribute from its row: a list becomes a HistoryEntry, and a list of lists a tuple of entries."""
    if not isinstance(value, list):
        return value
    return entries_of(value) if isinstance(value[0], list) else HistoryEntry(*value)


def add_delivered(state: ChannelState, place: bytes) -> None:
    """Add the delivery of a message to the outbox. The message is at `place` in the log."""
    state.append_effect(pack([_DELIVER, place]))


def add_ephemeral(state: ChannelState, message: SdsMessage) -> None:
    """Add the delivery of an ephemeral message to the outbox."""
    state.append_effect(pack([_DELIVER_EPHEMERAL, message.sender_id, message.message_id, message.content]))


def check_sendable(state: ChannelState, message: SdsMessage) -> None:
    """Raise SdsError if a message, with its filter and the maximum number of repairs, exceeds a limit."""
    settings = state.settings
    repairs = 0 if settings.repair is None else settings.repairs_per_message
    room_size_bytes = settings.filter.size_bytes + _MOST_HEADS_SIZE_BYTES + repairs * _MOST_ENTRY_SIZE_BYTES
    encode(message, settings.dialect, room_size_bytes=room_size_bytes)


def add_send(state: ChannelState, place: bytes, reason: Reason, requests: tuple[HistoryEntry, ...] = ()) -> None:
    """Add the sending of a message to the outbox. The message is at `place` in the log."""
    state.append_effect(pack([_SEND_LOGGED, reason.value, place, requests]))


def add_send_other(state: ChannelState, message: SdsMessage, reason: Reason) -> None:
    """Add the sending of a message that is not in any log to the outbox."""
    history, requests = message.causal_history, message.repair_request
    parts = [message.message_id, message.lamport_ms, history, requests, message.content]
    state.append_effect(pack([_SEND_OTHER, reason.value, *parts]))


def effect_of(state: ChannelState, row: bytes) -> Effect:
    """Return the effect of a row, with its messages read from the state."""
    kind, *parts = unpack(row)
    if kind == _SEND_LOGGED:
        reason, place, requests = parts
        message = replace(state.kept(place).message, repair_request=entries_of(requests))
        return _send(state, message, Reason(reason))
    if kind == _SEND_OTHER:
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
    if kind == _DELIVER:
        return Deliver(state.kept(parts[0]).message)
    if kind == _DELIVER_EPHEMERAL:
        sender_id, message_id, content = parts
        return DeliverEphemeral(SdsMessage(message_id, state.channel_id, sender_id, content=content))
    if kind in _NOTIFICATIONS:
        return _NOTIFICATIONS[kind](*map(_unpacked, parts))
    raise CorruptStoreError(f"unknown kind of outbox row: {kind}. Use the newer version of cablestore that wrote it")


def _send(state: ChannelState, message: SdsMessage, reason: Reason) -> Send:
    """Return the effect that sends a message. Add the filter to this member's messages, except ephemeral ones.

    The filters of other members are not stored. If this member's filter were added to messages of other members,
    receivers would attribute the filter to those members.
    """
    if message.sender_id == state.sender_id and reason is not Reason.EPHEMERAL:
        message = replace(message, bloom_filter=state.filter.wire())
    return Send(message.message_id, reason, _encoded(state, message))


def _encoded(state: ChannelState, message: SdsMessage) -> bytes:
    """Return the bytes of a message, without optional fields if it or a hint is too long.

    Versions up to 0.12 accepted such messages, and the filter of the channel may have grown since. An error here would
    block all later effects.
    """
    try:
        return encode(message, state.settings.dialect)
    except SdsError:
        history = tuple([entry._replace(retrieval_hint=None) for entry in message.causal_history])
        bare = replace(message, causal_history=history, bloom_filter=None, repair_request=())
        return encode(bare, state.settings.dialect)
