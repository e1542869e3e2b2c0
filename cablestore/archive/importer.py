"""Importing archives into a store. Within an archive's period and channels its content is canonical (RFC 61).

An archive is imported as a whole or not at all. First everything in it is verified. Then one atomic write stores its
posts and removes the posts that it lacks. The posts of a period may be cut into several archives: posts that all of
them lack are removed with the last one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from cablestore.archive.format.archive import verified_posts
from cablestore.archive.format.index import VerifiedIndex
from cablestore.archive.format.period import Period
from cablestore.archive.format.profile import Entry, Profile
from cablestore.errors import ArchiveError, CableStoreError, InvalidPostError
from cablestore.index.batches import gc_paused
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.index.verdict import Verdict
from cablestore.protocol.body import ALL_TYPES, Delete
from cablestore.protocol.dialect import ARCHIVES_CHANNEL
from cablestore.protocol.post import Post, decode_post
from cablestore.protocol.waku import content_topic
from cablestore.reprs import hex_repr
from cablestore.store.intake import IntakeBatch
from cablestore.store.store import CableStore
from cablestore.views import activity, author

Fetched = Iterable[tuple[Entry, bytes]]
"""Archives with their bytes, in any order."""
OnDamaged = Callable[[Entry, ArchiveError], None]
"""Called with an archive that is not what its index says, and the reason."""


@dataclass(slots=True)
class ArchiveImportReport:
    """Counts of what the import of one or more archives did."""

    archives: int = 0
    posts: int = 0
    """New posts."""
    known: int = 0
    deleted: int = 0
    """Posts of the archive that their authors have deleted since."""
    deleted_here: int = 0
    """Stored posts that a post/delete of the archive deleted."""
    dropped: int = 0
    """Posts of the archive that moderation keeps out of this store."""
    removed: list[bytes] = field(default_factory=list)
    """Hashes of stored posts that the archive lacks."""

    __repr__ = hex_repr

    def __add__(self, other: ArchiveImportReport) -> ArchiveImportReport:
        """Return the sum of both."""
        return ArchiveImportReport(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


def import_deletions(store: CableStore, verified: VerifiedIndex) -> list[bytes]:
    """Store the post/deletes of an index, before any archive. Return the hashes of the posts that they deleted."""
    posts = [decode_post(raw, store.dialect) for raw in verified.deletions]
    with store.snapshot() as snapshot:
        here = _held_targets(snapshot.reader, posts)
    store.ingest(verified.deletions, sync=True)
    return [digest for digest in here if store.post(digest) is None]


def _held_targets(reader: Reader, posts: Iterable[Post]) -> list[bytes]:
    """Return the stored posts that post/deletes among these posts delete: posts of their own authors."""
    targets = ((digest, post.author) for post in posts if isinstance(post.body, Delete) for digest in post.body.hashes)
    return [
        digest
        for digest, author_key in dict.fromkeys(targets)
        if (held := reader.post(digest)) is not None and held.author == author_key
    ]


def import_archives(
    store: CableStore,
    verified: VerifiedIndex,
    fetched: Fetched,
    *,
    key: bytes | None = None,
    merges: bool = False,
    on_damaged: OnDamaged | None = None,
) -> Iterator[tuple[Entry, ArchiveImportReport]]:
    """Import archives one by one, each in one atomic write, and yield a report of each.

    While one archive is written the next is read and verified. Posts are removed only if all archives of their period
    are given, and never with `merges`. An archive that is not what its index says changes nothing: `on_damaged` is
    called, and the others are imported. Without `on_damaged` the first such archive raises ArchiveError; archives
    before it stay.
    """
    import_deletions(store, verified)
    periods = None if merges else _Periods(verified)
    reads = _reads(store, verified, fetched, key, on_damaged)
    error: CableStoreError | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="cablestore-import") as writer:
        under_way: Future[tuple[Entry, ArchiveImportReport] | None] | None = None
        while error is None:
            try:
                read = next(reads, None)
            except CableStoreError as found:  # raised once the archive before it is written
                read, error = None, found
            if under_way is not None and (written := under_way.result()) is not None:
                yield written
            if read is None:
                break
            under_way = writer.submit(_write, store, verified.index.profile, periods, read, on_damaged)
    if error is not None:
        raise error


class _ReadArchive(NamedTuple):
    """An archive that was verified, except that the signatures of its posts are still being checked."""

    entry: Entry
    admitted: IntakeBatch
    stones: list[Tombstone]


def _reads(
    store: CableStore, verified: VerifiedIndex, fetched: Fetched, key: bytes | None, on_damaged: OnDamaged | None
) -> Iterator[_ReadArchive]:
    for entry, stored in fetched:
        try:
            read = _read(store, verified, entry, stored, key)
        except ArchiveError as error:
            if on_damaged is None:
                raise
            on_damaged(entry, error)
        else:
            yield read


def _read(store: CableStore, verified: VerifiedIndex, entry: Entry, stored: bytes, key: bytes | None) -> _ReadArchive:
    stones: list[Tombstone] = []
    with gc_paused():
        admitted = store.admit(verified_posts(verified, entry, stored, store.dialect, key, stones))
    return _ReadArchive(entry, admitted, stones)


def _write(
    store: CableStore, profile: Profile, periods: _Periods | None, read: _ReadArchive, on_damaged: OnDamaged | None
) -> tuple[Entry, ArchiveImportReport] | None:
    """Store an archive. Return None after `on_damaged` was called because a post is not signed by its author."""
    entry = read.entry
    deleted_here: list[bytes] = []
    hashes = (post.hash for post in read.admitted.posts)
    whole = periods.whole_with(entry, hashes) if periods else None

    def surplus(reader: Reader) -> list[bytes]:
        deleted_here.extend(_held_targets(reader, read.admitted.posts))
        return [] if whole is None else list(posts_beside(reader, profile, entry, whole))

    try:
        with gc_paused():
            outcomes, discarded = store.replace(read.admitted, surplus)
    except InvalidPostError as error:
        refused = ArchiveError(f"archive {entry.archive_id} was not imported: {error}")
        if on_damaged is None:
            raise refused from None
        if periods is not None:
            periods.miss(entry)
        on_damaged(entry, refused)
        return None
    if read.stones:
        store.lay_skeletons(read.stones)
    found = [outcome.verdict for outcome in outcomes]
    return entry, ArchiveImportReport(
        archives=1,
        posts=found.count(Verdict.ACCEPTED),
        known=found.count(Verdict.DUPLICATE),
        deleted=found.count(Verdict.DELETED),
        deleted_here=len(deleted_here),
        dropped=found.count(Verdict.DROPPED) + found.count(Verdict.BLOCKED),
        removed=[outcome.hash for outcome in discarded if outcome.verdict is Verdict.DISCARDED],
    )


def posts_beside(reader: Reader, profile: Profile, entry: Entry, known: set[bytes]) -> Iterator[bytes]:
    """Yield the hashes of stored posts of the entry's period and topics that are not `known`.

    Local-only posts are left out, because no archive has them.
    """
    counts = activity.between(reader, *entry.period)
    types = [post_type for post_type in ALL_TYPES if counts[post_type]]
    if not types:
        return
    topics = frozenset(entry.topics)
    reserved = content_topic(ARCHIVES_CHANNEL)
    for public_key in author.authors(reader):
        for digest in author.between(reader, public_key, types, *entry.period):
            post = None if digest in known else reader.post(digest)
            if post is None or post.is_local_only:
                continue
            topic = content_topic(reader.dialect.channel_id(post.channel) if post.channel else None)
            if topic != reserved and profile.topic(topic) in topics:
                yield digest


class _Periods:
    """Progress of each period: archives that have not come yet, and hashes of the posts of those that have."""

    def __init__(self, verified: VerifiedIndex) -> None:
        self._missing: defaultdict[Period, set[str]] = defaultdict(set)
        self._hashes: defaultdict[Period, set[bytes]] = defaultdict(set)
        for entry in verified.index.entries:
            self._missing[entry.period].add(entry.archive_id)

    def whole_with(self, entry: Entry, posts: Iterable[bytes]) -> set[bytes] | None:
        """Return the hashes of all posts of the archive's period once all archives of it came, and None before."""
        missing, hashes = self._missing[entry.period], self._hashes[entry.period]
        missing.discard(entry.archive_id)
        hashes.update(posts)
        return None if missing else self._hashes.pop(entry.period)

    def miss(self, entry: Entry) -> None:
        """Note that an archive was not imported after all: no post of its period is removed."""
        self._missing[entry.period].add(entry.archive_id)
