"""Tasks of a reindexing, which run on the workers: functions over Arrow batches that do not depend on Spark.

1. `inspect` verifies an archive, finds the segments of exports, and checks this worker's access to the job's folder.
2. `read` yields posts and tombstones of an input in blobs, by the partition of their hashes. It verifies the checksum
   of a segment. If the checksum is wrong, every partition gets the problem instead of the content, and reports it.
3. `derive` reads all blobs of a partition and removes duplicates and deleted posts. It derives the pieces of rows of
   the live posts (`cablestore.index.derive`).
4. `build` sorts and combines all pieces of a bucket to a segment of rows.
5. `summary_tasks.add_up` builds the segments of summaries (trees, censuses) from rows in order of keys.

Spark shuffles between `read` and `derive`. Between `derive` and `build` the pieces are in the job's folder, so that
they remain if the driver is killed. Each finished partition and bucket has a report, and is not derived again.
"""

from __future__ import annotations

import json
import pickle
import platform
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import compress
from typing import Any, Final

import msgpack
import pyarrow as pa

from cablestore.errors import ArchiveError, CableStoreError, DecodeError, ExportError, ReindexError, StorageError
from cablestore.files import ObjectFolder
from cablestore.gc_pause import gc_paused
from cablestore.index.database import Row
from cablestore.index.derive import Derivation, Settled, measure, settle
from cablestore.index.runs import finished, into_buckets, read_bucket, write_run
from cablestore.index.tombstone import Tombstone, tombstones
from cablestore.protocol.body import DELETE, TYPE_NAMES
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post, decode_post, peek_type
from cablestore.reindex.inputs import Input
from cablestore.reindex.job import ReindexJob, ShuffledJob
from cablestore.reindex.row_segments import RowSegmentWriter
from cablestore.views.installed import why_not_loaded

BLOBS: Final = pa.schema(
    [pa.field("partition", pa.int32(), nullable=False), pa.field("blob", pa.binary(), nullable=False)]
)
"""Output of `read`: msgpack [[[hash, post], ...], [[target, author, value], ...], [problem, ...]] of one partition."""

REPORTS: Final = pa.schema([pa.field("report", pa.string(), nullable=False)])
"""Output of the other tasks: JSON, one object per segment, partition or bucket; {"error": ...} if it failed."""

NUMBERS: Final = pa.schema([pa.field("number", pa.int64(), nullable=False)])
"""Input of all tasks except tasks of partitions: numbers of inputs or buckets."""

_BUFFERED_SIZE_BYTES: Final = 2**25
"""Size at which `read` sends its buffered blobs."""

_OVERHEAD_BYTES: Final = 64

Batches = Iterator[pa.RecordBatch]

Hashed = tuple[bytes, bytes]
"""The hash of a post, and the encoded post."""


def inspect(
    inputs: tuple[Input, ...], folder: ObjectFolder, views: bytes | None = None
) -> Callable[[Batches], Batches]:
    """Return the task that verifies the `inputs` with given numbers.

    It writes a probe to `folder`, for which the driver looks. With `views`, a pickled catalog, it also checks that the
    worker has the packages with these views.
    """

    def check(index: int) -> dict[str, Any]:
        lacking = None if views is None else why_not_loaded(partial(pickle.loads, views))
        if lacking is not None:
            raise ReindexError(
                f"the worker on {platform.node()} lacks a view of the store: {lacking}. Install the same packages with "
                "views (entry points of the group cablestore.views) on all workers"
            )
        problem = inputs[index].quick_check(folder)
        if problem is not None:
            return {"input": index, "problem": problem}
        probe = f"probe-{uuid.uuid4().hex}"
        with suppress(StorageError) if folder.is_local else nullcontext():  # the driver reports unshared folders
            folder.write(probe, b"", sync=False)
        return {"input": index, "probe": probe, "host": platform.node()}

    return reporting(check)


def read(job: ShuffledJob, partitions: frozenset[int]) -> Callable[[Batches], Batches]:
    """Return the task that reads the inputs with given numbers, and yields their content for `partitions`."""

    def task(batches: Batches) -> Batches:
        blobs = _Blobs(job, partitions)
        with gc_paused():
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from _read(job, index, blobs, partitions)
            yield from blobs.flush()

    return task


