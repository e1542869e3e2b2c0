"""Building a new database from the rows that cannot be derived: posts, tombstones, local rows and the arrival log.

The result has the same bytes as after storing the posts one by one. All rows are derived at once and written in key
order, beside the old database. The caller swaps the databases when the new database is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from cablestore.errors import CorruptStoreError, DecodeError
from cablestore.index import arrival_log
from cablestore.index.batches import Progress, batches
from cablestore.index.census import Summary, summaries, summary_rows
from cablestore.index.database import Database, Row, RowWriter
from cablestore.index.derive import Derivation, Settled, measure, settle
from cablestore.index.evidence import Counts, Evidence
from cablestore.index.local import CONFIRMED, DECIDED, DROPPED, DROPPED_HEAD, DROPPED_LINK, local_key
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.local_forms import is_damaged
from cablestore.index.meta import NO_SIZE, SIZES_KEY, Sizes, add_sizes, decode_sizes, encode_sizes
from cablestore.index.plan import Plan
from cablestore.index.reader import (
    AFTER_HEX,
    DATA_PREFIX,
    PRIVATE_PREFIX,
    TOMBSTONE_PREFIX,
    Reader,
    decode_tombstone,
    reject_newer,
)
from cablestore.index.runs import Sorter, sampled
from cablestore.index.tombstone import Tombstone, tombstones
from cablestore.index.view import Catalog
from cablestore.protocol.body import DELETE
from cablestore.protocol.post import Post, decode_post

_POSTS_PER_REPORT: Final = 1_000
_LOST_POSTS: Final = ("post ", "local-only post ")
"""Prefixes of the reasons in `RebuildReport.damaged` that stand for a lost post."""
UNOPENED: Final = "local-only post that does not decrypt"
_MISSING_POST: Final = "post that is missing"
_UNKNOWN_NEXT: Final = 10**16
"""A number greater than every number of the arrival log."""
_ROWS_WRITTEN: Final = 1_000
"""Number of rows in one write, about 200 kB."""


@dataclass(slots=True)
class RebuildReport:
    """Result of a rebuild: numbers of preserved posts, tombstones and entries. `damaged` counts losses by reason."""

    posts: int = 0
    lost_posts: int | None = 0
    """Number of posts that could not be preserved, None if it is unknown."""
    lost_posts_at_least: int = 0
    """Lower bound of the number of lost posts."""
    posts_before: int | None = None
    """Number of posts in the source, None if it is unknown."""
    tombstones: int = 0
    may_lack_deletions: bool = False
    """True if deletions may be lost, so that deleted posts may be back. A sync with a peer restores the deletions."""
    arrivals: int = 0
    damaged: Counter[str] = field(default_factory=Counter)
    has_late_tombstones: bool = False
    """True if the source lacks tombstones of stored post/deletes, so that the rebuild must add them."""
    kept_aside: Path | None = None
    """Path of the old database if data was lost, None otherwise."""
    _before: Counts | None = None
    """Counts in the rows of the source, None if they are unreadable."""
    _following: int = 1
    _deletion_rows: int = 0
    """Number of rows of deletions in the new database."""

    @property
    def has_all_posts(self) -> bool:
        """True if all posts and deletions of the source are known to be preserved."""
        return self.lost_posts == 0 and not self.may_lack_deletions

    def lose(self, what: str) -> None:
        """Count one loss of data with the reason `what`."""
        self.damaged[what] += 1

    def compare(self, before: Counts | None, following: int, deletion_rows: int) -> None:
        """Determine what was lost by comparing the data read with `before`, the counts in the source.

        `before` is None if they are unreadable. `following` is the next number of the source's arrival log.
        `deletion_rows` is the number of rows of deletions in the new database.
        """
        self._before, self._following, self._deletion_rows = before, following, deletion_rows
        is_empty = not self.posts and not self.damaged
        self._settle(before, is_exact=before is not None or is_empty)

    def weigh(self, evidence: Evidence, *, is_complete: bool) -> None:
        """Determine again what was lost, with `evidence` besides the source's rows.

        `is_complete` is False if LevelDB could not read its list of tables or its log: then the rows that count posts
        may be as old as the remaining posts.
        """
        before, closed = self._before, evidence.closed
        if evidence.lost:
            self.lose(f"writes in {evidence.lost}")
        elif closed is not None and closed.next > self._following:
            self.lose("writes before the last close")
        elif is_complete and before is not None:
            return
        elif is_complete and closed is not None and closed.next == self._following:
            self._settle(closed, is_exact=True)
            return
        known = [counts for counts in (closed, before) if counts is not None]  # `before` may lack posts of a lost table
        is_empty = not known and not self.posts and not self.damaged
        self._settle(max(known, key=lambda counts: counts.next, default=None), is_exact=is_empty)

    def _settle(self, before: Counts | None, *, is_exact: bool) -> None:
        """Set the number of lost posts from `before`, the counts of the source, or a lower bound unless `is_exact`.

        The counts show only the difference: if deletions are lost, each deleted post that returns hides one lost post.
        """
        self.damaged.pop(_MISSING_POST, None)
        damaged = sum(count for what, count in self.damaged.items() if what.startswith(_LOST_POSTS))
        missing = 0 if before is None else before.posts - self.posts
        known_rows = 0 if before is None else before.deletion_rows
        is_exact &= missing >= 0  # if negative, discarded posts have returned, and may hide lost posts
        if not is_exact:  # the counts may be older than deletions, each of which has at least one row
            missing -= max(0, self._deletion_rows - known_rows)
        self.may_lack_deletions = not is_exact or self._deletion_rows < known_rows
        self.posts_before = before.posts if before is not None and is_exact else None
        self.lost_posts_at_least = max(damaged, missing, 0)
        self.lost_posts = None if self.may_lack_deletions else self.lost_posts_at_least
        if missing > damaged:
            self.damaged[_MISSING_POST] = missing - damaged
        if self._deletion_rows < known_rows:
            self.damaged["row of a deletion that is missing"] = known_rows - self._deletion_rows

    def add(self, other: RebuildReport) -> None:
        """Add the numbers in the report of another range of hashes."""
        self.posts += other.posts
        self.tombstones += other.tombstones
        self.damaged += other.damaged
        self.has_late_tombstones |= other.has_late_tombstones


def rebuild(
    source: Reader, target: Database, catalog: Catalog, meta: Row, scratch: Path | None, progress: Progress
) -> RebuildReport:
    """Fill the empty `target` from `source`. The target is complete after this returns and the target is closed.

    Rows that do not fit in memory are sorted in the folder `scratch`. If it is None, all rows must fit in memory.
    """
    report = RebuildReport()
    sorter = Sorter(Derivation(catalog), catalog, scratch, sample=partial(sampled, source, catalog))
    with target.bulk_writer() as writer:
        loader = Loader(writer, catalog)
        load_posts(source, loader, sorter, report, progress)
        for _, _, rows in sorter.buckets():
            loader.put_all(rows)
    sizes = add_sizes(loader.sizes, add_summaries(source, target, catalog))
    add_rest(source, target, catalog, meta, sizes, report)
    return report


def add_summaries(source: Reader, target: Database, catalog: Catalog, chosen: Iterable[Summary] | None = None) -> Sizes:
    """Derive all summaries, or only `chosen`, from the rows of `target`, and write them to it.

    Return the sizes of their views.
    """
    sizes: Sizes = {}
    for summary in summaries(catalog) if chosen is None else chosen:
        with target.snapshot() as state, target.bulk_writer() as writer:
            loader = Loader(writer, catalog)
            for batch in batches(summary_rows(summary, source.over(state)), lambda row: len(row[1])):
                loader.put_all(batch)
        target.flush()
        sizes = add_sizes(sizes, loader.sizes)
    return sizes


def add_rest(
    source: Reader, target: Database, catalog: Catalog, meta: Row, sizes: Sizes, report: RebuildReport
) -> None:
    """Add the rows that do not follow from posts and tombstones to a target that contains all other rows."""
    write_head(target, meta, sizes)
    if report.has_late_tombstones:
        _add_late_tombstones(source, target, catalog)
    with target.snapshot() as state:
        made = counts_of(decode_sizes(state.get(SIZES_KEY)), catalog, 1)
    report.posts = made.posts  # excludes posts that were read and are deleted
    report.compare(*counts_in(source, catalog), made.deletion_rows)
    _copy_local(source, target, report)
    target.flush()
    _copy_arrivals(source, target, report)


def counts_of(sizes: Sizes, catalog: Catalog, following: int) -> Counts:
    """Return the counts of a database with these sizes and this next number of its arrival log."""
    posts, deletions = (sizes.get(catalog.view_of(prefix), NO_SIZE) for prefix in (DATA_PREFIX, TOMBSTONE_PREFIX))
    return Counts(following, posts[0], deletions[0])


def counts_in(source: Reader, catalog: Catalog) -> tuple[Counts | None, int]:
    """Return the counts in a source's rows, None if they are unreadable, and the next number of its arrival log.

    If that number is damaged, return a number greater than every number of the log.
    """
    try:
        following = arrival_log.next_sequence(source)
    except CorruptStoreError:  # a damaged row does not show that entries were lost
        following = _UNKNOWN_NEXT
    with suppress(CorruptStoreError):
        value = source.get(SIZES_KEY)
        if value is not None:
            return counts_of(decode_sizes(value), catalog, following), following
    return None, following


def write_head(target: Database, meta: Row, sizes: Sizes) -> None:
    """Write the meta row and the row of sizes."""
    for key, value in (meta, (SIZES_KEY, encode_sizes(sizes))):
        target.flush()
        if value is not None:
            target.write({key: value}, sync=False)
    target.flush()


def load_posts(
    source: Reader,
    loader: Loader,
    sorter: Sorter,
    report: RebuildReport,
    progress: Progress,
    start: bytes = b"",
    stop: bytes = AFTER_HEX,
) -> None:
    """Write the posts of a range of hashes with `loader`. Pass all other rows of posts and tombstones to `sorter`."""
    derivation = sorter.derivation
    done = 0
    for post, stones, dead in _settled(source, report, start, stop):
        for stone in stones:
            derivation.tombstone(stone)
        if dead is not None:
            derivation.dead(dead)
        if post is not None:
            record = derivation.post(post)
            if post.sealed is None:
                loader.put(record)
            else:
                derivation.rows.append(record)  # its key is out of order with the keys of other posts
            done += 1
            report.posts += 1
        if derivation.size_bytes >= sorter.run_size_bytes:
            sorter.make_room(_fraction(post.hash if post else stones[0].target))
        if done == _POSTS_PER_REPORT:
            progress(done)
            done = 0
    loader.flush()
    progress(done)


def _fraction(digest: bytes) -> float:
    """Return the fraction of all possible hashes that precede a hash."""
    return int.from_bytes(digest[:4], "big") / 2**32


def _settled(source: Reader, report: RebuildReport, start: bytes, stop: bytes) -> Iterator[Settled]:
    """Yield the settled data of each hash in the source with start <= hash < stop, in hex digits, in order."""
    stones: list[Tombstone] = []
    for row in source.records(start, stop):
        if row[0].startswith(TOMBSTONE_PREFIX):
            stone = _readable_tombstone(source, row, report)
            if stone is not None and stones and stones[0].target != stone.target:
                yield settle(None, stones)
                stones = []
            stones += [stone] if stone is not None else []
            continue
        post = _readable_post(source, row, report)
        if post is None:
            continue
        if not stones:
            yield post, [], None
            continue
        if stones[0].target == post.hash:
            yield settle(post, stones)
        else:
            yield settle(None, stones)
            yield post, [], None
        stones = []
    if stones:
        yield settle(None, stones)


class Loader:
    """Loader of rows into an empty database. It sums their sizes."""

    def __init__(self, writer: RowWriter, catalog: Catalog) -> None:
        self._writer = writer
        self._catalog = catalog
        self._rows: list[Row] = []
        self.sizes: Sizes = {}

    def put(self, row: Row) -> None:
        """Write a row, now or at the next `flush`."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS_WRITTEN:
            self.flush()

    def flush(self) -> None:
        """Write the pending rows."""
        rows, self._rows = sorted(self._rows), []
        self.put_all(rows)

    def put_all(self, rows: list[Row]) -> None:
        """Write sorted rows."""
        self.sizes = add_sizes(self.sizes, measure(rows, self._catalog))
        for at in range(0, len(rows), _ROWS_WRITTEN):
            self._writer.put(rows[at : at + _ROWS_WRITTEN])


