"""Maintenance of a store that no process has open: rebuild, check, export, and manage its generations.

A generation is one database of a store. The header of the folder names the live generation. A rebuild, a reindexing or
a rollback makes another generation live. The previous generation may remain in the folder, so that the store can return
to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Self

from cablestore.arguments import check, check_given, check_instance, check_text, checked_each
from cablestore.errors import CorruptStoreError, OpenError
from cablestore.export.exporter import export_store
from cablestore.export.manifest import Filters, Manifest
from cablestore.files import Location, check_location
from cablestore.index import arrival_log, meta
from cablestore.index.batches import Progress, no_progress
from cablestore.index.check import CheckReport, check_evidence
from cablestore.index.database import Row
from cablestore.index.databases import (
    open_generation,
    open_live,
    read_meta,
    rebuild_generation,
    remove_replaced,
    weighed,
)
from cablestore.index.engine import Engine
from cablestore.index.evidence import Counts, Evidence, find_evidence, note_lost_writes
from cablestore.index.folder import Folder, store_path
from cablestore.index.header import FORMAT
from cablestore.index.last_check import note_check
from cablestore.index.leveldb import LevelDB, Tuning
from cablestore.index.leveldb_salvage import salvaged
from cablestore.index.log_position import is_shared, mark_at
from cablestore.index.notes import has_discarded
from cablestore.index.opening import reject_write
from cablestore.index.parallel import Origin, check_database, rebuild_database, rebuild_into
from cablestore.index.reader import Reader
from cablestore.index.rebuild import RebuildReport, counts_in
from cablestore.index.view import Catalog
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import LEGACY, Dialect
from cablestore.protocol.keys import after_prefix
from cablestore.protocol.post import Post
from cablestore.store.hidden import HiddenMessages
from cablestore.store.key_file import StoreIdentity, unseal_of
from cablestore.store.options import system_clock_ms
from cablestore.views import CATALOG
from cablestore.views.data import VIEW as DATA

if TYPE_CHECKING:
    from cablestore.index.takeover import TakeoverReport


@dataclass(frozen=True, slots=True)
class Generation:
    """One database of a store: its name, its size, and when it was created (ISO 8601).

    `state` is one of

    * "live": the store uses it;
    * "kept": the store can return to it;
    * "missing": the header names it, but it is not in the folder;
    * "unnamed": it is in the folder, but the header does not name it. The store ignores it.
    """

    name: str
    state: str
    size_bytes: int
    made: str

    @property
    def is_live(self) -> bool:
        """True if the store uses this generation."""
        return self.state == "live"


@dataclass(frozen=True, slots=True)
class RecoverReport:
    """Result of `ClosedStore.recover`.

    `posts` is the number of posts in the database, including local-only posts. It is None if the database cannot be
    read completely: then `rebuild` recovers the readable posts. `lost_posts` is the number of lost posts, None if it is
    unknown; `lost_posts_at_least` is a lower bound. `lost` describes the lost writes.
    """

    posts: int | None
    lost_posts: int | None
    lost_posts_at_least: int
    lost: str = ""

    @property
    def has_all_posts(self) -> bool:
        """True if the database can be read completely and the number of lost posts is known to be 0."""
        return self.posts is not None and self.lost_posts == 0

    @classmethod
    def of(cls, posts: int | None, recorded: Counts | None, evidence: Evidence) -> Self:
        """Return the report for a database with `posts` posts, None if it cannot be read completely.

        `recorded` are the counts in its rows, None if they are unreadable. `evidence` describes other signs of loss.
        """
        report = RebuildReport(posts=posts or 0)
        following = 1 if recorded is None else recorded.next
        report.compare(recorded, following, 0 if recorded is None else recorded.deletion_rows)
        report.weigh(evidence, is_complete=True)
        if posts is None:
            return cls(None, None, 0, evidence.lost)
        return cls(posts, report.lost_posts, report.lost_posts_at_least, ", ".join(report.damaged))


class ClosedStore:
    """A store that no process has open. Every method locks its folder and raises OpenError if that fails.

    `identity` is used instead of the key file in the folder. `dialect` must be the dialect of the store; by default it
    is read from the store. With `read_only`, nothing is written to the folder: only `check`, `export` and `generations`
    work, and other methods raise StorageError.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        identity: Identity | None = None,
        catalog: Catalog = CATALOG,
        dialect: Dialect | None = None,
        read_only: bool = False,
    ) -> None:
        check(read_only=read_only)
        check_instance("identity", identity, (Identity, NoneType))
        check_instance("dialect", dialect, (Dialect, NoneType))
        check_instance("catalog", catalog, Catalog)
        self.path = store_path(path)
        self._read_only = read_only
        self._identity = identity
        self._catalog = catalog
        self._dialect = dialect

    def rebuild(
        self,
        *,
        drop_views: frozenset[str] = frozenset(),
        processes: int | None = None,
        only_whole: bool = False,
        progress: Progress = no_progress,
    ) -> RebuildReport:
        """Rebuild every view from the posts, even if outdated views or damaged files prevent the store from opening.

        By default, a large store is rebuilt in one process per core if the extra `parallel` is installed;
        `processes=1` uses only this process. Unreadable parts are left out and reported; in this case, the old database
        is kept beside the new one. The number of lost posts is unknown if the rows that count them may be lost too.
        Raises StorageError if files cannot be read, IdentityError if the key of local-only posts is missing.

        With `only_whole`, raises CorruptStoreError and changes nothing if parts would be left out. The error names
        them.

        Views that the store contains and the catalog lacks are dropped if `drop_views` names them. Otherwise raises
        OpenError and changes nothing.
        """
        checked_each("drop_views", drop_views, check_text)
        check(only_whole=only_whole, progress=progress)
        check_given(processes=processes)
        with self._locked_to_write() as folder:
            row = meta.meta_row(self._catalog, folder.header.dialect, FORMAT)
            old = folder.header.generation
            origin = self._origin(folder)
            where = str(folder.path)
            evidence = find_evidence(origin.path)
            is_complete = False
            try:
                _require_log(evidence, where)
                with open_reader(folder, old) as (_, live):
                    is_complete = True  # so far: LevelDB could read its list of tables and its log
                    meta.require_views(live.get(meta.META_KEY), self._catalog, where, drop_views)
                build = weighed(evidence, partial(rebuild_database, origin, self._catalog, row, progress, processes))
                report = rebuild_generation(folder, partial(_build_whole, where, build) if only_whole else build)
            except CorruptStoreError:
                if only_whole:
                    raise
                with folder.scratch() as scratch, salvaged(origin.path, scratch / "readable") as readable:
                    reader = Reader(readable, origin.dialect, origin.unseal)
                    meta.require_views(reader.get(meta.META_KEY), self._catalog, where, drop_views)
                    # Salvage may bring back discarded posts. Then a comparison of counts would hide lost posts.
                    is_complete &= not has_discarded(reader, 0)
                    build = partial(_build_damaged, reader, self._catalog, row, progress)
                    report = rebuild_generation(folder, weighed(evidence, build, is_complete=is_complete))
            remove_replaced(folder, old, report)
            return report

    def check(
        self, *, signatures: bool = False, processes: int | None = None, progress: Progress = no_progress
    ) -> CheckReport:
        """Compare every row with the posts. With `signatures`, also verify every post.

        The result is recorded in the folder, unless the store is read-only. By default, a large store is checked in one
        process per core if the extra `parallel` is installed.
        """
        check(signatures=signatures, progress=progress)
        check_given(processes=processes)
        with self._locked() as folder:
            evidence = find_evidence(folder.database_path)
            with closing(open_live(folder)) as database:
                value = read_meta(database, folder)
            meta.check_meta(value, self._catalog, folder.header.dialect, str(folder.path))
            meta.require_views(value, self._catalog, str(folder.path))
            with folder.scratch() as scratch:
                report = check_database(
                    self._origin(folder),
                    self._catalog,
                    scratch,
                    signatures=signatures,
                    processes=processes,
                    progress=progress,
                )
            check_evidence(evidence, report)
            if not self._read_only:
                note_check(folder.path, system_clock_ms(), report, signatures=signatures)
            return report

    def export(self, out: Location, *, filters: Filters | None = None, progress: Progress = no_progress) -> Manifest:
        """Export the store to a new or empty folder, or to a URI.

        Without `filters`, only posts and tombstones are read, so views may be outdated. Filters read views, which must
        then be up to date. Views that the catalog lacks are ignored.
        """
        check(progress=progress)
        check_instance("filters", filters, (Filters, NoneType))
        check_location("out", out)
        identity = StoreIdentity(self._identity, self.path, read_only=self._read_only)
        engine = Engine.open(
            self.path,
            self._catalog,
            create=False,
            dialect=self._dialect,
            tuning=Tuning(),
            unseal=identity.unseal,
            any_views=filters is None,
            allow_missing_views=True,
            read_only=self._read_only,
        )

        def hidden_of(reader: Reader) -> Callable[[Post], bool]:
            known = identity.load()
            return HiddenMessages(reader, None if known is None else known.public_key).has

        with closing(engine):
            return export_store(engine, out, filters=filters, hidden_of=hidden_of, progress=progress)

    def generations(self) -> list[Generation]:
        """Return the generations, oldest first."""
        with self._locked() as folder:
            return [_describe(folder, name) for name in folder.generations]

    def roll_back(self, generation: str) -> TakeoverReport:
        """Make an earlier generation live, and add all changes that arrived since. The current generation is kept.

        Raises OpenError if `generation` is not kept, or if either generation contains views that the catalog lacks.
        Raises OutdatedViewError if another version built the views of `generation`.
        """
        from cablestore.index.takeover import take_over  # noqa: PLC0415 - not needed to open a store

        check(generation=generation)
        with self._locked_to_write() as folder:
            _require_kept(folder, generation)
            dialect = folder.header.dialect
            with (
                open_reader(folder, folder.header.generation, self._identity) as (_, live),
                open_reader(folder, generation, self._identity) as (old, before),
            ):
                value = before.get(meta.META_KEY)
                if value is not None:
                    meta.check_meta(value, self._catalog, dialect, str(folder.path / generation))
                for reader in (before, live):
                    meta.require_views(reader.get(meta.META_KEY), self._catalog, str(folder.path))
                through = arrival_log.next_sequence(before) - 1
                # If the live log has a different history, all its entries are new to this generation.
                after = through if is_shared(live, through, mark_at(before, through)) else 0
                succession = take_over(live, old, dialect, self._catalog, after)
            folder.activate(generation, keep=True)
        return succession

    def remove(self, generation: str) -> None:
        """Remove a generation that is not live, or all kept generations if `generation` is "kept"."""
        check(generation=generation)
        with self._locked_to_write() as folder:
            for name in folder.header.kept if generation == "kept" else (generation,):
                if name not in folder.generations or name == folder.header.generation:
                    _require_kept(folder, name)
                folder.remove(name)

    def recover(self, generation: str) -> RecoverReport:
        """Make a generation live if the header is lost, overwritten, or names a missing database.

        If the database is too damaged to read its dialect, pass the `dialect` to the constructor. Other generations are
        not changed. Raises OpenError if the generation is missing or unfinished, or if the dialect is unknown or
        differs from the database's dialect.
        """
        check(generation=generation)
        self._require_writable()
        with closing(Folder.open_without_header(self.path, generation)) as folder:
            evidence = find_evidence(folder.database_path)
            note_lost_writes(folder.database_path)
            said, posts, recorded = _read_whole(folder.database_path, self._catalog)
            known = said or self._dialect
            if known is None:
                raise OpenError(
                    f"the database in {folder.database_path} is damaged, and its dialect is unknown. Pass the "
                    "dialect with --dialect"
                )
            if self._dialect not in {None, known}:
                raise OpenError(
                    f"the database in {folder.database_path} has the dialect {known.name}, expected "
                    f"{self._dialect.name}"
                )
            folder.restore(known)
        return RecoverReport.of(posts, recorded, evidence)

    def _locked(self) -> AbstractContextManager[Folder]:
        return locked_folder(self.path, dialect=self._dialect, read_only=self._read_only)

    def _locked_to_write(self) -> AbstractContextManager[Folder]:
        self._require_writable()
        return self._locked()

    def _require_writable(self) -> None:
        if self._read_only:
            reject_write()

    def _origin(self, folder: Folder) -> Origin:
        unseal = unseal_of(self._identity, self.path, read_only=self._read_only)
        return Origin(folder.database_path, folder.header.dialect, unseal, self._read_only)


