"""Fetching: the number of requested posts at a time, and failures to store the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from by_hand import ByHand, deliver, listening, offered, on_loop, post_request, texts
from peering import logged, until
from people import ANN, raws

from cablestore import Post, limits
from cablestore.errors import CorruptStoreError, StorageError
from cablestore.index.reader import Reader
from cablestore.peers import Node, fetch
from cablestore.peers.paging import Paging
from cablestore.peers.sync_state import SyncMark, SyncState
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.message import PostResponse
from cablestore.store.writing import Writer


async def asks_for_no_posts(peer: ByHand) -> bool:
    try:
        async with asyncio.timeout(0.3):
            await post_request(peer)
    except TimeoutError:
        return True
    return False


@on_loop
async def test_requests_for_posts_grow_from_fetch_posts_least_to_fetch_posts() -> None:
    """FETCHES_OPEN, FETCH_POSTS_LEAST, FETCH_POSTS: requests are short at first, and longer if posts arrive in time."""
    posts = {post.hash: post.raw for post in texts(4_000)}
    async with listening(channels=None) as (node, address):
        peer = await ByHand.connect(address)
        await offered(peer, tuple(posts))
        waiting = [await post_request(peer)]
        first = len(waiting[0].hashes)
        asked: list[bytes] = []
        sizes: list[int] = []
        while waiting:
            request = waiting.pop(0)
            asked += request.hashes
            sizes.append(len(request.hashes))
            peer.send(PostResponse(request.request_id, tuple(posts[digest] for digest in request.hashes)))
            assert len(node.parts.sync.fetches._of_peers[next(iter(node.connections))]._requests) <= limits.FETCHES_OPEN
            if len(asked) < len(posts):
                waiting.append(await post_request(peer))
        assert first == limits.FETCH_POSTS_LEAST
        assert 4 * limits.FETCH_POSTS_LEAST < max(sizes) <= limits.FETCH_POSTS
        assert asked == list(posts), "each post must be requested once, in the order of the offers"


@on_loop
async def test_few_posts_are_requested_from_a_silent_peer() -> None:
    """PAGE_HASHES_LEAST, FLOW_FIRST_SIZE_BYTES: what a silent peer offers can be requested from others immediately."""
    async with listening(channels=None) as (node, address):
        peer = await ByHand.connect(address)
        page = await offered(peer, tuple(number.to_bytes(32, "big") for number in range(4_000)))
        assert page.limit == limits.PAGE_HASHES_LEAST
        requests = [await post_request(peer) for _ in range(2)]
        assert await asks_for_no_posts(peer)
        peer.send(PostResponse(requests[1].request_id, ()))
        assert len((await post_request(peer)).hashes) == limits.FETCH_POSTS_LEAST
        assert await asks_for_no_posts(peer)
        assert len(node.parts.sync.fetches.pending) == 4_000 - limits.FETCH_POSTS_LEAST


def full_disk(monkeypatch: pytest.MonkeyPatch, stored: int) -> None:
    """Make writes of the store fail after the first N calls."""
    calls = iter(range(10**6))
    ingest = Writer.ingest

    def refusing(writer: Writer, posts: Any, **options: Any) -> Any:
        if next(calls) < stored:
            return ingest(writer, posts, **options)
        raise StorageError("the disk refused to write: No space left on device")

    monkeypatch.setattr(Writer, "ingest", refusing)


def nothing_waits(node: Node) -> bool:
    fetches = node.parts.sync.fetches
    return not len(fetches.pending) and not fetches.storing


@pytest.mark.thorough
def test_a_failing_disk_ends_only_fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier posts are kept and sent to others. Posts that could not be stored are not requested again."""
    posts = {post_hash(post.raw): post for post in texts(3_000)}

    @on_loop
    async def scenario() -> None:
        async with listening(channels=None) as (node, address):
            full_disk(monkeypatch, stored=1)
            peer = await ByHand.connect(address)
            await offered(peer, tuple(posts))
            await deliver(peer, posts)
            await until(lambda: node.store.last_sequence == limits.FETCH_POSTS_LEAST)
            await deliver(peer, posts)
            await until(lambda: node.parts.sync.fetches.is_halted)
            assert node.parts.context.metrics.failed_writes == 1
            assert node.parts.context.writes.failure.startswith("the disk refused")
            await until(lambda: nothing_waits(node))
            other = await ByHand.connect(address)
            await offered(other, tuple(posts))
            assert await asks_for_no_posts(other)
            assert len(await other.hashes()) == limits.FETCH_POSTS_LEAST
            assert nothing_waits(node)

    scenario()


