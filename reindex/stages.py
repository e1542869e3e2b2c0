"""Stages of a job on Spark, and the job of a reindexing: from exports and archives to segments of sorted rows.

The driver only distributes work. Spark moves posts to the partitions of their hashes, distributes tasks, and repeats
failed tasks. The driver receives only reports: a line per segment, partition and bucket. The tasks are in `tasks`.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cablestore.documents import read_document
from cablestore.errors import CableStoreError, ExportError, ReindexError
from cablestore.files import Location, ObjectFolder, for_each, remove
from cablestore.index.meta import Sizes, add_sizes
from cablestore.index.parallel import partitions_for
from cablestore.index.view import Catalog
from cablestore.interruptible import awaited, in_thread
from cablestore.protocol.dialect import Dialect
from cablestore.reindex import tasks
from cablestore.reindex.driver import Progress, in_driver
from cablestore.reindex.inputs import ArchiveSource, Input, posts_of, rejection
from cablestore.reindex.job import SPARK_LOG, Drops, ReindexJob, ShuffledJob, claim_work, remove_work
from cablestore.reindex.prepare import make_job, read_sources, take_sample
from cablestore.reindex.queries import run_query
from cablestore.reindex.row_segments import RowSegment
from cablestore.reindex.spark import session, starts_driver
from cablestore.reindex.summary_tasks import add_up, parts_of
from cablestore.reindex.workers import in_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JOB: Final = "job.json"
_MADE: Final = (".seg", ".archives", ".json", ".tmp", ".done")
"""Suffixes of files that tasks write to the job's folder."""
_SHARES_AT_LEAST: Final = 8
_SHARES_OF_A_PARTITION: Final = 2


T = TypeVar("T")


def no_progress(_stage: str, _done: int, _total: int) -> None:
    """Ignore the progress. This is the default where a function reports progress."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Options of Spark.

    Without `master` and `remote` Spark runs on this machine with `cores` cores, by default all. `remote` is the URL of
    a Spark Connect server, such as "sc://HOST:PORT".
    """

    master: str | None = None
    cores: int | None = None
    driver_memory: str = "1g"
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    remote: str | None = None


@dataclass(slots=True)
class JobReport:
    """Report of a job whose work is in `folder`.

    `local` is a folder on this machine for Spark's own files and its log. It equals `folder` if `folder` is on this
    machine.
    """

    folder: ObjectFolder
    local: Path
    dialect: Dialect
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of posts and tombstones: read, omitted, or without effect, by reason."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Damaged segments and archives that were skipped, and the problem of each."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each stage, or 0 if an earlier run finished it."""
    task_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Durations of the tasks of each stage."""

    def remove_work(self) -> None:
        """Remove the work folder, and the folder on this machine."""
        remove_work(self.folder, self.local)


@dataclass(slots=True)
class DerivedRows(JobReport):
    """Rows that a reindexing derived: sorted segments in `folder`, and counts of posts."""

    segments: list[RowSegment] = field(default_factory=list)
    posts: Counter[str] = field(default_factory=Counter)
    """Live posts by type."""

    @property
    def sizes(self) -> Sizes:
        """Rows and bytes of each view."""
        total: Sizes = {}
        for segment in self.segments:
            total = add_sizes(total, segment.sizes)
        return total


def derive_rows(
    exports: Sequence[Location],
    work: Location,
    catalog: Catalog,
    *,
    archives: Sequence[ArchiveSource] = (),
    drops: Drops | None = None,
    views: frozenset[str] = frozenset(),
    skip_corrupt: bool = False,
    spark: SparkOptions | None = None,
    local: Path | None = None,
    progress: Progress = no_progress,
) -> DerivedRows:
    """Derive all rows from the posts and tombstones of exports and archives, as segments in the folder `work`.

    The driver and all workers must see `work`, exports and archives under the same paths or URIs. `local` is the folder
    on this machine for Spark's own files and its log. It is by default `work`, and required if `work` is a URI.
    Finished work of an interrupted run of the same job is reused.

    Raises ExportError or ArchiveError for invalid sources, ReindexError if Spark fails.
    """
    sources = read_sources(exports, archives)
    derived = DerivedRows(*claim_work(work, local), sources.dialect)

    def derive(run: Stages) -> DerivedRows:
        sample = in_thread(
            lambda: take_sample(sources.inputs, derived.folder, sources.dialect, catalog, skip_corrupt=skip_corrupt)
        )
        whole = run.inspect(sources.inputs, skip_corrupt=skip_corrupt, catalog=catalog)
        job = make_job(whole, derived.folder, sources.dialect, catalog, drops or Drops(), views, awaited(sample))
        begin(job)
        partitions = run.derive(job, tasks.derive(job), skip_corrupt=skip_corrupt)
        buckets = _build(run, job, partitions)
        tasks.check_pieces(partitions, buckets, derived.folder)
        segments = in_order(_segments([*partitions, *buckets]))
        parts = parts_of(job, segments)
        added = run.each("add up", "added", range(len(parts)), add_up(job, segments, parts))
        derived.segments = in_order(segments + _segments(added))
        for report in partitions:
            derived.posts.update(report["posts"])
        return derived

    return on_spark(derive, derived, spark, progress)