def _readable_tombstone(source: Reader, row: Row, report: RebuildReport) -> Tombstone | None:
    try:
        stone = decode_tombstone(row)
    except CorruptStoreError:
        report.lose("tombstone that does not decode")
        return None
    if not source.confirms(stone):
        report.lose("tombstone that its post/delete does not confirm")
        return None
    report.tombstones += 1
    return stone


def _readable_post(source: Reader, row: Row, report: RebuildReport) -> Post | None:
    """Return the post in a row, None if it is lost. Record losses and missing tombstones of deletions in `report`."""
    key, value = row
    if key.startswith(PRIVATE_PREFIX):
        try:
            return source.unseal(value)
        except (CorruptStoreError, DecodeError):
            report.lose(UNOPENED)
            return None
    try:
        post = decode_post(value, source.dialect)
    except DecodeError as error:
        reject_newer(error, value, key[len(DATA_PREFIX) :])
        report.lose(f"post that does not decode: {error.reason}")
        return None
    if post.hash_hex != key[len(DATA_PREFIX) :]:
        report.lose("post whose bytes do not match its hash")
        return None
    if post.type == DELETE and not report.has_late_tombstones:
        report.has_late_tombstones = not all(map(partial(_has_tombstones, source), tombstones(post)))
    return post


def _has_tombstones(source: Reader, due: Tombstone) -> bool:
    try:
        known = source.tombstone(due.target, due.author)
    except CorruptStoreError:
        return False
    return known is not None and known.merge(due) == known


