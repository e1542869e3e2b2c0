"""Hostile peers at the port for reconciliation: each limit, by its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from by_hand import CABAL_KEY, on_loop
from hypothesis import given, settings
from hypothesis import strategies as st
from peering import HOST, run, soon, until
from people import ANN, START_MS
from reconcile_peer import Peer, attacked
from talking import content_of, hello

from cablestore import limits
from cablestore.errors import NodeError, ReconcileError
from cablestore.peers import Address, Node
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.waku import WakuMessage as Waku
from cablestore.reconcile.codec import encode
from cablestore.reconcile.dialects import SPEC
from cablestore.reconcile.ids import EVERYTHING, SyncID
from cablestore.reconcile.messages import (
    Accepted,
    PayloadFrame,
    PostsFrame,
    Stored,
    Terms,
    encode_frame,
)
from cablestore.reconcile.payload import ItemSet, Payload, PayloadPart, Shards
from cablestore.reconcile.transfer import encode_message, post_id


async def call(address: Address) -> Peer:
    return Peer(*await asyncio.open_connection(*address))


@asynccontextmanager
async def called(*frames: bytes) -> AsyncIterator[Address]:
    """Play a peer that is called and sends this and nothing else."""
    peers: list[Peer] = []

    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(Peer(reader, writer))
        peers[-1].say(*frames)

    server = await asyncio.start_server(answer, HOST, 0)
    try:
        yield Address(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()
        for peer in peers:
            await peer.close()


def outcome(node: Node, of: str) -> float:
    name, labels = "cablestore_reconcile_sessions_total", {"side": "them", "outcome": of}
    return node._core.metrics.registry.get_sample_value(name, labels) or 0.0


def claiming(*ids: SyncID, reconciled: bool = False) -> PayloadFrame:
    """All there is, says the peer."""
    return PayloadFrame(encode(Payload(Shards(), [PayloadPart(EVERYTHING, ItemSet(sorted(ids), reconciled))]), SPEC))


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 50, b"\x05hello", bytes(9), b"\x82\x80\x80\x01", b"GET / HTTP/1.1\r\n\r\n"]
)
@on_loop
async def test_garbage_is_disconnected_or_passed_over(garbage: bytes) -> None:
    """MAX_TALK_FRAME_SIZE_BYTES: a length that announces more ends the connection before any of it is read."""
    async with attacked() as (node, address, _):
        peer = await call(address)
        peer.writer.write(garbage)
        peer.writer.write_eof()
        assert await peer.rest() == []
        await peer.close()
        await until(lambda: not node.reconcile_port.links)


@on_loop
async def test_a_frame_that_is_none_ends_the_connection() -> None:
    async with attacked() as (node, address, log):
        peer = await call(address)
        peer.say(b"\x01\x07\xff")
        assert await peer.rest() == []
        await peer.close()
        await until(lambda: outcome(node, "fault"))
        assert log.faults() == ["reconciliation"]


@on_loop
async def test_a_silent_peer_is_given_up() -> None:
    """TALK_SILENCE_S, of a peer that began, and of one that was called."""
    async with attacked(talk_silence_s=0.3) as (node, address, _):
        peer = await call(address)
        peer.say(hello())
        await until(lambda: outcome(node, "silent"))
        await peer.close()
        async with called() as silent:
            with pytest.raises(NodeError, match="does not answer as the reconciliation port of a store does"):
                await soon(node.reconcile_once(silent))
    assert limits.TALK_SILENCE_S < limits.RECONCILE_TIMEOUT_S < limits.MAX_TALK_S


def test_a_talk_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_TALK_S, of a peer that always has a message that brings nothing further."""
    monkeypatch.setattr("cablestore.limits.MAX_TALK_S", 0.6)

    async def scenario() -> None:
        async with attacked() as (node, address, _):
            peer = await call(address)
            peer.say(hello())
            while not outcome(node, "silent"):
                peer.say(encode_frame(8, Accepted(Terms())))
                await asyncio.sleep(0.05)
            await peer.close()

    run(scenario())


@on_loop
async def test_a_peer_that_goes_on_comparing_is_ended() -> None:
    """MAX_RECONCILE_ROUNDS: fingerprints that are never right."""
    async with attacked() as (node, address, _):
        peer = await call(address)
        peer.say(hello())
        lies = PayloadFrame(encode(Payload(Shards(), [PayloadPart(EVERYTHING, b"\xaa" * 32)]), SPEC))
        for _ in range(limits.MAX_RECONCILE_ROUNDS + 1):
            peer.tell(lies)
            heard = await peer.hear()
            if heard is None:
                break
        await peer.rest()
        await peer.close()
        assert outcome(node, "fault") == 1


@on_loop
async def test_frames_do_not_queue_without_bound() -> None:
    """MAX_TALK_QUEUE_FRAMES of one peer wait to be worked on; more end the conversation."""
    async with attacked() as (node, address, log):
        peer = await call(address)
        peer.say(hello(), *[encode_frame(9, Stored(0))] * 5_000)
        await until(lambda: outcome(node, "fault"))
        assert any("frames ahead" in str(vars(record)) for record in log.records)
        await peer.rest()
        await peer.close()


