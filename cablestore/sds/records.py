"""Rows of a channel, as values and as bytes. Pure."""

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
_LOOSE: Final = struct.Struct(">Q")
_NAMED: Final = 1
_LOST: Final = 2


class MessageState(Enum):
    """State of a message id that has a row."""

    __hash__ = object.__hash__

    LOGGED = b"L"
    WAITING = b"W"
    GIVEN_UP = b"X"
    """Not here, and nothing waits for it any more."""
    SYNC = b"S"
    """A sync message, which is in no log. Nothing waits for it."""


_STATES: Final = {state.value: state for state in MessageState}


class Known(NamedTuple):
    """State of one message id.

    `unmet` counts what a waiting message still waits for. `is_named`: a message of the log named it before it came,
    which is possible after it was given up. `is_lost`: it was given up because it could not be retrieved.
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
    """Return the state in a row, None if there is no row."""
    if row is None:
        return None
    try:
        state, lamport_ms, unmet, marks = _KNOWN.unpack(row)
        return Known(_STATES[state], lamport_ms, unmet, bool(marks & _NAMED), bool(marks & _LOST))
    except (struct.error, KeyError):
        raise CorruptStoreError(
            f"a row of an id in the causal log is damaged: {row!r}. Remove the folder sds and fetch its channels again"
        ) from None


def entries_of(parts: Iterable[list[Any]]) -> tuple[HistoryEntry, ...]:
    """Return packed entries."""
    return tuple([HistoryEntry(*part) for part in parts])


def fitting_hint(hint: bytes | None) -> bytes | None:
    """Return a retrieval hint, None if it is too long for a history."""
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
        """Entry that names it in a causal history. Versions up to 0.12 kept hints that are too long."""
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
    """Own message that is not acknowledged. `doubt` is the probability that all filters which had it were wrong."""

    sent: int = 1
    """How often it was sent."""
    due_ms: int = 0
    """When it is sent again."""
    members: list[bytes] = field(default_factory=list)
    """Members whose filters had it: 8 bytes of a hash of each."""
    doubt: float = 1.0

    @property
    def is_possibly_acknowledged(self) -> bool:
        """Whether a filter had it."""
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
    """How often the application was asked to retrieve it."""
    lost_ms: int | None
    request_ms: int | None
    requested: int
    """How often a repair was requested."""
    told_by: str | None = None
    """Sender of the sync message that named it. None: a message waits for it."""
    causes: list[str] = field(default_factory=list)
    """Senders that named it: see `causes`."""
    is_postponed: bool = False
    """True if another member requested it since we did."""

    def packed(self) -> bytes:
        """Return the row."""
        parts = [self.retrieve_ms, self.retrieved, self.lost_ms, self.request_ms, self.requested, self.told_by]
        return pack([*self.entry, *parts, self.causes, self.is_postponed])


def gap_of(row: bytes) -> Gap:
    """Return the value of a row."""
    message_id, hint, sender_id, *parts = unpack(row)
    return Gap(HistoryEntry(message_id, hint, sender_id), *parts)


class LooseEnd(NamedTuple):
    """Message of the log that no other one names, and when a member other than its sender last named it."""

    named_ms: int
    sender_id: str

    def packed(self) -> bytes:
        """Return the row."""
        return _LOOSE.pack(self.named_ms) + self.sender_id.encode()


def loose_end_of(row: bytes) -> LooseEnd:
    """Return the value of a row."""
    return LooseEnd(_LOOSE.unpack_from(row)[0], row[_LOOSE.size :].decode())


@dataclass(slots=True)
class Counters:
    """Counters of a channel, in the one row that every event changes. They count rows of the tables."""

    sender_id: str
    dialect: str
    filter_bits: int
    filter_hashes: int
    newer_slot: int = 0
    newer_count: int = 0
    lamport_ms: int = 0
    """The specification begins with the present time. So do we: no own message has less than the present time."""
    next_effect: int = 1
    confirmed: int = 0
    """The last effect that the application handled. The deleted rows up to there are not scanned."""
    logged: int = 0
    outgoing: int = 0
    waiting: int = 0
    waiting_size_bytes: int = 0
    missing: int = 0
    lost: int = 0
    """Given up because they could not be retrieved. One that comes later is not lost any more."""
    loose: int = 0
    answers: int = 0
    sync_ms: int = 0
    """When a sync message is due, 0 before the first tick."""
    reviewed: bytes = b""
    """The place up to which own messages were compared with the last filter."""
    senders: int = 0
    told: int = 0
    """Those of the missing ones that only sync messages named."""
    causes: int = 0
    """Senders with an account, because they named missing messages."""
    indexed: int = 0
    """Number of the indexes by sender: INDEXED when gaps and loose ends are in them."""

    def packed(self) -> bytes:
        """Return the row."""
        return pack([getattr(self, name) for name in self.__slots__])


INDEXED: Final = 1
"""Present number of the indexes by sender. Versions up to 0.12 had none."""
_FIRST_COUNTERS: Final = Counters.__slots__.index("senders")
"""Number of counters in the first version that kept logs."""


def counters_of(row: bytes) -> Counters:
    """Return the value of a row."""
    values = unpack(row)
    if not isinstance(values, list) or not _FIRST_COUNTERS <= len(values) <= len(Counters.__slots__):
        raise CorruptStoreError(
            "a causal log was written by another version of cablestore, or its state is damaged. "
            "Remove the folder sds and fetch the channel from its members"
        )
    return Counters(*values)
