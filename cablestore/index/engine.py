"""Engine of a store: its folder and database, the one write of a store, and what follows it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

from cablestore.errors import (
    CableStoreError,
    CorruptStoreError,
    MissingDatabaseError,
    MissingViewError,
    OutdatedViewError,
    StorageError,
)
from cablestore.forks import ProcessBound, bind
from cablestore.index import arrival_log, meta, notes
from cablestore.index.batches import Progress
from cablestore.index.database import Database, Row, SnapshotSource, Source
from cablestore.index.evidence import Evidence, find_evidence, note_counts, note_lost_entries, note_lost_writes
from cablestore.index.folder import FORMAT, Folder
from cablestore.index.leveldb import LevelDB, Tuning, mend
from cablestore.index.memory import MemoryDB
from cablestore.index.opening import READ_ONLY_ADVICE, refuse_to_write
from cablestore.index.place import LogPlace
from cablestore.index.plan import Plan, PlannedWrite
from cablestore.index.read_only import open_read_only
from cablestore.index.reader import Reader
from cablestore.index.rebuild import RebuildReport, counts_of, rebuild
from cablestore.index.recent import RecentRows
from cablestore.index.view import Catalog
from cablestore.protocol.dialect import Dialect

_OUTDATED_ADVICE: Final = "A store on a read-only disk must be copied to another one first. `cablestore export --read-only` works without views"

Unseal = Callable[[bytes], bytes]
"""Function that decrypts a local-only post. It raises IdentityError if the key is missing."""


class Transaction:
    """Plans over one state and the write of one of them, in a `with`. No other thread writes meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Self:
        engine = self._engine
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
            self._engine.end_transaction(is_whole=kind is None)
        finally:
            self._writing.release()

    def holding(self, group: bytes) -> Reader:
        """Return a reader of the state that has a group of a fold's rows in memory, unless the group is large.

        `group` is the beginning of their keys, up to the last `!`.
        """
        self._engine.recent.hold(group, self.reader)
        return self._known

    def plan(self) -> Plan:
        """Return an empty plan."""
        engine = self._engine
        return Plan(self._known, engine.catalog, engine.sizes, engine.next_sequence)

    def commit(self, changes: PlannedWrite, *, sync: bool) -> None:
        """Write all changes of a plan, or nothing."""
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
        """Views that the database has and the catalog lacks. Their rows cannot be kept up to date."""
        self._database = database
        self._generation = _generation_of(folder)
        self.writing = threading.RLock()
        self._present = threading.Lock()
        """Guards which database is the present one."""
        self._arrived = threading.Condition()
        self._is_open = True
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._reloads: tuple[Callable[[], None], ...] = ()
        self._is_stale = False
        """Whether the database may have changed without what is kept of it in memory."""
        self._is_swapping = False
        """Whether the header may name another database than the one that is open. The next open removes this one."""
        self.write_failure = ""
        """Why the store accepts no writes: the last one failed. "" if all is well."""
        self.failed_writes = 0
        """Times that the disk refused a write."""
        self.recent = RecentRows()
        self._live: Source | None = None
        """The state that the writer reads."""
        self._readers: tuple[Reader, Reader]
        """Two readers of `_live`, without and with the recent rows from memory."""
        self._load()
        bind(self)

    @classmethod
    def in_memory(cls, dialect: Dialect, catalog: Catalog, unseal: Unseal) -> Self:
        """Make an engine in memory, which keeps nothing after it is closed."""
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
        """Open the store's live database. `create` makes it if it is missing.

        `unseal` decrypts local-only posts. With `any_views` a database is opened whatever its views are, to read posts
        alone. With `allow_missing_views` one with views that the catalog lacks is opened to be read: a transaction
        raises MissingViewError. With `read_only` nothing is written into the folder, and a transaction raises
        StorageError.
        """
        folder = (
            Folder.open_to_read(path, dialect=dialect)
            if read_only
            else Folder.open(path, create=create, dialect=dialect)
        )
        try:
            if folder.is_new:
                _make_database(folder, catalog, tuning)
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
                if not read_only or isinstance(error, MissingViewError):
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
        self.place = LogPlace.after(self._generation, last)
        """The place of the present state: another one after each change of the posts."""

    def when_reloaded(self, read_again: Callable[[], None]) -> None:
        """Call a function, in the writer's thread, when what is kept in memory of the database must be read again."""
        self._reloads += (read_again,)

    def settle(self) -> None:
        """Read again what is kept in memory, if an earlier transaction did not end well and left that to this one.

        After a failed write the database is opened again. Raises StorageError if nothing may be written.
        """
        if self._is_swapping:
            raise StorageError(
                "a rebuild stopped while its database took the place of the old one, so the store accepts no more until "
                "it is opened again"
            )
        with self._noting_failure():
            self._mend()
        if self._is_stale:
            self._reload()

    def _mend(self) -> None:
        if mend(self._database):
            self._is_stale = True
            self.write_failure = ""

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self.failed_writes += 1
            self.write_failure = str(error)
            self._tell_waiting()
            raise

    def retry_writes(self) -> None:
        """Accept writes again after a failed one, if the disk does. The next transaction would do it too."""
        with self.writing:
            if self.write_failure and self._is_open:
                with suppress(CableStoreError):
                    self._mend()
                    if self._is_stale:
                        self._reload()

    def end_transaction(self, *, is_whole: bool) -> None:
        """Trust what is kept in memory after a transaction that ended well. After another one read it again.

        Ctrl-C may come when the rows are already on the disk, or before they are.
        """
        self._is_stale = not is_whole
        if self._is_stale:
            with suppress(CableStoreError):  # then the next transaction does it, or raises the same
                self._reload()

    def _reload(self) -> None:
        self._load()
        for read_again in self._reloads:
            read_again()
        self._is_stale = False
        self._tell_waiting()

    @property
    def is_read_only(self) -> bool:
        """True if the store was opened for reading only."""
        return self.folder is not None and self.folder.is_read_only

    @property
    def is_writable(self) -> bool:
        """True if a transaction can begin."""
        return not self.is_read_only and not self._missing_views

    def require_writable(self) -> None:
        """Raise StorageError if the store was opened for reading only, MissingViewError as `require_views`."""
        if self.is_read_only:
            refuse_to_write()
        self.require_views()

    def require_views(self) -> None:
        """Raise MissingViewError if the database has views that the catalog lacks: it can be read only."""
        if self._missing_views:
            where = str(self.folder.path) if self.folder is not None else "the store"
            raise meta.missing_error(self._missing_views, where)

    def snapshot(self) -> tuple[SnapshotSource, Reader]:
        """Return the present state, which the caller must close, and a reader of it."""
        with self._present:
            state, generation = self._database.snapshot(), self._generation
        return state, Reader(state, self.dialect, self._unseal, generation)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Return a reader of the present state, open within the context."""
        state, reader = self.snapshot()
        with state:
            yield reader

    def live_readers(self) -> tuple[Reader, Reader]:
        """Return two readers of the present state for the writer, the second with the recent rows from memory."""
        live = self._database.live()
        if live is not self._live:
            reader = Reader(live, self.dialect, self._unseal)
            self._live, self._readers = live, (reader, reader.over(self.recent.over(live)))
        return self._readers

    def transaction(self) -> Transaction:
        """Return a transaction, which locks out other writers while posts are planned and written."""
        return Transaction(self)

    def write(self, changes: PlannedWrite, *, sync: bool) -> None:
        """Write the changes of a plan: the one write of the store."""
        self._is_stale = True  # until the transaction ends
        with self._noting_failure():
            self._database.write(changes.rows, sync=sync)
        self.recent.remember(changes.combined)
        self.sizes = changes.sizes
        if changes.next_sequence is not None:
            self.next_sequence = changes.next_sequence
        if changes.last_entry is not None:
            self.place = LogPlace.after(self._generation, changes.last_entry)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        with self._arrived:
            self._arrived.notify_all()
        for call in self._watchers:
            call()

    def wait(self, after: int, timeout_s: float | None) -> bool:
        """Wait until the arrival log is longer than `after`. Returns False when time is up or the store is closed."""
        with self._arrived:
            if timeout_s != 0:  # even a wait of 0 s releases the lock for a moment, and Ctrl-C may come just then
                self._arrived.wait_for(lambda: self.next_sequence > after + 1 or not self._is_open, timeout_s)
            return self.next_sequence > after + 1 and self._is_open

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function after each write, also a failed one, in the thread that wrote, and at the end.

        Returns the function that ends this.
        """

        def unwatch() -> None:
            with self._arrived:
                self._watchers = tuple(each for each in self._watchers if each is not call)

        with self._arrived:
            self._watchers += (call,)
        return unwatch

    @property
    def is_closed(self) -> bool:
        """Whether the engine is closed, or waits for the writer to close."""
        return not self._is_open

    def sync(self) -> None:
        """Return when all that was written is on the disk. Raises StorageError."""
        self._database.sync()

    def compact(self) -> None:
        """Rewrite the database in the least space."""
        self._database.compact()

    def approximate_size_bytes(self, start: bytes, stop: bytes) -> int:
        """Return the approximate size on the disk of a range of keys."""
        return self._database.approximate_size_bytes(start, stop)

    def rebuild(self, progress: Progress) -> RebuildReport:
        """Build a new database from the posts beside this one and swap them. Snapshots of the old one end."""
        self.require_writable()
        row = meta.meta_row(self.catalog, self.dialect, FORMAT)
        with self.writing:
            self.settle()
            state, reader = self.snapshot()
            with state:
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
        """Build the next generation of a folder, open it, and put it in the place of the open one."""
        from cablestore.index.parallel import rebuild_into  # noqa: PLC0415 - opening a store does without it

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
        """Make another database the present one. Returns the one before."""
        self._is_stale = True  # until `_reload`
        with self._present:
            self._database, replaced = new, self._database
            self._generation = _generation_of(self.folder)
        return replaced

    def close(self) -> None:
        """End waiting readers, wait for the writer, close the database and unlock the folder."""
        with self._arrived:
            self._is_open = False
        self._tell_waiting()
        with self.writing:
            self._database.close()
            if self.folder is not None:
                if not (self._is_stale or self.is_read_only):
                    note_counts(self.folder.database_path, counts_of(self.sizes, self.catalog, self.next_sequence))
                self.folder.close()


