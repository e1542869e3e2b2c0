"""Reindexing: Spark derives a new generation of a store from exports and archives.

    derive (Spark) -> load -> catch up with the live database -> read back -> replace it by a rename

The live database is only read until the swap. If a run is killed, the next run continues with the finished work. The
previous generation is kept for a rollback.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from itertools import chain
from pathlib import Path

from cablestore import limits
from cablestore.errors import ExportError, OutdatedViewError, ReindexError, StoreLockedError
from cablestore.export.importer import consents_of
from cablestore.export.manifest import CoveredLog, Manifest, read_arrivals
from cablestore.files import Location, folder_of
from cablestore.index import arrival_log
from cablestore.index.batches import batches
from cablestore.index.census import Summary, summaries
from cablestore.index.check import CheckReport
from cablestore.index.database import Database, Row
from cablestore.index.derive import key_of, measure, side_by_side
from cablestore.index.folder import IDENTITY_FILE, Folder, store_path
from cablestore.index.header import FORMAT, peek
from cablestore.index.leveldb import LevelDB
from cablestore.index.local import DECIDED
from cablestore.index.meta import (
    META_KEY,
    SIZES_KEY,
    Sizes,
    add_sizes,
    decode_sizes,
    meta_row,
    outdated_views,
    require_views,
)
from cablestore.index.parallel import Origin, check_in_parts
from cablestore.index.reader import DATA_PREFIX, PRIVATE_PREFIX, TOMBSTONE_PREFIX, Reader
from cablestore.index.rebuild import add_summaries, write_head, write_planned
from cablestore.index.runs import AFTER_ALL
from cablestore.index.takeover import TakeoverReport, take_over
from cablestore.index.view import REVERSE_NAME, REVERSE_PREFIX, Catalog
from cablestore.moderation.consents import remember_claims
from cablestore.protocol.acts import Consent
from cablestore.protocol.keys import SEPARATOR
from cablestore.protocol.post import Post
from cablestore.reindex.driver import Progress
from cablestore.reindex.inputs import ArchiveSource
from cablestore.reindex.job import Drops, claim_folder
from cablestore.reindex.load import load, loaded_hashes
from cablestore.reindex.prepare import read_sources
from cablestore.reindex.read_back import RecordedDatabase, read_back
from cablestore.reindex.row_segments import RowRange, WrittenRanges, read_rows, with_local_only
from cablestore.reindex.stages import DerivedRows, SparkOptions, derive_rows
from cablestore.store.closed import locked_folder, open_reader
from cablestore.store.key_file import unseal_with
from cablestore.store.options import system_clock_ms
from cablestore.views import CATALOG


@dataclass(slots=True)
class ReindexReport:
    """Result of a reindexing. `seconds` is the time of each stage. `checked` counts tombstones only in a full check."""

    derived: DerivedRows
    generation: str
    rows: int
    succession: TakeoverReport
    checked: CheckReport
    seconds: dict[str, float] = field(default_factory=dict)


def reindex(
    exports: Sequence[Location],
    out: Path,
    *,
    archives: Sequence[ArchiveSource] = (),
    work: Location | None = None,
    drops: Drops | None = None,
    views: frozenset[str] = frozenset(),
    skip_corrupt: bool = False,
    spark: SparkOptions | None = None,
    catalog: Catalog = CATALOG,
    keep_work: bool = False,
    check: bool = False,
    progress: Progress = lambda *_: None,
) -> ReindexReport:
    """Rebuild the store at `out` from exports and archives, or create it.

    The result contains the union of their posts, without deleted posts. Although an archive is canonical for its week
    and channels (RFC 61), a reindexing does not remove posts that the archive lacks. One of the exports must be an
    export of the existing store. Later posts of the store are added. The store must be closed when the new database
    replaces its database.

    `views` are the views to rebuild; empty means all. If views are named, the posts themselves are not changed, even if
    `data` is one of these views. `work` is a folder that the workers share, as a path or URI. It is by default beside
    `out`, and is removed at the end unless `keep_work`. If it is a URI, Spark's own files and its log are beside `out`.

    Raises ExportError or ArchiveError for invalid inputs, ReindexError if Spark fails or rows do not agree, and
    StorageError if reading or writing fails. Raises OpenError if the store cannot be opened or has views that `catalog`
    lacks, and its subclass OutdatedViewError if `views` lacks views that must be rebuilt. After any error the store is
    unchanged.
    """
    out = store_path(out).absolute()
    beside, scratch = (out.with_name(f"{out.name}.{ending}") for ending in ("reindex", "loading"))
    if views:  # tombstones too: they are compared with the store's
        views = catalog.with_dependencies(views | {catalog.view_of(TOMBSTONE_PREFIX)})
    manifests = read_sources(exports, archives).manifests
    after = covered(manifests, out)
    claims, damaged = _claims_of(manifests, skip_corrupt=skip_corrupt)
    _require_views(out, catalog, views)
    derived = derive_rows(
        exports,
        work or beside,
        catalog,
        archives=archives,
        drops=drops,
        views=views,
        skip_corrupt=skip_corrupt,
        spark=spark,
        local=beside,
        progress=progress,
    )
    derived.left_out.update(damaged)
    after = None if derived.left_out else after  # posts of omitted inputs may be only in the live database
    claim_folder(folder_of(scratch))
    new = _NewGeneration(out, scratch, derived, catalog, after, progress, check, dict(derived.seconds))
    report = new.replace_views(views) if views else new.replace_all(drops or Drops(), claims)
    shutil.rmtree(scratch, ignore_errors=True)
    if not keep_work:
        derived.remove_work()
    return report


def _claims_of(manifests: Sequence[Manifest], *, skip_corrupt: bool) -> tuple[list[list[Consent]], dict[str, str]]:
    """Return the statements about roles in exports, and the problems of the skipped statements by name.

    Raises ExportError if they are damaged, unless `skip_corrupt`.
    """
    claims: list[list[Consent]] = []
    damaged: dict[str, str] = {}
    for manifest in manifests:
        try:
            claims += consents_of([manifest])
        except ExportError as error:
            if not skip_corrupt:
                raise
            damaged[f"consents of {manifest.source}"] = str(error)
    return claims, damaged


def covered(manifests: Sequence[Manifest], out: Path) -> CoveredLog | None:
    """Return how far the exports cover the arrival log of the store at `out`, or None if the store does not exist.

    Raises ExportError if none of the exports is a complete export of the store.
    """
    header = peek(out)
    if header is None:
        return None
    found = [
        arrivals
        for manifest in manifests
        if manifest.filters is None
        and (arrivals := read_arrivals(manifest.source))
        and arrivals.store == header.store_id
    ]
    if not found:
        raise ExportError(
            f"none of the exports is a complete export of the store at {out}, so its posts would be lost. Export the "
            "store and pass that export too, or choose a new folder"
        )
    return max(found, key=lambda each: each.through)


def _require_views(out: Path, catalog: Catalog, views: frozenset[str]) -> None:
    """Raise OpenError or OutdatedViewError before the job starts. An open store is checked at the end."""
    if peek(out) is not None:
        with suppress(StoreLockedError), locked_folder(out) as folder, _live(folder, catalog, views):
            pass


def _rebuilt(catalog: Catalog, views: frozenset[str]) -> frozenset[str]:
    """Return the views whose rows a job of single views derives. Posts are never among them, even if they are named."""
    return (views | {REVERSE_NAME}) - {catalog.view_of(DATA_PREFIX)}


@dataclass(slots=True)
class _NewGeneration:
    """The database that becomes the next generation.

    `after` is the part of the arrival log that the exports cover, None if they cover no part. With `is_checked` all
    rows are derived a second time.
    """

    out: Path
    scratch: Path
    derived: DerivedRows
    catalog: Catalog
    after: CoveredLog | None
    progress: Progress
    is_checked: bool
    seconds: dict[str, float]

    def replace_all(self, drops: Drops, claims: Sequence[list[Consent]]) -> ReindexReport:
        """Load all rows, add later changes of the live database and claims of roles from exports, check and swap."""
        with self._timed("load"):
            total = sum(segment.rows for segment in self.derived.segments)
            path = load(
                self.derived.segments, self.derived.folder, self.scratch, progress=self._counting("load", total)
            )
        with (
            locked_folder(self.out, create=True, dialect=self.derived.dialect) as folder,
            _live(folder, self.catalog) as live,
        ):
            with self._recorded(LevelDB(path)) as target:
                self._write_head(target, self.derived.sizes)
                with self._timed("catch up"):

                    def keeps(post: Post) -> bool:
                        return drops.reason(post) is None

                    hashes = loaded_hashes(self.derived.segments, self.scratch)
                    after = self._covered_of(live)
                    succession = take_over(live, target, self.derived.dialect, self.catalog, after, keeps, hashes)
                    self._store_claims(target, live, claims)
            checked = self._check(path, folder, [segment.range for segment in self.derived.segments])
            return self._swap(folder, path, total, succession, checked)

    def _store_claims(self, target: Database, live: Reader | None, claims: Sequence[list[Consent]]) -> None:
        """Store the claims of roles in exports, as an import does."""
        own_key = None if live is None else live.local(DECIDED, b"")
        latest_ms = system_clock_ms() + limits.MAX_FUTURE_MS
        with target.snapshot() as state:
            reader = Reader(state, self.derived.dialect)
            for batch in claims:
                lay = partial(remember_claims, claims=batch, own_key=own_key, latest_ms=latest_ms)
                write_planned(target, reader, self.catalog, lay)

    def _covered_of(self, live: Reader | None) -> int:
        return 0 if live is None or self.after is None else self.after.position_in(live)

    def replace_views(self, views: frozenset[str]) -> ReindexReport:
        """Copy the rows of these views from the segments and all other rows from the live database, check and swap."""
        path = self.scratch / "views"
        shutil.rmtree(path, ignore_errors=True)
        with (
            locked_folder(self.out, create=True, dialect=self.derived.dialect) as folder,
            _live(folder, self.catalog, views) as live,
        ):
            if live is None:
                raise ExportError(f"no store found at {self.out}, so there are no views to rebuild. Omit --views")
            self._reject_later_posts(live)
            self._reject_others(live)
            with closing(LevelDB(path, create=True)) as target, self._timed("load"):
                written, sizes = self._mix(live, target, views)
            with self._recorded(LevelDB(path)) as target:
                added = add_summaries(live, target, self.catalog, self._outdated(live, views))
                self._write_head(target, add_sizes(sizes, added))
            checked = self._check(path, folder, written)
            rows = sum(each.rows for each in written) + sum(count for count, _ in added.values())
            return self._swap(folder, path, rows, TakeoverReport(), checked)

    def _reject_later_posts(self, live: Reader) -> None:
        later = sum(1 for _ in arrival_log.post_entries(live, self._covered_of(live)))
        if later:
            raise ExportError(
                f"the store has changed since the export (new entries in its log: {later:,}). Export it again: single "
                "views can be rebuilt only from an export of the current state"
            )

    def _reject_others(self, live: Reader) -> None:
        """Raise ExportError if the posts or tombstones in the exports differ from the store's.

        Otherwise only the rebuilt views would contain the rows of these posts. Tombstones from exports and archives are
        not in the store's log.
        """
        posts = side_by_side(_hashes(live.prefix(DATA_PREFIX)), _hashes(self._derived_rows(REVERSE_PREFIX)))
        stones = side_by_side(live.prefix(TOMBSTONE_PREFIX), self._derived_rows(TOMBSTONE_PREFIX))
        others = sum(present != derived for _, present, derived in chain(posts, stones))
        if others:
            raise ExportError(
                f"the exports do not match the store at {self.out} (different posts and tombstones: {others:,}). Export "
                "the whole store again, or omit --views to rebuild all views"
            )

    def _derived_rows(self, prefix: bytes) -> Iterator[Row]:
        """Yield the derived rows with a view's prefix. A segment begins at each prefix."""
        for segment in self.derived.segments:
            if segment.first.startswith(prefix):
                yield from chain.from_iterable(read_rows(self.derived.folder, segment))

    def _outdated(self, live: Reader, views: frozenset[str]) -> list[Summary]:
        """Return the summaries of the rebuilt views if the store has local-only posts, otherwise [].

        The segments lack local-only posts, so these summaries are outdated.
        """
        has_own = next(live.prefix(PRIVATE_PREFIX), None) is not None
        return [each for each in summaries(self.catalog) if has_own and self.catalog.view_of(each.prefix) in views]

    def _mix(self, live: Reader, target: LevelDB, views: frozenset[str]) -> tuple[list[RowRange], Sizes]:
        """Write the rows of the rebuilt views from the segments, and all other rows from the live database.

        Returns the written ranges, and the sizes of all views.
        """
        rebuilt = _rebuilt(self.catalog, views)
        segments = [read_rows(self.derived.folder, segment) for segment in self.derived.segments]
        own = [live.unseal(sealed) for _, sealed in live.prefix(PRIVATE_PREFIX)]
        left_out = tuple(each.prefix for each in self._outdated(live, views))
        made = (row for row in chain.from_iterable(chain.from_iterable(segments)) if not row[0].startswith(left_out))
        kept = (row for row in live.scan(b"", AFTER_ALL) if self.catalog.view_of(row[0]) not in rebuilt)
        rows = merge(with_local_only(made, own, self.catalog, rebuilt), kept, key=key_of)
        sizes: Sizes = {name: size for name, size in decode_sizes(live.get(SIZES_KEY)).items() if name not in rebuilt}
        written = WrittenRanges("the rebuilt and the other views")
        with target.bulk_writer() as writer:
            for batch in batches(rows, _row_size_bytes):
                writer.put(batch)
                written.add(batch)
                measured = measure(batch, self.catalog)
                sizes = add_sizes(sizes, {name: measured[name] for name in measured.keys() & rebuilt})
        return written.ranges(), sizes

    @contextmanager
    def _recorded(self, database: LevelDB) -> Iterator[RecordedDatabase]:
        """Yield `database`, and record the changes that the body makes to it. Close it at the end."""
        shutil.rmtree(self._changes, ignore_errors=True)
        with closing(database), closing(LevelDB(self._changes, create=True)) as changes:
            yield RecordedDatabase(database, changes)

    @property
    def _changes(self) -> Path:
        return self.scratch / "changes"

    def _write_head(self, target: Database, sizes: Sizes) -> None:
        write_head(target, meta_row(self.catalog, self.derived.dialect, FORMAT), sizes)

    def _check(self, path: Path, folder: Folder, written: Sequence[RowRange]) -> CheckReport:
        """Compare the new database with the `written` ranges and the recorded changes.

        With `is_checked`, also derive its rows again and compare them. Raises ReindexError if a row is wrong.
        """
        posts = sum(self.derived.posts.values())
        with self._timed("check"):
            counting = self._counting("check", sum(each.rows for each in written))
            copies = self.scratch / "copies"
            shutil.rmtree(copies, ignore_errors=True)
            try:
                rows = read_back(path, self._changes, copies, written, progress=counting)
            except ReindexError:
                shutil.rmtree(self.scratch, ignore_errors=True)  # the next run must not reuse the loaded parts
                raise
            shutil.rmtree(copies, ignore_errors=True)
            if not self.is_checked:
                return CheckReport(posts=posts, rows=rows)
            report = check_in_parts(
                Origin(path, self.derived.dialect, partial(unseal_with, folder.path / IDENTITY_FILE)),
                self.catalog,
                self.scratch / "check",
                boundaries=[segment.first for segment in self.derived.segments],
                posts=posts,
                progress=self._counting("check", posts),
            )
        if not report.is_clean:
            raise ReindexError(
                f"the new database is damaged, so the old database remains live. Problems: {report.problem_count:,}. "
                f"The first: {report.problems[0]}. Remove {self.derived.folder}, then run the command again. "
                "If that does not help, report the problem"
            )
        return report

    def _swap(
        self, folder: Folder, path: Path, rows: int, succession: TakeoverReport, checked: CheckReport
    ) -> ReindexReport:
        with self._timed("swap"):
            name = folder.adopt(path)
            folder.activate(name, keep=True)
        return ReindexReport(self.derived, name, rows, succession, checked, self.seconds)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[stage] = round(time.perf_counter() - started, 2)

    def _counting(self, stage: str, total: int) -> Callable[[int], None]:
        done = 0

        def count(step: int) -> None:
            nonlocal done
            done += step
            self.progress(stage, done, total)

        return count


def _row_size_bytes(row: Row) -> int:
    return len(row[0]) + len(row[1])


def _hashes(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield (hash, b"") for the hash at the end of each key."""
    return ((key[key.rindex(SEPARATOR) + 1 :], b"") for key, _ in rows)


@contextmanager
def _live(folder: Folder, catalog: Catalog, views: frozenset[str] = frozenset()) -> Iterator[Reader | None]:
    """Open the live database of a closed store for reading. Yield None if the store is new.

    Raises OpenError if it has views that the catalog lacks, because the next generation would lack them too. Raises
    OutdatedViewError if only `views` are rebuilt and other views have a different version in the catalog.
    """
    if folder.is_new:
        yield None
        return
    with open_reader(folder, folder.header.generation) as (_, reader):
        meta = reader.get(META_KEY)
        require_views(meta, catalog, str(folder.path))
        outdated = outdated_views(meta, catalog).keys() - _rebuilt(catalog, views) if views and meta else ()
        if outdated:
            raise OutdatedViewError(
                f"other views of {folder.path} have another version, but would not be rebuilt: "
                f"{', '.join(sorted(outdated))}. Add these to --views, or omit --views"
            )
        yield reader