@on_loop
async def test_posts_that_are_no_posts() -> None:
    """MAX_INVALID_POSTS, with hashes as claimed: the posts are not stored, count as verdicts, and end the connection."""
    async with attacked() as (node, address, log):
        peer = await call(address)
        bad = [b"no post %d" % i for i in range(limits.MAX_INVALID_POSTS)]
        peer.say(hello())
        peer.tell(claiming(*(post_id(post_hash(each), START_MS) for each in bad)))
        contents = (encode_message(Waku(each, "/x", START_MS * 10**6, post_hash(each)), SPEC) for each in bad)
        peer.tell(PostsFrame(0, tuple(contents)))
        await peer.rest()
        await peer.close()
        await until(lambda: not node.reconcile_port.links)
        assert node._core.metrics.registry.get_sample_value(
            "cablestore_posts_in_total", {"verdict": "malformed"}
        ) == len(bad)
        assert any("invalid posts" in reason for reason in log.reasons())
        assert node.store.stats().posts == {"text": 50}


@on_loop
async def test_posts_under_a_wrong_hash_or_time_are_not_taken() -> None:
    text, other = (ANN.text("default", f"late {i}", at=START_MS + 900) for i in range(2))
    async with attacked() as (node, address, _):
        peer = await call(address)
        peer.say(hello())
        peer.tell(claiming(post_id(text.hash, START_MS + 901), post_id(bytes(32), START_MS)))
        peer.tell(PostsFrame(0, (content_of(text), content_of(other))))
        await until(lambda: node._core.reconciler._by_link)
        await peer.close()
        await until(lambda: outcome(node, "lost"))
        assert node.store.post(text.hash) is node.store.post(other.hash) is None


@on_loop
async def test_who_is_called_does_not_begin() -> None:
    """A peer that we called answers with a hello of its own, which is ignored."""
    async with attacked(talk_silence_s=0.3) as (node, _, _):
        async with called(hello()) as strange:
            with pytest.raises((NodeError, ReconcileError)):
                await soon(node.reconcile_once(strange))
        assert not len(node._core.reconciler)


@on_loop
async def test_a_hello_in_the_middle_begins_anew() -> None:
    async with attacked() as (node, address, _):
        peer = await call(address)
        for number in range(3):
            peer.say(hello(number))
            heard = await peer.hear()
            assert heard is not None
            assert (heard[0], type(heard[1])) == (number, Accepted)
        await peer.close()
        await until(lambda: outcome(node, "lost") == 3)


@pytest.mark.parametrize(
    ("chosen", "most", "why"),
    [
        ({"max_peers": 3}, 3, "more than 3 peers"),
        ({"max_peers_per_address": 2}, 2, "more than 2 peers from one address"),
        ({"max_handshakes": 2, "cabal_key": CABAL_KEY}, 2, "more than 2 handshakes in progress"),
        ({"max_handshakes_per_address": 2, "cabal_key": CABAL_KEY}, 2, "more than 2 handshakes in progress with one"),
    ],
)
@on_loop
async def test_connections_have_the_limits_of_cable(chosen: dict[str, Any], most: int, why: str) -> None:
    """MAX_PEERS, MAX_PEERS_PER_ADDRESS, MAX_HANDSHAKES and MAX_HANDSHAKES_PER_ADDRESS hold here too."""
    async with attacked(**chosen) as (node, address, log):
        peers = [await call(address) for _ in range(most + 2)]
        await until(lambda: len(log.reasons()) == 2)
        assert all(why in reason for reason in log.reasons())
        assert len(node.reconcile_port.links) == most
        for peer in peers:
            await peer.close()


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"handshake_timeout_s": 0.2, "cabal_key": CABAL_KEY}, "the handshake took too long"),
        ({"idle_timeout_s": 0.2}, "idle"),
    ],
)
@on_loop
async def test_connections_do_not_stay_for_nothing(chosen: dict[str, Any], why: str) -> None:
    """HANDSHAKE_TIMEOUT_S and IDLE_TIMEOUT_S hold here too."""
    async with attacked(**chosen) as (node, address, log):
        peer = await call(address)
        assert await peer.rest() == []
        await peer.close()
        await until(lambda: not node.reconcile_port.links)
        assert log.reasons() == [why]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.just(hello()), max_size=12))
def test_any_frames_leave_a_node_as_it_was(frames: list[bytes]) -> None:
    async def scenario() -> None:
        async with attacked() as (node, address, _):
            peer = await call(address)
            peer.say(*frames)
            peer.writer.write_eof()
            await peer.rest()
            await peer.close()
            await until(lambda: not node.reconcile_port.links and not len(node._core.reconciler))
            other = await call(address)
            other.say(hello())
            heard = await other.hear()
            assert heard is not None
            await other.close()

    run(scenario())