def locked_folder(
    path: Path, *, create: bool = False, dialect: Dialect | None = None, read_only: bool = False
) -> AbstractContextManager[Folder]:
    """Lock the folder of a closed store, and unlock it at the end of a `with`. `create` creates a missing folder."""
    if read_only:
        return closing(Folder.open_to_read(path, dialect=dialect))
    return closing(Folder.open(path, create=create, dialect=dialect))


@contextmanager
def open_reader(folder: Folder, generation: str, identity: Identity | None = None) -> Iterator[tuple[LevelDB, Reader]]:
    """Open a generation of a locked store. Yield its database and a reader, which are closed at the end of a `with`.

    `identity` is used instead of the key file.
    """
    unseal = StoreIdentity(identity, folder.path, read_only=folder.is_read_only).unseal
    with closing(open_generation(folder, generation)) as database, database.snapshot() as state:
        yield database, Reader(state, folder.header.dialect, unseal)


def _build_whole(where: str, build: Callable[[Path, Path], RebuildReport], path: Path, scratch: Path) -> RebuildReport:
    report = build(path, scratch)
    if report.damaged:
        lost = ", ".join(f"{what}: {count:,}" for what, count in report.damaged.items())
        raise CorruptStoreError(
            f"cannot upgrade the store at {where} without loss: {lost}. Run `cablestore rebuild`, which keeps the "
            "damaged database beside the new one"
        )
    return report


