"""The database under a store: LevelDB through plyvel. This module alone imports it.

It adds what plyvel leaves open: errors of our own, scans that report a damaged block instead of ending early (plyvel's
own iterators stop without a word when the last block is unreadable, and backwards skip a row that a range starts with), and
a `close` that is safe while other threads read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Final, Self

import plyvel

from cablestore.errors import CorruptStoreError, MissingDatabaseError, StorageError, StoreClosedError
from cablestore.index.database import Row

_FIRST_CHUNK_ROWS: Final = 1
_LARGEST_CHUNK_ROWS: Final = 256
_BLOCK_ROWS: Final = 4096
"""What `blocks` holds in memory: about 600 kB."""

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK})

_NO_DAMAGE: Final = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Why a file that is whole may not be read."""
_CURRENT: Final = "CURRENT"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Memory and file sizes of LevelDB, in bytes unless named otherwise.

    `write_buffer_size_bytes` is also what a reopen after a crash reads again, about 40 MB a second.
    """

    write_buffer_size_bytes: int = 16 * 2**20
    block_cache_size_bytes: int = 32 * 2**20
    block_size_bytes: int = 3 * 2**10
    """A post that is read at random costs its whole block: 8 us with this size, 18 us with 8 KB, which saves 8% of disk."""
    table_size_bytes: int = 2 * 2**20
    """What is lost with a table whose end is cut off: its index stands there."""
    bloom_filter_bits: int = 10
    """A look-up of a key that is not there costs 3 us with a filter, 10 to 20 us without; most look-ups are such."""
    max_open_files: int = 1000
    """Enough for every table of a million posts: one that is opened anew costs 100 us."""


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except plyvel.Error as error:
        raise _unreadable(error) from None


def _unreadable(error: plyvel.Error) -> StorageError:
    """Return what is wrong where reading failed: damage, or that we may not read."""
    text = _text(error)
    if any(text.endswith(os.strerror(number)) for number in _NO_DAMAGE):
        return StorageError(
            f"the database cannot be read: {text}. Mend permissions or limits, then open the store again"
        )
    return _damaged(error)


def _damaged(error: plyvel.Error) -> CorruptStoreError:
    return CorruptStoreError(
        f"the database is damaged: {_text(error)}. What lies elsewhere stays readable; `cablestore rebuild` makes a new "
        "database from all that can be read"
    )


def _refused(error: plyvel.Error) -> StorageError:
    if isinstance(error, plyvel.IOError):
        return StorageError(
            f"the disk refused: {_text(error)}. Check free space and permissions, then open the store again"
        )
    return _damaged(error)


def _text(error: plyvel.Error) -> str:
    first = error.args[0] if error.args else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


def holds_database(path: Path) -> bool:
    """Tell whether a folder holds a LevelDB, or what a damaged one left. Raises OSError where it cannot be read."""
    return path.is_dir() and ((path / _CURRENT).exists() or _holds_data(path))


def _holds_data(path: Path) -> bool:
    return any(path.glob("*.ldb")) or any(log.stat().st_size for log in path.glob("*.log"))


class LevelDB:
    """One LevelDB folder, open in this process. Thread-safe."""

    def __init__(
        self, path: Path, tuning: Tuning | None = None, *, create: bool = False, paranoid: bool = True
    ) -> None:
        """Open the folder, or make it where `create` allows it.

        `paranoid` refuses a damaged log instead of dropping what stands behind the damage. Raises MissingDatabaseError
        where there is none and none is to be made, CorruptStoreError, StorageError where the disk fails.
        """
        tuning = tuning or Tuning()
        try:
            if not create and not holds_database(path):  # LevelDB would write into the folder before it says so
                raise MissingDatabaseError(f"there is no database at {path}: put it back from a backup")
            self._db = plyvel.DB(
                str(path),
                # Where its CURRENT file is lost, LevelDB would make a new database over the old one and remove its files.
                create_if_missing=create and not _holds_data(path),
                paranoid_checks=paranoid,
                write_buffer_size=tuning.write_buffer_size_bytes,
                lru_cache_size=tuning.block_cache_size_bytes,
                block_size=tuning.block_size_bytes,
                # Hashes and signatures do not shrink: Snappy saved 3% of a post's rows for two thirds of the time to write them.
                compression=None,
                max_file_size=tuning.table_size_bytes,
                bloom_filter_bits=tuning.bloom_filter_bits,
                max_open_files=tuning.max_open_files,
            )
        except plyvel.Error as error:
            raise _refused(error) from None
        except OSError as error:
            raise StorageError(f"the database at {path} cannot be read: {error.strerror}") from None
        self._lock = threading.Lock()
        self._snapshots: weakref.WeakSet[LevelSnapshot] = weakref.WeakSet()
        self._failure: StorageError | None = None

    def snapshot(self) -> LevelSnapshot:
        """Return the present state."""
        with self._lock:
            if self._db.closed:
                raise StoreClosedError("the store is closed")
            snapshot = LevelSnapshot(self._db.snapshot())
            self._snapshots.add(snapshot)
        return snapshot

    def write(self, rows: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        """Put and delete (None) all of these rows, or none; with `sync`, return when they are on the disk.

        After a failed write every other one is refused: LevelDB may have left half a record at the end of its log, and
        what is written behind that is lost at the next open.
        """
        with self._lock:
            if self._db.closed:
                raise StoreClosedError("the store is closed")
            if self._failure is not None:
                raise StorageError(
                    f"an earlier write failed, so the store takes no more until reopened: {self._failure}"
                )
            batch = self._db.write_batch(sync=sync)
            put, delete = batch.put, batch.delete
            for key, value in rows.items():
                if value is None:
                    delete(key)
                else:
                    put(key, value)
            self._write(batch)

    def bulk_writer(self) -> BulkWriter:
        """Return a writer for many rows, to be used in a `with`; nobody else may write meanwhile."""
        return BulkWriter(self._db.write_batch, self._write)

    def _write(self, batch: plyvel._plyvel.WriteBatch) -> None:
        try:
            batch.write()
        except plyvel.Error as error:
            self._failure = _refused(error)
            raise self._failure from None

    def flush(self) -> None:
        """Write what is in the log to a table of its own.

        Rows that lie far apart and come into one table make LevelDB rewrite all tables between them. Who adds a few such
        rows to a large database flushes before and after.
        """
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        # An empty range still writes the log's rows to a table.
        self._db.compact_range(start=b"\x00", stop=b"\x00")

    def compact(self) -> None:
        """Rewrite everything in the least space."""
        with self._lock, _reading():
            # Without bounds plyvel names an empty range, not the whole one.
            self._db.compact_range(start=b"\x00", stop=b"\xff")

    def approximate_size_bytes(self, start: bytes, stop: bytes) -> int:
        """Return about how many bytes a range takes on disk; what was written last may not be counted."""
        with self._lock, _reading():
            size_bytes: int = self._db.approximate_size(start, stop)
        return size_bytes

    def close(self) -> None:
        """Wait for calls under way, then close. Snapshots and scans that are still open end with StoreClosedError."""
        with self._lock:
            if self._db.closed:
                return
            for snapshot in list(self._snapshots):
                snapshot.close()
            if self._failure is None:
                self._flush()  # so that the next open has nothing to read again
            self._db.close()


class BulkWriter:
    """Writes batches of rows in a thread of its own, one while the next is put together. Nothing is synced.

    LevelDB takes rows in without Python's lock, so that making rows and writing them share two cores.
    """

    def __init__(
        self,
        new_batch: Callable[[], plyvel._plyvel.WriteBatch],
        write: Callable[[plyvel._plyvel.WriteBatch], None],
    ) -> None:
        self._new_batch = new_batch
        self._write = write
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cablestore-write")
        self._written: Future[None] | None = None

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        """Wait until all is written; raises what writing raised, unless the body raised before."""
        with self._thread:
            if kind is None:
                self._wait()

    def put(self, rows: Iterable[Row]) -> None:
        """Write rows some time soon. Raises what writing those before them raised."""
        batch = self._new_batch()
        put = batch.put
        for key, value in rows:
            put(key, value)
        self._wait()
        self._written = self._thread.submit(self._write, batch)

    def _wait(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.result()


class LevelSnapshot:
    """One state of a LevelDB. Every call holds the snapshot's lock, so that `close` waits for it."""

    def __init__(self, snapshot: plyvel._plyvel.Snapshot) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._is_open = True

    def __enter__(self) -> Self:
        """Return the snapshot."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the snapshot."""
        self.close()

    def close(self) -> None:
        """Let go of the state."""
        with self._lock:
            self._is_open = False
            self._snapshot.close()

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, None where there is none."""
        with self._lock:
            if not self._is_open:
                raise StoreClosedError("the store, or this snapshot of it, is closed")
            try:
                value: bytes | None = self._snapshot.get(key, verify_checksums=True)
            except plyvel.Error as error:
                raise _unreadable(error) from None
            return value

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:
        """Yield the rows with start <= key < stop in key order, or backwards, so many of them read `at_once`."""
        if at_once > 0:
            return self._scan_at_once(start, stop, min(at_once, _BLOCK_ROWS), reverse=reverse)
        return chain.from_iterable(self.chunks(start, stop, reverse=reverse))

    def _scan_at_once(self, start: bytes, stop: bytes, count: int, *, reverse: bool) -> Iterator[Row]:
        """Read the first rows in half the time, with plyvel's own iterator.

        Where that one ends early, which it may do without a reason, the cursor goes on behind its last row.
        """
        with self._lock, _reading():
            if not self._is_open:
                raise StoreClosedError("the store, or this snapshot of it, is closed")
            rows = self._snapshot.iterator(start=start, stop=stop, reverse=reverse, verify_checksums=True)
            first = list(islice(rows, count))
        yield from first
        if first and reverse:
            stop = first[-1][0]
        elif first:
            start = first[-1][0] + b"\0"
        yield from self.scan(start, stop, reverse=reverse)

    def chunks(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[list[Row]]:
        """Yield the same rows as `scan` in lists, short ones first."""
        chunk_rows = _FIRST_CHUNK_ROWS
        cursor = self._cursor(start, stop, reverse=reverse)
        while chunk := self._chunk(cursor, start, stop, chunk_rows, reverse=reverse):
            yield chunk
            if len(chunk) < chunk_rows:
                return
            chunk_rows = min(chunk_rows * 4, _LARGEST_CHUNK_ROWS)

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        """Yield the rows with start <= key < stop, thousands at once, in half the time that `scan` takes.

        Only for who knows what must come: at an unreadable block they may end unnoticed.
        """
        rows = None
        while True:
            with self._lock, _reading():
                if not self._is_open:
                    raise StoreClosedError("the store, or this snapshot of it, is closed")
                if rows is None:
                    rows = self._snapshot.iterator(start=start, stop=stop, verify_checksums=True, fill_cache=False)
                block = list(islice(rows, _BLOCK_ROWS))
            if block:
                yield block
            if len(block) < _BLOCK_ROWS:
                return

    def raw_cursor(self) -> plyvel._plyvel.RawIterator:
        """Return LevelDB's own cursor over the state."""
        return self._snapshot.raw_iterator(verify_checksums=True)

    def _cursor(self, start: bytes, stop: bytes, *, reverse: bool) -> plyvel._plyvel.RawIterator:
        with self._lock, _reading():
            if not self._is_open:
                raise StoreClosedError("the store, or this snapshot of it, is closed")
            cursor = self.raw_cursor()
            cursor.seek(stop if reverse else start)
            if reverse and cursor.valid():
                cursor.prev()
            elif reverse:
                cursor.seek_to_last()
            return cursor

    def _chunk(
        self, cursor: plyvel._plyvel.RawIterator, start: bytes, stop: bytes, size: int, *, reverse: bool
    ) -> list[Row]:
        rows: list[Row] = []
        valid, key_of, value_of = cursor.valid, cursor.key, cursor.value
        step = cursor.prev if reverse else cursor.next
        with self._lock, _reading():
            if not self._is_open:
                raise StoreClosedError("the store, or this snapshot of it, was closed during a scan")
            while valid() and len(rows) < size:
                key = key_of()
                if key < start if reverse else key >= stop:
                    break
                rows.append((key, value_of()))
                step()
        return rows


