"""Snapshots of a LevelDB that do not use LevelDB's own snapshots.

While one of LevelDB's snapshots exists, a compaction keeps several versions of a key. It may put them into two tables
of a level. A later compaction can read only the newer table, and drop a deletion with it: then the older table's value
appears again (LevelDB 1.22 and 1.23). A cursor keeps a state as well, and compactions ignore it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from cablestore import forks
from cablestore.closable import Closable
from cablestore.errors import StoreClosedError
from cablestore.index.database import Row
from cablestore.index.leveldb_binding import plyvel
from cablestore.index.leveldb_errors import reading, unreadable

_FIRST_CHUNK_ROWS: Final = 2
_LARGEST_CHUNK_ROWS: Final = 256
_BLOCK_ROWS: Final = 4096
"""Number of rows that `blocks` reads at once, about 600 kB."""


class LevelSnapshot(Closable, forks.ProcessBound):
    """A state of a LevelDB.

    It reads the database itself until `keep` is called before the next write. Then it reads a cursor. Every call holds
    the snapshot's lock, so `close` waits for it.
    """

    def __init__(self, database: plyvel.DB) -> None:
        self._database = database
        self._kept: plyvel._plyvel.RawIterator | None = None
        self._lock = threading.Lock()
        self._is_open = True

    def _native_parts(self) -> Iterable[object]:
        """Return the database, which lists its cursors, unless the snapshot is closed."""
        return (self._database,) if hasattr(self, "_database") else ()

    def keep(self) -> None:
        """Keep the present state during later writes. A random read takes longer afterwards."""
        with self._lock:
            if self._is_open and self._kept is None:
                self._kept = self.raw_cursor()

    def close(self) -> None:
        """Release the state and the database."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            if self._kept is not None:
                self._kept.close()
                self._kept = None
            del self._database

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, None if it does not exist."""
        with self._lock:
            if not self._is_open:
                raise _closed_error()
            kept = self._kept
            try:
                if kept is None:
                    value: bytes | None = self._database.get(key, verify_checksums=True)
                else:
                    kept.seek(key)
                    value = kept.value() if kept.valid() and kept.key() == key else None
            except plyvel.Error as error:
                raise unreadable(error) from None
            return value

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:
        """Yield the rows with start <= key < stop in key order, or backwards.

        The first `at_once` rows are read in one operation. Without `at_once`, this call reads the first two rows, and
        the iterator reads the other rows in growing chunks.
        """
        if at_once > 0:
            return self._scan_at_once(start, stop, min(at_once, _BLOCK_ROWS), reverse=reverse)
        cursor, rows = self._read(None, start, stop, _FIRST_CHUNK_ROWS, reverse=reverse)
        if len(rows) < _FIRST_CHUNK_ROWS:
            return iter(rows)
        later = self._later_chunks(cursor, *_rest(start, stop, rows, reverse=reverse), reverse=reverse)
        return chain(rows, chain.from_iterable(later))

    def _later_chunks(
        self, cursor: plyvel._plyvel.RawIterator, start: bytes, stop: bytes, *, reverse: bool
    ) -> Iterator[list[Row]]:
        """Yield the rows of a range, which begins at the position of `cursor`, in lists of increasing length."""
        count = _FIRST_CHUNK_ROWS
        while True:
            count = min(count * 4, _LARGEST_CHUNK_ROWS)
            cursor, rows = self._read(cursor, start, stop, count, reverse=reverse)
            yield rows
            if len(rows) < count:
                return
            start, stop = _rest(start, stop, rows, reverse=reverse)

    def _read(
        self, cursor: plyvel._plyvel.RawIterator | None, start: bytes, stop: bytes, count: int, *, reverse: bool
    ) -> tuple[plyvel._plyvel.RawIterator, list[Row]]:
        """Return up to `count` rows of a range, and the cursor after them. None as `cursor` uses a new cursor."""
        with self._lock:
            if not self._is_open:
                raise _closed_error()
            try:
                if cursor is None or cursor is self._kept:  # other calls move the kept cursor
                    cursor = self._kept or self._database.raw_iterator(verify_checksums=True)
                    cursor.seek(stop if reverse else start)
                    if reverse:
                        cursor.prev() if cursor.valid() else cursor.seek_to_last()
                return cursor, _next_rows(cursor, start, stop, count, reverse=reverse)
            except plyvel.Error as error:
                raise unreadable(error) from None

    def _scan_at_once(self, start: bytes, stop: bytes, count: int, *, reverse: bool) -> Iterator[Row]:
        """Yield the rows of a range. Read the first `count` with plyvel's own iterator, in half the time.

        That iterator may end early, so a cursor continues after its last row.
        """
        with self._lock:
            if not self._is_open:
                raise _closed_error()
            first: list[Row] = []
            try:
                if self._kept is None:
                    rows = self._database.iterator(start=start, stop=stop, reverse=reverse, verify_checksums=True)
                    first = list(islice(rows, count))
            except plyvel.Error as error:
                raise unreadable(error) from None
        yield from first
        yield from self.scan(*_rest(start, stop, first, reverse=reverse), reverse=reverse)

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        """Yield the rows with start <= key < stop in lists of thousands, in half the time of `scan`.

        An unreadable block may end the iteration early without an error. Use this only if the caller knows which rows
        must exist.
        """
        rows = None
        while True:
            with self._lock, reading():
                if not self._is_open:
                    raise _closed_error()
                if rows is None and self._kept is not None:
                    self._kept.seek(start)
                    block = _next_rows(self._kept, start, stop, _BLOCK_ROWS, reverse=False)
                else:
                    if rows is None:
                        rows = self._database.iterator(start=start, stop=stop, verify_checksums=True, fill_cache=False)
                    block = list(islice(rows, _BLOCK_ROWS))
            if block:
                yield block
            if len(block) < _BLOCK_ROWS:
                return
            start, stop = _rest(start, stop, block, reverse=False)

    def raw_cursor(self) -> plyvel._plyvel.RawIterator:
        """Return LevelDB's own cursor over the present state."""
        return self._database.raw_iterator(verify_checksums=True)


def _closed_error() -> StoreClosedError:
    return StoreClosedError("the store, or this snapshot of it, is closed")


def _rest(start: bytes, stop: bytes, rows: list[Row], *, reverse: bool) -> tuple[bytes, bytes]:
    """Return (start, stop) of the part of a range that follows its first `rows`, in the order of reading."""
    if not rows:
        return start, stop
    return (start, rows[-1][0]) if reverse else (rows[-1][0] + b"\0", stop)


def _next_rows(
    cursor: plyvel._plyvel.RawIterator, start: bytes, stop: bytes, count: int, *, reverse: bool
) -> list[Row]:
    """Return up to `count` rows of a range from the cursor's position on, and move the cursor after them."""
    rows: list[Row] = []
    valid, key_of, value_of = cursor.valid, cursor.key, cursor.value
    step = cursor.prev if reverse else cursor.next
    while len(rows) < count and valid():
        key = key_of()
        if key < start if reverse else key >= stop:
            break
        rows.append((key, value_of()))
        step()
    return rows