def _build(run: Stages, job: ReindexJob, partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Build all wanted buckets, and return their reports. A task may build several buckets, because many are small."""
    runs = tuple(report["run"] for report in partitions)
    wanted = [index for index, is_wanted in enumerate(job.wanted) if is_wanted]
    return run.each("build", "built", wanted, tasks.build(job, runs), shares_for(job.inputs))


def _segments(reports: Iterable[dict[str, Any]]) -> list[RowSegment]:
    return [RowSegment.of(fields) for report in reports for fields in report["segments"]]


def on_spark(job: Callable[[Stages], T], ran: JobReport, spark: SparkOptions | None, progress: Progress) -> T:
    """Return the result of `job`. Unless Spark runs already, run `job` in a separate process, with a copy of `ran`."""
    options = spark or SparkOptions()
    scratch, log = ran.local / "spark", ran.local / SPARK_LOG
    settings = {
        "spark.task.maxFailures": "4",
        "spark.speculation": "false",
        "spark.shuffle.compress": "false",  # signed posts do not compress
        # The plans have one or two steps. Generating and compiling Java for them, and replanning, would take a second.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        **options.settings,
    }

    def run(progress: Progress) -> T:
        with session(
            scratch,
            master=options.master,
            remote=options.remote,
            cores=options.cores,
            log=log,
            driver_memory=options.driver_memory,
            options=settings,
        ) as started:
            return job(Stages(started, ran, progress))

    if not starts_driver(options.master, options.remote):
        return run(progress)
    try:
        return in_driver(run, scratch, log, progress)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Stages:
    """Runner of the stages of a job in a Spark session. Finished work is skipped."""

    spark: SparkSession
    ran: JobReport
    progress: Progress

    def inspect(
        self, inputs: tuple[Input, ...], *, skip_corrupt: bool, catalog: Catalog | None = None
    ) -> tuple[Input, ...]:
        """Verify archives and the workers' access to segments, to the job's folder and to the views.

        Returns the undamaged inputs. `derive` verifies the checksums of segments.
        """
        from pyspark.cloudpickle import dumps  # noqa: PLC0415 - needs the extra cablestore[reindex]

        views = None if catalog is None else dumps(catalog)  # type: ignore[no-untyped-call] # PySpark has no types for it
        whole: list[Input] = []
        probes: list[dict[str, Any]] = []
        task = tasks.inspect(inputs, self.ran.folder, views)
        table = self._over(range(len(inputs)), task, "report string not null", shares_for(inputs))
        for report in self._stage("inspect", table):
            source = inputs[report["input"]]
            if "problem" not in report:
                probes.append(report)
                whole.append(source)
            elif skip_corrupt:
                self.ran.left_out[source.name] = report["problem"]
            else:
                raise rejection(source, report["problem"])
        self._find(probes)
        return tuple(whole)

    def _find(self, probes: list[dict[str, Any]]) -> None:
        """Raise ReindexError if a worker's probe is not in the job's folder. Remove all probes."""
        folder = self.ran.folder
        found = folder.names("probe-*")
        for report in probes:
            if report["probe"] not in found:
                raise ReindexError(
                    f"the driver does not see the files that the worker on {report['host']} writes to {folder}. "
                    "Choose a folder for --work that all machines share under the same path, or a URI of an object store"
                )
        remove(folder, found)

    def derive(
        self, job: ShuffledJob, task: Callable[[tasks.Batches], tasks.Batches], *, skip_corrupt: bool
    ) -> list[dict[str, Any]]:
        """Run `task`, which settles every hash of a partition. Return the reports of all partitions with content.

        Damaged inputs are omitted with `skip_corrupt`; otherwise their error is raised.
        """
        if not skip_corrupt and any(report["problems"] for report in _reports(self.ran.folder, "derived")):
            discard(self.ran.folder)  # work of an interrupted run; the input may be valid now
        done = "derived.done"
        missing = frozenset(range(job.partitions)) - _reported(self.ran.folder, "derived")
        if missing and not self.ran.folder.exists(done):
            read, columns = tasks.read(job, missing), "partition int not null, blob binary not null"
            blobs = self._over(range(len(job.inputs)), read, columns, shares_for(job.inputs))
            by_hash = blobs.repartitionById(job.partitions, "partition")
            self._stage("derive", by_hash.mapInArrow(in_worker(task), "report string not null"))
            self.ran.folder.write(done, b"")
        reports = _reports(self.ran.folder, "derived")
        try:
            self._leave_out(job, reports, skip_corrupt=skip_corrupt)
        except CableStoreError:
            discard(self.ran.folder)
            raise
        for report in reports:
            self.ran.counts.update(report["counts"])
        return reports

    def _leave_out(self, job: ShuffledJob, reports: list[dict[str, Any]], *, skip_corrupt: bool) -> None:
        for report in tasks.problems_of(job, reports):
            source = job.inputs[report["input"]]
            if not skip_corrupt:
                raise rejection(source, report["problem"])
            self.ran.left_out[source.name] = report["problem"]

    def each(
        self,
        name: str,
        reported: str,
        numbers: Sequence[int],
        task: Callable[[tasks.Batches], tasks.Batches],
        shares: int | None = None,
    ) -> list[dict[str, Any]]:
        """Run `task` on each of `numbers` that has no report yet. Return all reports with the name `reported`.

        Each number has a separate task of Spark, or all are distributed over `shares` tasks.
        """
        finished = _reported(self.ran.folder, reported)
        missing = [number for number in numbers if number not in finished]
        if missing:
            self._stage(name, self._over(missing, task, "report string not null", shares))
        return _reports(self.ran.folder, reported)

    def _over(
        self,
        numbers: Sequence[int],
        task: Callable[[tasks.Batches], tasks.Batches],
        columns: str,
        shares: int | None = None,
    ) -> DataFrame:
        """Return the rows that `task` yields for `numbers`, with one Spark task per number, or `shares` in total."""
        count = min(shares or len(numbers), len(numbers))
        chosen = tuple(itertools.chain.from_iterable(numbers[first::count] for first in range(count)))

        def of_chosen(places: tasks.Batches) -> tasks.Batches:
            return task(tasks.pick(places, chosen))

        return self.spark.range(0, len(chosen), 1, count).mapInArrow(in_worker(of_chosen), columns)

    def _stage(self, name: str, table: DataFrame) -> list[dict[str, Any]]:
        """Run the query `table` of a stage, and return its reports. Raises the first error among them."""
        started = time.perf_counter()
        # Each row is a report in JSON.
        rows = run_query(self.spark, name, table.collect, lambda done, total: self.progress(name, done, total))
        reports: list[dict[str, Any]] = [json.loads(row.report) for row in rows]
        self.ran.seconds[name] = round(time.perf_counter() - started, 2)
        self.ran.task_seconds[name] = [report["seconds"] for report in reports]
        for report in reports:
            if "error" in report:
                raise tasks.error_of(report)
        return reports


def shares_for(inputs: Sequence[Input]) -> int:
    """Return the number of tasks for work on inputs.

    Archives may be many and small, and a task costs Spark a tenth of a second. Segments of exports are so large that
    each has a separate task.
    """
    return _SHARES_AT_LEAST + _SHARES_OF_A_PARTITION * partitions_for(posts_of(inputs))


def in_order(segments: Sequence[RowSegment]) -> list[RowSegment]:
    """Return segments in order of keys. Raises ReindexError if two segments overlap."""
    ordered = sorted(segments, key=lambda segment: segment.first)
    for one, following in itertools.pairwise(ordered):
        if one.last >= following.first:
            raise ReindexError(
                f"{one.file} and {following.file} overlap. Remove the work folder, then run the command again"
            )
    return ordered


def begin(job: ShuffledJob) -> None:
    """Empty the job's folder, unless it contains work of the same job."""
    folder, fingerprint = job.folder, job.fingerprint().encode()
    if folder.exists(_JOB):
        if folder.read(_JOB) == fingerprint:
            return
        folder.remove(_JOB)  # first: without it, the other files are invalid if this process is killed now
    discard(folder)
    folder.write(_JOB, fingerprint)


def discard(folder: ObjectFolder) -> None:
    """Remove all files that tasks wrote to the folder, and keep the job's fingerprint."""
    made = [name for name in folder.names() if name.endswith(_MADE) or name.startswith("run-")]
    remove(folder, [name for name in made if name != _JOB])


def _reports(work: ObjectFolder, stage: str) -> list[dict[str, Any]]:
    """Return the reports of finished tasks of a stage, in order of their numbers."""
    names = work.names(f"{stage}-*.json")
    return [
        _report(str(work.file(name)), data) for name, data in zip(names, for_each(work, work.read, names), strict=True)
    ]


def _report(path: str, data: bytes) -> dict[str, Any]:
    try:
        return read_document(data, dict[str, Any])
    except ValueError as error:
        raise ExportError(f"{path} is damaged: {error}. Remove its folder, then run the command again") from None


def _reported(work: ObjectFolder, stage: str) -> frozenset[int]:
    return frozenset(int(name.removesuffix(".json").rpartition("-")[2]) for name in work.names(f"{stage}-*.json"))
