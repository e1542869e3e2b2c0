"""A node that stops sends peers its own announced posts, over real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from peering import ANSWERS_ONLY, QUICK, Network, Raw, every, memory, network, raw_peer, run, soon, until, with_key
from people import ANN, START_MS, raws
from waiting import LIMIT_S

from cablestore import CableStore, limits
from cablestore.peers import Node
from cablestore.peers.announced import AnnouncedPosts
from cablestore.peers.link import PeerLink
from cablestore.protocol.message import PostRequest, PostResponse, TimeRangeRequest

CHANNEL = "default"
LONG_S = 2 * LIMIT_S
"""A test in which a node waits as long fails."""


async def stops(net: Network, node: Node) -> None:
    await soon(net.stop(node))


async def with_announced_post(net: Network) -> tuple[Raw, CableStore, bytes]:
    """Connect a raw peer, and announce a post of the first node's user to it. Return the post's hash."""
    node = net.nodes[0]
    peer: Raw = await raw_peer(net.addresses[node])
    asked = peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0))
    await until(lambda: node.parts.serving.live.count)
    digest = node.store.post(CHANNEL, "last words").hash
    await until(lambda: digest in peer.hashes(asked))
    return peer, node.store, digest


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
def test_posts_written_just_before_the_end_are_sent(key: bytes | None) -> None:
    """The result is the same with two connections between the same peers."""

    async def main() -> None:
        ann, bob = memory("ann"), memory("bob")
        settings = replace(with_key(QUICK, key), grace_s=LONG_S)
        async with network(ann, bob, settings=settings) as net:
            await net.link(net.nodes[1], net.nodes[0])
            if key is not None:
                await net.link(net.nodes[0], net.nodes[1])
            slip = ann.post(CHANNEL, "a slip")
            await until(lambda: bob.get(slip.hash))
            node, request = net.nodes[0], TimeRangeRequest(b"", CHANNEL, 0, 0, 0)
            await every(node.connections, lambda link: node.parts.serving.live.alike(link, request))
            ann.delete(slip.hash)
            last = ann.post(CHANNEL, "last words")
            await stops(net, net.nodes[0])
            await until(lambda: bob.get(last.hash))
            await until(lambda: bob.get(slip.hash) is None)

    run(main())


def test_a_stop_does_not_wait_for_posts_sent_before_their_announcement() -> None:
    announced, link = AnnouncedPosts(), cast("PeerLink", SimpleNamespace(remote_static=bytes(32)))
    announced.note_sent(link, [b"early"])
    announced.note_announced(link, [b"early"], 1.0)
    assert not announced.is_recent(0.0)
    announced.note_announced(link, [b"late"], 1.0)
    assert announced.is_recent(0.0)
    announced.note_sent(link, [b"late"])
    assert not announced.is_recent(0.0)
    announced.note_announced(link, [b"early", b"later"], 2.0)
    assert (announced.is_recent(1.9), announced.is_recent(2.0)) == (True, False)
    announced.note_announced(link, [b"latest"], 3.0)
    announced.note_sent(link, [b"latest"])
    assert not announced.is_recent(2.0)
    announced.forget(link)
    assert not announced.is_recent(0.0)
    announced.note_announced(link, [b"early"], 1.0)
    assert announced.is_recent(0.0)  # a new connection of the peer may not have received it


def test_a_peer_that_asks_while_the_node_stops_is_answered() -> None:
    async def main() -> None:
        async with network(memory("ann"), settings=replace(ANSWERS_ONLY, grace_s=LONG_S)) as net:
            peer, store, digest = await with_announced_post(net)
            stopping = asyncio.create_task(stops(net, net.nodes[0]))
            await asyncio.sleep(0.1)
            assert not stopping.done()
            asked = peer.send_request(PostRequest(b"", (digest,)))
            await stopping
            await until(lambda: peer.is_over)
            given = [message.posts for message in peer.answers_to(asked) if isinstance(message, PostResponse)]
            post = store.get(digest)
            assert post is not None
            assert given[0] == (post.raw,)
            await peer.close()

    run(main())


def test_a_stop_does_not_wait_for_a_peer_that_sends_no_requests() -> None:
    async def main() -> None:
        async with network(memory("ann"), settings=replace(ANSWERS_ONLY, grace_s=limits.GRACE_S / 5)) as net:
            peer, *_ = await with_announced_post(net)
            await stops(net, net.nodes[0])
            await peer.close()

    run(main())


def test_a_stop_does_not_wait_if_nothing_is_missing() -> None:
    """The node does not wait for a peer that has all posts, one with announced posts of others, or a lost one."""

    async def main() -> None:
        async with network(memory("ann"), settings=replace(ANSWERS_ONLY, grace_s=LONG_S)) as net:
            gone, *_ = await with_announced_post(net)
            await gone.close()
            peer, store, digest = await with_announced_post(net)
            asked = peer.send_request(PostRequest(b"", (digest,)))
            await until(lambda: peer.is_concluded(asked))
            post = ANN.text(CHANNEL, "of somebody else", at=START_MS)
            ranged = peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0))
            store.ingest(raws(post))
            await until(lambda: post.hash in peer.hashes(ranged))
            await stops(net, net.nodes[0])
            await peer.close()

    run(main())


def test_a_stop_waits_for_the_latest_of_many_posts() -> None:
    async def main() -> None:
        async with network(memory("ann"), settings=replace(ANSWERS_ONLY, grace_s=LONG_S)) as net:
            peer, store, first = await with_announced_post(net)
            ranged = peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0))
            later = [store.post(CHANNEL, str(number)).hash for number in range(limits.MAX_ANNOUNCED_REMEMBERED)]
            await until(lambda: {*later} <= {*peer.hashes(ranged)})
            asked = peer.send_request(PostRequest(b"", tuple(later)))
            await until(lambda: peer.is_concluded(asked))
            assert first not in later
            await stops(net, net.nodes[0])
            await peer.close()

    run(main())
