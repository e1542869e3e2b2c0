"""Rebuilding a large database that nobody has open, in several processes.

Each derives ranges of hashes, then builds ranges of keys, by the functions of `cablestore.index.rebuild`. Every range becomes
a LevelDB of its own, a part; the tables of all parts together are the new database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cablestore.index.batches import Progress
from cablestore.index.database import Row
from cablestore.index.derive import Derivation
from cablestore.index.leveldb import LevelDB, join_tables
from cablestore.index.meta import Sizes, add_sizes
from cablestore.index.parallel import Origin, ProcessCopy, SharedWork, hash_ranges, is_shared_out, posts_in
from cablestore.index.processes import in_order
from cablestore.index.processes import process_pool as processes_for
from cablestore.index.reader import DATA_PREFIX, Reader
from cablestore.index.rebuild import Loader, RebuildReport, add_rest, add_summaries, load_posts, rebuild
from cablestore.index.runs import choose_boundaries, sampled
from cablestore.index.view import REVERSE_PREFIX, Catalog
from cablestore.limits import MAX_BUCKET_SIZE_BYTES
from cablestore.protocol.keys import after_prefix

_EDGES: Final = [edge for prefix in (DATA_PREFIX, REVERSE_PREFIX) for edge in (prefix, after_prefix(prefix))]
"""No bucket reaches over what the first step has written, or LevelDB would merge the two."""


@dataclass(frozen=True)
class _Part:
    """What became of one range: the databases that it was written to, the sizes of their views, the runs of other rows."""

    databases: list[Path]
    sizes: Sizes
    report: RebuildReport
    runs: list[Path]


def rebuild_into(
    source: Reader, catalog: Catalog, meta: Row, progress: Progress, path: Path, scratch: Path
) -> RebuildReport:
    """Build a new database in the folder `path`, which has none yet, in this process alone."""
    target = LevelDB(path, create=True)
    try:
        return rebuild(source, target, catalog, meta, scratch, progress)
    finally:
        target.close()


def rebuild_database(
    origin: Origin,
    catalog: Catalog,
    meta: Row,
    progress: Progress,
    processes: int | None,
    path: Path,
    scratch: Path,
) -> RebuildReport:
    """Build a new database in the folder `path`, which has none yet, with work under way in `scratch`.

    Without a number of processes a large one is shared out among as many as there are cores. Raises CorruptStoreError where
    the origin cannot be read whole.
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
    runs: list[Path] = []
    with processes_for(processes, ProcessCopy.open, (origin.path, scratch)) as pool:
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
    target = LevelDB(path)
    try:
        with origin.opened() as (source, _):
            target.flush()
            sizes = add_sizes(sizes, add_summaries(source, target, catalog))
            add_rest(source, target, catalog, meta, sizes, report)
    finally:
        target.close()
    return report


def _derive(work: SharedWork, hashes: tuple[bytes, bytes]) -> _Part:
    """Write the posts of a range of hashes and their reverse rows, which are in order, and runs of all other rows."""
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
    return _Part(paths, add_sizes(posts.sizes, reverse.sizes), report, sorter.runs)


def _build(work: SharedWork, runs: tuple[Path, ...], index: int) -> _Part:
    """Write the rows of one bucket."""
    path = work.scratch / f"bucket-{index:06d}"
    with _written(path, work.catalog) as loader:
        loader.put_all(work.bucket(runs, index))
    return _Part([path], loader.sizes, RebuildReport(), [])


@contextmanager
def _written(path: Path, catalog: Catalog) -> Iterator[Loader]:
    """Make a database, to be closed at the end, and yield what loads rows into it."""
    database = LevelDB(path, create=True)
    try:
        with database.bulk_writer() as writer:
            yield Loader(writer, catalog)
    finally:
        database.close()