def test_a_sync_reports_posts_that_the_disk_did_not_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a sync does not leave a mark. The next sync begins at the same position."""

    @on_loop
    async def scenario() -> None:
        async with listening(texts(2_000)) as (_, address), listening(channels=None) as (node, _here):
            full_disk(monkeypatch, stored=1)
            report = await node.sync_once(address)
            assert 0 < report.posts < 2_000
            assert report.posts + report.unstored <= 2_000
            assert report.unstored > 0
            assert not node.parts.context.marks._peers

    scenario()


# --- a store that cannot be read -------------------------------------------------------------------


def unreadable(monkeypatch: pytest.MonkeyPatch, of: Callable[[Sequence[bytes]], bool]) -> list[bool]:
    """Make lookups of hashes fail as in a damaged store, while the returned list is not empty."""
    worth_requesting = fetch._worth_requesting
    is_broken = [True]

    def failing(reader: Reader, hashes: Sequence[bytes]) -> list[bytes]:
        if is_broken and of(hashes):
            raise CorruptStoreError("the database is damaged")
        return worth_requesting(reader, hashes)

    monkeypatch.setattr(fetch, "_worth_requesting", failing)
    return is_broken


STATE, TEXT, OTHER = ANN.join("default"), ANN.text("default", "a"), ANN.text("other", "b")


@pytest.mark.parametrize("post", [STATE, TEXT], ids=["state", "history"])
def test_a_sync_reports_that_the_store_cannot_be_read(monkeypatch: pytest.MonkeyPatch, post: Post) -> None:
    """The sync raises the error itself, does not log a bug, and does not leave a mark. Other channels arrive."""

    @on_loop
    async def scenario() -> None:
        async with listening([STATE, TEXT, OTHER]) as (_, address), listening(channels=None) as (node, _here):
            unreadable(monkeypatch, lambda hashes: post.hash in hashes)
            with logged() as log, pytest.raises(CorruptStoreError, match="damaged"):
                await node.sync_once(address)
            assert not log.errors()
            assert node.parts.context.marks.get(str(address), "default") is None
            await until(lambda: node.store.get(OTHER.hash))

    scenario()


@pytest.mark.parametrize("post", [STATE, TEXT], ids=["state", "history"])
def test_a_live_sync_continues_when_the_store_can_be_read_again(monkeypatch: pytest.MonkeyPatch, post: Post) -> None:
    """Each round logs the error until then. Other channels are synced meanwhile, including new posts."""
    changes = ANN.text("other", "c")

    @on_loop
    async def scenario() -> None:
        async with (
            listening([STATE, TEXT, OTHER]) as (giving, address),
            listening(channels=None, list_every_s=0.05) as (node, _),
        ):
            is_broken = unreadable(monkeypatch, lambda hashes: post.hash in hashes)
            with logged() as log:
                await node.connect(address)
                await until(lambda: len(log.errors()) > 2)
                assert all("cannot sync" in error and "the database is damaged" in error for error in log.errors())
                giving.store.ingest(raws(changes))
                await until(lambda: all(node.store.get(other.hash) for other in (OTHER, changes)))
                is_broken.clear()
                await until(lambda: node.store.get(post.hash))

    scenario()


def test_max_peers_remembered_limits_the_peers_with_marks() -> None:
    """MAX_PEERS_REMEMBERED: the marks of peers with the oldest syncs are removed first."""
    marks = SyncState(None)
    for number in range(limits.MAX_PEERS_REMEMBERED + 3):
        marks.put(f"peer {number}", "default", SyncMark(0, number, number))
        marks.put("peer 0", "default", SyncMark(0, number, number))
    assert marks.get("peer 0", "default") == SyncMark(0, number, number)
    assert [marks.get(f"peer {number}", "default") for number in range(1, 4)] == [None] * 3
    assert marks.get("peer 4", "default") is not None


def test_max_marks_per_peer_limits_the_marks_of_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_MARKS_PER_PEER: the marks of channels with the oldest syncs are removed first."""
    monkeypatch.setattr(limits, "MAX_MARKS_PER_PEER", 10)
    marks = SyncState(None)
    for number in range(13):
        marks.put("peer", f"channel {number}", SyncMark(0, number, number))
        marks.put("peer", "channel 0", SyncMark(0, number, number))
    assert marks.get("peer", "channel 0") == SyncMark(0, number, number)
    assert [marks.get("peer", f"channel {number}") for number in range(1, 4)] == [None] * 3
    assert marks.get("peer", "channel 4") is not None


