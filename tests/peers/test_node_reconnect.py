"""The cost of a reconnect of two stores that reconcile depends on their difference, and changes are not missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
from by_hand import CABAL_KEY, on_loop
from history import histories
from hypothesis import given
from hypothesis import settings as limited
from peering import HOST, QUICK, every, memory, randoms, run, until
from people import ANN, BOB, START_MS, raws
from reconciling_nodes import are_alike

from cablestore import CableStore, Dialect, Post
from cablestore.peers import Address, Node, NodeSettings

POSTS = 3_000
COST_BYTES = 5_000
LIVE_ONLY = NodeSettings(reconcile_every_s=600, reconcile_delay_ms=600_000)
"""Settings that compare all once per connection, so that later posts arrive only through live requests."""


def conversations(posts: int, channels: int = 3) -> list[Post]:
    """Return texts, and the topic and members of their channels."""
    texts = [ANN.text(f"c{n % channels}", f"{n}", at=START_MS + n) for n in range(posts)]
    states = [who.join(f"c{n}") for n in range(channels) for who in (ANN, BOB)]
    return [*texts, *states, *(BOB.topic(f"c{n}", "topic") for n in range(channels)), ANN.named("ann")]


@asynccontextmanager
async def connected(*stores: CableStore, settings: NodeSettings) -> AsyncIterator[tuple[Node, Node]]:
    """Run two nodes, the second one connected to the first, until each follows the other one's channels live."""
    async with Node(stores[0], settings) as one, Node(stores[1], settings) as other:
        connection = await other.connect(await one.listen(Address(HOST, 0)))
        await every((one, other), lambda node: [peer.is_in_step for peer in node.peers()] == [True])
        await every((one, other), lambda node: node.load().live_requests)
        yield one, other
        connection.close("the end")
        await connection.closed
        await until(lambda: not one.connections)


def posts_of(store: CableStore) -> list[bytes]:
    """Return the hashes of the posts. Data about deleted posts depends on whether the store had them."""
    return [key for key, _ in store.dump() if key.startswith(b"!data!")]


def cost(node: Node) -> int:
    load = node.load()
    return load.received_size_bytes + load.sent_size_bytes


@pytest.mark.thorough("key")
@pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "key"])
@on_loop
async def test_a_reconnect_without_new_posts_takes_few_bytes(key: bytes | None) -> None:
    """The nodes may be new processes that keep only their stores."""
    settings = replace(LIVE_ONLY, cabal_key=key)
    with memory("a", posts=conversations(POSTS)) as here, memory("b") as there:
        async with connected(here, there, settings=settings) as nodes:
            await until(lambda: are_alike(*nodes))
            assert cost(nodes[1]) < 3 * sum(len(post.raw) for post in conversations(POSTS))
        for turn in range(2):
            async with connected(here, there, settings=settings) as nodes:
                await until(lambda: all(node.load().live_requests == 2 * 3 + 1 for node in nodes))
                assert cost(nodes[1]) < COST_BYTES, turn
                assert cost(nodes[0]) < COST_BYTES, turn


@pytest.mark.parametrize("writer", [0, 1])
@on_loop
async def test_new_posts_of_any_date_arrive_live_after_a_reconnect(writer: int) -> None:
    with memory("a", posts=conversations(100)) as here, memory("b", posts=conversations(100)) as there:
        async with connected(here, there, settings=LIVE_ONLY) as nodes:
            store = nodes[writer].store
            for number in range(3):
                store.ingest(raws(BOB.text("c1", f"late {number}", at=START_MS - 10**9 + number)))
                store.ingest(raws(BOB.text(f"new {number}", "late", at=START_MS - 10**9)))
                store.ingest(raws(ANN.topic("c1", f"topic {number}", at=START_MS + 10**6 + number)))
                store.ingest(raws(BOB.named(f"bob {number}")))
                await until(lambda: are_alike(*nodes))
            store.ingest(raws(ANN.delete(ANN.text("c0", "0", at=START_MS))))
            await until(lambda: are_alike(*nodes))


@pytest.mark.parametrize("seed", range(4))
@on_loop
async def test_posts_written_during_a_comparison_are_not_missed(seed: int) -> None:
    """Posts arrive on both sides from before the connection, in old and in new channels."""
    choice = Random(seed)
    posts = conversations(400)
    with (
        memory("a", posts=choice.sample(posts, 300)) as here,
        memory("b", posts=choice.sample(posts, 200)) as there,
    ):
        async with Node(here, LIVE_ONLY) as one, Node(there, LIVE_ONLY) as other:
            address = await one.listen(Address(HOST, 0))
            other.keep_connected(address)
            for number in range(60):
                at_ms = START_MS + choice.randrange(-(10**9), 10**6)
                store = choice.choice((here, there))
                store.ingest(raws(BOB.text(f"c{choice.randrange(6)}", f"{number}", at=at_ms)))
                await asyncio.sleep(choice.random() * 0.01)
            await until(lambda: are_alike(one, other))


@pytest.mark.thorough
@limited(max_examples=10, deadline=None)
@given(histories(), randoms)
def test_random_stores_are_equal_after_a_reconnect(history: tuple[Dialect, list[Post]], choice: Random) -> None:
    """Each of them has got any posts since the last connection."""
    dialect, posts = history

    async def main() -> None:
        settings = replace(QUICK, reconciles=True, reconcile_every_s=0.2, reconcile_delay_ms=5)
        with memory("a", dialect) as here, memory("b", dialect) as there:
            for turn in range(2):
                for store in (here, there):
                    store.ingest(raws(*choice.sample(posts, choice.randrange(len(posts) + 1))))
                async with Node(here, settings) as one, Node(there, settings) as other:
                    other.keep_connected(await one.listen(Address(HOST, 0)))
                    await until(lambda: posts_of(here) == posts_of(there))
                assert here.check().is_clean, turn

    run(main())
