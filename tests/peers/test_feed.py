"""The feed of a node: which entries of the arrival log are passed to live requests, and which are skipped."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from by_hand import ByHand, listening, on_loop, on_standing_loop
from peering import soon, until
from people import ANN, BOB, raws

from cablestore.peers.audience import static_key_of
from cablestore.peers.connection import Connection
from cablestore.peers.feed import Feed
from cablestore.peers.live_changes import LiveChange
from cablestore.protocol.body import Block


@on_loop
async def test_entries_are_skipped_without_peers_and_passed_on_in_their_order() -> None:
    async with listening([ANN.text("default", "old")]) as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        links: list[Connection] = []
        passed: list[list[LiveChange]] = []
        feed = Feed(node.parts.context, links, node.parts.serving.live, passed.append)
        assert (feed.reached, feed.has_skipped, feed.failure) == (node.store.last_sequence, False, "")
        following = asyncio.create_task(feed.follow())
        node.store.ingest(raws(*(ANN.text("default", f"{number}") for number in range(3))))
        await until(lambda: feed.has_skipped)
        assert feed.reached == node.store.last_sequence == 4
        assert not passed
        feed.has_skipped = False
        links.append(link)
        many = [ANN.text("default", f"{number}") for number in range(210)]
        node.store.ingest(raws(*many))
        await until(lambda: feed.reached == node.store.last_sequence)
        await until(lambda: sum(map(len, passed)) == len(many))
        assert [item.hash for part in passed for item in part] == [post.hash for post in many]
        assert len(passed) > 1  # answers to peers do not wait for all
        assert not feed.has_skipped
        own = node.store.post("default", "mine")
        await until(lambda: own.hash in [item.hash for item in passed[-1]])
        assert all(item.is_own for item in passed[-1])
        feed.close()
        node.store.ingest(raws(ANN.text("default", "unwatched")))
        await asyncio.sleep(0.01)
        assert feed.reached == node.store.last_sequence - 1
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


@on_loop
async def test_the_feed_ends_with_the_store() -> None:
    async with listening() as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        feed = Feed(node.parts.context, [link], node.parts.serving.live, lambda _: None)
        following = asyncio.create_task(feed.follow())
        await asyncio.sleep(0)
        node.store.post("default", "x")
        await until(lambda: feed.reached == node.store.last_sequence)
        node.store.post("default", "y")
        node.store.close()
        await soon(following)
        assert feed.failure == ""


@on_standing_loop
async def test_a_block_that_was_written_without_peers_is_enforced_at_the_next_connection() -> None:
    """The block is read at the connection, not only at the next periodic check."""
    async with listening() as (node, address):
        feed, restrictions = node.parts.serving.feed, node.parts.context.restrictions
        bob = static_key_of(BOB.key)
        node.store.write(Block("", 0, (BOB.key,), 0, 0))
        await until(lambda: feed.has_skipped)
        assert not restrictions.audience(bob).is_blocked
        await (await ByHand.connect(address)).known_to(node)
        assert not feed.has_skipped
        await until(lambda: restrictions.audience(bob).is_blocked)
