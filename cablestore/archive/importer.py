"""Import of archives into a store. Within an archive's period and channels, its content is canonical (RFC 61).

An archive is imported as a whole or not at all. First all its content is verified. Then one atomic write stores its
posts and removes stored posts that it does not contain. If a period has several archives, the import of its last
archive removes the posts that none of these archives contains.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import NamedTuple, TypeVar

from cablestore.archive.format.archive import verified_posts
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.index import Index, VerifiedIndex
from cablestore.archive.format.period import Period
from cablestore.archive.format.profile import PROFILES, Entry, Profile
from cablestore.errors import ArchiveError
from cablestore.gc_pause import gc_paused
from cablestore.index.log_position import LogPosition
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.index.verdict import Verdict
from cablestore.protocol.body import ALL_TYPES, Delete
from cablestore.protocol.dialect import ARCHIVES_CHANNEL
from cablestore.protocol.post import Post, decode_post
from cablestore.protocol.waku import content_topic
from cablestore.remote.store import RemoteStore, run
from cablestore.reprs import hex_repr
from cablestore.store.intake import IntakeBatch
from cablestore.store.store import CableStore
from cablestore.views import activity, author

T = TypeVar("T")

Fetched = Iterable[tuple[Entry, bytes]]
"""Archives with their bytes, in any order."""
OnDamaged = Callable[[Entry, ArchiveError], None]
"""Function that is called with an archive that does not match its index entry, and the error."""
_Write = tuple[Entry, Callable[[list[bytes] | None], tuple["ArchiveImportReport", list[bytes]]]]


@dataclass(slots=True)
class ArchiveImportReport:
    """Counts of the import of one or more archives."""

    archives: int = 0
    posts: int = 0
    """New posts."""
    known: int = 0
    deleted: int = 0
    """Posts of the archive that have a tombstone in this store."""
    deleted_here: int = 0
    """Stored posts that a post/delete of the archive deleted."""
    dropped: int = 0
    """Posts of the archive that moderation keeps out of this store."""
    removed: list[bytes] = field(default_factory=list)
    """Hashes of posts that were removed because the archives of the period do not contain them."""

    __repr__ = hex_repr

    def __add__(self, other: ArchiveImportReport) -> ArchiveImportReport:
        """Return the sum of both reports."""
        return ArchiveImportReport(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


def import_deletions(store: CableStore, verified: VerifiedIndex) -> list[bytes]:
    """Store the post/deletes of an index, before any archive. Return the hashes of the posts that they deleted."""
    return run(store, store_deletions, list(verified.deletions))


def log_place(store: CableStore) -> LogPosition:
    """Return the log position of the store's current state."""
    return store.parts.engine.place


def has_kept(store: CableStore, place: LogPosition) -> bool:
    """Return True if the store still has the posts that it had at a log position."""
    with store.parts.engine.reading() as reader:
        return place.holds_in(reader)


def store_deletions(store: CableStore, deletions: list[bytes]) -> list[bytes]:
    """Store post/deletes: see `import_deletions`."""
    posts = [decode_post(raw, store.dialect) for raw in deletions]
    with store.snapshot() as snapshot:
        here = _held_targets(snapshot.reader, posts)
    store.ingest(deletions, sync=True)
    return [digest for digest in here if store.get(digest) is None]


def _held_targets(reader: Reader, posts: Iterable[Post]) -> list[bytes]:
    """Return the hashes of the stored posts that the post/deletes in `posts` delete: targets by the same author."""
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

    While an archive is written, threads verify the signatures of the next archive. Therefore an archive is written only
    after the next archive has arrived. If another process has the store open, it imports the archives one after the
    other.

    Posts are removed only if all archives of their period are given, and never with `merges`. An archive that does not
    match its index entry is not imported: `on_damaged` is called, and the import continues. Without `on_damaged`, such
    an archive raises ArchiveError. Earlier archives remain imported.
    """
    import_deletions(store, verified)
    periods = _Periods(verified)
    for entry, write in _writes(store, verified, fetched, key):
        others = None if merges else periods.others(entry)
        try:
            report, hashes = write(others)
        except ArchiveError as error:
            if on_damaged is None:
                raise
            on_damaged(entry, error)
        else:
            periods.add(entry, hashes)
            yield entry, report


def _writes(store: CableStore, verified: VerifiedIndex, fetched: Fetched, key: bytes | None) -> Iterator[_Write]:
    """Yield the index entry of each archive, and a function that writes the archive and accepts `others`.

    If this process has the store open, threads verify the next archive while an archive is written.
    """
    profile = verified.index.profile.name
    archives = ((profile, entry, verified.commitments[entry.archive_id], stored, key) for entry, stored in fetched)
    if isinstance(store, RemoteStore):
        return ((archive[1], partial(run, store, import_archive, *archive)) for archive in archives)  # type: ignore[call-arg] # mypy does not unpack it
    return _one_ahead(
        (archive[1], partial(write_archive, store, read_archive(store, *archive))) for archive in archives
    )


def _one_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield each item after fetching the next item. If that fails, yield the fetched items, then raise the error."""
    waiting = deque[T]()
    try:
        for item in items:
            waiting.append(item)
            del item  # lets the archive be freed after its write
            if len(waiting) > 1:
                yield waiting.popleft()
    except Exception:
        yield from waiting
        raise
    yield from waiting