def _generation_of(folder: Folder | None) -> str:
    """Return the name of a database that no other has: the generation's and the store's, or random digits in memory."""
    if folder is None:
        return f"memory-{secrets.token_hex(16)}"
    return f"{folder.header.generation}-{folder.header.store_id}"


def open_live(folder: Folder, tuning: Tuning | None = None) -> LevelDB:
    """Open the live database of a locked folder, for reading only if the folder is."""
    return open_generation(folder, folder.header.generation, tuning)


def open_generation(folder: Folder, generation: str, tuning: Tuning | None = None) -> LevelDB:
    """Open a database of a locked folder, for reading only if the folder is. Lost writes of the live one are noted."""
    path = folder.path / generation
    if folder.is_read_only:
        return open_read_only(path, tuning)
    if path == folder.database_path:
        note_lost_writes(path)
    try:
        return LevelDB(path, tuning)
    except (CorruptStoreError, MissingDatabaseError):
        raise
    except StorageError as error:
        raise StorageError(f"{error}. {READ_ONLY_ADVICE}") from None


def _make_database(folder: Folder, catalog: Catalog, tuning: Tuning) -> None:
    """Make the first database of a new store. The header is written when the database is on the disk."""
    name = folder.begin()
    database = LevelDB(folder.path / name, tuning, create=True)
    try:
        database.write(dict([meta.meta_row(catalog, folder.header.dialect, FORMAT)]), sync=True)
    finally:
        database.close()
    folder.activate(name)