def _require_log(evidence: Evidence, where: str) -> None:
    """Raise CorruptStoreError if `evidence` shows newly lost writes in LevelDB's log.

    LevelDB would drop these writes silently, and then delete the log.
    """
    if evidence.lost and not evidence.lost_earlier:
        raise CorruptStoreError(
            f"the store at {where} has lost writes: {evidence.lost}. Run `cablestore rebuild`, which keeps the damaged "
            "database beside the new one"
        )


def _build_damaged(
    source: Reader, catalog: Catalog, row: Row, progress: Progress, path: Path, scratch: Path
) -> RebuildReport:
    report = rebuild_into(source, catalog, row, progress, path, scratch)
    report.lose("unreadable part of the database")
    return report


def _describe(folder: Folder, name: str) -> Generation:
    path = folder.path / name
    state = "kept" if name in folder.header.kept else "unnamed"
    state = "live" if name == folder.header.generation else state if path.exists() else "missing"
    files = [file.stat() for file in path.iterdir()] if path.is_dir() else []
    made = min((file.st_mtime for file in files), default=0)
    when = datetime.fromtimestamp(made, UTC).isoformat(timespec="seconds")
    return Generation(name, state, sum(file.st_size for file in files), when)


def _read_whole(path: Path, catalog: Catalog) -> tuple[Dialect | None, int | None, Counts | None]:
    """Read all posts of the database at `path`. Return its dialect, its number of posts, and its recorded counts.

    A value that cannot be read is None.
    """
    dialect = recorded = None
    try:
        with closing(LevelDB(path)) as database, database.snapshot() as state:
            dialect = meta.dialect_of(state.get(meta.META_KEY), FORMAT, str(path))
            recorded, _ = counts_in(Reader(state, dialect or LEGACY), catalog)
            posts = sum(1 for prefix in DATA.prefixes for _ in state.scan(prefix, after_prefix(prefix)))
    except CorruptStoreError:
        return dialect, None, recorded
    return dialect, None if dialect is None else posts, recorded


def _require_kept(folder: Folder, generation: str) -> None:
    if generation not in folder.header.kept:
        kept = ", ".join(folder.header.kept) or "none"
        raise OpenError(
            f"the store at {folder.path} does not keep the generation {generation!r}. Kept generations: {kept}"
        )