def test_max_marks_limits_all_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MAX_MARKS: the peers with the oldest syncs are removed first, also those of a file. Removed marks free space."""
    monkeypatch.setattr(limits, "MAX_MARKS", 10)
    marks = SyncState(tmp_path)
    for peer in ("a", "b"):
        for number in range(5):
            marks.put(peer, f"channel {number}", SyncMark(0, 1, 1))
            marks.put(peer, f"channel {number}", SyncMark(0, 2, 2))
    marks.save()
    marks = SyncState(tmp_path)
    marks.drop("b", "channel 0")
    marks.put("c", "one", SyncMark(0, 1, 1))
    assert marks.get("a", "channel 0") is not None
    marks.put("c", "two", SyncMark(0, 1, 1))
    assert marks.get("a", "channel 0") is None
    assert all(marks.get(peer, name) for peer, name in (("b", "channel 4"), ("c", "one"), ("c", "two")))
    marks.clear()
    for number in range(10):
        marks.put(f"peer {number}", "default", SyncMark(0, 1, 1))
    assert marks.get("peer 0", "default") is not None


def test_marks_are_written_after_the_posts_that_they_cover(tmp_path: Path) -> None:
    """The posts are on the disk first.

    If they cannot be written, the marks are not written. An earlier save is too late.
    """
    known: list[SyncMark | None] = []

    def sync() -> None:
        known.append(SyncState(tmp_path).get("peer", "default"))
        if len(known) == 2:
            raise StorageError("no space")

    marks = SyncState(tmp_path, sync)
    for until_ms in (1, 2, 3):
        marks.put("peer", "default", SyncMark(0, until_ms, 0))
        marks.save()
    assert known == [None, SyncMark(0, 1, 0), SyncMark(0, 1, 0)]
    marks.put("peer", "default", SyncMark(0, 4, 0))
    earlier = marks.changed()
    marks.put("peer", "default", SyncMark(0, 5, 0))
    marks.save()
    assert earlier is not None
    earlier()
    assert marks.changed() is None
    assert SyncState(tmp_path).get("peer", "default") == SyncMark(0, 5, 0)


def test_a_page_has_the_latest_named_size() -> None:
    page = Paging(0, 1_000, 100)
    for last_ms, named, expected in ((900, None, 100), (800, 7, 7), (700, None, 7), (600, 50, 50)):
        page.turn([bytes((last_ms % 256,))], last_ms + 50, last_ms, named)
        assert (page.limit, page.end_ms) == (expected, last_ms + 1)


def test_all_the_rest_is_requested_after_a_page_whose_end_is_unknown() -> None:
    for times_ms in ((None, 5), (5, None), (None, None)):
        page = Paging(0, 1_000, 100)
        assert not page.is_last(100)
        page.turn([bytes((number,)) for number in range(100)], *times_ms)
        assert (page.limit, page.start_ms, page.end_ms) == (0, 0, 1_000)
        assert page.is_last(100)


@pytest.mark.parametrize(
    ("count", "largest", "is_last"), [(0, 0, True), (63, 0, True), (64, 0, False), (99, 64, False)]
)
def test_a_short_page_is_the_last_unless_the_peer_has_short_pages(count: int, largest: int, is_last: bool) -> None:
    page = Paging(0, 1_000, 100)
    page.is_last(largest)
    assert page.is_last(count) is is_last
    assert not page.is_last(100)
    assert page.is_last(99)  # of a peer whose pages have a hundred hashes


def test_max_page_hashes_limits_the_growth_of_pages() -> None:
    """MAX_PAGE_HASHES: pages of one timestamp grow to it. Longer ones are accepted."""
    page = Paging(0, 1_000, 4_096)
    limit = page.limit
    while page.limit:
        assert page.limit == limit <= limits.MAX_PAGE_HASHES
        page.turn([bytes(32)] * page.limit, 999, 999)
        limit *= 4
    assert limit > limits.MAX_PAGE_HASHES
