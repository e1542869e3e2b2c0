"""Fetching: which posts are requested again after a peer did not deliver them, and how many at once."""

from __future__ import annotations

import asyncio

import pytest
from by_hand import ByHand, listening, on_loop, post_request
from peering import Keeper, raw_peer, soon, until
from people import ANN, BOB

from cablestore import limits
from cablestore.index.verdict import Outcome, Verdict
from cablestore.peers.connection import PauseReason
from cablestore.protocol.body import LOCAL_ONLY, Block
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.message import PostRequest, PostResponse

HASHES = [bytes((number,)) * 32 for number in range(6)]


@on_loop
async def test_posts_that_no_peer_has_are_requested_from_a_limited_number_of_peers() -> None:
    """OFFERS_REMEMBERED."""
    async with listening(channels=None) as (node, address):
        fetches = node.parts.sync.fetches
        fetches.remember(HASHES)
        fetches.remember(HASHES[:1])
        fetches.forget(HASHES[4:])
        for number in range(limits.OFFERS_REMEMBERED + 2):
            post = ANN.text("default", f"{number}")
            peer = await raw_peer(address, Keeper, posts=[post])
            await until(lambda post=post: node.store.get(post.hash))  # type: ignore[misc] # the argument has its default
            asked = {digest for request in peer.requests_of(PostRequest) for digest in request.hashes}
            missing = HASHES[:4] if number <= limits.OFFERS_REMEMBERED else []
            assert asked == {post.hash, *missing}
            await peer.close()


