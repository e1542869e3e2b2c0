"""Rows of one channel: their keys, and changes over a state of the database until they are written. Pure.

A key is `!`, the escaped id of the channel, `!`, the table, `!`, and a part that sorts in the order in which the table
is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Source
from cablestore.index.overlay import Overlay
from cablestore.protocol.keys import SEPARATOR, after_prefix, escape, unescape

TIME_SIZE_BYTES: Final = 8

STATE: Final = b"state"
"""One row: counters, the Lamport clock, and the sender and the filter with which the channel was opened."""
LOG: Final = b"sorted"
"""place -> message: the log in its order. LevelDB reads it backwards from the row after it, which is always STATE. If
the next table contained deleted rows, each read would scan thousands of them."""
IDS: Final = b"ids"
"""id -> its state, a `MessageState`."""
OUTGOING: Final = b"outgoing"
"""place -> attempts and filters, for each unacknowledged message of this member."""
WAITING: Final = b"waiting"
"""place -> message, for each received message with a dependency that is not in the log."""
NEEDS: Final = b"needs"
"""id, place of a message that waits for it."""
MISSING: Final = b"missing"
"""id -> its entry and timers, for each message that others listed and that is not stored."""
CAUSES: Final = b"causes"
"""sender -> its account: the number of its gaps, and of unanswered requests for them."""
RANKS: Final = b"ranks"
"""group, price, hash, sender: causes with open gaps in the order in which they are served."""
REQUESTS: Final = b"requests"
"""sender, time, id: repair requests of each cause."""
SUPPORT: Final = b"support"
"""level, time, id: repair requests, first the requests for gaps that most senders listed."""
RETRIEVALS: Final = b"retrievals"
"""sender, time, id: retrievals of each cause."""
HEADS: Final = b"loose"
"""place -> its sender and the time when a member last listed it, for each message of the log that no message of the log
lists."""
HEADS_OF: Final = b"loose-of"
"""share, place: the heads of each share."""
ANSWERS: Final = b"answers"
"""id -> the time when its repair must be sent, and the member that requested the repair."""
FILTER: Final = b"filter"
"""slot, block number -> 512 bytes of a generation of the filter."""
OUTBOX: Final = b"outbox"
"""sequence number -> effect that the application has not confirmed."""
SENDERS: Final = b"senders"
"""sender, for each member whose messages entered the log and who has a separate share of the space."""
SYNC_IDS: Final = b"sync-ids"
"""share, place of a sync message. Only the newest sync messages of each share are kept."""
RESEND: Final = b"due-resend"
"""time, place: timers, one table for each kind."""
RETRIEVE: Final = b"due-retrieve"
LOST: Final = b"due-lost"
REQUEST: Final = b"due-request"
ANSWER: Final = b"due-answer"


def time_part(time_ms: int) -> bytes:
    """Return a time as bytes that sort like it."""
    return time_ms.to_bytes(TIME_SIZE_BYTES, "big")


def place_of(lamport_ms: int, message_id: str) -> bytes:
    """Return the place of a message in the log: Lamport time, then the bytes of its id (SDS, "Resolve Conflicts")."""
    return lamport_ms.to_bytes(TIME_SIZE_BYTES, "big") + message_id.encode()


def lamport_of(place: bytes) -> int:
    """Return the Lamport time of a place."""
    return int.from_bytes(place[:TIME_SIZE_BYTES], "big")


def id_of(place: bytes) -> str:
    """Return the message id of a place or of the key part of a timer."""
    return place[TIME_SIZE_BYTES:].decode()


def sized_prefix(name: str) -> bytes:
    """Return the key prefix of an id or sender: its length and name, so that it does not begin another prefix."""
    encoded = name.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def sized_prefix_of(part: bytes) -> bytes:
    """Return the prefix at the beginning of a key part: see `sized_prefix`."""
    return part[: 2 + int.from_bytes(part[:2], "big")]


def channel_ids(source: Source) -> Iterator[str]:
    """Yield the ids of the channels in a database, in the order of their bytes."""
    start = SEPARATOR
    while (row := next(source.scan(start, after_prefix(SEPARATOR), at_once=1), None)) is not None:
        part = row[0].split(SEPARATOR, 2)[1]
        yield unescape(part)
        start = after_prefix(SEPARATOR + part + SEPARATOR)


def channel_prefix(channel_id: str) -> bytes:
    """Return the prefix of all keys of a channel."""
    return SEPARATOR + escape(channel_id) + SEPARATOR


class Table:
    """Rows of one kind. Each table has separate changes, so that sorting them does not affect other tables."""

    __slots__ = ("_get", "_prefix", "_scan", "_stop", "changes")

    def __init__(self, source: Source, channel_id: str, name: bytes) -> None:
        self._prefix = channel_prefix(channel_id) + name + SEPARATOR
        self._stop = after_prefix(self._prefix)
        overlay = Overlay(source)
        self.changes: Final = overlay.changes
        self._get = overlay.get
        self._scan = overlay.scan

    def get(self, part: bytes) -> bytes | None:
        """Return the row at a key part, or None if it does not exist."""
        return self._get(self._prefix + part)

    def put(self, part: bytes, value: bytes) -> None:
        """Write a row."""
        self.changes[self._prefix + part] = value

    def delete(self, part: bytes) -> None:
        """Delete a row, if it exists."""
        self.changes[self._prefix + part] = None

    def take(self, part: bytes) -> bytes:
        """Return a row that must exist. Raises CorruptStoreError if it is missing."""
        row = self.get(part)
        if row is None:
            raise CorruptStoreError(
                f"the causal log lacks the row {part[:80]!r} of {self._prefix.decode()}, to which another row refers. "
                "Remove the folder `sds` of the store, then fetch the channels from their members"
            )
        return row

    def rows(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False, most: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield key parts and rows from `start` to below `stop`.

        `most` is a hint: the number of rows that the caller needs. Do not change the table while iterating.
        """
        prefix, size = self._prefix, len(self._prefix)
        last = self._stop if stop is None else prefix + stop
        for key, value in self._scan(prefix + start, last, reverse=reverse, at_once=most):
            yield key[size:], value

    def some(self, start: bytes, stop: bytes | None, most: int) -> list[tuple[bytes, bytes]]:
        """Return up to `most` rows of a range. The table may be changed while iterating over them."""
        return list(islice(self.rows(start, stop, most=most), most))
