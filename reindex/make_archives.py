"""Creation of the archives of a large history from exports on Spark.

The archives are identical to the archives that a store with the same posts creates. Weeks are archived in parallel.
Only the driver has the control node's key. It adds the data that depends on other weeks: the position of each archive
in `data`, and the index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.archive import Archive
from cablestore.archive.format.period import Period, weeks
from cablestore.archive.format.profile import Profile
from cablestore.archive.weeks import archives_of, messages_of, stones_by
from cablestore.archive.writer import ArchivePlan, ArchiveWriter, CreateReport
from cablestore.files import Location
from cablestore.index.parallel import partitions_for
from cablestore.protocol.crypto import Identity
from cablestore.reindex import archive_tasks
from cablestore.reindex.archive_tasks import WeeksJob
from cablestore.reindex.driver import Progress
from cablestore.reindex.inputs import posts_of
from cablestore.reindex.job import claim_work
from cablestore.reindex.prepare import JobSources, read_sources
from cablestore.reindex.stages import JobReport, SparkOptions, Stages, begin, no_progress, on_spark, shares_for


@dataclass(slots=True)
class MadeArchives:
    """Result of `make_archives`: the job and the created archives."""

    ran: JobReport
    created: CreateReport


def make_archives(
    exports: Sequence[Location],
    folder: ArchiveFolder,
    profile: Profile,
    identity: Identity,
    now_ms: int,
    *,
    key: bytes | None = None,
    work: Location | None = None,
    spark: SparkOptions | None = None,
    keep_work: bool = False,
    progress: Progress = no_progress,
) -> MadeArchives:
    """Create the archives of all weeks that ended by `now_ms` and that have posts in one of the exports.

    If the folder contains archives, add the missing archives, as a node does. `identity` is the identity of the control
    node. `key` is the cabal key, None for public archives. Workers get `key` but never the identity. Workers and the
    driver must see the exports and `work` under the same paths or URIs. `work` is by default beside the community's
    folder. It is removed at the end unless `keep_work`. After an interruption the next call continues.

    Raises ExportError for invalid exports, ArchiveError if the folder belongs to another control node or its index is
    damaged, ReindexError if Spark fails, and StorageError if reading or writing fails.
    """
    sources = read_sources(exports)
    plan = ArchivePlan(profile, identity, sources.dialect, key)
    beside = folder.path.absolute().with_name(f"{folder.path.name}.making")
    with folder.claimed():
        plan.verified(folder)  # raises before the job starts if the folder belongs to another control node
        ran = JobReport(*claim_work(work or beside, beside), sources.dialect)

        def archive(run: Stages) -> tuple[JobReport, History]:
            return run.ran, _archive(run, sources, profile, key, now_ms)

        ran, history = on_spark(archive, ran, spark, progress)
        created = history.write(folder, plan, progress)
    if not keep_work:
        ran.remove_work()
    return MadeArchives(ran, created)


def _archive(run: Stages, sources: JobSources, profile: Profile, key: bytes | None, now_ms: int) -> History:
    """Run the stages that create archives of weeks."""
    inputs = run.inspect(sources.inputs, skip_corrupt=False)
    job = WeeksJob(
        folder=run.ran.folder,
        dialect=sources.dialect,
        inputs=inputs,
        partitions=partitions_for(posts_of(inputs)),
        profile=profile,
        weeks=tuple(weeks(0, now_ms)),
        key=key,
    )
    begin(job)
    partitions = run.derive(job, archive_tasks.derive(job), skip_corrupt=False)
    runs = [report["run"] for report in partitions]
    first_posts_ms = first_of_all(report["first_posts_ms"] for report in partitions)
    found = sorted({index for report in partitions for index in report["weeks"]})
    task = archive_tasks.archive(job, runs, first_posts_ms)
    return History(job, runs, first_posts_ms, run.each("archive", "archived", found, task, shares_for(inputs)))


def first_of_all(found: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return each name with its smallest number in any of the mappings `found`."""
    first: dict[str, int] = {}
    for numbers in found:
        for name, number in numbers.items():
            first[name] = min(number, first.get(name, number))
    return first


@dataclass(frozen=True, slots=True)
class History:
    """Results of all tasks.

    `runs` are the names of the runs, `first_posts_ms` the time of each topic's first post, and `reports` the reports of
    weeks with content, in order.
    """

    job: WeeksJob
    runs: list[str]
    first_posts_ms: dict[str, int]
    reports: list[dict[str, Any]]

    def write(self, folder: ArchiveFolder, plan: ArchivePlan, progress: Progress = no_progress) -> CreateReport:
        """Create the missing archives of a claimed folder."""
        deletions = [bytes.fromhex(raw) for report in self.reports for raw in report["deletions"]]
        writer = ArchiveWriter(folder, plan, deletions)
        known = _content_of(folder, plan)
        for done, report in enumerate(self.reports):
            progress("write", done, len(self.reports))
            if report["week"] < len(self.job.weeks):
                self._write_week(writer, report, known)
        return writer.finish()

    def _write_week(
        self, writer: ArchiveWriter, report: dict[str, Any], known: Mapping[Period, list[tuple[int, str]]]
    ) -> None:
        week = self.job.weeks[report["week"]]
        oversize = list(map(bytes.fromhex, report["oversize"]))
        topics = self.job.topics(self.first_posts_ms, week)
        if week not in known:
            writer.add(archive_tasks.read_archives(self.job.folder, report, week, topics), oversize)
        elif known[week] != [(made["num_posts"], made["merkle_root"]) for made in report["archives"]] or oversize:
            writer.add(*self._late(writer, report["week"]))

    def _late(self, writer: ArchiveWriter, index: int) -> tuple[list[Archive], list[bytes]]:
        """Return archives of the posts of week `index` that its archives lack, and the hashes of oversize posts."""
        job, week = self.job, self.job.weeks[index]
        found = archive_tasks.read_week(job, self.runs, index)
        messages = writer.missing(week, list(messages_of(found.records, job.dialect)))
        topics = job.topics(self.first_posts_ms, week)
        return archives_of(
            job.profile, week, topics, messages, stones_by(found.records, job.dialect, found.known()), job.key
        )


def _content_of(folder: ArchiveFolder, plan: ArchivePlan) -> dict[Period, list[tuple[int, str]]]:
    """Return, for each week in the index, (number of posts, hexadecimal Merkle root) of each archive, in order."""
    verified = plan.verified(folder)
    if verified is None:
        return {}
    content: defaultdict[Period, list[tuple[int, str]]] = defaultdict(list)
    for entry in verified.index.entries:
        commitment = verified.commitments[entry.archive_id]
        content[entry.period].append((commitment.num_posts, commitment.merkle_root.hex()))
    return content