def _add_late_tombstones(source: Reader, target: Database, catalog: Catalog) -> None:
    """Add the tombstones of all post/deletes to the new database, because the source lacks some of them."""
    posts = (_readable_post(source, row, RebuildReport()) for row in source.prefix(DATA_PREFIX))
    stones = chain.from_iterable(tombstones(post) for post in posts if post is not None)
    for batch in batches(stones, lambda _: 128):
        write_planned(target, source, catalog, partial(add_tombstones, batch))


def add_tombstones(stones: Iterable[Tombstone], plan: Plan) -> None:
    """Add tombstones to a plan."""
    for stone in stones:
        plan.add_tombstone(stone)


def write_planned(target: Database, reader: Reader, catalog: Catalog, fill: Callable[[Plan], object]) -> None:
    """Create a plan for the target's current state, pass it to `fill`, and write it.

    The plan uses the dialect of `reader`, and decrypts local-only posts like it.
    """
    with target.snapshot() as state:
        plan = Plan(reader.over(state), catalog, decode_sizes(state.get(SIZES_KEY)), None)
        fill(plan)
        changes = plan.finish()
    target.write(changes.rows, sync=False)


def _copy_local(source: Reader, target: Database, report: RebuildReport) -> None:
    """Copy the local rows that are not damaged.

    A confirmed deletion is omitted if its tombstone was lost: the post may then be requested again. The applicable
    drops are derived again when the store opens, because actions may be lost.
    """
    witnessed, judged = local_key(CONFIRMED), local_key(DECIDED)
    of_dropped = (local_key(DROPPED_LINK), local_key(DROPPED_HEAD))
    with target.snapshot() as state:
        reader = source.over(state)
        for rows in batches(source.prefix(LOCAL_PREFIX), lambda row: len(row[1])):
            kept: dict[bytes, bytes | None] = {}
            for key, value in rows:
                if is_damaged(key, value) or (key.startswith(of_dropped) and not _is_remembered(source, key)):
                    report.lose(f"local rows: {key[len(LOCAL_PREFIX) :].partition(b'!')[0].decode(errors='replace')}")
                elif (
                    not key.startswith(witnessed) or reader.is_buried(key[len(witnessed) :], value)
                ) and key != judged:
                    kept[key] = value
            target.write(kept, sync=False)


def _is_remembered(source: Reader, key: bytes) -> bool:
    """Return True if the post in `key`, a key of a dropped link or head, is remembered in an undamaged row."""
    dropped = local_key(DROPPED, key.rsplit(b"!", 1)[1])
    value = source.get(dropped)
    return value is not None and not is_damaged(dropped, value)


def _copy_arrivals(source: Reader, target: Database, report: RebuildReport) -> None:
    try:
        following = arrival_log.next_sequence(source)
    except CorruptStoreError:  # determined from the entries of the log, below
        following = 1
        report.lose("next number of the arrival log")
    after = 1
    for rows in batches(source.prefix(arrival_log.LOG_PREFIX), lambda row: len(row[1])):
        copied: dict[bytes, bytes | None] = {}
        for row in rows:
            try:
                first, end = arrival_log.span_of(row)
            except CorruptStoreError:
                first = end = 0
            if first < after:
                report.lose("entries of the arrival log")
                continue
            after = end
            copied[row[0]] = row[1]
        target.write(copied, sync=False)
    following = max(following, after)
    target.write({arrival_log.NEXT_KEY: b"%d" % following}, sync=False)
    report.arrivals = following - 1
