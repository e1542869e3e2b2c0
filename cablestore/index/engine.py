"""Engine of a store: its folder, its database, its transactions, and the steps after each write."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

from cablestore.errors import ArgumentError, CableStoreError, OutdatedViewError, StorageError
from cablestore.forks import ProcessBound, bind
from cablestore.index import arrival_log, meta, notes
from cablestore.index.batches import Progress
from cablestore.index.checkpoint import write_checkpoint
from cablestore.index.database import Database, Row, Source
from cablestore.index.databases import (
    make_database,
    open_live,
    prepare_generation,
    read_meta,
    remove_replaced,
    weighed,
    without_old_cursors,
)
from cablestore.index.evidence import find_evidence, note_counts, note_lost_entries
from cablestore.index.folder import Folder
from cablestore.index.header import FORMAT
from cablestore.index.leveldb import LevelDB, Tuning, mend
from cablestore.index.log_position import LogPosition
from cablestore.index.memory import MemoryDB
from cablestore.index.opening import reject_write
from cablestore.index.plan import Plan, PlannedWrite
from cablestore.index.reader import Reader, SnapshotReader
from cablestore.index.rebuild import RebuildReport, counts_of, rebuild
from cablestore.index.recent import RecentRows
from cablestore.index.view import Catalog
from cablestore.protocol.dialect import Dialect

_OUTDATED_ADVICE: Final = (
    "Copy a store on a read-only disk to another disk first. `cablestore export --read-only` works without views"
)

Unseal = Callable[[bytes], bytes]
"""A function that decrypts a local-only post. It raises IdentityError if the key is missing."""


class Transaction:
    """A transaction, for use in a `with`: plan changes to one state, then commit the plan. Other writers wait."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Self:
        engine = self._engine
        if not engine.is_writable:
            engine.require_writable()
        self._writing = engine.writing
        self._writing.acquire()
        try:
            engine.settle()
            self.reader, self._known = engine.live_readers()
        except BaseException:
            self._writing.release()
            raise
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        try:
            self._engine.end_transaction(is_complete=kind is None)
        finally:
            self._writing.release()

    def holding(self, group: bytes) -> Reader:
        """Cache a group of a fold's rows, unless the group is large. Return a reader of the state that uses the cache.

        `group` is the prefix that the keys of these rows share, up to the last `!`.
        """
        self._engine.recent.hold(group, self.reader)
        return self._known

    def plan(self) -> Plan:
        """Return an empty plan for changes to the transaction's state."""
        engine = self._engine
        return Plan(self._known, engine.catalog, engine.sizes, engine.next_sequence)

    def commit(self, changes: PlannedWrite, *, sync: bool) -> None:
        """Write all changes of a plan atomically."""
        self._engine.write(changes, sync=sync)


