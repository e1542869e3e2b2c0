"""A node's limits on messages, requests and faults, each reached by a peer over a real socket.

The tests check the node's response, and that it continues to serve others.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from by_hand import ALL, LIVE, MANY, UNKNOWN, ByHand, listening, on_loop, only, peer_id, running, sizes_of, texts
from peering import Keeper, logged, memory, raw_peer, run, until
from people import ANN, raws

from cablestore import CableStore, limits
from cablestore.peers import NodeSettings
from cablestore.peers.answering import AnswerQueue
from cablestore.peers.serving import Serving
from cablestore.protocol.exchange import Exchange, RequestRole, State
from cablestore.protocol.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    ListResponse,
    ModerationRequest,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
)
from cablestore.protocol.varint import encode_varint

pytestmark = pytest.mark.usefixtures("quick_clock")


def test_the_defaults_are_the_limits() -> None:
    settings = NodeSettings()
    for name in [
        "MAX_PEERS",
        "MAX_PEERS_PER_ADDRESS",
        "MAX_HANDSHAKES",
        "MAX_HANDSHAKES_PER_ADDRESS",
        "HANDSHAKE_TIMEOUT_S",
        "IDLE_TIMEOUT_S",
        "ANSWER_TIMEOUT_S",
        "MAX_REQUESTS_ALIVE",
        "MAX_QUEUED_SIZE_BYTES",
        "MAX_QUEUED_TOTAL_SIZE_BYTES",
        "MAX_FAULTS",
        "MAX_INVALID_POSTS",
        "ROWS_PER_S",
        "ROWS_IN_ADVANCE",
    ]:
        assert getattr(settings, name.lower()) == getattr(limits, name)


# --- messages ----------------------------------------------------------------------------------


@on_loop
async def test_a_message_longer_than_max_message_size_bytes_is_rejected_before_it_arrives() -> None:
    async with listening() as (node, address):
        with logged() as log:
            peer = await ByHand.connect(address)
            peer.raw(encode_varint(limits.MAX_MESSAGE_SIZE_BYTES + 1))
            assert await peer.is_ended()
            await until(lambda: not node.connections)
            assert "the maximum is 8388608" in log.reasons()[0]
        at_the_limit = await ByHand.connect(address)
        at_the_limit.raw(encode_varint(limits.MAX_MESSAGE_SIZE_BYTES) + b"\x63" + bytes(8))
        at_the_limit.raw(bytes(limits.MAX_MESSAGE_SIZE_BYTES - 9))  # of an unknown type: it is skipped
        assert await at_the_limit.hashes() == []


@on_loop
async def test_max_requests_alive_concludes_further_requests() -> None:
    """MAX_REQUESTS_ALIVE: further requests are concluded immediately, and count as faults of the peer."""
    async with listening(texts(3), max_requests_alive=3) as (node, address):
        peer = await ByHand.connect(address)
        peer.send(*[LIVE._replace(channel=name) for name in "abc"])
        assert await peer.answer(ALL) == [HashResponse(peer_id(peer, 4), ())]
        assert only(node).faults == 1
        peer.send(CancelRequest(b"", peer_id(peer, 2)))
        assert len(await peer.hashes()) == 3


@on_loop
async def test_max_hashes_per_request_rejects_larger_requests() -> None:
    post = texts(1)[0]
    async with listening([post]) as (node, address):
        peer = await ByHand.connect(address)
        many = (post.hash, *[UNKNOWN] * limits.MAX_HASHES_PER_REQUEST)
        assert sizes_of(await peer.answer(PostRequest(b"", many))) == [0]
        assert sizes_of(await peer.answer(PostRequest(b"", many[:-1]))) == [1, 0]
        names = tuple(f"{i}" for i in range(limits.MAX_HASHES_PER_REQUEST + 1))
        assert len(await peer.answer(ModerationRequest(b"", names, 0, 0))) == 1
        assert only(node).faults == 2


@on_loop
async def test_max_hashes_per_response_and_part_rows_answered_divide_answers() -> None:
    """MAX_HASHES_PER_RESPONSE and PART_ROWS_ANSWERED: a long answer arrives in parts, complete and in order."""
    posts = texts(MANY)
    async with listening(posts) as (node, address):
        peer = await ByHand.connect(address)
        sizes = sizes_of(await peer.answer(ALL))
        assert max(sizes) == limits.MAX_HASHES_PER_RESPONSE
        assert (sum(sizes), sizes[-1]) == (2 * limits.PART_ROWS_ANSWERED, 0)
        assert await peer.hashes(limit=2500) == [post.hash for post in reversed(posts[-2500:])]
        assert limits.PART_ROWS_ANSWERED == 2000
        # An announcement is split too, as for a live request whose history took long.
        session = only(node).session
        exchange = Exchange(
            RequestRole.RESPONDER, LIVE._replace(request_id=peer.new_id()), State.LIVE, None, is_live=True
        )
        session.answer_hashes(exchange, [UNKNOWN] * (limits.MAX_HASHES_PER_RESPONSE + 1))
        assert [len(message) // 32 for message in session.output()] == [limits.MAX_HASHES_PER_RESPONSE, 1]


@on_loop
async def test_max_post_response_size_bytes_and_part_size_answered_bytes_divide_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MAX_POST_RESPONSE_SIZE_BYTES is the limit of a response, PART_SIZE_ANSWERED_BYTES that of a read."""
    parts: list[int] = []
    accept = AnswerQueue.accept

    def noted(self: AnswerQueue, answer: Any, part: list[Any]) -> None:
        parts.append(sum(map(len, part)))
        accept(self, answer, part)

    monkeypatch.setattr(AnswerQueue, "accept", noted)
    posts = texts(MANY)
    async with listening(posts) as (_, address):
        peer = await ByHand.connect(address)
        found = await peer.answer(PostRequest(b"", tuple(post.hash for post in posts)))
        sizes = [sum(map(len, part.posts)) for part in found if isinstance(part, PostResponse)]
        assert len([size for size in sizes if size]) > 1
        assert max(sizes) <= limits.MAX_POST_RESPONSE_SIZE_BYTES
        assert sum(sizes) == sum(len(post.raw) for post in posts) == sum(parts)
        assert max(parts) < limits.PART_SIZE_ANSWERED_BYTES + 1000


