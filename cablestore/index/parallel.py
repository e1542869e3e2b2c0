"""A check or a rebuild of a large closed database, distributed among several processes.

Each process opens the database through links to its tables. The work has two steps, with the functions of
`cablestore.index.check` and `cablestore.index.rebuild`:

    ranges of hashes -> pieces, sorted into runs on the disk -> ranges of keys
    (derive posts)                                              (compare or write rows)

A check compares the rows of every range of keys with the rows in the database. A rebuild writes every range into a
separate LevelDB. The tables of all of them form the new database.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from cablestore.files import folder_of, make_folder
from cablestore.index.batches import Progress, no_progress
from cablestore.index.check import Checker, CheckReport, check, check_rest
from cablestore.index.database import Row
from cablestore.index.derive import Derivation
from cablestore.index.leveldb import LevelDB
from cablestore.index.leveldb_checkpoint import link_database
from cablestore.index.leveldb_manifest import join_tables
from cablestore.index.meta import Sizes, add_sizes
from cablestore.index.processes import can_start_processes, in_order, process_pool
from cablestore.index.read_only import open_read_only
from cablestore.index.reader import AFTER_HEX, DATA_PREFIX, Reader
from cablestore.index.rebuild import Loader, RebuildReport, add_rest, add_summaries, load_posts, rebuild
from cablestore.index.runs import AFTER_ALL, Sorter, choose_boundaries, finished, read_bucket, sampled
from cablestore.index.view import REVERSE_PREFIX, Catalog
from cablestore.limits import MAX_BUCKET_SIZE_BYTES, PARTITION_POSTS, SHARED_OUT_FROM_SIZE_BYTES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.keys import after_prefix

_HEX_DIGITS: Final = 4
"""Number of digits of a hash that determine its range."""

_ROWS_SIZE_BYTES: Final = 1_200
"""Approximate size of all rows of a post."""

_EDGES: Final = [edge for prefix in (DATA_PREFIX, REVERSE_PREFIX) for edge in (prefix, after_prefix(prefix))]
"""Boundaries of the ranges of keys that the first step writes. Each is also the boundary of a bucket, because the
tables of a bucket must not overlap the tables of the first step.
"""


@dataclass(frozen=True)
class Origin:
    """A closed database, with its dialect and the function that decrypts its local-only posts."""

    path: Path
    dialect: Dialect
    unseal: Callable[[bytes], bytes]
    is_read_only: bool = False
    """True if the folder of the database must not be written to."""

    @contextmanager
    def opened(self) -> Iterator[tuple[Reader, int]]:
        """Open the database. Yield a reader and the database's approximate size in bytes."""
        with (
            closing(open_read_only(self.path) if self.is_read_only else LevelDB(self.path)) as database,
            database.snapshot() as state,
        ):
            yield Reader(state, self.dialect, self.unseal), database.approximate_size_bytes(b"", b"\xff")


class ProcessCopy:
    """The copy of the database that this process has open."""

    opened: LevelDB | None = None

    @classmethod
    def open(cls, origin: Origin, scratch: Path) -> None:
        """Link the closed database of `origin` into `scratch` and open the links."""
        copy = scratch / f"copy-{os.getpid()}"
        if origin.is_read_only:
            cls.opened = open_read_only(origin.path, scratch=copy)
            return
        link_database(origin.path, copy)
        cls.opened = LevelDB(copy)


@dataclass(frozen=True)
class SharedWork:
    """Arguments for all processes. `boundaries` are keys that split the rows into buckets that fit in memory."""

    origin: Origin
    catalog: Catalog
    scratch: Path
    boundaries: tuple[bytes, ...]

    def reader(self) -> Reader:
        """Return a reader of this process's copy."""
        assert ProcessCopy.opened is not None  # noqa: S101 - opened by the pool's initializer
        return Reader(ProcessCopy.opened.snapshot(), self.origin.dialect, self.origin.unseal)

    def sorter(self, derivation: Derivation, hashes: tuple[bytes, bytes]) -> Sorter:
        """Return a sorter for the pieces of a range of hashes."""
        name = f"run-{hashes[0].decode() or 0}"
        return Sorter(derivation, self.catalog, self.scratch, boundaries=self.boundaries, name=name)

    def bucket(self, runs: tuple[str, ...], index: int) -> list[Row]:
        """Return the rows of the bucket `index`, from its pieces in `runs`, the runs of all ranges of hashes."""
        return finished(read_bucket(folder_of(self.scratch), runs, index, len(self.boundaries) + 1), self.catalog)