class Engine(ProcessBound):
    """Open database of one store, in a folder or in memory. Thread-safe: one writer at a time, many readers."""

    def __init__(
        self,
        database: Database,
        folder: Folder | None,
        dialect: Dialect,
        catalog: Catalog,
        tuning: Tuning,
        unseal: Unseal,
        missing_views: dict[str, int] | None = None,
    ) -> None:
        self.catalog: Final = catalog
        self.dialect: Final = dialect
        self.folder: Final = folder
        self._unseal = unseal
        self._tuning = tuning
        self._missing_views = missing_views or {}
        """Views in the database that the catalog lacks. Their rows cannot be kept up to date."""
        self.is_read_only: Final = folder is not None and folder.is_read_only
        """True if the store was opened read-only."""
        self.is_writable: Final = not (self.is_read_only or missing_views)
        """True if a transaction can begin."""
        self._database = database
        self._generation = _generation_of(folder)
        self.writing = threading.RLock()
        self._present = threading.Lock()
        """Lock of `_database` and `_generation`, which a rebuild replaces together."""
        self._arrival_lock = threading.RLock()
        """Lock of `_arrived`. Ctrl-C in `with _arrived`, whose beginning is Python code, would leave it locked."""
        self._arrived = threading.Condition(self._arrival_lock)
        self.is_closed = False
        """True if the engine is closed or waits for the writer before it closes."""
        self._watchers: tuple[tuple[Callable[[], None], bool], ...] = ()
        """Functions to call after writes. The second value is True for a function that is also called after writes that
        change only local values of the user."""
        self._reloads: tuple[Callable[[], None], ...] = ()
        self._is_stale = False
        """True if the cached data of the database may be outdated."""
        self._is_swapping = False
        """True if a rebuild was interrupted during the swap, so that the header may name the other database. The next
        opening then removes the database that is open now."""
        self.write_failure = ""
        """Error of the last write if it failed, else "". The store then opens the database again before it writes."""
        self.failed_writes = 0
        """Number of failed writes, and of failed attempts to open the database again."""
        self.recent = RecentRows()
        self._live: Source | None = None
        """The state that the writer reads."""
        self._readers: tuple[Reader, Reader]
        """Two readers of `_live`, the first without and the second with the cached recent rows."""
        self._load()
        bind(self)

    @classmethod
    def in_memory(cls, dialect: Dialect, catalog: Catalog, unseal: Unseal) -> Self:
        """Create an engine in memory, whose data is lost when it is closed."""
        database = MemoryDB()
        database.write(dict([meta.meta_row(catalog, dialect, FORMAT)]), sync=False)
        return cls(database, None, dialect, catalog, Tuning(), unseal)

    @classmethod
    def open(
        cls,
        path: Path,
        catalog: Catalog,
        *,
        create: bool,
        dialect: Dialect | None,
        tuning: Tuning,
        unseal: Unseal,
        any_views: bool = False,
        allow_missing_views: bool = False,
        read_only: bool = False,
    ) -> Self:
        """Open the store's live database. With `create`, create a store that does not exist.

        `unseal` decrypts local-only posts. With `any_views`, do not check the views: the caller only reads posts. With
        `allow_missing_views`, also open a database with views that the catalog lacks. Then a transaction raises
        OpenError. With `read_only`, write nothing into the folder. Then a transaction raises StorageError.
        """
        folder = (
            Folder.open_to_read(path, dialect=dialect)
            if read_only
            else Folder.open(path, create=create, dialect=dialect)
        )
        try:
            if folder.is_new:
                make_database(folder, catalog, tuning)
            database = open_live(folder, tuning)
            try:
                value = read_meta(database, folder)
                if not any_views:
                    meta.check_meta(value, catalog, folder.header.dialect, str(folder.path))
                if not (any_views or allow_missing_views):
                    meta.require_views(value, catalog, str(folder.path))
                missing = meta.missing_views(value, catalog)
                engine = cls(database, folder, folder.header.dialect, catalog, tuning, unseal, missing)
            except OutdatedViewError as error:
                database.close()
                if not read_only:
                    raise
                raise OutdatedViewError(f"{error}. {_OUTDATED_ADVICE}") from None
            except BaseException:
                database.close()
                raise
            if not read_only:
                note_lost_entries(folder.database_path, engine.next_sequence)
        except BaseException:
            folder.close()
            raise
        return engine

    def _load(self) -> None:
        self.recent.forget()
        with self._database.snapshot() as state:
            reader = Reader(state, self.dialect)
            self.sizes: meta.Sizes = meta.decode_sizes(reader.get(meta.SIZES_KEY))
            self.next_sequence = arrival_log.next_sequence(reader)
            last = arrival_log.last_post_entry(reader, self.next_sequence - 1)
        self._last_entry = self._generation, last
        """The database's unique name, and the last log entry of a post. Other threads read both, so they are replaced
        together."""

    @property
    def place(self) -> LogPosition:
        """The log position of the present state. It changes with each change of the posts."""
        return LogPosition.after(*self._last_entry)

    def when_reloaded(self, read_again: Callable[[], None]) -> None:
        """Register a function that the writer's thread calls when cached data of the database must be read again."""
        self._reloads += (read_again,)

    def settle(self) -> None:
        """Open the database again after a failed write, and reload outdated cached data.

        Raises StorageError if writes are not possible.
        """
        if self._is_swapping:
            raise StorageError(
                "a rebuild was interrupted while it replaced the database: the store rejects writes. Close the store "
                "and open it again"
            )
        if self.write_failure:
            try:
                self._mend()
            except StorageError as error:
                self._note_failure(error)
                raise
        if self._is_stale:
            self._reload()

    def _mend(self) -> None:
        if mend(self._database):
            self._is_stale = True
            self.write_failure = ""

    def _note_failure(self, error: StorageError) -> None:
        self.failed_writes += 1
        self.write_failure = str(error)
        self._notify_waiting()

    def retry_writes(self) -> None:
        """Open the database again if a write failed. Errors are ignored: the next transaction tries again."""
        with self.writing:
            if self.write_failure and not self.is_closed:
                with suppress(CableStoreError):
                    self._mend()
                    if self._is_stale:
                        self._reload()

    def end_transaction(self, *, is_complete: bool) -> None:
        """Keep the cached data if the transaction `is_complete`, otherwise read it again.

        An error or Ctrl-C may have interrupted the transaction before or after the rows were written.
        """
        self._is_stale = not is_complete
        if self._is_stale:
            with suppress(CableStoreError):  # the next transaction tries again, and raises the error
                self._reload()

    def _reload(self) -> None:
        self._load()
        for read_again in self._reloads:
            read_again()
        self._is_stale = False
        self._notify_waiting()

    def require_writable(self) -> None:
        """Raise StorageError if the store was opened read-only, and OpenError like `require_views`."""
        if self.is_read_only:
            reject_write()
        self.require_views()

    def require_views(self) -> None:
        """Raise OpenError if the database has views that the catalog lacks, so that it is read-only."""
        if self._missing_views:
            where = str(self.folder.path) if self.folder is not None else "the store"
            raise meta.missing_error(self._missing_views, where)

    def reading(self) -> SnapshotReader:
        """Return a reader of the present state. Close it, or use it in a `with`."""
        with self._present:
            return SnapshotReader(self._database.snapshot(), self.dialect, self._unseal, self._generation)

    def live_readers(self) -> tuple[Reader, Reader]:
        """Return two readers of the present state for the writer. The second reads recent rows from the cache."""
        live = self._database.live()
        if live is not self._live:
            reader = Reader(live, self.dialect, self._unseal)
            self._live, self._readers = live, (reader, reader.over(self.recent.over(live)))
        return self._readers

    def transaction(self) -> Transaction:
        """Return a transaction. It locks out other writers while posts are planned and written."""
        return Transaction(self)

    def write(self, changes: PlannedWrite, *, sync: bool) -> None:
        """Write the changes of a plan. All writes of the store use this method."""
        self._is_stale = True  # until the transaction ends
        try:
            self._database.write(changes.rows, sync=sync)
        except StorageError as error:
            self._note_failure(error)
            raise
        self.recent.remember(changes.combined)
        self.sizes = changes.sizes
        if changes.next_sequence is not None:
            self.next_sequence = changes.next_sequence
        if changes.last_entry is not None:
            self._last_entry = self._generation, changes.last_entry
        self._notify_waiting(is_local=changes.is_local)

    def _notify_waiting(self, *, is_local: bool = False) -> None:
        with self._arrival_lock:
            self._arrived.notify_all()
        for call, wants_local in self._watchers:
            if wants_local or not is_local:
                call()

    def wait(self, after: int, timeout_s: float | None) -> bool:
        """Wait until the arrival log has an entry after number `after`.

        Return True then, False after the timeout or if the store is closed.
        """
        with self._arrival_lock:
            if timeout_s != 0:  # even a wait of 0 s releases the lock for a moment, in which Ctrl-C may arrive
                self._arrived.wait_for(lambda: self.next_sequence > after + 1 or self.is_closed, timeout_s)
            return self.next_sequence > after + 1 and not self.is_closed

    def watch(self, call: Callable[[], None], *, local: bool = True) -> Callable[[], None]:
        """Register `call`. The writer's thread calls it after each write and failed write, and `close` calls it.

        Without `local`, it is not called after writes that change only local values of the user. Return a function that
        removes the registration.
        """

        def unwatch() -> None:
            with self._arrival_lock:
                self._watchers = tuple(each for each in self._watchers if each[0] is not call)

        with self._arrival_lock:
            self._watchers += ((call, local),)
        return unwatch

    def sync(self) -> None:
        """Return when all writes are on the disk. Raises StorageError."""
        self._database.sync()

    def compact(self) -> None:
        """Rewrite the database to use the least space."""
        self._database.compact()

    def remove_unused_tables(self) -> None:
        """Remove tables that were kept only for snapshots that are now closed."""
        self._database.remove_unused_tables()

    def checkpoint(self, target: Path) -> None:
        """Write a checkpoint of the present state to an empty folder on the same disk. Writers wait for a moment."""
        if self.folder is None:
            raise ArgumentError("invalid argument store: a store in memory has no folder. Use CableStore.open")
        with self.writing:
            self.settle()
            self.live_readers()  # raises StoreClosedError after `close`
        write_checkpoint(self.folder, target, self.writing)

    def approximate_size_bytes(self, start: bytes, stop: bytes) -> int:
        """Return the approximate size on the disk of a range of keys."""
        return self._database.approximate_size_bytes(start, stop)

    def rebuild(self, progress: Progress) -> RebuildReport:
        """Build a new database from the posts, and replace the open database, whose snapshots become invalid."""
        self.require_writable()
        row = meta.meta_row(self.catalog, self.dialect, FORMAT)
        with self.writing:
            self.settle()
            with self.reading() as reader:
                if self.folder is None:
                    new = MemoryDB()
                    report = rebuild(reader, new, self.catalog, row, None, progress)
                    notes.forget_touched(new)
                    self._replace(new).close()
                else:
                    report = self._rebuild_in(self.folder, reader, row, progress)
            self._reload()
        return report

    def _rebuild_in(self, folder: Folder, reader: Reader, row: Row, progress: Progress) -> RebuildReport:
        """Build the next generation from `reader` with the meta row `row`, and replace the open database with it."""
        from cablestore.index.parallel import rebuild_into  # noqa: PLC0415 - not needed to open a store

        old = folder.header.generation
        build = partial(rebuild_into, reader, self.catalog, row, progress)
        evidence = find_evidence(folder.database_path, is_open=True)
        name, report = prepare_generation(folder, without_old_cursors(folder, weighed(evidence, build)))
        try:
            new = LevelDB(folder.path / name, self._tuning)  # before the swap, because it may fail
        except BaseException:
            folder.remove(name)
            raise
        self._is_swapping = True
        try:
            folder.activate(name, keep=bool(report.damaged))
            replaced = self._replace(new)
        except BaseException:
            if self._database is not new:
                new.close()
            raise
        self._is_swapping = False
        replaced.close()
        remove_replaced(folder, old, report)
        return report

    def _replace(self, new: Database) -> Database:
        """Replace the open database. Return the previous database."""
        self._is_stale = True  # until `_reload`
        with self._present:
            self._database, replaced = new, self._database
            self._generation = _generation_of(self.folder)
        return replaced

    def close(self) -> None:
        """Wake the threads in `wait`, wait for the writer, close the database and unlock the folder."""
        with self._arrival_lock:
            self.is_closed = True
        self._notify_waiting()
        with self.writing:
            self._database.close()
            if self.folder is not None:
                if not (self._is_stale or self.is_read_only):
                    note_counts(self.folder.database_path, counts_of(self.sizes, self.catalog, self.next_sequence))
                self.folder.close()


def _generation_of(folder: Folder | None) -> str:
    """Return a unique name of a database: its generation and the store's id, or random digits if it is in memory."""
    if folder is None:
        return f"memory-{secrets.token_hex(16)}"
    return f"{folder.header.generation}-{folder.header.store_id}"