def read_meta(database: Database, folder: Folder) -> bytes:
    """Return the meta row of a database. Raises CorruptStoreError if there is none."""
    with database.snapshot() as state:
        value = state.get(meta.META_KEY)
    if value is None:
        raise CorruptStoreError(
            f"the database in {folder.database_path} does not say what it is. `cablestore rebuild` makes a new one"
        )
    return value


Build = Callable[[Path, Path], RebuildReport]
"""Function that builds a database, complete and closed. It gets its path and a folder for temporary files."""


def prepare_generation(folder: Folder, build: Build, name: str | None = None) -> tuple[str, RebuildReport]:
    """Build the next generation, which does not become the live one. Returns its name, by default the next one."""
    name = folder.begin(name)
    try:
        with folder.scratch() as scratch:
            return name, build(folder.path / name, scratch)
    except BaseException:
        folder.remove(name)
        raise


def build_generation(folder: Folder, build: Build, name: str | None = None) -> RebuildReport:
    """Build the next generation, and make it the live one. `name` is its name, by default the next one."""
    name, report = prepare_generation(folder, build, name)
    folder.activate(name, keep=bool(report.damaged))
    return report


def rebuild_generation(folder: Folder, build: Build) -> RebuildReport:
    """Build the next generation from the live one, as `build_generation` does."""
    return build_generation(folder, without_old_cursors(folder, build))


def weighed(evidence: Evidence, build: Build, *, is_complete: bool = True) -> Build:
    """Return a function that builds a database, and compares its report with what is known besides the rows."""

    def build_weighed(path: Path, scratch: Path) -> RebuildReport:
        report = build(path, scratch)
        report.weigh(evidence, is_complete=is_complete)
        return report

    return build_weighed


def without_old_cursors(folder: Folder, build: Build) -> Build:
    """Return a function that builds the next generation from the live one, without what only old cursors need."""

    def build_without(path: Path, scratch: Path) -> RebuildReport:
        report = build(path, scratch)
        if not (folder.header.kept or report.damaged):  # otherwise cursors of an earlier generation may fit again
            with closing(LevelDB(path)) as database:
                notes.forget_touched(database)
        return report

    return build_without


def remove_replaced(folder: Folder, old: str, report: RebuildReport) -> None:
    """Remove the generation that was rebuilt, or set it aside if something was lost."""
    if report.damaged:
        report.kept_aside = folder.set_aside(old)
    else:
        folder.remove(old)
