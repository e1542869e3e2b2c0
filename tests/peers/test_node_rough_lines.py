"""Links that break repeatedly, and slow ones: received posts are stored, and known posts are not requested twice."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest
from by_hand import ALL, ByHand, listening, offered, on_loop, post_request, texts
from peering import HOST, QUICK, memory, until
from rough_line import RoughLine

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.peers import Address, Node, NodeSettings
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.message import HashResponse, PostRequest, PostResponse

POSTS = 600
MANY = 1_500
CUT_SIZE_BYTES = 40_000
"""Bytes in both directions before the link breaks: a third of all posts."""
LINKS = 40
"""More connections than are needed. Without progress the test ends here."""
BY_CABLE = replace(QUICK, channels=frozenset({"default"}))
BY_RECONCILING = NodeSettings(relays=False)


def stored(node: Node) -> int:
    return node.store.stats().posts.get("text", 0)


@pytest.mark.parametrize("settings", [BY_CABLE, BY_RECONCILING], ids=["by Cable", "by reconciling"])
@on_loop
async def test_each_connection_continues_where_the_last_one_broke(settings: NodeSettings) -> None:
    """At least 60 % of the received bytes are posts. Posts that are stored when a link breaks are not requested again."""
    posts = texts(POSTS)
    answering = replace(settings, channels=frozenset())
    async with Node(memory(posts=posts), answering) as full, Node(memory("empty"), settings) as empty:
        line = RoughLine(await full.listen(Address(HOST, 0)), cut_size_bytes=CUT_SIZE_BYTES, is_tapped=True)
        known = set[bytes]()
        async with line as through:
            while len(line.passed) < LINKS and len(known) < POSTS:
                with suppress(NodeError):
                    await empty.connect(through)
                await until(lambda: not empty.connections or stored(empty) == POSTS)
                await until(lambda: not empty.parts.sync.fetches.storing)
                for tap in (line.taps[-1]["up"], line.taps[-1]["down"]):
                    assert known.isdisjoint([*tap.asked, *map(post_hash, tap.posts)])
                known = {post.hash for post in posts if empty.store.get(post.hash)}
        assert len(known) == POSTS
        assert len(line.passed) > 2
        assert line.total("down") < sum(len(post.raw) for post in posts) / 0.6


@pytest.mark.thorough
@on_loop
async def test_posts_of_a_fast_peer_are_not_also_sent_by_a_slow_one() -> None:
    """A comparison ends if another peer has sent its posts since it began."""
    posts = texts(POSTS)
    stores = [memory(name, posts=posts) for name in ("slow", "fast")]
    async with (
        Node(stores[0], BY_RECONCILING) as slow,
        Node(stores[1], BY_RECONCILING) as fast,
        Node(memory("empty"), BY_RECONCILING) as empty,
    ):
        lines = [
            RoughLine(await slow.listen(Address(HOST, 0)), bytes_per_s=10_000, is_tapped=True),
            RoughLine(await fast.listen(Address(HOST, 0)), is_tapped=True),
        ]
        async with lines[0] as through_slow, lines[1] as through_fast:
            empty.keep_connected(through_slow)
            await until(lines[0].delivered)
            empty.keep_connected(through_fast)
            await until(lambda: len(empty.peers()) == 2 and all(peer.is_in_step for peer in empty.peers()))
        assert stored(empty) == POSTS
        assert lines[0].delivered().total() < POSTS / 2


@pytest.mark.thorough("it dials", "they dial")
@pytest.mark.parametrize("dials", [True, False], ids=["it dials", "they dial"])
@on_loop
async def test_peers_of_one_speed_do_not_all_send_the_same_posts(dials: bool) -> None:
    """One of four peers sends the posts, and the others wait for it. Each has sent a part before, or on a second
    request."""
    posts = texts(MANY)
    async with AsyncExitStack() as stack:
        full = [await stack.enter_async_context(Node(memory(f"{i}", posts=posts), BY_RECONCILING)) for i in range(4)]
        empty = await stack.enter_async_context(Node(memory("empty"), BY_RECONCILING))
        at = await empty.listen(Address(HOST, 0))
        lines = []
        for node in full:
            to = await node.listen(Address(HOST, 0)) if dials else at
            lines.append(RoughLine(to, bytes_per_s=100_000, delay_s=0.02, is_tapped=True))
            through = await stack.enter_async_context(lines[-1])
            (empty if dials else node).keep_connected(through)
        await until(lambda: stored(empty) == MANY)
        assert sum(line.delivered("down" if dials else "up").total() for line in lines) < 1.6 * MANY


@pytest.mark.thorough
@on_loop
async def test_a_peer_sends_the_rest_when_the_one_that_sent_the_same_posts_is_lost() -> None:
    """The peer sends the rest immediately, without waiting for `reconcile_delay_ms`."""
    posts, settings = texts(MANY), replace(BY_RECONCILING, reconcile_delay_ms=3_600_000)
    async with (
        Node(memory("one", posts=posts), settings) as one,
        Node(memory("other", posts=posts), settings) as other,
        Node(memory("empty"), settings) as empty,
        AsyncExitStack() as stack,
    ):
        lines = [
            RoughLine(await node.listen(Address(HOST, 0)), bytes_per_s=150_000, is_tapped=True) for node in (one, other)
        ]
        for line in lines:
            empty.keep_connected(await stack.enter_async_context(line))
        await until(lambda: stored(empty) > MANY / 3)
        giver = max(lines, key=lambda line: line.delivered().total())
        await giver.__aexit__()
        await until(lambda: stored(empty) == MANY)


@on_loop
async def test_hashes_of_a_lost_peer_are_requested_from_the_next_one() -> None:
    """The hashes need not be offered again. Hashes that some peers do not have are forgotten."""
    posts = {post.hash: post.raw for post in texts(3)}
    async with listening(channels=None) as (node, address):
        first = await ByHand.connect(address)
        await offered(first, tuple(posts))
        assert set((await post_request(first)).hashes) == set(posts)
        first.writer.transport.abort()
        await first.close()
        await until(lambda: not node.connections)
        for _ in range(limits.OFFERS_REMEMBERED):
            peer = await ByHand.connect(address)
            request = await post_request(peer)
            assert set(request.hashes) == set(posts)
            peer.send(PostResponse(request.request_id, ()))
            await until(lambda: not len(node.parts.sync.fetches.pending))
            await peer.close()
            await until(lambda: not node.connections)
        last = await ByHand.connect(address)
        request = await post_request(last)
        last.send(PostResponse(request.request_id, tuple(posts[digest] for digest in request.hashes)))
        await until(lambda: node.store.stats().posts.get("text") == len(posts))
        await last.close()
        await until(lambda: not node.connections)
        assert not node.parts.sync.fetches._known


@on_loop
async def test_max_hashes_remembered_limits_the_remembered_hashes() -> None:
    """MAX_HASHES_REMEMBERED: the oldest are forgotten first."""
    async with listening(channels=None) as (node, _):
        fetches = node.parts.sync.fetches
        hashes = [number.to_bytes(32, "big") for number in range(limits.MAX_HASHES_REMEMBERED + 5)]
        fetches.remember(hashes)
        assert list(fetches._known) == hashes[5:]


@on_loop
async def test_posts_do_not_wait_for_the_hashes_of_a_long_history() -> None:
    """PARTS_SHRINK: a peer that reads slowly gets short parts, of posts and hashes in turn."""
    posts = texts(4_000)
    async with listening(posts) as (_, address):
        peer = await ByHand.connect(address)
        history, wanted = peer.new_id(), peer.new_id()
        await peer.hashes(limit=1)
        peer.send(ALL._replace(request_id=history), PostRequest(wanted, tuple(post.hash for post in posts[:40])))
        hashes = 0
        while True:
            message = await peer.receive()
            hashes += len(message.hashes) if isinstance(message, HashResponse) else 0
            if isinstance(message, PostResponse) and message.posts:
                break
        assert hashes <= limits.PART_ROWS_ANSWERED, "at most one part arrives first"
        await peer.close()


@on_loop
async def test_posts_are_not_announced_to_the_peer_that_sent_them() -> None:
    """MAX_RECEIVED_REMEMBERED of them."""
    posts = texts(30)
    async with Node(memory(posts=posts), QUICK) as one, Node(memory("empty"), QUICK) as other:
        line = RoughLine(await one.listen(Address(HOST, 0)), is_tapped=True)
        async with line as through:
            await other.connect(through)
            await until(lambda: other.store.stats().posts.get("text") == len(posts))
            [connection] = other.connections
            assert len(connection.received_posts) == len(posts) <= limits.MAX_RECEIVED_REMEMBERED
            for number in range(limits.MAX_RECEIVED_REMEMBERED + 1):
                connection.note_received(number.to_bytes(32, "big"))
            assert len(connection.received_posts) == limits.MAX_RECEIVED_REMEMBERED
        assert line.taps[0]["up"].sizes_bytes["hash response"] < 32 * len(posts)
