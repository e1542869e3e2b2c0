"""Building a database anew from what cannot be derived: posts, tombstones and the arrival log.

What comes out is, byte for byte, what storing the same posts one by one leaves behind. It is written beside the old
database, by the same plan that stores posts; the caller swaps the two when it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cablestore import arrival
from cablestore.batches import batches
from cablestore.errors import CorruptStoreError, DecodeError
from cablestore.plan import Plan
from cablestore.post import Post, decode_post
from cablestore.reader import DATA_PREFIX, PRIVATE_PREFIX, TOMBSTONE_PREFIX, Database, Reader, Row, decode_tombstone
from cablestore.sizes import Sizes
from cablestore.tombstone import Tombstone
from cablestore.view import Catalog
from cablestore.views.deleted import is_borne_out

Progress = Callable[[int], None]
"""Called with the number of posts done since the last call."""


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild carried over. `damaged` names what it could not, by what is wrong."""

    posts: int = 0
    tombstones: int = 0
    arrivals: int = 0
    damaged: dict[str, int] = field(default_factory=dict)
    kept_aside: Path | None = None
    """Where the database is from which something was lost."""

    def lose(self, what: str) -> None:
        """Count something that could not be carried over."""
        self.damaged[what] = self.damaged.get(what, 0) + 1


def rebuild(source: Reader, target: Database, catalog: Catalog, meta: Row, progress: Progress) -> RebuildReport:
    """Fill the empty `target` from `source`. The target is whole once this has returned and it was closed."""
    report = RebuildReport()
    target.write(dict([meta]), sync=False)
    sizes: Sizes = {}
    for stones in batches(_readable_tombstones(source, report), lambda stone: 64 + len(stone.encode())):
        with target.snapshot() as state:
            plan = Plan(source.over(state), catalog, sizes, None)
            for stone in stones:
                plan.lay(stone)
            changes = plan.finish()
        target.write(changes.rows, sync=False)
        sizes = changes.sizes
        report.tombstones += len(stones)
    for posts in batches(_readable_posts(source, report), lambda post: len(post.raw)):
        sizes = _store(posts, source, target, catalog, sizes)
        report.posts += len(posts)
        progress(len(posts))
    _copy_arrivals(source, target, report)
    return report


def _store(posts: list[Post], source: Reader, target: Database, catalog: Catalog, sizes: Sizes) -> Sizes:
    with target.snapshot() as state:
        plan = Plan(source.over(state), catalog, sizes, None)
        for post in posts:
            plan.add(post)
        changes = plan.finish()
    target.write(changes.rows, sync=False)
    return changes.sizes


def _readable_tombstones(source: Reader, report: RebuildReport) -> Iterator[Tombstone]:
    for row in source.prefix(TOMBSTONE_PREFIX):
        try:
            stone = decode_tombstone(row)
        except CorruptStoreError:
            report.lose("tombstone that does not decode")
            continue
        if is_borne_out(source, stone):
            yield stone
        else:
            report.lose("tombstone that its post/delete does not bear out")


def _readable_posts(source: Reader, report: RebuildReport) -> Iterator[Post]:
    for key, raw in source.prefix(DATA_PREFIX):
        try:
            post = decode_post(raw, source.dialect)
        except DecodeError as error:
            report.lose(f"post that does not decode: {error.reason}")
            continue
        if post.hash_hex == key[len(DATA_PREFIX) :]:
            yield post
        else:
            report.lose("post whose bytes do not give its hash")
    for _, sealed in source.prefix(PRIVATE_PREFIX):
        try:
            yield source.unseal(sealed)
        except (CorruptStoreError, DecodeError):
            report.lose("local-only post that does not decrypt")


def _copy_arrivals(source: Reader, target: Database, report: RebuildReport) -> None:
    following = arrival.next_sequence(source)
    for rows in batches(source.prefix(arrival.LOG_PREFIX), lambda row: len(row[1])):
        copied: dict[bytes, bytes | None] = {}
        for row in rows:
            try:
                following = max(following, arrival.entries_of(row)[-1].sequence + 1)
            except CorruptStoreError:
                report.lose("entries of the arrival log")
                continue
            copied[row[0]] = row[1]
        target.write(copied, sync=False)
    target.write({arrival.NEXT_KEY: b"%d" % following}, sync=False)
    report.arrivals = following - 1
