"""Encoding and decoding of messages in both dialects (SDS, "Wire protocol"; protobuf without groups). Pure.

Decoding is linear and total: any bytes produce an SdsMessage or an SdsError, and numbers in them do not determine how
much memory is allocated. Unknown fields are skipped. If a field is repeated, its last value is used. A message with a
malformed filter is still valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

from cablestore.errors import DecodeError, SdsError
from cablestore.limits import (
    MAX_SDS_FIELDS,
    MAX_SDS_HINT_SIZE_BYTES,
    MAX_SDS_HISTORY,
    MAX_SDS_ID_SIZE_BYTES,
    MAX_SDS_MESSAGE_SIZE_BYTES,
    MAX_SDS_REPAIR_REQUESTS,
)
from cablestore.protocol.protobuf import all_fields, number_field, sized_field
from cablestore.protocol.varint import MAX_VARINT
from cablestore.sds.dialects import SdsDialect
from cablestore.sds.message import HistoryEntry, SdsMessage

T = TypeVar("T", bytes, str)

_ENTRY_ID: Final = 1
_ENTRY_HINT: Final = 2
_ENTRY_SENDER: Final = 3


def encode(message: SdsMessage, dialect: SdsDialect, *, room_size_bytes: int = 0) -> bytes:
    """Return a message's bytes, with its fields in the order of their numbers.

    `room_size_bytes` is reserved for the filter and the repairs that are added on sending. Raises SdsError for a
    message that exceeds a limit or lacks a required field of the dialect. `nim` does not have ephemeral messages.
    """
    _check(message, dialect)
    numbers = dialect.fields
    filter_ = _said(message.bloom_filter, dialect)
    has_content = message.content is not None or dialect.empty_is_unset
    values = {
        numbers.message_id: [_text(message.message_id, "message")],
        numbers.channel_id: [_text(message.channel_id, "channel")],
        numbers.sender_id: [_text(message.sender_id, "sender")] if message.sender_id else [],
        numbers.causal_history: [_entry(entry, dialect) for entry in message.causal_history],
        numbers.repair_request: [_entry(entry, dialect) for entry in message.repair_request],
        numbers.bloom_filter: [] if filter_ is None else [filter_],
        numbers.content: [message.content or b""] if has_content else [],
    }
    fields = {number: b"".join([sized_field(number, each) for each in found]) for number, found in values.items()}
    if message.lamport_ms is not None:
        fields[numbers.lamport_ms] = number_field(numbers.lamport_ms, message.lamport_ms)
    data = b"".join([fields[number] for number in sorted(fields)])
    most = MAX_SDS_MESSAGE_SIZE_BYTES - room_size_bytes
    if len(data) > most:
        why = " before its filter and repairs are added" if room_size_bytes else ""
        raise SdsError(f"message too large: {len(data)} bytes, the maximum is {most}{why}. Send less content")
    return data


def decode(data: bytes, dialect: SdsDialect) -> SdsMessage:
    """Decode a message. Raises SdsError, with a reason, if it is malformed or exceeds a limit."""
    if len(data) > MAX_SDS_MESSAGE_SIZE_BYTES:
        raise SdsError(
            f"message too large: {len(data)} bytes, the maximum is {MAX_SDS_MESSAGE_SIZE_BYTES}. Ask the sender to "
            "send less content"
        )
    try:
        message = _MessageReader(dialect).message(data)
        _check(message, dialect)
    except DecodeError as error:
        raise SdsError(f"{error}, in dialect {dialect.name}. Check that the sender uses the same dialect") from None
    return message


def _check(message: SdsMessage, dialect: SdsDialect) -> None:
    """Raise SdsError if a message lacks a required field or exceeds a limit."""
    if not message.message_id or not message.channel_id:
        raise SdsError(
            f"invalid message: expected an id and a channel, got {message.message_id!r} and {message.channel_id!r}"
        )
    if dialect.needs_sender and not message.sender_id:
        raise SdsError(f"message {message.message_id!r} has no sender, which {dialect.name} requires")
    if message.lamport_ms is None:
        if dialect.needs_lamport:
            raise SdsError(f"message {message.message_id!r} has no Lamport time, which {dialect.name} requires")
        if not message.content:
            raise SdsError(
                f"message {message.message_id!r} has neither content nor a Lamport time. One of them is required"
            )
    elif not 0 <= message.lamport_ms <= MAX_VARINT:
        raise SdsError(f"invalid Lamport time {message.lamport_ms}: expected 0 to {MAX_VARINT}")
    for entries, most, what in (
        (message.causal_history, MAX_SDS_HISTORY, "a causal history"),
        (message.repair_request, MAX_SDS_REPAIR_REQUESTS, "a repair request"),
    ):
        if len(entries) > most:
            raise SdsError(f"{what} has {len(entries)} entries, the maximum is {most}")
        if not all(entry.message_id for entry in entries):
            raise SdsError(f"{what} contains an entry without an id")


def _said(value: T | None, dialect: SdsDialect) -> T | None:
    """Return the value of a field, or None if it is empty and the dialect treats empty fields as unset."""
    return None if dialect.empty_is_unset and not value else value


def _text(text: str, what: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise SdsError(f"cannot encode the {what}'s id {text[:100]!r} in UTF-8: {error.reason}") from None
    _check_size(data, MAX_SDS_ID_SIZE_BYTES, f"a {what}'s id")
    return data


def check_id(text: str, what: str) -> None:
    """Raise SdsError if an id is too long or cannot be encoded. `what` is message, sender or channel."""
    _text(text, what)


def check_hint(hint: bytes) -> None:
    """Raise SdsError if a retrieval hint is too long."""
    _check_size(hint, MAX_SDS_HINT_SIZE_BYTES, "a retrieval hint")


def _check_size(data: bytes, most: int, what: str) -> None:
    if len(data) > most:
        raise SdsError(f"{what} has {len(data)} bytes, the maximum is {most}. Use fewer bytes")


def _entry(entry: HistoryEntry, dialect: SdsDialect) -> bytes:
    data = sized_field(_ENTRY_ID, _text(entry.message_id, "message"))
    hint, sender_id = _said(entry.retrieval_hint, dialect), _said(entry.sender_id, dialect)
    if hint is not None:
        check_hint(hint)
        data += sized_field(_ENTRY_HINT, hint)
    if sender_id is not None:
        data += sized_field(_ENTRY_SENDER, _text(sender_id, "sender"))
    return data


class _MessageReader:
    """Decoder of one message, which counts its fields."""

    def __init__(self, dialect: SdsDialect) -> None:
        self._dialect = dialect
        self._left = MAX_SDS_FIELDS

    def message(self, data: bytes) -> SdsMessage:
        """Decode the whole message."""
        numbers = self._dialect.fields
        found: dict[int, int | bytes] = {}
        history: list[HistoryEntry] = []
        repairs: list[HistoryEntry] = []
        for number, value in self._fields(data):
            if number == numbers.causal_history:
                history.append(self._entry(value))
            elif number == numbers.repair_request:
                repairs.append(self._entry(value))
            else:
                found[number] = value
        if self._dialect.empty_is_unset and numbers.content not in found:
            raise self._error("the content is missing")
        lamport_ms = found.get(numbers.lamport_ms)
        if isinstance(lamport_ms, bytes):
            raise self._error("invalid Lamport time: expected a number, got bytes")
        filter_ = found.get(numbers.bloom_filter)
        return SdsMessage(
            self._text(found.get(numbers.message_id), "message") or "",
            self._text(found.get(numbers.channel_id), "channel") or "",
            self._text(found.get(numbers.sender_id), "sender") or "",
            lamport_ms,
            tuple(history),
            None if isinstance(filter_, int) else self._bytes(filter_, "filter"),
            tuple(repairs),
            self._bytes(found.get(numbers.content), "content"),
        )

    def _entry(self, data: int | bytes) -> HistoryEntry:
        found = dict(self._fields(self._sized(data, "an entry of a history")))
        hint = self._bytes(found.get(_ENTRY_HINT), "retrieval hint")
        if hint is not None:
            check_hint(hint)
        return HistoryEntry(
            self._text(found.get(_ENTRY_ID), "message") or "", hint, self._text(found.get(_ENTRY_SENDER), "sender")
        )

    def _text(self, value: int | bytes | None, what: str) -> str | None:
        data = self._bytes(value, f"{what}'s id")
        if data is None:
            return None
        _check_size(data, MAX_SDS_ID_SIZE_BYTES, f"a {what}'s id")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._error(f"the {what}'s id {data[:100]!r} is not UTF-8") from None

    def _bytes(self, value: int | bytes | None, what: str) -> bytes | None:
        return None if value is None else _said(self._sized(value, f"the {what}"), self._dialect)

    def _sized(self, value: int | bytes, what: str) -> bytes:
        if isinstance(value, int):
            raise self._error(f"{what} is the number {value}, expected bytes")
        return value

    def _fields(self, data: bytes) -> Iterator[tuple[int, int | bytes]]:
        """Yield the fields of a document. Fixed-size fields, which messages do not have, are counted and skipped."""
        for number, value in all_fields(data, "message", error=self._error):
            self._left -= 1
            if self._left < 0:
                raise self._error(f"too many fields: the maximum is {MAX_SDS_FIELDS}")
            if value is not None:
                yield number, value

    def _error(self, reason: str) -> SdsError:
        return SdsError(f"{reason}, in dialect {self._dialect.name}. Check that the sender uses the same dialect")