@on_loop
async def test_max_ttl_rejects_requests_above_it() -> None:
    async with listening() as (node, address):
        peer = await ByHand.connect(address)
        peer.send(ALL._replace(ttl=limits.MAX_TTL + 1), ListRequest(b"", 0, 0, limits.MAX_TTL))
        assert isinstance(await peer.receive(), ListResponse)
        assert only(node).faults == 1


@on_loop
async def test_max_live_alike_limits_equal_live_requests() -> None:
    """MAX_LIVE_ALIKE: each live request gets all changes, so a peer has at most this many of the same kind."""
    async with listening() as (node, address):
        peer = await ByHand.connect(address)
        peer.send(*[LIVE] * (limits.MAX_LIVE_ALIKE + 3), LIVE._replace(channel="other"))
        peer.send(*[StateRequest(b"", "default", 1)] * limits.MAX_LIVE_ALIKE)
        await peer.hashes()
        assert node.parts.serving.live.count == 2 * limits.MAX_LIVE_ALIKE + 1
        assert only(node).faults == 3
        node.store.ingest(raws(ANN.text("default", "new")))
        for _ in range(limits.MAX_LIVE_ALIKE):
            message = await peer.receive()
            assert isinstance(message, HashResponse)
        assert await peer.is_silent()
        peer.send(*[CancelRequest(b"", peer_id(peer, number)) for number in range(1, 10)])
        await until(lambda: node.parts.serving.live.count == 2 * limits.MAX_LIVE_ALIKE - 8)
        await peer.close()


# --- faults of a peer --------------------------------------------------------------------------


@on_loop
async def test_max_faults_ends_the_connection() -> None:
    async with listening() as (node, address):
        peer = await ByHand.connect(address)
        peer.raw(b"\x01\x04" * (limits.MAX_FAULTS - 1))
        assert await peer.hashes() == []
        assert only(node).faults == limits.MAX_FAULTS - 1
        peer.raw(b"\x01\x04")
        assert await peer.is_ended()


def test_max_invalid_posts_ends_the_connection() -> None:
    """MAX_INVALID_POSTS: the posts are not stored."""

    async def scenario(number: int) -> None:
        from cablestore.protocol.crypto import post_hash

        good = texts(number)
        forged = [post.raw[:40] + bytes((post.raw[40] ^ 1,)) + post.raw[41:] for post in good]
        by_hash = {post_hash(raw): raw for raw in forged}

        class FalsePeer(Keeper):
            def range_of(self, asked: TimeRangeRequest) -> tuple[bytes, ...]:
                return tuple(by_hash) if asked.limit else ()

            def give(self, request_id: bytes, hashes: Any) -> None:
                self.say(PostResponse(request_id, tuple(by_hash[digest] for digest in hashes)))

        with memory() as store, logged() as log:
            async with running(store, channels=None) as (node, address):
                peer = await raw_peer(address, FalsePeer, posts=good[:1])
                if number >= limits.MAX_INVALID_POSTS:
                    await until(lambda: peer.is_over)
                    assert f"too many invalid posts ({limits.MAX_INVALID_POSTS})" in log.reasons()[0]
                else:
                    await until(lambda: only(node).invalid_posts == number)
                    assert not peer.is_over
                await peer.close()
            assert sum(store.stats().posts.values()) == 0

    run(scenario(limits.MAX_INVALID_POSTS))
    run(scenario(limits.MAX_INVALID_POSTS - 1))


# --- internal errors ---------------------------------------------------------------------------


@on_loop
async def test_an_unforeseen_error_of_one_answer_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading thread continues, the request is concluded, and the log has the error."""
    from cablestore.store import answers

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(answers, "channel_state", broken)
    with logged() as log:
        async with listening(texts(3)) as (_, address):
            peer = await ByHand.connect(address)
            assert len(await peer.answer(StateRequest(b"", "default", 0))) == 1
            assert len(await peer.hashes()) == 3
        assert "a bug" in log.errors()[0]


def test_an_unforeseen_error_in_a_connection_ends_only_that_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async def scenario(store: CableStore) -> list[Any]:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with running(store) as (node, address):
            honest, victim = await ByHand.connect(address), await ByHand.connect(address)
            await honest.hashes()
            with monkeypatch.context() as patched:
                patched.setattr(Serving, "request", broken)
                victim.send(ALL)
                assert await victim.is_ended()
            await until(lambda: len(node.connections) == 1)
            assert len(await honest.hashes()) == 3
        return complaints

    with memory(posts=texts(3)) as store:
        assert [str(found["exception"]) for found in asyncio.run(scenario(store))] == ["a bug"]
