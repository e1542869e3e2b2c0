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
from talking import claiming, content_of, content_with_time, hello

from cablestore import Post, limits
from cablestore.errors import NodeError
from cablestore.peers import Address, Node
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.keys import NS_PER_MS
from cablestore.reconcile.codec import encode
from cablestore.reconcile.dialects import SPEC
from cablestore.reconcile.ids import EVERYTHING
from cablestore.reconcile.messages import (
    Accepted,
    Ended,
    EndReason,
    PayloadFrame,
    PostsFrame,
    Stored,
    Terms,
    encode_frame,
)
from cablestore.reconcile.payload import Payload, PayloadPart, Shards
from cablestore.reconcile.transfer import post_id


async def call(address: Address) -> Peer:
    return Peer(*await asyncio.open_connection(*address))


@asynccontextmanager
async def called(*frames: bytes) -> AsyncIterator[Address]:
    """Simulate a peer that accepts a connection and sends only these frames."""
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
    return node.parts.context.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 50, b"\x05hello", bytes(9), b"\x82\x80\x80\x01", b"GET / HTTP/1.1\r\n\r\n"]
)
@on_loop
async def test_garbage_ends_the_connection_without_an_answer(garbage: bytes) -> None:
    """MAX_TALK_FRAME_SIZE_BYTES: a greater length closes the connection before any of the frame is read."""
    async with attacked() as (node, address, _):
        peer = await call(address)
        peer.writer.write(garbage)
        peer.writer.write_eof()
        assert await peer.rest() == []
        await peer.close()
        await until(lambda: not node.reconcile_port.links)


@on_loop
async def test_an_invalid_frame_ends_the_connection() -> None:
    async with attacked() as (node, address, log):
        peer = await call(address)
        peer.say(b"\x01\x07\xff")
        assert await peer.rest() == []
        await peer.close()
        await until(lambda: outcome(node, "fault"))
        assert log.faults() == ["reconciliation"]


@on_loop
async def test_a_silent_peer_times_out() -> None:
    """TALK_SILENCE_S applies to both the peer that connects and the peer that accepts."""
    async with attacked(talk_silence_s=0.3) as (node, address, _):
        peer = await call(address)
        peer.say(hello())
        await until(lambda: outcome(node, "silent"))
        await peer.close()
        async with called() as silent:
            with pytest.raises(NodeError, match="is not the reconciliation port of a store, or does not answer"):
                await soon(node.reconcile_once(silent))
    assert limits.TALK_SILENCE_S < limits.RECONCILE_TIMEOUT_S < limits.MAX_TALK_S


