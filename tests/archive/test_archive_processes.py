"""Control node and member as processes: archives are created, announced over Cable, fetched and imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archive_network import (
    CABAL_KEY,
    Seed,
    Wire,
    bytes_of,
    digest,
    imported_weeks,
    index_of,
    made_store,
    posts_of,
    run_json,
)
from archives import FIRST_MS, some_weeks
from serving import HERE, Served, cablestore

from cablestore import LEGACY, CableStore, Post, decode_post
from cablestore.archive.format.period import WEEK_MS, Period
from cablestore.limits import PIECE_SIZE_BYTES
from cablestore.protocol.body import TEXT
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.dialect import ARCHIVES_CHANNEL

WEEKS = 8
PER_WEEK = 300
NEWEST = Period(FIRST_MS + (WEEKS - 1) * WEEK_MS, FIRST_MS + WEEKS * WEEK_MS)
NEXT = Period(NEWEST.to_ms, NEWEST.to_ms + WEEK_MS)
MAX_OVERHEAD = 1.05
MAX_METADATA_SIZE_BYTES = 30_000
"""Most bytes of handshakes, the torrent's metadata and the lists of pieces."""
SYNC_KEYS = {"CABLESTORE_SERVE_CABAL_KEY": CABAL_KEY, "CABLESTORE_SYNC_CABAL_KEY": CABAL_KEY}


def history() -> tuple[list[Post], list[Post]]:
    """Return posts of eight weeks, and of one more week."""
    posts = some_weeks(weeks=WEEKS + 1, per_week=PER_WEEK)
    first = [post for post in posts if post.timestamp_ms < NEXT.from_ms]
    return first, [post for post in posts if NEXT.holds(post.timestamp_ms)]


class Two:
    """Control node and member: their stores, the created archives and the fetched archives."""

    def __init__(self, path: Path, posts: list[Post], serving: Callable[..., Served]) -> None:
        self.control, self.member, self.made, self.got = (path / name for name in ("control", "member", "made", "got"))
        self.community = made_store(self.control, posts)
        self.serving = serving

    def create(self) -> dict[str, Any]:
        [created] = run_json("create", self.made, "--cabal-key", CABAL_KEY, store=self.control)
        assert (created["community"], created["late_posts"], created["oversize"]) == (self.community, 0, [])
        return created

    def announce(self, link: str) -> dict[str, Any]:
        """Announce a link, sync announcements to the member over Cable, and return the member's status."""
        run_json("announce", link, store=self.control)
        served = self.serving(self.control, "--listen", HERE, "--no-follow", **SYNC_KEYS)
        only = ("--channels", ARCHIVES_CHANNEL)  # posts without a channel are included: names, deletions, roles
        found = cablestore("sync", served.address, *only, "--create", store=self.member, **SYNC_KEYS)
        assert found.returncode == 0, found.stderr
        assert served.stop() == 0
        [status] = run_json("status", self.got, *self.of_member, store=self.member)
        return status

    @property
    def of_member(self) -> tuple[str, ...]:
        return ("--control", self.community, "--cabal-key", CABAL_KEY)

    def fetch(self, link: str, wire: Wire, *more: str) -> list[dict[str, Any]]:
        return run_json("fetch", link, self.got, *self.of_member, "--peer", wire.address, *more, store=self.member)

    def made_bytes(self) -> tuple[bytes, bytes]:
        """Return the bytes of `data` and `index`."""
        return bytes_of(self.made, self.community)

    def assert_equal(self) -> None:
        assert digest(self.member) == digest(self.control)
        assert bytes_of(self.got, self.community) == self.made_bytes()


def assert_moved(wire: Wire, payload_bytes: int) -> None:
    """Check that the seed sent N bytes, plus the overhead of the protocol."""
    moved_bytes, wire.to_members_bytes = wire.to_members_bytes, 0
    assert payload_bytes <= moved_bytes < payload_bytes * MAX_OVERHEAD + MAX_METADATA_SIZE_BYTES


@pytest.mark.thorough
def test_archives_are_announced_over_cable_and_fetched_by_week(tmp_path: Path, serving: Callable[..., Served]) -> None:
    """Fetch the newest week, then all weeks, then a new week. Each fetch transfers only missing data."""
    posts, more = history()
    two = Two(tmp_path, posts, serving)
    assert two.create()["archives"] == WEEKS
    with Seed(two.made, two.community) as seed, Wire(seed.port) as wire:
        announced = two.announce(seed.magnet)
        assert (announced["link"], announced["imported"]) == (seed.magnet, 0)
        fetch_newest_week(two, wire, announced["announced_ms"])
        fetch_all_others(two, wire)
    before = two.made_bytes()[0]
    with CableStore.open(two.control) as store:
        store.ingest([post.raw for post in more], verify=False)
    assert two.create()["archives"] == 1
    data, index = two.made_bytes()
    assert data.startswith(before)
    with Seed(two.made, two.community) as seed, Wire(seed.port) as wire:
        announced = two.announce(seed.magnet)
        assert (announced["link"], announced["imported"]) == (seed.magnet, WEEKS)
        [line] = [line for line in two.fetch(seed.magnet, wire) if "from_ms" in line]
        assert line["from_ms"] == NEXT.from_ms
        assert line["new"] + line["known"] == len(posts_of(two.control, NEXT)) > PER_WEEK / 2
        two.assert_equal()
        assert_moved(wire, len(data) - len(before) + len(index))
    assert len(data) - len(before) <= 6 * PIECE_SIZE_BYTES


def fetch_newest_week(two: Two, wire: Wire, announced_ms: int) -> None:
    """The posts of that week arrive only by archive, 20 seconds after the announcement."""
    by_cable = posts_of(two.member)
    decoded = [decode_post(raw, LEGACY) for raw in by_cable.values()]
    assert [post.type for post in decoded].count(TEXT) == 1
    assert {post.channel for post in decoded if post.channel} == {ARCHIVES_CHANNEL}
    lines = two.fetch("newest", wire, "--latest")
    assert imported_weeks(lines) == [NEWEST.from_ms]
    of_the_week = posts_of(two.control, NEWEST)
    assert len(of_the_week) > PER_WEEK / 2
    index = index_of(two.made, two.community, CABAL_KEY)
    deletions = {post_hash(raw): raw for raw in index.deletions}
    assert posts_of(two.member) == of_the_week | by_cable | deletions
    [entry] = [entry for entry in index.index.entries if entry.period == NEWEST]
    assert_moved(wire, entry.size_bytes + len(two.made_bytes()[1]))


def fetch_all_others(two: Two, wire: Wire) -> None:
    """The newest weeks are fetched first. A repeated fetch transfers nothing."""
    assert imported_weeks(two.fetch("newest", wire)) == [
        NEWEST.from_ms - number * WEEK_MS for number in range(1, WEEKS)
    ]
    two.assert_equal()
    entries = index_of(two.made, two.community, CABAL_KEY).index.entries
    assert_moved(wire, sum(entry.size_bytes for entry in entries if entry.period != NEWEST))
    assert two.fetch("newest", wire) == []
    assert_moved(wire, 0)