def join_tables(parts: Sequence[Path], path: Path) -> None:
    """Make one LevelDB in the folder `path`, which has none yet, of several closed ones whose ranges of keys do not meet.

    Their tables are linked, not copied, under numbers that differ; LevelDB's own repair writes the list of them. The
    parts stay as they are: a table never changes. Raises StorageError where a part has rows outside of its tables, because
    the disk refused them when it was closed: LevelDB does not say so.
    """
    for part in parts:
        if any(log.stat().st_size for log in part.glob("*.log")):
            raise StorageError(
                f"the disk refused rows of {part}: they are not in its tables. Check free space, then run again"
            )
    try:
        path.mkdir(exist_ok=True)
        tables = [table for part in parts for table in sorted(part.glob("*.ldb"))]
        for number, table in enumerate(tables, 1):
            _link(table, path / f"{number:06d}.ldb")
        plyvel.repair_db(str(path), paranoid_checks=True)
    except plyvel.Error as error:
        raise _damaged(error) from None
    except OSError as error:
        raise StorageError(f"{path} cannot be made of {len(parts)} parts: {error.strerror}") from None


def _link(table: Path, link: Path) -> None:
    """Link a table, or copy it where the file system knows no links."""
    try:
        link.hardlink_to(table)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(table, link)


def link_database(path: Path, copy: Path) -> None:
    """Make a copy of a closed LevelDB whose tables, which never change, are links."""
    try:
        copy.mkdir(parents=True)
        for file in path.iterdir():
            if file.suffix == ".ldb":
                _link(file, copy / file.name)
            elif file.name != "LOCK":
                shutil.copyfile(file, copy / file.name)
    except OSError as error:
        raise StorageError(f"{path} cannot be linked into {copy}: {error.strerror}") from None