def test_an_endless_conversation_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_TALK_S applies to a peer that continues to send useless messages."""
    monkeypatch.setattr(limits, "MAX_TALK_S", 0.6)

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
async def test_a_peer_that_compares_without_end_is_disconnected() -> None:
    """MAX_RECONCILE_ROUNDS: the fingerprints are never equal."""
    async with attacked() as (node, address, _):
        peer = await call(address)
        peer.say(hello())
        false_claims = PayloadFrame(encode(Payload(Shards(), [PayloadPart(EVERYTHING, b"\xaa" * 32)]), SPEC))
        for _ in range(limits.MAX_RECONCILE_ROUNDS + 1):
            peer.tell(false_claims)
            heard = await peer.hear()
            if heard is None:
                break
        [last] = [message for message in await peer.rest() if isinstance(message, Ended)]
        assert last.reason is EndReason.FAULT
        await peer.close()
        assert outcome(node, "fault") == 1


@on_loop
async def test_the_number_of_queued_frames_is_limited() -> None:
    """MAX_TALK_QUEUE_FRAMES of one peer are queued. More frames end the conversation."""
    async with attacked() as (node, address, log):
        peer = await call(address)
        peer.say(hello(), *[encode_frame(9, Stored(0))] * 5_000)
        await until(lambda: outcome(node, "fault"))
        assert any("frames ahead" in str(vars(record)) for record in log.records)
        await peer.rest()
        await peer.close()


@on_loop
async def test_too_many_invalid_posts_end_the_connection() -> None:
    """MAX_INVALID_POSTS: the posts are not stored, count as verdicts, and close the connection."""
    async with attacked() as (node, address, log):
        peer = await call(address)
        bad = [b"no post %d" % i for i in range(limits.MAX_INVALID_POSTS)]
        peer.say(hello())
        peer.tell(claiming(*(post_id(post_hash(each), START_MS) for each in bad)))
        peer.tell(PostsFrame(0, tuple(content_with_time(each, START_MS * NS_PER_MS) for each in bad)))
        await peer.rest()
        await peer.close()
        await until(lambda: not node.reconcile_port.links)
        assert node.parts.context.metrics.registry.get_sample_value(
            "cablestore_posts_in_total", {"verdict": "malformed"}
        ) == len(bad)
        assert any("invalid posts" in reason for reason in log.reasons())
        assert node.store.stats().posts == {"text": 50}


@on_loop
async def test_posts_of_other_times_and_known_posts_are_rejected() -> None:
    """A missing post is accepted although its id was not sent."""
    late, missing = (ANN.text("default", "missing", at=START_MS + after_ms) for after_ms in (900, 100))
    async with attacked() as (node, address, log):
        here = node.store.messages("default", newest_first=False).messages[0].hash
        peer = await call(address)
        peer.say(hello(terms=Terms(until_ms=START_MS + 500)))
        peer.tell(claiming(post_id(missing.hash, START_MS + 101), post_id(bytes(32), START_MS)))
        known = node.store.get(here)
        assert known is not None
        peer.tell(PostsFrame(0, (content_of(late), content_of(known), content_of(missing), content_of(missing))))
        await until(lambda: node.store.get(missing.hash))
        await peer.close()
        await until(lambda: outcome(node, "lost"))
        assert node.store.get(late.hash) is None
        [finding] = [vars(record) for record in log.records if record.getMessage() == "reconciled"]
        assert finding["posts_received"] == 1


@on_loop
async def test_posts_of_other_channels_or_with_a_false_time_are_rejected() -> None:
    """A node that follows one channel gets posts that it did not request. Valid ones among them are stored."""
    good, name = ANN.text("default", "good", at=START_MS + 100), ANN.named("Ann", at=START_MS + 101)
    early, late = (ANN.text("default", "false time", at=START_MS + after_ms) for after_ms in (-50, 200))
    other, listed = (ANN.text("spam", "other channel", at=START_MS + after_ms) for after_ms in (102, 103))
    unsigned = bytes((*good.raw[:40], good.raw[40] ^ 1, *good.raw[41:]))
    within_ns = (START_MS + 104) * NS_PER_MS
    bad = [content_with_time(early.raw, within_ns), content_with_time(late.raw, within_ns)]
    bad += [content_of(other), content_of(listed), content_of(early)]
    async with attacked(channels=frozenset({"default"})) as (node, address, log):
        peer = await call(address)
        peer.say(hello(terms=Terms(from_ms=START_MS)))
        peer.tell(claiming(post_id(listed.hash, listed.timestamp_ms)))
        unsigned_one = content_with_time(unsigned, good.timestamp_ms * NS_PER_MS)
        peer.tell(PostsFrame(0, (*bad, unsigned_one, content_of(good), content_of(good), content_of(name))))
        await until(lambda: node.store.get(name.hash))
        await peer.close()
        await until(lambda: outcome(node, "lost"))
        assert node.store.stats().posts == {"info": 1, "text": 51}
        assert node.store.get(good.hash)
        [finding] = [vars(record) for record in log.records if record.getMessage() == "reconciled"]
        assert (finding["posts_received"], finding["posts_unasked"]) == (2, len(bad) + 1)
        found = node.parts.context.metrics.registry.get_sample_value
        assert found("cablestore_posts_in_total", {"verdict": "bad_signature"}) == 1


@on_loop
async def test_too_many_posts_of_another_channel_end_the_connection() -> None:
    """MAX_TALK_UNASKED."""
    async with attacked(channels=frozenset({"default"})) as (node, address, log):
        peer = await call(address)
        peer.say(hello())
        spam = [ANN.text("spam", f"{i}", at=START_MS + i) for i in range(limits.MAX_TALK_UNASKED + 1)]
        peer.tell(PostsFrame(0, tuple(map(content_of, spam))))
        await peer.rest()
        await peer.close()
        await until(lambda: outcome(node, "fault"))
        assert log.faults() == ["reconciliation"]
        assert node.store.stats().posts == {"text": 50}


async def has_repeated(node: Node, address: Address, posts: list[Post]) -> Peer:
    """Return a peer with a conversation that sent posts which the store got meanwhile."""
    peer = await call(address)
    peer.say(hello())
    assert await peer.hear() == (7, Accepted(Terms()))
    node.store.ingest([post.raw for post in posts])
    peer.tell(PostsFrame(0, tuple(map(content_of, posts))))
    return peer


@pytest.mark.parametrize("number", [limits.MAX_TALK_REPEATED - 1, limits.MAX_TALK_REPEATED])
@on_loop
async def test_posts_that_another_peer_sends_end_a_conversation(number: int) -> None:
    """MAX_TALK_REPEATED. The peer is asked to begin another conversation, and fewer posts are confirmed."""
    posts = [ANN.text("default", "given", at=START_MS + 100 + i) for i in range(number)]
    async with attacked() as (node, address, _):
        peer = await has_repeated(node, address, posts)
        heard = await peer.hear()
        assert heard is not None
        if number < limits.MAX_TALK_REPEATED:
            assert heard[1] == Stored(0)
        else:
            assert isinstance(heard[1], Ended)
            assert heard[1].reason is EndReason.LIMIT
        await peer.close()
        await until(lambda: not node.reconcile_port.links)


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_conversation_waits_for_another_peer_that_sends_the_same_posts(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation waits at most TALK_REPEATED_WAIT_S, and not longer than the other peer's conversation."""
    monkeypatch.setattr(limits, "TALK_REPEATED_WAIT_S", 3_600.0 if is_lost else 0.3)
    posts = [ANN.text("default", "given", at=START_MS + 100 + i) for i in range(limits.MAX_TALK_REPEATED)]

    async def scenario() -> None:
        async with attacked() as (node, address, log):
            giver = await call(address)
            giver.say(hello())
            giver.tell(PostsFrame(0, (content_of(ANN.text("default", "first", at=START_MS + 99)),)))
            assert [await giver.hear(), await giver.hear()] == [(7, Accepted(Terms())), (7, Stored(0))]
            peer = await has_repeated(node, address, posts)
            assert isinstance((await peer.hear() or (0, None))[1], Ended)
            peer.say(hello(8))
            late = ANN.text("default", "late", at=START_MS + 200)
            giver.tell(PostsFrame(1, (content_of(late),)))
            assert await giver.hear() == (7, Stored(1))
            if is_lost:
                await giver.close()
            assert await peer.hear() == (8, Accepted(Terms()))
            peer.say(encode_frame(8, PostsFrame(0, (content_of(late),))))
            assert await peer.hear() == (8, Stored(0))
            for each in (peer, giver):
                await each.close()
            await until(lambda: outcome(node, "lost") == 2)
            findings = [vars(record) for record in log.records if record.getMessage() == "reconciled"]
            assert not is_lost or findings[-1]["posts_unasked"] == 1, (
                "the state must be read after the sending peer is lost"
            )

    run(scenario())


