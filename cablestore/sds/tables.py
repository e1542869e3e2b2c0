"""The rows of one channel: their keys, and changes to them laid over a state of the database until they are written. Pure.

A key is `!`, the escaped id of the channel, `!`, the table, `!`, and a part that sorts as the table is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Source
from cablestore.index.overlay import Overlay
from cablestore.protocol.keys import SEPARATOR, after_prefix, escape, unescape

TIME_SIZE_BYTES: Final = 8

STATE: Final = b"state"
"""One row: counters, the Lamport clock, with whom and how the channel was opened."""
LOG: Final = b"sorted"
"""place -> message: the log in its order. It is read from its end, which LevelDB finds from the row behind: that is always
STATE. Were it a table of which rows are deleted, thousands of deleted ones would be gone through each time."""
IDS: Final = b"ids"
"""id -> what is known of it: logged, waiting, or given up."""
OUTGOING: Final = b"outgoing"
"""place -> attempts and filters: own messages that are not acknowledged."""
WAITING: Final = b"waiting"
"""place -> message: received, and something it depends on is not in the log."""
NEEDS: Final = b"needs"
"""id, place of one that waits for it: who is unlocked by an arrival."""
MISSING: Final = b"missing"
"""id -> its entry and timers: named by others, and not here."""
LOOSE: Final = b"loose"
"""place -> when somebody named it, and its sender: in the log, and named by no message of the log."""
ANSWERS: Final = b"answers"
"""id -> when its repair is to be answered."""
FILTER: Final = b"filter"
"""slot, block number -> 512 bytes of a generation of the filter."""
OUTBOX: Final = b"outbox"
"""sequence number -> effect that the application has not confirmed."""
SENDERS: Final = b"senders"
"""sender: whose messages came into the log, and who has a share of the room."""
SYNC_IDS: Final = b"sync-ids"
"""share, place of a sync message: the newest of each share."""
RESEND: Final = b"due-resend"
"""time, place: the timers, one table for each kind."""
RETRIEVE: Final = b"due-retrieve"
LOST: Final = b"due-lost"
REQUEST: Final = b"due-request"
ANSWER: Final = b"due-answer"

ALL: Final = (
    STATE,
    LOG,
    IDS,
    OUTGOING,
    WAITING,
    NEEDS,
    MISSING,
    LOOSE,
    ANSWERS,
    FILTER,
    OUTBOX,
    SENDERS,
    SYNC_IDS,
    RESEND,
    RETRIEVE,
    LOST,
    REQUEST,
    ANSWER,
)


def time_part(time_ms: int) -> bytes:
    """Return a time as it sorts."""
    return time_ms.to_bytes(TIME_SIZE_BYTES, "big")


def place_of(lamport_ms: int, message_id: str) -> bytes:
    """Return where a message stands in the log: by Lamport time, then by the bytes of its id (SDS, "Resolve Conflicts")."""
    return lamport_ms.to_bytes(TIME_SIZE_BYTES, "big") + message_id.encode()


def lamport_of(place: bytes) -> int:
    """Return the Lamport time of a place."""
    return int.from_bytes(place[:TIME_SIZE_BYTES], "big")


def id_of(place: bytes) -> str:
    """Return the id of the message at a place, or of what a timer is for."""
    return place[TIME_SIZE_BYTES:].decode()


def sized_prefix(name: str) -> bytes:
    """Return what keys of one id or sender begin with: the name with its length, so that none is part of another."""
    encoded = name.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def channel_ids(source: Source) -> Iterator[str]:
    """Yield the ids of the channels in a database, in the order of their bytes."""
    start = SEPARATOR
    while (row := next(source.scan(start, after_prefix(SEPARATOR), at_once=1), None)) is not None:
        part = row[0].split(SEPARATOR, 2)[1]
        yield unescape(part)
        start = after_prefix(SEPARATOR + part + SEPARATOR)


def channel_prefix(channel_id: str) -> bytes:
    """Return what all keys of a channel begin with."""
    return SEPARATOR + escape(channel_id) + SEPARATOR


class Table:
    """The rows of one kind. Each table has changes of its own, so that sorting those of one costs the others nothing."""

    __slots__ = ("_overlay", "_prefix", "_size", "_stop", "changes", "get_row")

    def __init__(self, source: Source, channel_id: str, name: bytes) -> None:
        self._prefix = channel_prefix(channel_id) + name + SEPARATOR
        self._size = len(self._prefix)
        self._stop = after_prefix(self._prefix)
        self._overlay = Overlay(source)
        self.changes: Final = self._overlay.changes
        self.get_row: Final = self._overlay.get

    def get(self, part: bytes) -> bytes | None:
        """Return the row at a part, None where there is none."""
        return self.get_row(self._prefix + part)

    def put(self, part: bytes, value: bytes) -> None:
        """Put a row."""
        self.changes[self._prefix + part] = value

    def delete(self, part: bytes) -> None:
        """Delete a row, if it is there."""
        self.changes[self._prefix + part] = None

    def take(self, part: bytes) -> bytes:
        """Return a row that has to be there."""
        row = self.get(part)
        if row is None:
            raise CorruptStoreError(
                f"the causal log names a row {part[:80]!r} of {self._prefix.decode()} that it does not have. "
                "Remove the folder sds and fetch the channel from its members"
            )
        return row

    def rows(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False, most: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield parts and rows from `start` to below `stop`; who takes `most` of them says so. Nothing may change meanwhile."""
        prefix, size = self._prefix, self._size
        last = self._stop if stop is None else prefix + stop
        for key, value in self._overlay.scan(prefix + start, last, reverse=reverse, at_once=most):
            yield key[size:], value

    def some(self, start: bytes, stop: bytes | None, most: int) -> list[tuple[bytes, bytes]]:
        """Return the first rows of a range, at most so many: they may be changed while they are gone through."""
        found = []
        for row in self.rows(start, stop, most=most):
            found.append(row)
            if len(found) >= most:
                break
        return found

    def first(self, *, reverse: bool = False) -> tuple[bytes, bytes] | None:
        """Return the first row, or the last."""
        return next(self.rows(reverse=reverse, most=1), None)
