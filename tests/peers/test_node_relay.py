"""Forwarding over real sockets: nodes in lines and rings that have different posts, and raw clients at their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from peering import QUICK, Keeper, Network, Raw, every, hashes_of, memory, network, raw_peer, run, until
from people import ANN, BOB, CYD, START_MS, raws

from cablestore import Post
from cablestore.protocol.message import (
    CancelRequest,
    ListRequest,
    ListResponse,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
)

CHANNEL = "default"
FORWARDS = replace(QUICK, relays=True, channels=frozenset({"nobody writes here"}), list_every_s=600)
"""Nodes that announce their dialect to each other, and fetch nothing."""
LAYOUTS = {"line": Network.line, "ring": Network.ring}
EVERYTHING = TimeRangeRequest(b"", CHANNEL, 0, 2**50, 0)


def own(number: int) -> Post:
    return ANN.text(CHANNEL, str(number), at=START_MS + number)


@asynccontextmanager
async def nodes(layout: str, count: int = 5, *, relays: bool = True) -> AsyncIterator[tuple[Network, list[Post]]]:
    """Run nodes with a post and a channel each, which know that all use the legacy dialect."""
    posts = [own(number) for number in range(count)]
    stores = [memory(n, posts=[post, ANN.text(f"only {n}", "x", at=START_MS)]) for n, post in enumerate(posts)]
    async with network(*stores, settings=replace(FORWARDS, relays=relays)) as net:
        await LAYOUTS[layout](net)
        await until(lambda: sum(len(node.connections) for node in net.nodes) == 2 * len(net.links))
        await until(lambda: all(c.session.is_recognised for node in net.nodes for c in node.connections))
        yield net, posts
        assert not net.log.faults()


async def client(net: Network, number: int, kind: type[Raw] = Raw, **options: object) -> Raw:
    """Connect a client to a node and announce its dialect."""
    peer: Raw = await raw_peer(net.addresses[net.nodes[number]], kind, **options)
    before = len(peer.received)
    asked = peer.send_request(ListRequest(b"", 0, 0))
    await until(lambda: peer.is_concluded(asked), lambda: peer.received[before:])
    return peer


def live(net: Network) -> list[int]:
    """Return how many live requests each node has for the channel. Nodes request another channel from each other."""
    requests = [(node.parts.serving.live, node.connections) for node in net.nodes]
    return [sum(live.alike(peer, EVERYTHING) for peer in peers) for live, peers in requests]


def within(layout: str, hops: int, count: int = 5) -> set[int]:
    """Return the nodes that many hops from the first."""
    around = {-hop % count for hop in range(hops + 1)} if layout == "ring" else set()
    return {hop for hop in range(hops + 1) if hop < count} | around


@pytest.mark.thorough("line-16", "ring-1", "ring-16")
@pytest.mark.parametrize("ttl", [0, 1, 2, 16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_within_ttl_hops_answer_and_no_other_node_is_requested(layout: str, ttl: int) -> None:
    async def main() -> None:
        async with nodes(layout) as (net, posts):
            peer, bystander = await client(net, 0), await client(net, 2, Keeper)
            near = {posts[number].hash for number in within(layout, ttl)}
            asked = peer.send_request(EVERYTHING._replace(ttl=ttl))
            await until(lambda: peer.is_concluded(asked))
            found = peer.hashes(asked)
            assert len(found) == len(set(found))
            assert set(found) == near
            wanted = peer.send_request(PostRequest(b"", tuple(post.hash for post in posts), ttl))
            await until(lambda: peer.is_concluded(wanted))
            given = [m.posts for m in peer.answers_to(wanted) if isinstance(m, PostResponse)]
            assert hashes_of(raw for part in given for raw in part) == near
            assert len(bystander.answers_to(asked)) == len(bystander.answers_to(wanted)) == 0
            await every(net.nodes, lambda node: not node.parts.serving.routes)
            await peer.close()
            await bystander.close()

    run(main())


@pytest.mark.thorough("line-1", "line-5", "line-9", "ring-1", "ring-3", "ring-9")
@pytest.mark.parametrize("limit", [1, 3, 5, 9])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_limit_applies_to_all_answers_together(layout: str, limit: int) -> None:
    async def main() -> None:
        async with nodes(layout) as (net, posts):
            peer = await client(net, 0)
            asked = peer.send_request(EVERYTHING._replace(limit=limit, ttl=16))
            await until(lambda: peer.is_concluded(asked))
            assert len(set(peer.hashes(asked))) == len(peer.hashes(asked)) == min(limit, len(posts))
            await peer.close()

    run(main())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_channel_lists_are_merged(layout: str) -> None:
    async def main() -> None:
        async with nodes(layout) as (net, _):
            peer = await client(net, 0)
            everywhere = [CHANNEL, *(f"only {number}" for number in range(5))]
            for offset, limit, ttl in ((0, 0, 16), (0, 3, 16), (0, 2, 1)):
                asked = peer.send_request(ListRequest(b"", offset, limit, ttl))
                await every([asked], peer.answers_to)
                due = [CHANNEL, *(f"only {n}" for n in sorted(within(layout, ttl)))] if ttl < 5 else everywhere
                due = due[:limit] if limit else due
                assert peer.answers_to(asked) == [ListResponse(asked, tuple(due))]
            await peer.close()

    run(main())


@pytest.mark.parametrize("knows", range(3))
def test_a_post_whose_deletion_by_its_author_is_known_is_not_forwarded(knows: int) -> None:
    """One node in a line knows two deletions, and has neither post.

    Only the author's deletion hides a post from the client.
    """
    deleted, other = BOB.text(CHANNEL, "deleted"), BOB.text(CHANNEL, "not deleted")
    wanted = PostRequest(b"", (deleted.hash, other.hash), 16)

    async def main() -> None:
        stores = [memory(number) for number in range(3)] + [memory("gives", posts=[deleted, other])]
        stores[knows].ingest(raws(BOB.delete(deleted), CYD.delete(other)))
        async with network(*stores, settings=FORWARDS) as net:
            await net.line()
            await until(lambda: sum(len(node.connections) for node in net.nodes) == 2 * len(net.links))
            await until(lambda: all(c.session.is_recognised for node in net.nodes for c in node.connections))
            peer = await client(net, 0)
            asked = peer.send_request(wanted)
            await until(lambda: peer.is_concluded(asked))
            given = [m.posts for m in peer.answers_to(asked) if isinstance(m, PostResponse)]
            assert hashes_of(raw for part in given for raw in part) == {other.hash}
            assert not net.log.faults()
            await peer.close()

    run(main())


def test_a_node_that_does_not_relay_forwards_nothing() -> None:
    async def main() -> None:
        async with nodes("line", relays=False) as (net, posts):
            peer, witness = await client(net, 0), await client(net, 0)
            asked = peer.send_request(EVERYTHING._replace(ttl=16))
            names = peer.send_request(ListRequest(b"", 0, 0, 16))
            wanted = peer.send_request(PostRequest(b"", (posts[4].hash,), 16))
            await until(lambda: all(map(peer.is_concluded, (asked, names, wanted))))
            assert peer.hashes(asked) == [posts[0].hash]
            assert peer.answers_to(names) == [ListResponse(names, (CHANNEL, "only 0"))]
            assert peer.answers_to(wanted) == [PostResponse(wanted, ())]
            assert not [m for m in witness.received if getattr(m, "ttl", 0) or getattr(m, "channel", "") == CHANNEL]
            await peer.close()
            await witness.close()

    run(main())


def test_a_cancel_is_forwarded() -> None:
    """All nodes and the client at the other end keep a live request until it is cancelled."""

    async def main() -> None:
        async with nodes("line") as (net, _):
            peer, end = await client(net, 0), await client(net, 4)
            asked = peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0, 16))

            def forwarded() -> list[bytes]:
                return [
                    request.request_id for request in end.requests_of(TimeRangeRequest) if request.channel == CHANNEL
                ]

            await until(lambda: forwarded() and len(peer.hashes(asked)) == 5)
            assert live(net) == [1] * 5
            assert forwarded() == [asked]
            peer.say(CancelRequest(b"\xffcan", asked))
            await until(lambda: live(net) == [0] * 5)
            await until(lambda: asked in [cancel.cancel_id for cancel in end.requests_of(CancelRequest)])
            assert not any(node.parts.serving.routes for node in net.nodes)
            await peer.close()
            await end.close()

    run(main())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_live_hashes_are_forwarded_once(layout: str) -> None:
    async def main() -> None:
        async with nodes(layout) as (net, posts):
            peer = await client(net, 0)
            asked = peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0, 16))
            await until(lambda: len(peer.hashes(asked)) == 5)
            changes = own(10)
            for node in net.nodes:
                node.store.ingest(raws(changes))
            last = own(11)
            net.nodes[2].store.ingest(raws(last))
            await until(lambda: last.hash in peer.hashes(asked))
            await asyncio.sleep(0.1)
            assert sorted(peer.hashes(asked)) == sorted(post.hash for post in (*posts, changes, last))
            await peer.close()

    run(main())


def test_a_reached_limit_ends_a_live_request_everywhere() -> None:
    async def main() -> None:
        async with nodes("line") as (net, _):
            peer = await client(net, 0)
            asked = peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 6, 16))
            await until(lambda: len(peer.hashes(asked)) == 5)
            net.nodes[0].store.ingest(raws(own(10)))
            await until(lambda: peer.is_concluded(asked))
            await until(lambda: live(net) == [0] * 5)
            assert not any(node.parts.serving.routes for node in net.nodes)
            await peer.close()

    run(main())


class Slow(Keeper):
    """Peer that does not answer."""

    def answer(self, message: object) -> None:
        if isinstance(message, ListRequest) and not message.ttl:
            super().answer(message)


@pytest.mark.parametrize("cut", ["client", "link"])
def test_a_lost_peer_concludes_its_answers(cut: str) -> None:
    """The peer at the far end is silent. The answer ends when that peer, or the link to it, is lost."""

    async def main() -> None:
        async with nodes("line") as (net, posts):
            peer = await client(net, 0)
            silent = await client(net, 4, Slow)
            asked = peer.send_request(EVERYTHING._replace(ttl=16))
            state = peer.send_request(StateRequest(b"", CHANNEL, 0, 16))
            names = peer.send_request(ListRequest(b"", 0, 0, 16))
            await until(
                lambda: [m for m in silent.requests_of(ListRequest) if m.ttl] and silent.requests_of(TimeRangeRequest)
            )
            await until(lambda: len(peer.hashes(asked)) == 5)
            assert not any(map(peer.is_concluded, (asked, state, names)))
            if cut == "client":
                silent.cut()
            else:
                net.links[1].close("cut by the test")
            await until(lambda: all(map(peer.is_concluded, (asked, state, names))))
            assert set(peer.hashes(asked)) == {post.hash for post in posts}
            if cut == "client":
                await every(net.nodes, lambda node: not node.parts.serving.routes)
            await peer.close()
            await silent.close()

    run(main())


def test_a_lost_requester_leaves_no_state() -> None:
    async def main() -> None:
        async with nodes("ring") as (net, _):
            peer, silent = await client(net, 0), await client(net, 2, Slow)
            for _ in range(10):
                peer.send_request(EVERYTHING._replace(ttl=16))
                peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0, 16))
            await until(lambda: len(silent.requests_of(TimeRangeRequest)) >= 20)
            peer.cut()
            await until(lambda: not any(node.parts.serving.routes for node in net.nodes))
            await until(lambda: len(silent.requests_of(CancelRequest)) == 20)
            await peer.close()
            await silent.close()

    run(main())