def is_shared_out(size_bytes: int, processes: int | None) -> bool:
    """Return True if several processes share the work on a database of this size.

    `processes` is the requested number of processes. If it is None, the size of the database decides.
    """
    if processes is not None:
        return processes != 1
    return size_bytes >= SHARED_OUT_FROM_SIZE_BYTES and can_start_processes()


def posts_in(size_bytes: int) -> int:
    """Return the approximate number of posts in a database of this size."""
    return size_bytes // _ROWS_SIZE_BYTES


def partitions_for(posts: int) -> int:
    """Return the number of hash ranges for this many posts."""
    return 1 + posts // PARTITION_POSTS


def hash_ranges(posts: int) -> list[tuple[bytes, bytes]]:
    """Return ranges of hashes, as (start, stop) in hex digits, for this many posts."""
    shares = partitions_for(posts)
    places = sorted({2 ** (4 * _HEX_DIGITS) * share // shares for share in range(1, shares)})
    return list(pairwise([b"", *(b"%0*x" % (_HEX_DIGITS, place) for place in places), AFTER_HEX]))


# --- check --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CheckWork(SharedWork):
    """Arguments of a check."""

    signatures: bool
    is_exact: bool

    def checker(self) -> Checker:
        """Return a checker of this process's copy."""
        return Checker(self.reader(), self.catalog, signatures=self.signatures, is_exact=self.is_exact)


def check_database(
    origin: Origin,
    catalog: Catalog,
    scratch: Path,
    *,
    signatures: bool = False,
    processes: int | None = None,
    progress: Progress = no_progress,
) -> CheckReport:
    """Check a closed database. By default, one process per core share the work on a large database."""
    with origin.opened() as (reader, size_bytes):
        if not is_shared_out(size_bytes, processes):
            return check(reader, catalog, scratch, signatures=signatures, progress=progress)
        boundaries = choose_boundaries(sampled(reader, catalog), 1 + size_bytes // MAX_BUCKET_SIZE_BYTES)
    return check_in_parts(
        origin,
        catalog,
        scratch / "check",
        boundaries=boundaries,
        posts=posts_in(size_bytes),
        signatures=signatures,
        processes=processes,
        progress=progress,
    )


def check_in_parts(
    origin: Origin,
    catalog: Catalog,
    scratch: Path,
    *,
    boundaries: Sequence[bytes],
    posts: int,
    signatures: bool = False,
    processes: int | None = None,
    progress: Progress = no_progress,
) -> CheckReport:
    """Check a database with about `posts` posts in several processes.

    `boundaries` are keys that split its rows into buckets that fit in memory. The folder `scratch` is emptied first and
    removed at the end. `progress` is called with the number of posts checked.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    make_folder(scratch)
    with process_pool(processes, ProcessCopy.open, (origin, scratch)) as pool:
        for is_exact in (False, True):
            work = _CheckWork(origin, catalog, scratch, tuple(boundaries), signatures, is_exact)
            report = CheckReport()
            runs: list[str] = []
            for part, written in in_order(pool, partial(_check_hashes, work), hash_ranges(posts)):
                report.add(part)
                runs += written
                progress(part.posts)
            key_ranges = enumerate(pairwise((b"", *boundaries, AFTER_ALL)))
            for part in in_order(pool, partial(_check_keys, work, tuple(runs)), key_ranges):
                report.add(part)
            if report.balance == 0:
                break
    with origin.opened() as (reader, _):
        check_rest(reader, catalog, report)
    shutil.rmtree(scratch, ignore_errors=True)
    return report


def _check_hashes(work: _CheckWork, hashes: tuple[bytes, bytes]) -> tuple[CheckReport, list[str]]:
    """Check a range of hashes. Return a report, and the names of the runs with the pieces of its posts."""
    checker = work.checker()
    sorter = work.sorter(checker.derivation, hashes)
    checker.check_records(sorter, *hashes, lambda _: None)
    sorter.write_rest()
    return checker.report, sorter.runs


def _check_keys(work: _CheckWork, runs: tuple[str, ...], numbered: tuple[int, tuple[bytes, bytes]]) -> CheckReport:
    """Compare the rows of a bucket with its pieces in `runs`. `numbered` is its index and its (start, stop)."""
    index, (start, stop) = numbered
    checker = work.checker()
    checker.check_rows(start, stop, work.bucket(runs, index))
    return checker.report


# --- rebuild ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RebuiltRange:
    """Result for one range of hashes or keys.

    `databases` contain rows of the range, `sizes` counts these rows by view, and `runs` contain the other pieces.
    """

    databases: list[Path]
    sizes: Sizes
    report: RebuildReport
    runs: list[str]


def rebuild_into(
    source: Reader, catalog: Catalog, meta: Row, progress: Progress, path: Path, scratch: Path
) -> RebuildReport:
    """Build a new database without other processes, in the folder `path`, which must not contain one."""
    with closing(LevelDB(path, create=True)) as target:
        return rebuild(source, target, catalog, meta, scratch, progress)


def rebuild_database(
    origin: Origin,
    catalog: Catalog,
    meta: Row,
    progress: Progress,
    processes: int | None,
    path: Path,
    scratch: Path,
) -> RebuildReport:
    """Build a new database in the folder `path`, which must not contain one, with temporary files in `scratch`.

    By default, one process per core share the work on a large database. Raises CorruptStoreError if the origin cannot
    be read completely.
    """
    with origin.opened() as (source, size_bytes):
        if not is_shared_out(size_bytes, processes):
            return rebuild_into(source, catalog, meta, progress, path, scratch)
        sample = [row for row in sampled(source, catalog) if not row[0].startswith(REVERSE_PREFIX)]
    boundaries = choose_boundaries(sample, 1 + size_bytes // MAX_BUCKET_SIZE_BYTES, _EDGES)
    work = SharedWork(origin, catalog, scratch, tuple(boundaries))
    report = RebuildReport()
    sizes: Sizes = {}
    databases: list[Path] = []
    runs: list[str] = []
    with process_pool(processes, ProcessCopy.open, (origin, scratch)) as pool:
        for part in in_order(pool, partial(_derive, work), hash_ranges(posts_in(size_bytes))):
            report.add(part.report)
            databases += part.databases
            sizes = add_sizes(sizes, part.sizes)
            runs += part.runs
            progress(part.report.posts)
        for part in in_order(pool, partial(_build, work, tuple(runs)), range(len(boundaries) + 1)):
            databases += part.databases
            sizes = add_sizes(sizes, part.sizes)
    join_tables(databases, path)
    with closing(LevelDB(path)) as target, origin.opened() as (source, _):
        target.flush()
        sizes = add_sizes(sizes, add_summaries(source, target, catalog))
        add_rest(source, target, catalog, meta, sizes, report)
    return report


def _derive(work: SharedWork, hashes: tuple[bytes, bytes]) -> _RebuiltRange:
    """Write the posts in a range of hashes and their reverse rows to databases, and all other pieces to runs."""
    name = hashes[0].decode() or "0"
    paths = [work.scratch / f"posts-{name}", work.scratch / f"reverse-{name}"]
    report = RebuildReport()
    sorter = work.sorter(Derivation(work.catalog), hashes)
    with _written(paths[0], work.catalog) as posts, _written(paths[1], work.catalog) as reverse:

        def write_reverse(_: int) -> None:
            rows, sorter.derivation.reverse = sorter.derivation.reverse, []
            reverse.put_all(rows)

        load_posts(work.reader(), posts, sorter, report, write_reverse, *hashes)
        sorter.write_rest()
    return _RebuiltRange(paths, add_sizes(posts.sizes, reverse.sizes), report, sorter.runs)


def _build(work: SharedWork, runs: tuple[str, ...], index: int) -> _RebuiltRange:
    """Write the rows of the bucket `index` to a new database."""
    path = work.scratch / f"bucket-{index:06d}"
    with _written(path, work.catalog) as loader:
        loader.put_all(work.bucket(runs, index))
    return _RebuiltRange([path], loader.sizes, RebuildReport(), [])


@contextmanager
def _written(path: Path, catalog: Catalog) -> Iterator[Loader]:
    """Create a database at `path`, yield a loader of rows into it, and close it at the end."""
    with closing(LevelDB(path, create=True)) as database, database.bulk_writer() as writer:
        yield Loader(writer, catalog)