def import_archive(
    store: CableStore,
    profile: str,
    entry: Entry,
    commitment: Commitment,
    stored: bytes,
    key: bytes | None,
    others: list[bytes] | None,
) -> tuple[ArchiveImportReport, list[bytes]]:
    """Read an archive with `read_archive`, and return the result of `write_archive`."""
    return write_archive(store, read_archive(store, profile, entry, commitment, stored, key), others)


class ReadArchive(NamedTuple):
    """Archive that was read. Threads verify the signatures of its posts."""

    profile: Profile
    entry: Entry
    admitted: IntakeBatch | ArchiveError
    """Posts of the archive, or an error if it does not match its index entry. `write_archive` raises the error."""
    stones: list[Tombstone]


def read_archive(
    store: CableStore, profile: str, entry: Entry, commitment: Commitment, stored: bytes, key: bytes | None
) -> ReadArchive:
    """Read an archive and start verifying its signatures. Do not write."""
    form, stones = PROFILES[profile], list[Tombstone]()
    verified = VerifiedIndex(Index(form, (entry,)), {entry.archive_id: commitment}, ())
    admitted: IntakeBatch | ArchiveError
    try:
        with gc_paused():
            admitted = store.parts.intake.admit(verified_posts(verified, entry, stored, store.dialect, key, stones))
    except ArchiveError as error:
        admitted = error.with_traceback(None)  # the traceback would keep the archive in memory
    return ReadArchive(form, entry, admitted, stones)


def write_archive(
    store: CableStore, read: ReadArchive, others: list[bytes] | None
) -> tuple[ArchiveImportReport, list[bytes]]:
    """Write an archive in one atomic write. Return a report and the hashes of the posts in the archive.

    `others` are the hashes of the posts in the other archives of its period. Stored posts that none of the archives
    contains are removed. If `others` is None, posts are not removed. Raises ArchiveError, without changes, if the
    archive does not match its index entry.
    """
    form, entry, admitted, stones = read
    if isinstance(admitted, ArchiveError):
        raise admitted
    deleted_here, hashes = list[bytes](), [post.hash for post in admitted.posts]

    def surplus(reader: Reader) -> list[bytes]:
        deleted_here.extend(_held_targets(reader, admitted.posts))
        return [] if others is None else list(posts_beside(reader, form, entry, {*others, *hashes}))

    if problem := admitted.rejection():
        raise ArchiveError(f"archive {entry.archive_id} was not imported: {problem}")
    with gc_paused():
        outcomes, discarded = store.parts.writer.replace(admitted, surplus, sync=True)
    if stones:
        store.parts.writer.store_skeletons(stones, sync=True)
    found = [outcome.verdict for outcome in outcomes]
    report = ArchiveImportReport(
        archives=1,
        posts=found.count(Verdict.ACCEPTED),
        known=found.count(Verdict.DUPLICATE),
        deleted=found.count(Verdict.DELETED),
        deleted_here=len(deleted_here),
        dropped=found.count(Verdict.DROPPED) + found.count(Verdict.BLOCKED),
        removed=[outcome.hash for outcome in discarded if outcome.verdict is Verdict.DISCARDED],
    )
    return report, hashes


def posts_beside(reader: Reader, profile: Profile, entry: Entry, known: set[bytes]) -> Iterator[bytes]:
    """Yield the hashes of stored posts in the period and topics of `entry`, except hashes in `known`.

    Local-only posts and archive announcements are left out, because archives do not contain them.
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
    """Progress of each period: archives not imported yet, and hashes of the posts of imported archives."""

    def __init__(self, verified: VerifiedIndex) -> None:
        self._missing: defaultdict[Period, set[str]] = defaultdict(set)
        self._hashes: defaultdict[Period, set[bytes]] = defaultdict(set)
        for entry in verified.index.entries:
            self._missing[entry.period].add(entry.archive_id)

    def others(self, entry: Entry) -> list[bytes] | None:
        """Return the hashes of posts in the other archives of the entry's period, or None if one is not imported."""
        is_last = self._missing[entry.period] <= {entry.archive_id}
        return list(self._hashes.pop(entry.period, ())) if is_last else None

    def add(self, entry: Entry, hashes: Iterable[bytes]) -> None:
        """Record that the archive of `entry` was imported. `hashes` are the hashes of its posts."""
        missing = self._missing[entry.period]
        missing.discard(entry.archive_id)
        if missing:
            self._hashes[entry.period].update(hashes)