@on_loop
async def test_the_accepting_peer_does_not_begin() -> None:
    """An accepting peer answers with a separate hello, which is ignored."""
    async with attacked(talk_silence_s=0.3) as (node, _, _):
        async with called(hello()) as strange:
            with pytest.raises(NodeError):
                await soon(node.reconcile_once(strange))
        assert not len(node.parts.reconciler)


@on_loop
async def test_a_hello_during_a_conversation_restarts_it() -> None:
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
        ({"max_peers": 3}, 3, "too many peers: the maximum is 3"),
        ({"max_peers_per_address": 2}, 2, "too many peers from one address: the maximum is 2"),
        ({"max_handshakes": 2, "cabal_key": CABAL_KEY}, 2, "too many handshakes in progress: the maximum is 2"),
        (
            {"max_handshakes_per_address": 2, "cabal_key": CABAL_KEY},
            2,
            "too many handshakes in progress with one address: the maximum is 2",
        ),
    ],
)
@on_loop
async def test_reconciliation_connections_have_the_limits_of_cable(chosen: dict[str, Any], most: int, why: str) -> None:
    """MAX_PEERS, MAX_PEERS_PER_ADDRESS, MAX_HANDSHAKES and MAX_HANDSHAKES_PER_ADDRESS apply here too."""
    async with attacked(**chosen) as (node, address, log):
        peers = [await call(address) for _ in range(most + 2)]
        await until(lambda: len(log.reasons()) == 2)
        assert all(why in reason for reason in log.reasons())
        assert len(node.reconcile_port.links) == most
        for peer in peers:
            await peer.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"handshake_timeout_s": 0.2, "cabal_key": CABAL_KEY}, "the handshake took too long"),
        ({"idle_timeout_s": 0.2}, "idle"),
    ],
)
@on_loop
async def test_idle_reconciliation_connections_are_ended(chosen: dict[str, Any], why: str) -> None:
    """HANDSHAKE_TIMEOUT_S and IDLE_TIMEOUT_S apply here too."""
    async with attacked(**chosen) as (node, address, log):
        peer = await call(address)
        assert await peer.rest() == []
        await peer.close()
        await until(lambda: not node.reconcile_port.links)
        assert log.reasons() == [why]


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.just(hello()), max_size=12))
def test_any_frames_leave_a_node_unchanged(frames: list[bytes]) -> None:
    async def scenario() -> None:
        async with attacked() as (node, address, _):
            peer = await call(address)
            peer.say(*frames)
            peer.writer.write_eof()
            await peer.rest()
            await peer.close()
            await until(lambda: not node.reconcile_port.links and not len(node.parts.reconciler))
            other = await call(address)
            other.say(hello())
            heard = await other.hear()
            assert heard is not None
            await other.close()

    run(scenario())
