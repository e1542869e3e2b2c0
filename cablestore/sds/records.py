"""Encoding of a channel's rows. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from cablestore.errors import CorruptStoreError
from cablestore.index.packing import pack, unpack
from cablestore.limits import MAX_SDS_HINT_SIZE_BYTES
from cablestore.sds.message import HistoryEntry, SdsMessage

_KNOWN: Final = struct.Struct(">cQIB")
_HEAD: Final = struct.Struct(">Q")
_NAMED: Final = 1
_LOST: Final = 2


class MessageState(Enum):
    """State of a message id that has a row."""

    __hash__ = object.__hash__

    LOGGED = b"L"
    WAITING = b"W"
    GIVEN_UP = b"X"
    """Declared lost, or treated as met. The message is not stored, and no message waits for it."""
    SYNC = b"S"
    """A sync message, which is not in any log. No message waits for it."""


_STATES: Final = {state.value: state for state in MessageState}


class Known(NamedTuple):
    """State of one message id.

    `unmet` counts the open dependencies of a waiting message. `is_named` is True if a message of the log listed this
    message before it arrived. This is possible after a message was lost. `is_lost` is True if the message was declared
    lost, because it could not be retrieved.
    """

    state: MessageState
    lamport_ms: int = 0
    unmet: int = 0
    is_named: bool = False
    is_lost: bool = False

    def packed(self) -> bytes:
        """Return the row."""
        marks = self.is_named * _NAMED | self.is_lost * _LOST
        return _KNOWN.pack(self.state.value, self.lamport_ms, self.unmet, marks)


def known_of(row: bytes | None) -> Known | None:
    """Return the state in a row, or None if the row is missing."""
    if row is None:
        return None
    try:
        state, lamport_ms, unmet, marks = _KNOWN.unpack(row)
        return Known(_STATES[state], lamport_ms, unmet, bool(marks & _NAMED), bool(marks & _LOST))
    except (struct.error, KeyError):
        raise CorruptStoreError(
            f"a row of an id in the causal log is damaged: {row!r}. Remove the folder `sds` of the store, then fetch "
            "the channels from their members"
        ) from None


def entries_of(parts: Iterable[list[Any]]) -> tuple[HistoryEntry, ...]:
    """Return the entries packed in `parts`."""
    return tuple([HistoryEntry(*part) for part in parts])


def fitting_hint(hint: bytes | None) -> bytes | None:
    """Return a retrieval hint, or None if it is too long for a history."""
    return hint if hint is None or len(hint) <= MAX_SDS_HINT_SIZE_BYTES else None


class KeptMessage(NamedTuple):
    """Message in the log or waiting, with its retrieval hint, without its outdated filter and requests."""

    message: SdsMessage
    retrieval_hint: bytes | None = None

    def packed(self) -> bytes:
        """Return the row."""
        message = self.message
        return pack([message.sender_id, message.causal_history, message.content, self.retrieval_hint])

    @property
    def entry(self) -> HistoryEntry:
        """Entry for the message in a causal history. Versions up to 0.12 kept hints that are too long."""
        return HistoryEntry(self.message.message_id, fitting_hint(self.retrieval_hint), self.message.sender_id)


def kept_of(row: bytes, message_id: str, channel_id: str, lamport_ms: int) -> KeptMessage:
    """Return the message of a row."""
    sender_id, history, content, hint = unpack(row)
    message = SdsMessage(
        message_id, channel_id, sender_id, lamport_ms, causal_history=entries_of(history), content=content
    )
    return KeptMessage(message, hint)


@dataclass(slots=True)
class Outgoing:
    """Unacknowledged message of this member.

    `doubt` is the probability that all filters that seem to contain its id do so by chance.
    """

    sent: int = 1
    """Number of times the message was sent."""
    due_ms: int = 0
    """Time of the next resend."""
    members: list[bytes] = field(default_factory=list)
    """Members whose filters contained the message, each as 8 bytes of a hash of the member's id."""
    doubt: float = 1.0

    @property
    def is_possibly_acknowledged(self) -> bool:
        """True if the filter of at least one member contained the message."""
        return bool(self.members)

    def packed(self) -> bytes:
        """Return the row."""
        return pack([self.sent, self.due_ms, self.members, self.doubt])


