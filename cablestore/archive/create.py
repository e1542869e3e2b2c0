"""Creation of archives from a store's posts of past weeks.

Posts are read in order of time and hash, week by week. Posts that arrive after the archives of their week were created
get a separate archive after the existing archives.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from cablestore.archive.folder import SCRATCH_PREFIX, ArchiveFolder
from cablestore.archive.format.archive import Archive
from cablestore.archive.format.period import Period, week_of
from cablestore.archive.format.profile import PROFILES, Profile, Topic, topics_of
from cablestore.archive.weeks import archives_of, by_week, messages_of, stones_by, topics_in
from cablestore.archive.writer import ArchivePlan, ArchiveWriter, CreateReport
from cablestore.export.records import records_in_order
from cablestore.export.writer import HASH_AT, POST_AT, TYPE_AT
from cablestore.gc_pause import gc_paused
from cablestore.index.batches import Progress, no_progress
from cablestore.index.cores import usable_cores
from cablestore.index.meta import SIZES_KEY, Size, decode_sizes
from cablestore.index.processes import in_order, process_pool
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.body import TEXT
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import decode_post
from cablestore.protocol.waku import EVERYONE_TOPIC
from cablestore.store.hidden import HiddenMessages
from cablestore.store.store import CableStore

_SHARED_OUT_FROM_POSTS: Final = 200_000
"""Minimum number of posts for which archives are created in several processes."""
_AHEAD: Final = 3
"""Maximum number of weeks in progress per process. A week with one archive takes at most 60 MB of memory."""

_Made = tuple[int, list[Archive], list[bytes]]
"""Number of posts of a week, their archives, and the hashes of posts that are too large for any archive."""


class _Week(NamedTuple):
    """Posts of a week that are not in an archive.

    `topics` are the content topics of all channels with posts up to the end of the week. Posts of later weeks do not
    change them. `stones` maps the hash of each post/delete to its tombstones.
    """

    period: Period
    topics: tuple[Topic, ...]
    records: list[bytes]
    stones: dict[bytes, list[Tombstone]]


def create_archives(
    store: CableStore,
    folder: ArchiveFolder,
    plan: ArchivePlan,
    now_ms: int,
    progress: Progress = no_progress,
    *,
    processes: int | None = None,
    leaves_out_hidden: bool = False,
) -> CreateReport:
    """Create archives of all weeks with posts that ended by `now_ms`, and append them to the archives in a folder.

    With `leaves_out_hidden`, the archives do not contain messages that this control node or its authorities publicly
    hid or dropped (`cablestore.store.hidden`). If the removal of dropped posts is unfinished, it is finished first.

    The same posts, archived at the same times, produce the same bytes. After an interruption, the next call resumes.
    By default, a store with at least 200,000 posts uses one process per core. Raises ArchiveError if the folder's index
    is damaged or was created with another profile or key, and StorageError if writing fails.
    """
    if store.moderation.is_sweeping:
        store.moderation.sweep()
    with folder.claimed(), tempfile.TemporaryDirectory(dir=folder.path, prefix=SCRATCH_PREFIX) as scratch:
        with store.snapshot() as snapshot:
            reader = snapshot.reader
            writer = ArchiveWriter(folder, plan, deletions_of_earlier_weeks(reader))
            lists = records_in_order(reader, Path(scratch), progress=progress)
            hidden = HiddenMessages(reader, plan.identity.public_key) if leaves_out_hidden else None
            weeks = _weeks(reader, writer, plan, by_week(lists, now_ms), hidden)
            # The plan contains the secret key of the identity, so it is not passed to other processes.
            make = partial(_make, plan.profile, plan.dialect, plan.key)
            for posts, archives, oversize in _made(make, weeks, _processes_for(reader, processes)):
                writer.add(archives, oversize)
                progress(posts)
        return writer.finish()


def create_below(
    store: CableStore,
    folder: Path,
    profile: str,
    key: bytes | None,
    until_ms: int,
    *,
    leaves_out_hidden: bool = False,
    progress: Progress = no_progress,
) -> CreateReport:
    """Create the archives of weeks that ended by `until_ms`, in the folder of the user's community below `folder`.

    `profile` is a name in PROFILES. Other arguments and errors are as in `create_archives`.
    """
    plan = ArchivePlan(PROFILES[profile], store.identity, store.dialect, key)
    files = ArchiveFolder(folder / store.identity.public_key.hex())
    return create_archives(store, files, plan, until_ms, progress, leaves_out_hidden=leaves_out_hidden)


def _processes_for(reader: Reader, processes: int | None) -> int:
    if processes is not None:
        return processes
    posts = decode_sizes(reader.get(SIZES_KEY)).get("data", Size(0, 0)).rows
    return usable_cores() if posts >= _SHARED_OUT_FROM_POSTS else 1


def _weeks(
    reader: Reader,
    writer: ArchiveWriter,
    plan: ArchivePlan,
    found: Iterable[tuple[Period, list[bytes]]],
    hidden: HiddenMessages | None,
) -> Iterator[_Week]:
    """Yield for each week in `found` the posts that are not archived yet, without `hidden` messages."""
    topics = {EVERYONE_TOPIC}
    for period, records in found:
        topics |= topics_in(records, plan.dialect)
        missing = shown = records if hidden is None else _shown(records, hidden, plan.dialect)
        if writer.has(period):
            messages = list(messages_of(shown, plan.dialect))
            late = {message.post_hash for message in writer.missing(period, messages)}
            missing = [record for record in shown if record[HASH_AT:TYPE_AT] in late]
        stones = stones_by(missing, plan.dialect, _known_to(reader))
        yield _Week(period, topics_of(plan.profile, topics), missing, stones)


def _shown(records: list[bytes], hidden: HiddenMessages, dialect: Dialect) -> list[bytes]:
    """Return the records of all posts except hidden messages."""
    return [
        record
        for record in records
        if record[TYPE_AT] != TEXT or not hidden.has(decode_post(record[POST_AT:], dialect, record[HASH_AT:TYPE_AT]))
    ]


def _made(make: Callable[[_Week], _Made], weeks: Iterable[_Week], processes: int) -> Iterator[_Made]:
    """Yield the results of `make` for all weeks, in order."""
    if processes == 1:
        yield from map(make, weeks)
        return
    with process_pool(processes) as pool:
        yield from in_order(pool, make, weeks, most=_AHEAD * processes)


def _make(profile: Profile, dialect: Dialect, key: bytes | None, week: _Week) -> _Made:
    with gc_paused():
        messages = messages_of(week.records, dialect)
        archives, oversize = archives_of(profile, week.period, week.topics, messages, week.stones, key)
    return len(week.records), archives, oversize


def deletions_of_earlier_weeks(reader: Reader) -> list[bytes]:
    """Return the encoded post/deletes that delete a post of an earlier week, in order of their targets."""
    found: dict[bytes, bytes] = {}
    for stone in reader.tombstones():
        if stone.skeleton is None or stone.deleted_by in found:
            continue
        post = reader.post(stone.deleted_by)
        if post is not None and stone.skeleton.timestamp_ms < week_of(post.timestamp_ms).from_ms:
            found[post.hash] = post.raw
    return list(found.values())


def _known_to(reader: Reader) -> Callable[[Tombstone], Tombstone | None]:
    """Return a function that looks up the store's effective tombstone for the tombstone that a post/delete claims.

    The function returns None if the target has no effective tombstone, or if another post/delete created it.
    """

    def known(claim: Tombstone) -> Tombstone | None:
        stone = reader.tombstone(claim.target, claim.author)
        return stone if stone and stone.is_effective and stone.deleted_by == claim.deleted_by else None

    return known