@on_loop
async def test_rejected_posts_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_PENDING_HASHES_PER_PEER, MAX_HASHES_REMEMBERED: the oldest are forgotten first."""
    monkeypatch.setattr(limits, "MAX_PENDING_HASHES_PER_PEER", 2)
    monkeypatch.setattr(limits, "MAX_HASHES_REMEMBERED", 2)
    async with listening(channels=None) as (node, address):
        fetches = node.parts.sync.fetches
        for verdict in (Verdict.MALFORMED, Verdict.BLOCKED):
            for digest in HASHES[:3]:
                fetches.reject(Outcome(digest, verdict))
            assert [fetches.is_useless(digest) for digest in HASHES[:4]] == [False, True, True, False]
        fetches.reject(Outcome(HASHES[5], Verdict.DROPPED))
        assert fetches.is_useless(HASHES[5])
        fetches.admit_again()
        assert not fetches.is_useless(HASHES[5])
        assert fetches.is_useless(HASHES[2])  # it is malformed for ever
        fetches.remember([HASHES[0], HASHES[2], HASHES[3]])
        peer = await raw_peer(address, Keeper, posts=[])
        await until(lambda: peer.requests_of(PostRequest))
        assert peer.requests_of(PostRequest)[0].hashes == (HASHES[3],)  # HASHES[2] is useless
        await peer.close()


@on_loop
async def test_a_post_that_can_never_be_stored_is_requested_once() -> None:
    text = ANN.text("default", "x").raw
    useless = [
        ANN.post(Block("", LOCAL_ONLY, (BOB.key,), 0, 0)).raw,
        bytes((*text[:40], text[40] ^ 1, *text[41:])),  # the signature is wrong
        bytes(96) + b"\x00\xc8\x01\x50",  # of an unknown type
        b"malformed",
    ]
    async with listening() as (node, address):
        peer = await ByHand.connect(address)
        link = await peer.known_to(node)
        fetches = node.parts.sync.fetches
        fetch = fetches.begin(link)
        for number, raw in enumerate(useless):
            fetch.offer_soon([post_hash(raw)])
            request = await post_request(peer)
            peer.send(PostResponse(request.request_id, (raw,)), PostResponse(request.request_id, ()))
            await soon(fetch.drained())
            assert fetches.is_useless(post_hash(raw))
            assert fetch.report.refused == number + 1
        assert (fetch.report.posts, fetch.report.missing, fetch.take_failed()) == (0, 0, 0)
        fetch.offer_soon([post_hash(raw) for raw in useless])
        await soon(fetch.looked_up())
        assert len(fetches.pending) == 0


@on_loop
async def test_a_post_is_on_its_way_until_it_is_stored() -> None:
    async with listening(channels=None) as (node, address):
        fetches, post = node.parts.sync.fetches, ANN.text("default", "x" * 200)
        link = await (await ByHand.connect(address)).known_to(node)
        assert not fetches.is_on_its_way(post.hash)
        assert fetches.pending.offer(link, [post.hash]) == []
        assert fetches.is_on_its_way(post.hash)
        before = fetches.post_size_bytes
        fetches.note_received(link, post.raw)
        assert post.hash in link.received_posts
        assert fetches.is_on_its_way(post.hash)
        assert len(fetches.pending) == 0
        assert fetches.post_size_bytes == before + (len(post.raw) - before) / 64
        fetches.settled(post.hash)
        assert not fetches.is_on_its_way(post.hash)


@on_loop
async def test_requests_and_pages_are_as_long_as_the_link_allows() -> None:
    """FLOW_FIRST_SIZE_BYTES, FETCHES_OPEN, FETCH_POSTS, FETCH_POSTS_LEAST, PAGE_HASHES_LEAST."""
    async with listening() as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        fetches = node.parts.sync.fetches
        fetch = fetches.begin(link)
        for post_size_bytes, posts in ((1.0, limits.FETCH_POSTS), (40.96, 50), (10_000.0, limits.FETCH_POSTS_LEAST)):
            fetches.post_size_bytes = post_size_bytes
            assert fetch.page_hashes == 2 * limits.FETCHES_OPEN * posts
        assert fetch.page_hashes >= limits.PAGE_HASHES_LEAST
        fetches.lost(link)


@on_loop
async def test_waits_for_posts_end_with_the_peer() -> None:
    async with listening() as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        fetches = node.parts.sync.fetches
        fetch = fetches.begin(link)
        assert fetches.pending.offer(link, HASHES) == []
        waits = [asyncio.create_task(fetch.landed([digest])) for digest in HASHES[:4]]
        await asyncio.sleep(0)
        for number in (0, 1):
            waits[number].cancel()
        await asyncio.wait(waits[:2])
        fetches.settled(HASHES[0])
        fetches.settled(HASHES[2])
        await asyncio.wait(waits[2:3])
        assert not waits[3].done()
        assert len(fetches) == 1
        fetches.lost(link)
        await soon(waits[3])
        assert len(fetches) == len(fetches.pending) == 0
        await soon(fetch.landed(HASHES))
        await soon(fetch.drained())
        await soon(fetch.has_room())
        fetch.offer_soon(HASHES)
        await soon(fetch.looked_up())  # nothing is looked up for a lost peer
        assert (fetch.take_failed(), fetch.take_overflow()) == (0, False)


@on_loop
async def test_offers_without_room_are_reported_once() -> None:
    """MAX_PENDING_HASHES_PER_PEER."""
    async with listening() as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        fetches = node.parts.sync.fetches
        fetch = fetches.begin(link)
        many = [number.to_bytes(32, "big") for number in range(1, limits.MAX_PENDING_HASHES_PER_PEER)]
        assert fetches.pending.offer(link, many) == []
        fetch.offer_soon(HASHES[:3])
        await soon(fetch.looked_up())
        assert [digest in fetches.pending for digest in HASHES[:3]] == [True, False, False]
        assert (fetch.has_failed, fetch.take_failed(), fetch.has_failed) == (True, 2, False)
        assert (fetch.take_overflow(), fetch.take_overflow()) == (True, False)


@on_loop
async def test_reading_is_paused_while_many_offers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_PENDING_HASHES_PER_PEER."""
    monkeypatch.setattr(limits, "MAX_PENDING_HASHES_PER_PEER", 2)
    async with listening() as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        fetch = node.parts.sync.fetches.begin(link)
        fetch.offer_soon(HASHES[:2])
        assert PauseReason.OFFERS not in link.pauses
        fetch.offer_soon(HASHES[2:3])
        assert PauseReason.OFFERS in link.pauses
        await soon(fetch.looked_up())
        assert PauseReason.OFFERS not in link.pauses


@on_loop
async def test_posts_that_arrive_from_other_peers_are_waited_for() -> None:
    async with listening() as (node, address):
        link, other = [await (await ByHand.connect(address)).known_to(node) for _ in range(2)]
        fetches = node.parts.sync.fetches
        fetch = fetches.begin(link)
        assert fetches.pending.offer(other, HASHES[:3]) == []
        fetch.offer_soon(HASHES[:3])
        await soon(fetch.looked_up())
        drained = asyncio.create_task(fetch.drained())
        for number, has_arrived in ((0, True), (1, False), (2, False)):
            await asyncio.sleep(0)
            assert not drained.done()
            fetches.settled(HASHES[number], has_arrived=has_arrived)
        await soon(drained)
        assert fetch.take_failed() == 2
