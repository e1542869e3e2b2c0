"""Tasks of a job that creates archives, which run on the workers. A node creates archives with the same functions.

1. `tasks.inspect` verifies the inputs, and `tasks.read` sends posts and tombstones to the partitions of their hashes.
2. `derive` reads all blobs of a partition. It writes live posts and effective tombstones to a run, split into weeks.
3. `archive` reads all posts of a week, sorted, and creates its archives. Archives also contain the channels of earlier
   weeks. So this stage begins when the time of every channel's first post is known.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

from cablestore.archive.format.archive import Archive
from cablestore.archive.format.period import Period, week_of
from cablestore.archive.format.profile import Profile, Topic, topics_of
from cablestore.archive.weeks import archives_of, messages_of, stones_by
from cablestore.errors import ExportError
from cablestore.export.writer import HASH_AT, POST_AT, TYPE_AT, post_record, record_start
from cablestore.files import ObjectFolder
from cablestore.index.database import Row
from cablestore.index.packing import pack, unpack
from cablestore.index.runs import into_buckets, read_bucket, write_run
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.body import DELETE
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.dialect import ARCHIVES_CHANNEL
from cablestore.protocol.waku import EVERYONE_TOPIC, content_topic
from cablestore.reindex.job import ShuffledJob
from cablestore.reindex.tasks import Batches, Hashed, finish, of_partition, reporting, settled


@dataclass(frozen=True)
class WeeksJob(ShuffledJob):
    """Job that creates archives from exports.

    `weeks` are all past weeks, in order. `key` is the cabal key, None for public archives. Each week is a bucket of the
    posts dated in it. One more bucket contains later posts, of which only deletions are archived, in the index.
    """

    kind: ClassVar[str] = "WeeksJob"
    profile: Profile
    weeks: tuple[Period, ...]
    key: bytes | None = field(repr=False)

    @property
    def boundaries(self) -> list[bytes]:
        """The first key of each bucket except the first, in order of time."""
        return [record_start(week.to_ms, bytes(HASH_SIZE_BYTES)) for week in self.weeks]

    def parts(self) -> list[Any]:
        """Return the values on which the archives depend besides the inputs."""
        return [self.profile.name, len(self.weeks), hashlib.blake2b(self.key or b"").hexdigest()]

    def topics(self, first_posts_ms: Mapping[str, int], week: Period) -> tuple[Topic, ...]:
        """Return the topics of a week's archives, given the time of the first post of each topic."""
        known = {topic for topic, first_ms in first_posts_ms.items() if first_ms < week.to_ms}
        return topics_of(self.profile, known | {EVERYONE_TOPIC})


class WeekContent(NamedTuple):
    """Content of one week: records of its posts in order of time and hash, and tombstones of its post/deletes."""

    records: list[bytes]
    stones: list[Tombstone]

    def deletions(self) -> dict[bytes, bytes]:
        """Return the encoded post/deletes whose targets are from an earlier week, by the hash of the post/delete."""
        whole = {record[HASH_AT:TYPE_AT]: record[POST_AT:] for record in self.records if record[TYPE_AT] == DELETE}
        return {
            stone.deleted_by: whole[stone.deleted_by]
            for stone in self.stones
            if stone.deleted_by in whole
            and stone.skeleton is not None
            and stone.skeleton.timestamp_ms < week_of(stone.deleted_at_ms).from_ms
        }

    def known(self) -> Callable[[Tombstone], Tombstone | None]:
        """Return a function from a post/delete's waiting tombstone to the effective tombstone in `stones` or None."""
        found = {(stone.target, stone.author, stone.deleted_by): stone for stone in self.stones}
        return lambda claim: found.get((claim.target, claim.author, claim.deleted_by))


# --- split into weeks ----------------------------------------------------------------------------


def derive(job: WeeksJob) -> Callable[[Batches], Batches]:
    """Return the task that settles the posts of a partition and writes them to a run, split into weeks."""
    return of_partition(job, partial(_derive, job))