def derive(job: ReindexJob) -> Callable[[Batches], Batches]:
    """Return the task that settles the posts of a partition and derives their rows."""
    return of_partition(job, partial(_derive, job))


def of_partition(
    job: ShuffledJob,
    work: Callable[[int, list[Hashed], list[Tombstone]], dict[str, Any]],
) -> Callable[[Batches], Batches]:
    """Return the task that unpacks all blobs of a partition and calls `work` with its number, posts and tombstones.

    `work` returns a report. The task stores it with the problems of the partition's inputs.
    """

    def settle_all(
        partition: int, hashed: list[Hashed], stones: list[Tombstone], problems: list[str]
    ) -> dict[str, Any]:
        told = [json.loads(problem) for problem in sorted(set(problems))]
        report = {**work(partition, hashed, stones), "problems": told}
        return finish(job, f"derived-{partition:06d}.json", report)

    stage = uuid.uuid4().hex

    def task(batches: Batches) -> Batches:
        hashed: list[Hashed] = []
        stones: list[Tombstone] = []
        problems: list[str] = []
        partition = -1
        with gc_paused():
            for batch in batches:
                for number, blob in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                    partition = number
                    posts, tombs, told = msgpack.unpackb(blob, use_list=False)
                    hashed += posts
                    stones += [Tombstone.decode(*fields) for fields in tombs]
                    problems += told
        if partition >= 0:
            yield _report(stage, lambda: settle_all(partition, hashed, stones, problems))

    return task


def build(job: ReindexJob, runs: tuple[str, ...]) -> Callable[[Batches], Batches]:
    """Return the task that builds buckets from `runs`. Its input is the numbers of the buckets."""

    def bucket(index: int) -> dict[str, Any]:
        hashes: list[int] = []
        rows = finished(read_bucket(job.folder, runs, index, len(job.wanted), hashes.append), job.catalog)
        segments = _write_rows(job, f"rows-{index:06d}.seg", rows)
        report = {"bucket": index, "segments": segments, "pieces": f"{sum(hashes):x}"}
        return finish(job, f"built-{index:06d}.json", report)

    return reporting(bucket)


