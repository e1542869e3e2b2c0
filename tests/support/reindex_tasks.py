"""The tasks of the reindexing job without Spark: random exports, and a run over them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import strategies as st
from stores import public, store_of

from cablestore import LEGACY, CableStore, Dialect, Post
from cablestore.export.writer import ExportWriter, post_record
from cablestore.files import Location, folder_of
from cablestore.index.database import Row
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.meta import META_KEY, SIZES_KEY, Sizes, add_sizes
from cablestore.index.view import Catalog
from cablestore.reindex import summary_tasks, tasks
from cablestore.reindex.inputs import Input, rejection
from cablestore.reindex.job import Drops, ReindexJob
from cablestore.reindex.prepare import make_job, take_sample
from cablestore.reindex.row_segments import RowSegment, read_rows
from cablestore.reindex.stages import in_order
from cablestore.views import CATALOG


@dataclass(frozen=True)
class Plan:
    """Plan of the distribution of posts over exports, and of the division of the work."""

    shares: tuple[frozenset[int], ...]
    """Positions of posts in each export. The first one also has the posts that are in no share."""
    as_stored: tuple[bool, ...]
    """Whether an export is a store's: then it has tombstones instead of its deleted posts."""
    partitions: int
    bucket_size_bytes: int
    segment_size_bytes: int
    buffered_size_bytes: int


plans = st.integers(1, 4).flatmap(
    lambda exports: st.builds(
        Plan,
        shares=st.tuples(*[st.frozensets(st.integers(0, 23)) for _ in range(exports)]),
        as_stored=st.tuples(*[st.booleans() for _ in range(exports)]),
        partitions=st.sampled_from((1, 5, 13)),
        bucket_size_bytes=st.sampled_from((100, 800, 10_000)),
        segment_size_bytes=st.sampled_from((300, 700, 5000)),
        buffered_size_bytes=st.sampled_from((1, 900, 2**25)),
    )
)


def job_over(
    inputs: Iterable[Input],
    folder: Location,
    dialect: Dialect = LEGACY,
    *,
    drops: Drops = Drops(),  # noqa: B008 - frozen
    views: frozenset[str] = frozenset(),
    catalog: Catalog = CATALOG,
) -> ReindexJob:
    """Return the job over inputs with a work folder."""
    found, work = tuple(inputs), folder_of(folder)
    return make_job(found, work, dialect, catalog, drops, views, take_sample(found, work, dialect, catalog))


def write_exports(dialect: Dialect, posts: list[Post], plan: Plan, folder: Path, random: Random) -> list[Path]:
    """Write the exports of a plan: of stores with some posts, and of unchanged posts, including deleted ones."""
    named = frozenset(chain.from_iterable(plan.shares))
    exports = []
    for number, (share, is_stored) in enumerate(zip(plan.shares, plan.as_stored, strict=True)):
        chosen = [post for at, post in enumerate(posts) if at in share or (number == 0 and at not in named)]
        export = folder / f"export-{number}"
        if is_stored:
            random.shuffle(chosen)
            with store_of(dialect, chosen) as store:
                store.export(export, segment_size_bytes=plan.segment_size_bytes, run_size_bytes=900)
        else:
            write_plain(dialect, public(chosen), export, plan.segment_size_bytes)
        exports.append(export)
    return exports


def write_plain(dialect: Dialect, posts: Iterable[Post], export: Path, segment_size_bytes: int = 700) -> None:
    writer = ExportWriter(export, dialect, CATALOG.versions, segment_size_bytes=segment_size_bytes)
    ordered = sorted({post.hash: post for post in posts}.values(), key=lambda post: (post.timestamp_ms, post.hash))
    writer.add_records([post_record(post.timestamp_ms, post.hash, post.raw, post.type)] for post in ordered)
    writer.finish()


def run_tasks(
    job: ReindexJob, random: Random, *, skip_corrupt: bool = False
) -> tuple[list[Row], list[dict[str, Any]], Sizes]:
    """Do the same as Spark: assign numbers, move blobs to their partitions in any order. Return rows, reports, sizes."""
    partitions = frozenset(range(job.partitions))
    blobs = defaultdict(list)
    for numbers in shares_of(range(len(job.inputs)), random):
        for batch in tasks.read(job, partitions)(iter([numbers])):
            assert batch.schema == tasks.BLOBS
            for partition, blob in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                blobs[partition].append(blob)
    reports = []
    for partition in random.sample(sorted(blobs), len(blobs)):
        random.shuffle(blobs[partition])
        columns = [pa.array([partition] * len(blobs[partition]), pa.int32()), pa.array(blobs[partition], pa.binary())]
        batch = pa.RecordBatch.from_arrays(columns, schema=tasks.BLOBS)
        reports += reports_of(tasks.derive(job)(iter(batch.slice(at, 2) for at in range(0, len(blobs[partition]), 2))))
    for problem in () if skip_corrupt else tasks.problems_of(job, reports):
        raise rejection(job.inputs[problem["input"]], problem["problem"])
    runs = tuple(str(report["run"]) for report in random.sample(reports, len(reports)))
    wanted = [index for index, is_wanted in enumerate(job.wanted) if is_wanted]
    for numbers in shares_of(wanted, random):
        reports += reports_of(tasks.build(job, runs)(iter([numbers])))
    with patch.object(summary_tasks, "ROWS_OF_A_PART", 5):
        parts = summary_tasks.parts_of(job, segments_of(reports))
    for numbers in shares_of(range(len(parts)), random):
        reports += reports_of(summary_tasks.add_up(job, segments_of(reports), parts)(iter([numbers])))
    segments = segments_of(reports)
    sizes: Sizes = {}
    for segment in segments:
        sizes = add_sizes(sizes, segment.sizes)
    rows = list(chain.from_iterable(chain.from_iterable(read_rows(job.folder, segment) for segment in segments)))
    assert sum(segment.rows for segment in segments) == len(rows)
    return rows, reports, sizes


def segments_of(reports: Iterable[dict[str, Any]]) -> list[RowSegment]:
    return in_order([RowSegment.of(fields) for report in reports for fields in report["segments"]])


def shares_of(numbers: Iterable[int], random: Random) -> Iterator[pa.RecordBatch]:
    left = list(numbers)
    random.shuffle(left)
    while left:
        size = random.randint(1, 3)
        yield pa.RecordBatch.from_arrays([pa.array(left[:size], pa.int64())], schema=tasks.NUMBERS)
        left = left[size:]


def reports_of(found: tasks.Batches) -> list[dict[str, Any]]:
    reports = []
    for batch in found:
        assert batch.schema == tasks.REPORTS
        reports += [json.loads(line) for line in batch.column(0).to_pylist()]
    for report in reports:
        if "error" in report:
            raise tasks.error_of(report)
    return reports


def rows_of(store: CableStore) -> list[Row]:
    """Return the rows that a job must derive: all but the two that the loader writes."""
    return [row for row in store.dump() if row[0] not in (META_KEY, SIZES_KEY)]


def in_dump(rows: list[Row]) -> list[Row]:
    """Return rows without those that record which posts were stored together with their deletion."""
    return [row for row in rows if not row[0].startswith(LOCAL_PREFIX)]
