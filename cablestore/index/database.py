"""The interface between a store and its database: sorted rows, consistent states, atomic writes.

`leveldb.LevelDB` implements it on disk, `memory.MemoryDB` in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, Self

Row = tuple[bytes, bytes]
"""A key and its value."""


class Source(Protocol):
    """A consistent state of a database: a snapshot, or a snapshot with the changes of a batch on top."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, None if it does not exist."""

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:
        """Yield the rows with start <= key < stop in key order, or backwards.

        `at_once` is a hint: the number of rows that the caller needs. These rows are read in one operation.
        """

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        """Yield the same rows as `scan`, but in large lists, to save time.

        Damage may end the iteration early without an error. Use this only if the caller knows which rows must exist.
        """


class SnapshotSource(Source, Protocol):
    """A state of the database that can be read until it is closed."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def close(self) -> None:
        """Release the state."""


class RowWriter(Protocol):
    """A writer of many rows, used in a `with`. All rows are written when the `with` ends."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, *exc_info: object) -> None: ...

    def put(self, rows: Iterable[Row]) -> None:
        """Write rows immediately, or at the latest when the `with` ends."""


class Database(Protocol):
    """A sorted map of bytes with snapshots and atomic writes."""

    def snapshot(self) -> SnapshotSource:
        """Return a snapshot of the current state. The caller must close it."""

    def live(self) -> Source:
        """Return the current state for the writer, valid until its next write. It does not need a snapshot."""

    def write(self, rows: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        """Put rows, and delete keys whose value is None, atomically. With `sync`, return when they are on the disk."""

    def sync(self) -> None:
        """Return when all writes are on the disk."""

    def bulk_writer(self) -> RowWriter:
        """Return a writer for many rows. No other writer may be active at the same time."""

    def flush(self) -> None:
        """Store the rows written so far in a separate table: see `LevelDB.flush`."""

    def compact(self) -> None:
        """Rewrite the database to use the least space."""

    def remove_unused_tables(self) -> None:
        """Remove files that were kept only for closed snapshots: see `LevelDB.remove_unused_tables`."""

    def approximate_size_bytes(self, start: bytes, stop: bytes) -> int:
        """Return the approximate size of a range on disk. The latest writes may not be counted."""

    def close(self) -> None:
        """Wait for running calls, then close."""
