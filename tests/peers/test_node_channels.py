"""New channels reach peers immediately, without waiting for the next request.

The tests wait for posts instead of a time.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from by_hand import on_loop
from peering import Keeper, Network, memory, network, raw_listener, until
from people import ANN, BOB, raws

from cablestore import limits
from cablestore.peers import Node, NodeSettings
from cablestore.protocol.message import ListRequest, StateRequest, TimeRangeRequest
from cablestore.reconcile.messages import NEW_CHANNEL

SELDOM = NodeSettings(list_every_s=36_000, reconcile_every_s=36_000)
"""Settings with intervals so long that nothing repeats within a test."""


async def in_touch(net: Network) -> None:
    """Wait until all links are between stores that know each other, and their first exchanges are done."""
    await until(lambda: all(link.met.done() and link.met.result() for link in net.links))
    await until(lambda: not any(len(node.parts.reconciler) for node in net.nodes))
    for link in net.links:  # its first requests are answered before this one
        asked = link.send_request(ListRequest(b"", 0, 1))
        await until(partial(getattr, asked, "is_over"))


async def has(node: Node, channel: str, texts: set[str]) -> None:
    await until(lambda: {message.text for message in node.store.messages(channel).messages} == texts)


@pytest.mark.thorough
@on_loop
async def test_a_new_channel_is_forwarded_along_a_line_of_stores() -> None:
    """The channel may begin at either end, regardless of which side connected. Later posts in it arrive too."""
    async with network(*(memory(name) for name in "abcd"), settings=SELDOM) as net:
        await net.line()
        await in_touch(net)
        await asyncio.to_thread(net.nodes[0].store.post, "from a", "one")
        await has(net.nodes[-1], "from a", {"one"})
        await asyncio.to_thread(net.nodes[-1].store.post, "from d", "two")
        await has(net.nodes[0], "from d", {"two"})
        await asyncio.to_thread(net.nodes[0].store.post, "from d", "three")
        await has(net.nodes[-1], "from d", {"two", "three"})


@on_loop
async def test_both_sides_can_create_the_same_channel() -> None:
    async with network(memory("a"), memory("b"), settings=SELDOM) as net:
        await net.line()
        await in_touch(net)
        for node in net.nodes:
            await asyncio.to_thread(node.store.post, "new", "from both")
        await net.are_alike()


@on_loop
async def test_a_node_that_requests_nothing_announces_its_posts() -> None:
    """The test has a store that only answers, and a peer that posts to it."""
    async with network(memory("a"), settings=replace(SELDOM, channels=frozenset())) as net:
        giver = net.nodes[0]
        with memory("b") as store:
            other = await net.add(store, SELDOM)
            await net.link(other, giver)
            await in_touch(net)
            await asyncio.to_thread(giver.store.post, "new", "one")
            await has(other, "new", {"one"})
            await net.stop(other)


@on_loop
async def test_channels_that_are_not_followed_are_not_requested() -> None:
    async with network(memory("a"), settings=SELDOM) as net:
        with memory("b") as store:
            other = await net.add(store, replace(SELDOM, channels=frozenset({"followed"})))
            await net.link(other, net.nodes[0])
            await in_touch(net)
            for channel in ("other", "followed"):
                await asyncio.to_thread(net.nodes[0].store.post, channel, "one")
            await has(other, "followed", {"one"})
            assert not store.messages("other").messages
            await net.stop(other)


@on_loop
async def test_a_channel_that_the_store_gets_is_requested_from_an_old_client() -> None:
    """The client has posts in the channel too, and gets no request for its channels before."""
    async with (
        raw_listener(Keeper, posts=[ANN.text("new", "old")]) as (address, peers),
        network(memory("a"), settings=SELDOM) as net,
    ):
        [node] = net.nodes
        node.keep_connected(address)
        await has(node, "new", {"old"})
        [peer] = peers
        other = BOB.text("newer", "there")
        peer.posts[other.hash] = other
        asked = len(peer.requests_of(ListRequest))
        node.store.ingest(raws(ANN.text("newer", "here")))
        await has(node, "newer", {"here", "there"})
        assert "newer" in {request.channel for request in peer.requests_of(StateRequest)}
        assert len(peer.requests_of(ListRequest)) == asked


@on_loop
async def test_channels_are_requested_from_old_clients_repeatedly() -> None:
    """LIST_EVERY_S is the interval; it is shorter in this test."""
    assert NodeSettings().list_every_s == limits.LIST_EVERY_S == 10
    async with (
        raw_listener(Keeper, posts=[ANN.text("one", "1")]) as (address, peers),
        network(memory("a"), settings=replace(SELDOM, list_every_s=0.05)) as net,
    ):
        [node] = net.nodes
        node.keep_connected(address)
        await has(node, "one", {"1"})
        later = ANN.text("two", "2")
        peers[0].posts[later.hash] = later
        await has(node, "two", {"2"})


def test_requests_to_an_endless_announcer_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """CHANNELS_REQUESTED_EVERY_S: one later request covers all channels that are announced meanwhile."""
    monkeypatch.setattr(limits, "CHANNELS_REQUESTED_EVERY_S", 36_000.0)

    @on_loop
    async def scenario() -> None:
        async with network(memory("a"), memory("b"), settings=SELDOM) as net:
            await net.line()
            await in_touch(net)
            other = net.nodes[1]
            [back] = other.connections
            before = listed(other)
            for _ in range(200):
                back.send_frames([NEW_CHANNEL])
            await until(lambda: listed(other) > before)
            asked = back.send_request(TimeRangeRequest(b"", "default", 0, 2**50, 1))
            # Then all 200 are processed, and their requests are answered.
            await until(lambda: asked.is_over)
            assert listed(other) == before + 1
            assert not net.log.faults()

    scenario()


def listed(node: Node) -> float:
    """Return how often a node was asked for its channels."""
    name = "cablestore_requests_total"
    return node.parts.context.metrics.registry.get_sample_value(name, {"type": "channel_list_request"}) or 0.0
