"""A database in memory that behaves like `leveldb.LevelDB`, for tests and temporary stores."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from cablestore.closable import Closable
from cablestore.errors import StoreClosedError
from cablestore.index.database import Row


class MemoryDB:
    """A sorted dict. A write copies it only if a snapshot of the current state is still open."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._lock = threading.Lock()
        self._is_open = True
        self._snapshots: weakref.WeakSet[MemoryDBSnapshot] = weakref.WeakSet()
        """Open snapshots of the current state and of older states."""

    def snapshot(self) -> MemoryDBSnapshot:
        """Return a snapshot of the current state."""
        with self._lock:
            self._require_open()
            snapshot = MemoryDBSnapshot(self._rows, self._keys)
            self._snapshots.add(snapshot)
            return snapshot

    def live(self) -> MemoryDBSnapshot:
        """Return a snapshot that is valid until the next write."""
        with self._lock:
            self._require_open()
            return MemoryDBSnapshot(self._rows, self._keys)

    def write(
        self,
        rows: Mapping[bytes, bytes | None],
        *,
        sync: bool,  # noqa: ARG002 - nothing to sync
    ) -> None:
        """Put rows, and delete keys whose value is None, atomically."""
        with self._lock:
            self._require_open()
            if any(snapshot.reads(self._rows) for snapshot in self._snapshots):
                self._rows, self._keys = dict(self._rows), list(self._keys)
            for key, value in rows.items():
                self._write_row(key, value)

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the store is closed")

    def _write_row(self, key: bytes, value: bytes | None) -> None:
        known = key in self._rows
        if value is not None:
            self._rows[key] = value
            if not known:
                insort(self._keys, key)
        elif known:
            del self._rows[key]
            del self._keys[bisect_left(self._keys, key)]

    def bulk_writer(self) -> MemoryWriter:
        """Return a writer for many rows."""
        return MemoryWriter(self)

    def flush(self) -> None:
        """Do nothing: a database in memory has no tables."""

    def sync(self) -> None:
        """Do nothing: a database in memory is not synced."""
        with self._lock:
            self._require_open()

    def compact(self) -> None:
        """Do nothing: a database in memory has no unused space."""
        with self._lock:
            self._require_open()

    def remove_unused_tables(self) -> None:
        """Do nothing: a database in memory has no tables."""

    def approximate_size_bytes(self, start: bytes, stop: bytes) -> int:
        """Return the bytes of the keys and values of a range."""
        with self.snapshot() as snapshot:
            return sum(len(key) + len(value) for key, value in snapshot.scan(start, stop))

    def close(self) -> None:
        """Close the database. Its rows are lost."""
        with self._lock:
            self._is_open = False
            for snapshot in list(self._snapshots):
                snapshot.close()


class MemoryWriter:
    """A writer that writes rows immediately."""

    def __init__(self, database: MemoryDB) -> None:
        self._database = database

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def put(self, rows: Iterable[Row]) -> None:
        """Write rows immediately."""
        self._database.write(dict(rows), sync=False)


class MemoryDBSnapshot(Closable):
    """One state of a MemoryDB."""

    def __init__(self, rows: dict[bytes, bytes], keys: list[bytes]) -> None:
        self._state: tuple[dict[bytes, bytes], list[bytes]] | None = rows, keys

    def close(self) -> None:
        """Release the state."""
        self._state = None

    def reads(self, rows: dict[bytes, bytes]) -> bool:
        """Return True if this snapshot is open and reads this dict object."""
        return self._state is not None and self._state[0] is rows

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, None if it does not exist."""
        return self._open_state()[0].get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:  # noqa: ARG002 - interface of all sources
        """Yield the rows with start <= key < stop in key order, or backwards."""
        rows, keys = self._open_state()
        keys = keys[bisect_left(keys, start) : bisect_left(keys, stop)]
        for key in reversed(keys) if reverse else keys:
            self._open_state()
            yield key, rows[key]

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        """Yield one list of the rows with start <= key < stop."""
        yield list(self.scan(start, stop))

    def _open_state(self) -> tuple[dict[bytes, bytes], list[bytes]]:
        if self._state is None:
            raise StoreClosedError("the store, or this snapshot of it, is closed")
        return self._state