def _derive(job: WeeksJob, partition: int, hashed: list[Hashed], stones: list[Tombstone]) -> dict[str, Any]:
    """Settle every hash of a partition. Write a run of its live posts and effective tombstones.

    The report contains the time of the first post of each topic.
    """
    counts: Counter[str] = Counter()
    first_posts_ms: dict[str, int] = {}
    rows: list[Row] = []
    for post, laid, _ in settled(job.dialect, hashed, stones, counts):
        rows += [_stone_row(stone) for stone in laid if stone.is_effective]
        if post is None or post.channel == ARCHIVES_CHANNEL:
            continue
        topic = content_topic(post.channel or None)
        first_posts_ms[topic] = min(post.timestamp_ms, first_posts_ms.get(topic, post.timestamp_ms))
        rows.append((post_record(post.timestamp_ms, post.hash, post.raw, post.type), b""))
    rows.sort()
    buckets = into_buckets(rows, job.boundaries)
    run = f"run-{partition:06d}"
    write_run(job.folder, run, buckets)
    return {
        "partition": partition,
        "run": run,
        "weeks": [index for index, bucket in enumerate(buckets) if bucket],
        "first_posts_ms": first_posts_ms,
        "counts": counts,
    }


def _stone_row(stone: Tombstone) -> Row:
    """Return a tombstone as a row whose key sorts beside its post/delete."""
    place = record_start(stone.deleted_at_ms, stone.deleted_by) + stone.target + stone.author
    return place, pack([stone.target, stone.author, stone.encode()])


# --- archives ------------------------------------------------------------------------------------


def archive(job: WeeksJob, runs: Sequence[str], first_posts_ms: Mapping[str, int]) -> Callable[[Batches], Batches]:
    """Return the task that creates the archives of weeks from `runs`. Its input is the numbers of the weeks."""
    return reporting(partial(_archive, job, runs, first_posts_ms))


def read_week(job: WeeksJob, runs: Sequence[str], index: int) -> WeekContent:
    """Return the posts and tombstones of the bucket `index`. Raises ExportError if a run is damaged."""
    week = WeekContent([], [])
    for record, value in read_bucket(job.folder, runs, index, len(job.weeks) + 1):
        if value:
            week.stones.append(Tombstone.decode(*unpack(value)))
        else:
            week.records.append(record)
    return week


def _archive(job: WeeksJob, runs: Sequence[str], first_posts_ms: Mapping[str, int], index: int) -> dict[str, Any]:
    week = read_week(job, runs, index)
    archives: list[Archive] = []
    oversize: list[bytes] = []
    if index < len(job.weeks):
        messages = list(messages_of(week.records, job.dialect))
        period, stones = job.weeks[index], stones_by(week.records, job.dialect, week.known())
        topics = job.topics(first_posts_ms, period)
        archives, oversize = archives_of(job.profile, period, topics, messages, stones, job.key)
    file = f"week-{index:06d}.archives"
    job.folder.write(file, b"".join(made.stored for made in archives), sync=False)
    report = {
        "week": index,
        "file": file,
        "archives": [_fields(made) for made in archives],
        "oversize": [digest.hex() for digest in oversize],
        "deletions": [raw.hex() for raw in week.deletions().values()],
    }
    return finish(job, f"archived-{index:06d}.json", report)


def _fields(made: Archive) -> dict[str, Any]:
    return {
        "size_bytes": len(made.stored),
        "padding_bytes": made.padding_bytes,
        "sha256": made.sha256.hex(),
        "num_posts": made.num_posts,
        "merkle_root": made.merkle_root.hex(),
        "left_out": [target.hex() for target in made.left_out],
    }


def read_archives(
    folder: ObjectFolder, report: Mapping[str, Any], week: Period, topics: tuple[Topic, ...]
) -> list[Archive]:
    """Return the archives of a week from a task's report. Raises ExportError if its file is damaged."""
    data = memoryview(folder.read(report["file"]))
    archives = list(_cut_out(data, report["archives"], week, topics))
    if [made.sha256.hex() for made in archives] != [fields["sha256"] for fields in report["archives"]]:
        raise ExportError(f"{folder.file(report['file'])} is damaged. Remove {folder}, then run the command again")
    return archives


def _cut_out(
    data: memoryview, found: Iterable[Mapping[str, Any]], week: Period, topics: tuple[Topic, ...]
) -> Iterable[Archive]:
    at = 0
    for fields in found:
        stored = bytes(data[at : at + fields["size_bytes"]])
        at += len(stored)
        root = bytes.fromhex(fields["merkle_root"])
        left_out = tuple(map(bytes.fromhex, fields["left_out"]))
        yield Archive(week, topics, stored, fields["padding_bytes"], fields["num_posts"], root, left_out)
