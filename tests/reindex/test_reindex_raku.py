"""Real logs in overlapping exports, with deletions in other exports than their targets."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from random import Random

import pytest

from cablestore.store import ClosedStore

pytest.importorskip("pyspark")

from cablestore import LEGACY, CableStore, Delete, Identity, Post, encode_post
from cablestore.irc.importer import ImportReport, posts_of
from cablestore.irc.people import NickKeys
from cablestore.irc.survey import find_logs
from cablestore.reindex import reindex
from cablestore.reindex.stages import SparkOptions

PHRASE = "a phrase"
EXPORTS = 4
OVERLAP = 0.1
DELETED = 0.05
HASHES_A_DELETION = 20
DAY_MS = 86_400_000


class Everyone(NickKeys):
    """The authors of the logs: a key for each name."""

    def __init__(self) -> None:
        super().__init__(PHRASE)
        self.by_key: dict[bytes, Identity] = {}
        derive = self.identity

        def identity(nick: str) -> Identity:
            found = derive(nick)
            self.by_key[found.public_key] = found
            return found

        self.identity = identity  # type: ignore[assignment] # the same call, without the functions of a cache


def shares_of(posts: list[Post], cast: Everyone, random: Random) -> list[list[bytes]]:
    """Split posts, in order of time, into overlapping shares. A deletion is in the share after its target."""
    size = len(posts) / EXPORTS
    starts = [int(number * size) for number in range(EXPORTS)]
    stops = [min(len(posts), int((number + 1 + OVERLAP) * size)) for number in range(EXPORTS)]
    shares = [[post.raw for post in posts[start:stop]] for start, stop in zip(starts, stops, strict=True)]
    for number, (start, following) in enumerate(zip(starts, [*starts[1:], len(posts)], strict=True)):
        victims = [post for post in posts[start:following] if random.random() < DELETED]
        victims.sort(key=lambda post: post.author)
        for author, own in groupby(victims, key=lambda post: post.author):
            hashes = [post.hash for post in own]
            for at in range(0, len(hashes), HASHES_A_DELETION):
                deletion = encode_post(
                    Delete(tuple(hashes[at : at + HASHES_A_DELETION])),
                    links=(),
                    timestamp_ms=posts[following - 1].timestamp_ms + DAY_MS,
                    identity=cast.by_key[author],
                    dialect=LEGACY,
                )
                shares[(number + 1) % EXPORTS].append(deletion.raw)
    return shares


@pytest.mark.thorough
@pytest.mark.parametrize(
    "step",
    [120, *(pytest.param(step, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]) for step in (5, 1))],
    ids=["a 120th", "a fifth", "all"],
)
def test_the_rows_of_the_raku_logs_equal_those_of_a_store(data: Path, tmp_path: Path, step: int) -> None:
    """The logs have 780,000 posts in 24 channels.

    The job's rows equal those of a store with all posts, and of its rebuild.
    """
    archive = data / "irc" / "raku.tar.xz"
    if not archive.exists():
        pytest.skip("no raku.tar.xz")
    cast = Everyone()
    posts = list(posts_of(find_logs([archive])[::step], cast, LEGACY, ImportReport()))
    assert len(posts) > 600_000 / step
    posts.sort(key=lambda post: (post.timestamp_ms, post.hash))
    shares = shares_of(posts, cast, Random(1))
    del posts
    for number, share in enumerate(shares):
        with CableStore.open(tmp_path / f"part-{number}") as part:
            part.ingest(share, verify=False, batch_posts=1000)
            part.export(tmp_path / f"export-{number}", segment_size_bytes=8_000_000)
    with CableStore.open(tmp_path / "whole") as whole:
        for share in shares:
            whole.ingest(share, verify=False, batch_posts=1000)
        expected = whole.dump_digest()
        counts = whole.stats().posts
    exports = [tmp_path / f"export-{number}" for number in range(EXPORTS)]
    report = reindex(exports, tmp_path / "store", spark=SparkOptions(cores=2))
    print(report.seconds, dict(report.derived.counts))
    assert report.derived.posts == counts
    assert report.derived.counts["deleted"] > 0.9 * DELETED * sum(counts.values())
    assert report.derived.counts["duplicates"] > 0.05 * sum(counts.values())
    assert report.checked.is_clean
    with CableStore.open(tmp_path / "store") as store:
        assert store.dump_digest() == expected
    ClosedStore(tmp_path / "whole").rebuild()
    with CableStore.open(tmp_path / "whole") as whole:
        assert whole.dump_digest() == expected