def outgoing_of(row: bytes) -> Outgoing:
    """Return the value of a row."""
    return Outgoing(*unpack(row))


@dataclass(slots=True)
class Gap:
    """Missing message, with the times of the next attempts to get it."""

    entry: HistoryEntry
    retrieve_ms: int
    retrieved: int
    """Number of times the application was requested to retrieve the message."""
    lost_ms: int | None
    request_ms: int | None
    requested: int
    """Number of times a repair was requested."""
    notified_by: str | None = None
    """Sender of the message that listed the gap without waiting for it, or None if a message waits for the gap."""
    causes: list[str] = field(default_factory=list)
    """Senders of messages that listed this message (`cablestore.sds.causes`)."""
    is_postponed: bool = False
    """True if another member requested the message since our last request."""

    def packed(self) -> bytes:
        """Return the row."""
        parts = [self.retrieve_ms, self.retrieved, self.lost_ms, self.request_ms, self.requested, self.notified_by]
        return pack([*self.entry, *parts, self.causes, self.is_postponed])


def gap_of(row: bytes) -> Gap:
    """Return the value of a row."""
    message_id, hint, sender_id, *parts = unpack(row)
    return Gap(HistoryEntry(message_id, hint, sender_id), *parts)


class Head(NamedTuple):
    """Message that no message of the log lists. At `named_ms`, a member other than its sender last listed it."""

    named_ms: int
    sender_id: str

    def packed(self) -> bytes:
        """Return the row."""
        return _HEAD.pack(self.named_ms) + self.sender_id.encode()


def head_of(row: bytes) -> Head:
    """Return the value of a row."""
    return Head(_HEAD.unpack_from(row)[0], row[_HEAD.size :].decode())


@dataclass(slots=True)
class Counters:
    """Counters of a channel, in the one row that each event changes. They count rows of the tables."""

    sender_id: str
    dialect: str
    filter_bits: int
    filter_hashes: int
    newer_slot: int = 0
    newer_count: int = 0
    lamport_ms: int = 0
    """The clock begins at the current time, as in the specification. Each sent message has at least the current time."""
    next_effect: int = 1
    confirmed: int = 0
    """Last effect that the application handled. The deleted rows up to there are not scanned."""
    logged: int = 0
    outgoing: int = 0
    waiting: int = 0
    waiting_size_bytes: int = 0
    missing: int = 0
    lost: int = 0
    """Messages declared lost because they could not be retrieved, except those that arrived later."""
    heads: int = 0
    answers: int = 0
    sync_ms: int = 0
    """Time when a sync message is due, or 0 before the first tick."""
    reviewed: bytes = b""
    """Place of the last message of this member that was compared with a filter. The next write continues after it."""
    senders: int = 0
    notified: int = 0
    """Missing messages for which no message waits."""
    causes: int = 0
    """Senders with an account, because they listed missing messages."""
    indexed: int = 0
    """Version of the indexes by sender: INDEXED when they contain gaps and heads."""

    def packed(self) -> bytes:
        """Return the row."""
        return pack([getattr(self, name) for name in self.__slots__])


INDEXED: Final = 1
"""Current version of the indexes by sender. Versions of cablestore up to 0.12 did not write them."""
_FIRST_COUNTERS: Final = Counters.__slots__.index("senders")
"""Number of counters in the first version that stored logs."""


def counters_of(row: bytes) -> Counters:
    """Return the value of a row."""
    try:
        values = unpack(row)
    except CorruptStoreError:
        values = None  # the error below has the advice for causal logs
    if not isinstance(values, list) or not _FIRST_COUNTERS <= len(values) <= len(Counters.__slots__):
        raise CorruptStoreError(
            "a causal log was written by another version of cablestore, or its state is damaged. "
            "Remove the folder `sds` of the store, then fetch the channels from their members"
        )
    return Counters(*values)