@contextlib.contextmanager
def salvaged(path: Path, scratch: Path) -> Iterator[ReadableSource]:
    """Open a copy, made in `scratch`, of a database that cannot be read whole, and yield what is readable of it.

    The damaged database itself is not touched.
    """
    try:
        shutil.copytree(path, scratch)
    except OSError as error:
        raise StorageError(f"the damaged database cannot be copied to be read: {_first_of(error)}") from None
    try:
        try:
            database = LevelDB(scratch, paranoid=False)
        except StorageError:
            try:
                plyvel.repair_db(str(scratch))
            except plyvel.Error as error:
                raise _damaged(error) from None
            database = LevelDB(scratch, paranoid=False)
        try:
            with database.snapshot() as snapshot:
                yield ReadableSource(snapshot)
        finally:
            database.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _first_of(error: OSError) -> str:
    """Return what is wrong with a file: copying a folder goes on after each, and raises all of them in one."""
    return str(error.args[0][0][2]) if isinstance(error, shutil.Error) else str(error)


class ReadableSource:
    """Reads what can be read and steps over what cannot."""

    def __init__(self, snapshot: LevelSnapshot) -> None:
        self._snapshot = snapshot

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, None where there is none or it is unreadable."""
        try:
            return self._snapshot.get(key)
        except CorruptStoreError:
            return None

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:  # noqa: ARG002 - it is slow in any case
        """Yield the readable rows of a range. LevelDB's cursor goes on behind an unreadable block by itself."""
        cursor = self._snapshot.raw_cursor()
        _as_far_as_possible(lambda: cursor.seek(stop if reverse else start))
        if reverse:
            _as_far_as_possible(cursor.prev if cursor.valid() else cursor.seek_to_last)
        while cursor.valid():
            key = cursor.key()
            if not start <= key < stop:
                return
            yield key, cursor.value()
            _as_far_as_possible(cursor.prev if reverse else cursor.next)

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        """Yield the readable rows of a range, all at once."""
        yield list(self.scan(start, stop))


def _as_far_as_possible(move: Callable[[], None]) -> None:
    """Move a cursor. Over an unreadable block it complains, at every step from then on, and moves all the same."""
    with contextlib.suppress(plyvel.Error):
        move()
