"""Running a reindexing on Spark: exports in, segments of sorted rows out. The driver only hands out work.

Spark moves posts to where their hashes belong, gives out tasks, and runs what fails again. Nothing but reports comes back
to the driver: a line for each segment, partition and bucket. The tasks themselves are in `tasks`.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cablestore.errors import CorruptExportError, ReindexError
from cablestore.export import Manifest
from cablestore.reindex import tasks
from cablestore.reindex.job import Drops, Input, Job, own_folder
from cablestore.reindex.prepare import all_inputs, make_job, read_manifests
from cablestore.reindex.rows import RowSegment
from cablestore.reindex.spark import session, stage_progress
from cablestore.sizes import Sizes, add_sizes
from cablestore.view import Catalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JOB: Final = "job.json"
_POLL_S: Final = 0.5


Progress = Callable[[str, int, int], None]
"""Is told how far a stage is: its name, tasks or rows done, and how many there are."""


def _no_progress(_stage: str, _done: int, _total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """How Spark is to be run. Without `master` on `cores` of this machine, all of them without a number."""

    master: str | None = None
    cores: int | None = None
    driver_memory: str = "1g"
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(slots=True)
class Derived:
    """What a reindexing made: segments of sorted rows in `folder`, and what became of the posts."""

    folder: Path
    manifests: list[Manifest]
    segments: list[RowSegment] = field(default_factory=list)
    posts: Counter[str] = field(default_factory=Counter)
    """Live posts by type."""
    counts: Counter[str] = field(default_factory=Counter)
    """What was read, and what was left out or found without effect, by reason."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Damaged segments that were skipped, and what is wrong with each."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each stage took; 0 where everything was finished already."""
    task_seconds: dict[str, list[float]] = field(default_factory=dict)
    """How long each task of a stage took."""

    @property
    def sizes(self) -> Sizes:
        """Rows and bytes of each view."""
        total: Sizes = {}
        for segment in self.segments:
            total = add_sizes(total, segment.sizes)
        return total


def derive_rows(
    exports: Sequence[Path],
    work: Path,
    catalog: Catalog,
    *,
    drops: Drops | None = None,
    views: frozenset[str] = frozenset(),
    skip_corrupt: bool = False,
    spark: SparkOptions | None = None,
    progress: Progress = _no_progress,
) -> Derived:
    """Make segments of all rows that follow from the posts and tombstones of `exports`, in the folder `work`.

    The driver and all workers must see `work` and the exports under the same paths. What an interrupted run of the same
    job finished there is used again. Raises ExportError for exports that cannot be used, ReindexError where Spark fails.
    """
    manifests = read_manifests(exports)
    options = spark or SparkOptions()
    work = own_folder(work.absolute())
    derived = Derived(work, manifests)
    scratch = work / "spark"
    settings = {
        "spark.task.maxFailures": "4",
        "spark.speculation": "false",
        "spark.shuffle.compress": "false",  # signed posts do not shrink
        **options.settings,
    }
    try:
        with session(
            scratch,
            master=options.master,
            cores=options.cores,
            log=work / "spark.log",
            driver_memory=options.driver_memory,
            options=settings,
        ) as started:
            _Run(started, derived, progress).run(catalog, drops or Drops(), views, skip_corrupt=skip_corrupt)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return derived


class _Run:
    """One run of the stages, on one session."""

    def __init__(self, spark: SparkSession, derived: Derived, progress: Progress) -> None:
        self._spark = spark
        self._derived = derived
        self._progress = progress
        self._work = derived.folder

    def run(self, catalog: Catalog, drops: Drops, views: frozenset[str], *, skip_corrupt: bool) -> None:
        """Run all stages, leaving out what is finished."""
        manifests = self._derived.manifests
        inputs = self._inspect(all_inputs(manifests), skip_corrupt=skip_corrupt)
        job = make_job(inputs, self._work, manifests[0].dialect, catalog, drops, views)
        _begin(job)
        partitions = self._derive(job)
        buckets = self._build(job, partitions)
        found = [RowSegment.of(fields) for report in (*partitions, *buckets) for fields in report["segments"]]
        self._derived.segments = in_order(found)
        for report in partitions:
            self._derived.posts.update(report["posts"])
            self._derived.counts.update(report["counts"])

    def _inspect(self, inputs: tuple[Input, ...], *, skip_corrupt: bool) -> tuple[Input, ...]:
        """Check the sums of all inputs, and that workers see the job's folder. Returns the inputs that are whole."""
        whole = []
        table = self._numbers(range(len(inputs))).mapInArrow(
            tasks.inspect(inputs, self._work), "report string not null"
        )
        for report in self._stage("inspect", table):
            source = inputs[report["input"]]
            if "problem" not in report:
                self._find_probe(report)
                whole.append(source)
            elif skip_corrupt:
                self._derived.left_out[str(source.path)] = report["problem"]
            else:
                raise CorruptExportError(f"{report['problem']}. Copy it again, or leave it out with --skip-corrupt")
        return tuple(whole)

    def _find_probe(self, report: dict[str, Any]) -> None:
        try:
            (self._work / report["probe"]).unlink()
        except FileNotFoundError:
            raise ReindexError(
                f"what the worker on {report['host']} writes into {self._work} the driver does not see. Name a folder with --work "
                "that all machines share under one path"
            ) from None

    def _derive(self, job: Job) -> list[dict[str, Any]]:
        """Settle every hash. Returns the reports of all partitions that hold anything."""
        missing = frozenset(range(job.partitions)) - _reported(self._work, "derived")
        if missing and not _is_done(self._work, "derived"):
            inputs = self._numbers(range(len(job.inputs)))
            blobs = inputs.mapInArrow(tasks.read(job, missing), "partition int not null, blob binary not null")
            by_hash = blobs.repartitionById(job.partitions, "partition")
            self._stage("derive", by_hash.mapInArrow(tasks.derive(job), "report string not null"))
            (self._work / "derived.done").touch()
        return _reports(self._work, "derived")

    def _build(self, job: Job, partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Build every bucket that is wanted."""
        runs = tuple(report["run"] for report in partitions)
        finished = _reported(self._work, "built")
        missing = [index for index, is_wanted in enumerate(job.wanted) if is_wanted and index not in finished]
        if missing:
            task = tasks.build(job, runs)
            self._stage("build", self._numbers(missing).mapInArrow(task, "report string not null"))
        return _reports(self._work, "built")

    def _numbers(self, numbers: Sequence[int]) -> DataFrame:
        """Return a table of these numbers, one to a task."""
        chosen = tuple(numbers)

        def pick(batches: tasks.Batches) -> tasks.Batches:
            return tasks.pick(batches, chosen)

        count = max(len(chosen), 1)
        return self._spark.range(0, len(chosen), 1, count).mapInArrow(pick, "number long not null")

    def _stage(self, name: str, table: DataFrame) -> list[dict[str, Any]]:
        """Run a stage and return its reports; raises the first error among them."""
        started = time.perf_counter()
        self._spark.sparkContext.setJobDescription(name)
        with self._watching(name):
            rows = table.collect()  # a line of JSON for each task
        reports: list[dict[str, Any]] = [json.loads(row.report) for row in rows]
        self._derived.seconds[name] = round(time.perf_counter() - started, 2)
        self._derived.task_seconds[name] = [report["seconds"] for report in reports]
        for report in reports:
            if "error" in report:
                raise tasks.error_of(report)
        return reports

    @contextmanager
    def _watching(self, name: str) -> Iterator[None]:
        """Tell how far the stage's tasks are, while it runs."""
        done = Event()

        def watch() -> None:
            while not done.wait(_POLL_S):
                for stage in stage_progress(self._spark):
                    self._progress(name, stage.tasks_done, stage.tasks_total)

        watcher = Thread(target=watch, name="cablestore-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def in_order(segments: Sequence[RowSegment]) -> list[RowSegment]:
    """Return segments in order of keys. Raises ReindexError where two overlap."""
    ordered = sorted(segments, key=lambda segment: segment.first)
    for one, following in itertools.pairwise(ordered):
        if one.last >= following.first:
            raise ReindexError(f"{one.file} and {following.file} overlap: remove the folder of the job and run again")
    return ordered


def _begin(job: Job) -> None:
    """Make the job's folder empty, unless it holds finished work of the very same job."""
    path = job.folder / _JOB
    fingerprint = job.fingerprint()
    if path.exists() and path.read_text(encoding="utf-8") == fingerprint:
        return
    for found in job.folder.iterdir():
        if (found.is_file() and found.suffix in {".seg", ".json", ".tmp", ".done"}) or found.name.startswith("run-"):
            found.unlink()
    path.write_text(fingerprint, encoding="utf-8")


def _reports(work: Path, stage: str) -> list[dict[str, Any]]:
    """Return what finished tasks of a stage left, in order of their numbers."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob(f"{stage}-*.json"))]


def _reported(work: Path, stage: str) -> frozenset[int]:
    return frozenset(int(path.stem.rpartition("-")[2]) for path in work.glob(f"{stage}-*.json"))


def _is_done(work: Path, stage: str) -> bool:
    return (work / f"{stage}.done").exists()