def problems_of(job: ShuffledJob, derived: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the problems of inputs that are omitted in all partitions, from the reports of `derive`.

    Raises the error of an input that was read only in part. Raises ReindexError if only some partitions omit an input,
    because it changed meanwhile.
    """
    found: list[dict[str, Any]] = derived[0]["problems"] if derived else []
    numbers = [problem["input"] for problem in found]
    if any([problem["input"] for problem in report["problems"]] != numbers for report in derived):
        raise ReindexError(f"exports or archives changed while they were read to {job.folder}. Run the command again")
    for problem in found:
        if problem["is_partly_read"]:
            raise job.inputs[problem["input"]].error(problem["problem"])
    return found


def check_pieces(derived: Iterable[dict[str, Any]], built: Iterable[dict[str, Any]], folder: ObjectFolder) -> None:
    """Compare the pieces that `derive` wrote with the pieces that `build` read, by sums of hashes in their reports.

    Raises ReindexError if they differ.
    """
    written, read = (sum(int(report["pieces"], 16) for report in reports) for reports in (derived, built))
    if written != read:
        raise ReindexError(
            f"the runs in {folder} were damaged or changed: buckets were not built from the pieces that were derived. "
            f"Check the disk, remove {folder}, then run the command again"
        )


def pick(batches: Batches, chosen: tuple[int, ...]) -> Batches:
    """Replace positions in `chosen` by the numbers at these positions."""
    for batch in batches:
        numbers = [chosen[place] for place in batch.column(0).to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=NUMBERS)


# --- reading -------------------------------------------------------------------------------------


class _Blobs:
    """Buffer of the posts and tombstones of `partitions`. It ignores those of other partitions."""

    def __init__(self, job: ShuffledJob, partitions: frozenset[int]) -> None:
        self._job = job
        self._posts: dict[int, list[Hashed]] = {number: [] for number in partitions}
        self._stones: dict[int, list[tuple[bytes, bytes, bytes]]] = {number: [] for number in partitions}
        self._size_bytes = 0

    def add_posts(self, raws: list[bytes]) -> Batches:
        """Add posts, and the tombstones of post/deletes among them. Yield the buffer if it is full."""
        partition_of, buffers = self._job.partition_of, self._posts
        for raw in raws:
            digest = post_hash(raw)
            buffer = buffers.get(partition_of(digest))
            if buffer is not None:
                buffer.append((digest, raw))
            if peek_type(raw) == DELETE:
                self._add_deletions(raw)
        self._size_bytes += sum(map(len, raws)) + _OVERHEAD_BYTES * len(raws)
        if self._size_bytes >= _BUFFERED_SIZE_BYTES:
            yield from self.flush()

    def add_tombstones(self, stones: list[Tombstone]) -> None:
        """Add tombstones, each to the partition of its target."""
        for stone in stones:
            buffer = self._stones.get(self._job.partition_of(stone.target))
            if buffer is not None:
                value = stone.encode()
                buffer.append((stone.target, stone.author, value))
                self._size_bytes += len(value) + _OVERHEAD_BYTES

    def flush(self) -> Batches:
        """Yield the posts and tombstones in the buffer, and empty it."""
        found = [number for number in self._posts if self._posts[number] or self._stones[number]]
        if found:
            yield _batch(found, [msgpack.packb((self._posts[number], self._stones[number], ())) for number in found])
        for number in found:
            self._posts[number], self._stones[number] = [], []
        self._size_bytes = 0

    def _add_deletions(self, raw: bytes) -> None:
        try:
            self.add_tombstones(tombstones(decode_post(raw, self._job.dialect)))
        except DecodeError:
            return  # `derive` counts it as malformed


def _batch(partitions: Sequence[int], blobs: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(partitions, pa.int32()), pa.array(blobs, pa.binary())], schema=BLOBS)


def _read(job: ShuffledJob, index: int, blobs: _Blobs, partitions: frozenset[int]) -> Batches:
    """Yield the content of an input or, if it is damaged, the problem for each partition."""
    source = job.inputs[index]
    is_begun = False
    try:
        for raws, stones in source.blocks():
            is_begun = True
            # Waiting tombstones are derived from their post/deletes.
            blobs.add_tombstones([stone for stone in stones if stone.is_effective])
            yield from blobs.add_posts(raws)
    except CableStoreError as error:
        problem = source.problem(job.folder)
        if problem is None and isinstance(error, StorageError):
            raise  # the input is readable now: Spark repeats the task
        found = {"input": index, "problem": problem or str(error), "is_partly_read": is_begun}
        blob = msgpack.packb(((), (), (json.dumps(found),)))
        yield _batch(sorted(partitions), [blob] * len(partitions))


# --- deriving ------------------------------------------------------------------------------------


def _derive(job: ReindexJob, partition: int, hashed: list[Hashed], stones: list[Tombstone]) -> dict[str, Any]:
    """Settle every hash of a partition. Write the rows that are already in order, and a run of all other pieces."""
    counts: Counter[str] = Counter()
    types: Counter[int] = Counter()
    derivation = Derivation(job.catalog)
    records: list[Row] = []
    for post, laid, dead in settled(job.dialect, hashed, stones, counts):
        for stone in laid:
            derivation.tombstone(stone)
        if dead is not None and job.wants_records:
            derivation.dead(dead)
        if post is None:
            continue
        reason = job.drops.reason(post) if job.drops else None
        if reason is not None:
            counts[f"dropped: {reason}"] += 1
            continue
        types[post.type] += 1
        records.append(derivation.post(post))
    reverse, derivation.reverse = derivation.reverse, []
    run = f"run-{partition:06d}"
    hashes = write_run(job.folder, run, into_buckets(derivation.take(), job.boundaries))
    pieces = sum(compress(hashes, job.wanted))
    segments = _write_rows(job, f"posts-{partition:06d}.seg", records) if job.wants_records else []
    segments += _write_rows(job, f"reverse-{partition:06d}.seg", reverse)
    by_name = {TYPE_NAMES[kind]: count for kind, count in types.items()}
    report = {"partition": partition, "run": run, "segments": segments, "posts": by_name, "counts": counts}
    return {**report, "pieces": f"{pieces:x}"}


def _write_rows(job: ReindexJob, file: str, rows: list[Row]) -> list[dict[str, Any]]:
    """Write a segment of sorted rows. Return its description in a list, [] if `rows` is empty."""
    if not rows:
        return []
    with RowSegmentWriter(job.folder, file) as writer:
        writer.write(rows)
        return [writer.finish(measure(rows, job.catalog))]


def settled(dialect: Dialect, hashed: list[Hashed], stones: list[Tombstone], counts: Counter[str]) -> Iterator[Settled]:
    """Yield the settled data of each hash in all inputs, in order of hashes, and add numbers to `counts`.

    `stones` are the waiting tombstones of post/deletes, and effective tombstones from exports and archives. The latter
    count only with their post/delete.
    """
    by_target: dict[bytes, list[Tombstone]] = {}
    for stone in stones:
        by_target.setdefault(stone.target, []).append(stone)
    by_hash = dict(hashed)
    counts["posts read"] += len(hashed)
    counts["duplicates"] += len(hashed) - len(by_hash)
    for digest in sorted(by_hash.keys() | by_target.keys()):
        post = None
        raw = by_hash.get(digest)
        if raw is not None:
            try:
                post = decode_post(raw, dialect, digest)
            except DecodeError:
                counts["malformed"] += 1
            if post is not None and post.is_local_only:
                counts["local-only"] += 1
                post = None
        waiting = by_target.get(digest)
        if waiting is None:
            yield post, [], None
            continue
        proven = _proven(waiting)
        counts["tombstones: without their post/delete, left out"] += len(waiting) - len(proven)
        live, laid, dead = settle(post, proven)
        counts["deleted"] += dead is not None
        _count_stones(post, laid, counts)
        yield live, laid, dead


def _proven(stones: list[Tombstone]) -> list[Tombstone]:
    """Return the waiting tombstones of post/deletes, and the effective tombstones that agree with one of these."""
    said = {(stone.author, stone.deleted_at_ms, stone.deleted_by) for stone in stones if not stone.is_effective}
    return [stone for stone in stones if (stone.author, stone.deleted_at_ms, stone.deleted_by) in said]


def _count_stones(post: Post | None, laid: list[Tombstone], counts: Counter[str]) -> None:
    for stone in laid:
        if stone.is_effective:
            counts["tombstones: of a dead post"] += 1
        elif post is None:
            counts["tombstones: of an unknown post"] += 1
        elif stone.author != post.author:
            counts["tombstones: of another author, without effect"] += 1
        else:
            counts["tombstones: of a deletion, without effect"] += 1


# --- reporting -----------------------------------------------------------------------------------


def reporting(work: Callable[[int], dict[str, Any]]) -> Callable[[Batches], Batches]:
    """Return the task that calls `work` for each number, and reports the result."""
    stage = uuid.uuid4().hex

    def task(batches: Batches) -> Batches:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield _report(stage, partial(work, index))

    return task


_REPORTED_CLASSES: Final = (ArchiveError, ExportError, StorageError)
"""Classes of the errors of tasks. All other errors become a ReindexError."""
_failed: Final[dict[str, dict[str, Any]]] = {}
"""Report of a task that could not read or write, by its stage: the last such report in this worker process."""


def _report(stage: str, work: Callable[[], dict[str, Any]]) -> pa.RecordBatch:
    """Return the result of a task, or its error. Spark would repeat a task that raises, and hide the message.

    After a task that could not read or write, all later tasks of its stage in this process return its error. Each task
    would retry its requests for about ten seconds, and a stage has thousands of tasks. The job has failed already.
    """
    started = time.perf_counter()
    try:
        with gc_paused():
            report = dict(_failed[stage]) if stage in _failed else work()
    except CableStoreError as error:
        kind = next((each for each in _REPORTED_CLASSES if isinstance(error, each)), ReindexError)
        report = {"error": str(error), "kind": kind.__name__}
        if isinstance(error, StorageError):
            _failed.clear()
            _failed[stage] = report
    report["seconds"] = round(time.perf_counter() - started, 3)
    return pa.RecordBatch.from_arrays([pa.array([json.dumps(report)])], schema=REPORTS)


def error_of(report: dict[str, Any]) -> CableStoreError:
    """Return the error that a task reported."""
    kinds: dict[str, type[CableStoreError]] = {kind.__name__: kind for kind in _REPORTED_CLASSES}
    return kinds.get(report["kind"], ReindexError)(report["error"])


def finish(job: ShuffledJob, name: str, report: dict[str, Any]) -> dict[str, Any]:
    """Write a report to the job's folder, and return it. Raises StorageError if writing fails."""
    job.folder.write(name, json.dumps(report).encode(), sync=False)
    return report
