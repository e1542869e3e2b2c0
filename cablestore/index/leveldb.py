"""The database of a store: LevelDB through plyvel.

It adds the errors of this package, and a `close` that is safe while other threads read. It also avoids three defects.
plyvel's iterators stop without an error when the last block is unreadable. Read backwards, they skip a row at the start
of a range. With LevelDB's snapshots, deleted rows may appear again.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cablestore import forks
from cablestore.errors import CorruptStoreError, StorageError, StoreClosedError
from cablestore.files import make_folder, set_files, storage_errors, sync_file, sync_folder
from cablestore.index.bulk_writer import BulkWriter
from cablestore.index.database import Database
from cablestore.index.leveldb_binding import plyvel
from cablestore.index.leveldb_errors import damaged_for, reading, write_error
from cablestore.index.leveldb_files import holds_data, holds_database, require_room
from cablestore.index.leveldb_manifest import is_misnamed, is_outdated, read_readable
from cablestore.index.leveldb_snapshot import LevelSnapshot
from cablestore.index.leveldb_thread import THREAD, TRIAL_TIMEOUT_S, no_thread
from cablestore.interruptible import in_thread

_MENDING_SIZE_BYTES: Final = 2**18
"""Free space, besides the size of the logs, for opening the database again: for a new list of tables and a new log."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Memory and file sizes of LevelDB.

    After a crash, opening the store reads up to `write_buffer_size_bytes` of log again, at about 40 MB a second.
    """

    write_buffer_size_bytes: int = 16 * 2**20
    block_cache_size_bytes: int = 32 * 2**20
    block_size_bytes: int = 3 * 2**10
    """A random read of a post reads its whole block, in 8 us. 8 KB would take 18 us and save 8% of disk space."""
    table_size_bytes: int = 2 * 2**20
    """A truncated table is lost completely, because its index is at the end."""
    bloom_filter_bits: int = 10
    """A look-up of a missing key takes 3 us with a filter, 10 to 20 us without. Most look-ups are of missing keys."""
    max_open_files: int = 1000
    """Enough for all tables of a million posts. Opening a table again takes 100 us."""


class LevelDB(forks.ProcessBound):
    """One LevelDB folder, open in this process. Thread-safe."""

    def __init__(
        self, path: Path, tuning: Tuning | None = None, *, create: bool = False, paranoid: bool = True
    ) -> None:
        """Open the folder. With `create`, create a database if none exists.

        With `paranoid` a damaged log is an error; otherwise the rows after the damage are dropped. Raises
        CorruptStoreError for damage, and for a missing database if `create` is false. Raises StorageError for I/O
        errors.
        """
        self._path = path
        self._tuning = tuning or Tuning()
        self._paranoid = paranoid
        self._rest_size_bytes = self._tuning.write_buffer_size_bytes // 2 if THREAD.is_missing() else None
        """Number of bytes that LevelDB can still write without its thread, None if the thread exists."""
        self._db = self._connect(create=create)
        self._lock = threading.Lock()
        self._compacting = threading.Lock()
        """Lock of a compaction, which may take minutes: only `close` and `mend` wait for it. It is acquired before
        `_lock`.
        """
        self._is_open = True
        self._is_usable = True
        """False if the database is closed, or `mend` could not open it again."""
        self._live = LevelSnapshot(self._db)
        self._snapshots: weakref.WeakSet[LevelSnapshot] = weakref.WeakSet()
        self._failure: StorageError | None = None
        self._acknowledged: Mapping[bytes, bytes | None] = {}
        """Rows of the last successful write."""
        self._failed: Mapping[bytes, bytes | None] = {}
        """Rows of the failed write. They may still be in the log."""
        forks.bind(self)

    def _connect(self, *, create: bool = False) -> plyvel.DB:
        path, tuning = self._path, self._tuning
        try:
            if not create and not holds_database(path):  # LevelDB would write into the folder before it raises
                raise CorruptStoreError(f"no database found at {path}. Restore it from a backup")
            if is_misnamed(path):
                raise damaged_for("its file CURRENT does not name a manifest")
            listed = read_readable(path)
            if is_outdated(path, listed):
                raise damaged_for("the end of its manifest is missing")
            if create:
                make_folder(path)
            database = plyvel.DB(
                str(path) + "/." * forks.ancestors,  # a forked child inherits LevelDB's list of open paths
                # If the CURRENT file is lost, LevelDB would create a new database instead and remove the old files.
                create_if_missing=create and not holds_data(path),
                paranoid_checks=self._paranoid,
                write_buffer_size=tuning.write_buffer_size_bytes,
                lru_cache_size=tuning.block_cache_size_bytes,
                block_size=tuning.block_size_bytes,
                # Hashes and signatures do not compress: Snappy saved 3% of a post's rows and took two thirds of the
                # write time.
                compression=None,
                max_file_size=tuning.table_size_bytes,
                bloom_filter_bits=tuning.bloom_filter_bits,
                max_open_files=tuning.max_open_files,
            )
            if self._paranoid and self._rest_size_bytes is None:
                self._merge_versions(database, listed.shared_keys())
        except plyvel.Error as error:
            raise write_error(error) from None
        except OSError as error:
            raise StorageError(f"cannot read the database at {path}: {error.strerror}") from None
        set_files(path)
        return database

    def _merge_versions(self, database: plyvel.DB, keys: list[bytes]) -> None:
        """Merge the versions of each key, so that an older version does not appear again.

        Earlier releases of this package used snapshots of LevelDB, which can leave versions in two tables: see
        `leveldb_snapshot`. The present values are written again first, so they remain the newest in all compactions.
        """
        if not keys:
            return
        with database.write_batch(sync=True) as batch:
            for key in keys:
                value = database.get(key)
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
        for key in keys:
            database.compact_range(start=key, stop=key)

    def _bound_parts(self) -> Iterable[forks.ProcessBound]:
        """Return the open snapshots."""
        return self._live, *self._snapshots

    def _native_parts(self) -> Iterable[object]:
        """Return the database and its open cursors. Their destructors write files and wait for LevelDB's locks."""
        if not hasattr(self, "_db"):  # after `close`
            return ()
        # plyvel keeps the cursors in a dict of weak references, which has no public name.
        listed = (each for each in gc.get_referents(self._db) if isinstance(each, dict))
        return self._db, *(cursor() for cursors in listed for cursor in list(cursors.values()))

    def snapshot(self) -> LevelSnapshot:
        """Return a snapshot of the current state."""
        with self._lock:
            if not self._is_usable:
                self._make_usable()
            snapshot = LevelSnapshot(self._db)
            self._snapshots.add(snapshot)
        return snapshot

    def live(self) -> LevelSnapshot:
        """Return a snapshot that is valid until the next write.

        Only the writer may use it, because `close` does not wait for its reads.
        """
        with self._lock:
            if not self._is_usable:
                self._make_usable()
            return self._live

    def _make_usable(self) -> None:
        """Open the database again after `mend` failed. Raises StoreClosedError if the database is closed."""
        if not self._is_open:
            raise StoreClosedError("the store is closed")
        self._reopen()

    def write(self, rows: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        """Put rows, and delete keys whose value is None, atomically. With `sync`, return when they are on the disk.

        After a failed write all later writes raise StorageError until `mend` succeeds: LevelDB may have left an
        incomplete record in its log, and the next opening would lose all rows after it.
        """
        with self._lock:
            if not self._is_usable:
                self._make_usable()
            if self._failure is not None:
                raise self._rejection("the store rejects writes until it is opened again")
            if self._rest_size_bytes is not None:
                self._rest_size_bytes -= sum(len(key) + len(value or b"") for key, value in rows.items())
                if self._rest_size_bytes < 0:
                    raise no_thread()
            batch = self._db.write_batch(sync=sync)
            put, delete = batch.put, batch.delete
            for key, value in rows.items():
                if value is None:
                    delete(key)
                else:
                    put(key, value)
            try:
                self._write(batch)
            except StorageError:
                self._failed = rows
                raise
            self._acknowledged = rows

    def mend(self) -> bool:
        """Open the database again after a failed write, so that it has a new log. Return False if no write failed.

        Open snapshots raise StoreClosedError. The rows of the failed write are either all present or all missing.
        Raises StorageError if the disk has too little free space, or if the last acknowledged write is missing. Reads
        remain possible after these errors.
        """
        if self._failure is None:
            return False
        with self._compacting, self._lock:
            if not self._is_open:
                raise StoreClosedError("the store is closed")
            if isinstance(self._failure, CorruptStoreError):
                raise self._failure
            self._require_room()
            for snapshot in (*self._snapshots, self._live):
                snapshot.close()
            self._is_usable = False
            self._db.close()
            self._reopen()
            if not any(map(self._holds, (self._acknowledged, {**self._acknowledged, **self._failed}))):
                self._failure = CorruptStoreError(
                    "acknowledged writes were lost after a failed write. Run `cablestore rebuild`"
                )
                raise self._failure
            self._failure, self._failed = None, {}
        return True

    def _reopen(self) -> None:
        try:
            self._db = self._connect()
        except StorageError as error:
            raise self._rejection(f"the database cannot be opened again ({error})") from None
        self._live = LevelSnapshot(self._db)
        self._is_usable = True

    def _require_room(self) -> None:
        """Raise StorageError if the disk lacks space to open the database again, which writes the logs to a table."""
        try:
            size_bytes = _MENDING_SIZE_BYTES + sum(log.stat().st_size for log in self._path.glob("*.log"))
            require_room(self._path, size_bytes)
        except OSError as error:
            raise self._rejection(
                f"opening the database again, which each write tries, needs {size_bytes:,} bytes of free space "
                f"({error.strerror})"
            ) from None

    def _rejection(self, why: str) -> StorageError:
        return StorageError(f"an earlier write failed, and {why}: {self._failure}")

    def _holds(self, rows: Mapping[bytes, bytes | None]) -> bool:
        return all(self._live.get(key) == value for key, value in rows.items())

    def bulk_writer(self) -> BulkWriter[plyvel._plyvel.WriteBatch]:
        """Return a writer for many rows, for use in a `with`. No other writer may be active at the same time."""
        self._require_thread()
        return BulkWriter(self._db.write_batch, self._write_many)

    def _write_many(self, batch: plyvel._plyvel.WriteBatch) -> None:
        with self._lock:
            self._write(batch)

    def _write(self, batch: plyvel._plyvel.WriteBatch) -> None:
        for snapshot in self._snapshots:
            snapshot.keep()
        try:
            batch.write()
        except plyvel.Error as error:
            self._failure = write_error(error)
            raise self._failure from None

    def sync(self) -> None:
        """Return when all writes are on the disk. Raises StorageError.

        LevelDB syncs its tables itself. It does not sync the previous log until its rows are in a table, even if a
        later write is synced. So all logs are synced here.
        """
        with self._lock:
            if not self._is_usable:
                self._make_usable()
            if self._failure is not None:
                raise self._failure
        with storage_errors(self._path):
            for log in self._path.glob("*.log"):
                with contextlib.suppress(FileNotFoundError):  # its rows are in a table by now
                    sync_file(log)
            sync_folder(self._path)

    def flush(self) -> None:
        """Write the rows in the log to a separate table.

        LevelDB later rewrites all tables between the first and the last key of a table. So call this before and after a
        write of a few rows with distant keys in a large database.
        """
        self._require_thread()
        with self._lock:
            self._flush()

    def _require_thread(self) -> None:
        if self._rest_size_bytes is not None:
            raise no_thread()

    def _flush(self) -> None:
        # Compacting an empty range still writes the log's rows to a table.
        self._db.compact_range(start=b"\x00", stop=b"\x00")
        THREAD.ran()

    def compact(self) -> None:
        """Rewrite the database to use the least space. Other threads can read and write meanwhile."""
        # Without bounds plyvel compacts an empty range, not all keys.
        self._compact_up_to(b"\xff")

    def remove_unused_tables(self) -> None:
        """Remove tables that were kept only for snapshots that are now closed. Other threads can use the database.

        LevelDB itself removes them after it has written another table, which may be hours later.
        """
        self._compact_up_to(b"\x00")

    def _compact_up_to(self, stop: bytes) -> None:
        self._require_thread()
        with self._compacting, reading():
            with self._lock:
                if not self._is_usable:
                    self._make_usable()
            self._db.compact_range(start=b"\x00", stop=stop)

    def approximate_size_bytes(self, start: bytes, stop: bytes) -> int:
        """Return the approximate size of a range on disk. The latest writes may not be counted."""
        with self._lock, reading():
            if not self._is_usable:
                self._make_usable()
            size_bytes: int = self._db.approximate_size(start, stop)
        return size_bytes

    def close(self) -> None:
        """Wait for running calls, then close. Open snapshots and scans raise StoreClosedError afterwards."""
        with self._compacting, self._lock:
            if not self._is_open:
                return
            self._is_open = self._is_usable = False
            for snapshot in list(self._snapshots):
                snapshot.close()
            if self._rest_size_bytes is not None:
                wait([in_thread(self._db.close)], TRIAL_TIMEOUT_S)  # may wait for a thread that a forked child lacks
                return
            if self._failure is None:
                self._flush()  # so that the next open does not need to read a log
            self._db.close()
            # plyvel's destructor fails, and prints that, if it runs only when the interpreter ends.
            self._live.close()
            del self._db
            set_files(self._path)


def mend(database: Database) -> bool:
    """Call `LevelDB.mend`. Return False for a database in memory, whose writes cannot fail."""
    return isinstance(database, LevelDB) and database.mend()
