"""Every limit of a node, hit by a peer over a real socket: what it answers then, and that it goes on for others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from by_hand import CABAL_KEY, ByHand, running, texts
from peering import Keeper, logged, memory, raw_peer, run, until
from people import ANN, BOB, raws

from cablestore import DRAFT8, LEGACY, CableStore, limits
from cablestore.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    ModerationRequest,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
)
from cablestore.node import Node, NodeSettings, workers
from cablestore.node.held import Held
from cablestore.node.live import MAX_LIVE_ALIKE
from cablestore.node.wire import Connection
from cablestore.session import Exchange, Role, State
from cablestore.varint import encode_varint

ALL = TimeRangeRequest(b"", "default", 0, 2**50, 0)
LIVE = TimeRangeRequest(b"", "default", 0, 0, 0)
UNKNOWN = bytes(32)
MANY = 4_000


@pytest.fixture(autouse=True)
def quick_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the clock often, so that a test of a time-out is short."""
    monkeypatch.setattr("cablestore.node.node._TICK_S", 0.02)


def only(node: Node) -> Connection:
    """The one connection of a node."""
    (found,) = node.connections
    return found


async def slow_reader(address: Any, *, asks: int = 60) -> ByHand:
    """A peer that asks for everything again and again and reads nothing. Its buffers are small."""
    peer = await ByHand.connect(address, receive_size_bytes=4096)
    peer.send(*[ALL] * asks)
    return peer


def test_the_defaults_are_the_limits() -> None:
    settings = NodeSettings()
    for name in [
        "MAX_PEERS",
        "MAX_PEERS_PER_ADDRESS",
        "MAX_HANDSHAKES",
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


def test_a_message_longer_than_max_message_size_bytes_is_refused_before_it_comes() -> None:
    async def scenario() -> None:
        with memory() as store:
            async with running(store) as (node, address):
                with logged() as log:
                    peer = await ByHand.connect(address)
                    peer.raw(encode_varint(limits.MAX_MESSAGE_SIZE_BYTES + 1))
                    assert await peer.is_ended()
                    await until(lambda: not node.connections)
                    assert "allowed are 8388608" in log.reasons()[0]
                at_the_limit = await ByHand.connect(address)
                at_the_limit.raw(encode_varint(limits.MAX_MESSAGE_SIZE_BYTES) + b"\x63" + bytes(8))
                at_the_limit.raw(bytes(limits.MAX_MESSAGE_SIZE_BYTES - 9))  # of an unknown type: it is skipped
                assert await at_the_limit.hashes() == []

    run(scenario())


def test_max_requests_alive() -> None:
    """MAX_REQUESTS_ALIVE: further requests end at once, and are held against the peer."""

    async def scenario() -> None:
        with memory(posts=texts(3)) as store:
            async with running(store, max_requests_alive=3) as (node, address):
                peer = await ByHand.connect(address)
                peer.send(*[LIVE._replace(channel=name) for name in "abc"])
                assert await peer.answer(ALL) == [HashResponse(peer_id(peer, 4), ())]
                assert only(node).faults == 1
                peer.send(CancelRequest(b"", peer_id(peer, 2)))
                assert len(await peer.hashes()) == 3

    run(scenario())


def sizes_of(answers: list[Message]) -> list[int]:
    """How many hashes or posts each response has."""
    return [len(found[1]) for found in answers if isinstance(found, HashResponse | PostResponse)]


def peer_id(peer: ByHand, number: int) -> bytes:
    return b"\xee" + number.to_bytes(peer.dialect.request_id_size_bytes - 1, "big")


def test_max_hashes_per_request() -> None:
    async def scenario() -> None:
        post = texts(1)[0]
        with memory(posts=[post]) as store:
            async with running(store) as (node, address):
                peer = await ByHand.connect(address)
                many = (post.hash, *[UNKNOWN] * limits.MAX_HASHES_PER_REQUEST)
                assert sizes_of(await peer.answer(PostRequest(b"", many))) == [0]
                assert sizes_of(await peer.answer(PostRequest(b"", many[:-1]))) == [1, 0]
                names = tuple(f"{i}" for i in range(limits.MAX_HASHES_PER_REQUEST + 1))
                assert len(await peer.answer(ModerationRequest(b"", names, 0, 0))) == 1
                assert only(node).faults == 2

    run(scenario())


def test_max_hashes_per_response_and_part_rows_answered() -> None:
    """MAX_HASHES_PER_RESPONSE and PART_ROWS_ANSWERED: a long answer comes in parts, in order and whole."""

    async def scenario() -> None:
        posts = texts(MANY)
        with memory(posts=posts) as store:
            async with running(store) as (node, address):
                peer = await ByHand.connect(address)
                assert sizes_of(await peer.answer(ALL)) == [limits.PART_ROWS_ANSWERED] * 2 + [0]
                assert await peer.hashes(limit=2500) == [post.hash for post in reversed(posts[-2500:])]
                assert limits.PART_ROWS_ANSWERED == 2000
                # What is told at once, as to a live request whose history took long, is cut too.
                session = only(node).session
                exchange = Exchange(Role.RESPONDER, LIVE._replace(request_id=peer.new_id()), State.LIVE, None)
                session.answer_hashes(exchange, [UNKNOWN] * (limits.MAX_HASHES_PER_RESPONSE + 1))
                assert [len(message) // 32 for message in session.output()] == [limits.MAX_HASHES_PER_RESPONSE, 1]

    run(scenario())


def test_max_post_response_size_bytes_and_part_size_answered_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_POST_RESPONSE_SIZE_BYTES in one response, PART_SIZE_ANSWERED_BYTES read at a time."""
    parts: list[int] = []
    answered = Connection.answered

    def noted(self: Connection, answer: Any, part: list[Any]) -> None:
        parts.append(sum(map(len, part)))
        answered(self, answer, part)

    monkeypatch.setattr(Connection, "answered", noted)

    async def scenario() -> None:
        posts = texts(MANY)
        with memory(posts=posts) as store:
            async with running(store) as (_, address):
                peer = await ByHand.connect(address)
                found = await peer.answer(PostRequest(b"", tuple(post.hash for post in posts)))
                sizes = [sum(map(len, part.posts)) for part in found if isinstance(part, PostResponse)]
                assert len([size for size in sizes if size]) > 1
                assert max(sizes) <= limits.MAX_POST_RESPONSE_SIZE_BYTES
                assert sum(sizes) == sum(len(post.raw) for post in posts) == sum(parts)
                assert max(parts) < limits.PART_SIZE_ANSWERED_BYTES + 1000

    run(scenario())


def test_max_ttl() -> None:
    async def scenario() -> None:
        with memory() as store:
            async with running(store) as (node, address):
                peer = await ByHand.connect(address)
                peer.send(ALL._replace(ttl=limits.MAX_TTL + 1), ListRequest(b"", 0, 0, limits.MAX_TTL))
                assert isinstance(await peer.receive(), ListResponse)
                assert only(node).faults == 1

    run(scenario())


def test_max_live_alike() -> None:
    """MAX_LIVE_ALIKE: each live request is told every piece of news, so a peer has so many for the same at most."""

    async def scenario() -> None:
        with memory() as store:
            async with running(store) as (node, address):
                peer = await ByHand.connect(address)
                peer.send(*[LIVE] * (MAX_LIVE_ALIKE + 3), LIVE._replace(channel="other"))
                peer.send(*[StateRequest(b"", "default", 1)] * MAX_LIVE_ALIKE)
                await peer.hashes()
                assert node.live.count == 2 * MAX_LIVE_ALIKE + 1
                assert only(node).faults == 3
                store.ingest(raws(ANN.text("default", "new")))
                for _ in range(MAX_LIVE_ALIKE):
                    message = await peer.receive()
                    assert isinstance(message, HashResponse)
                assert await peer.is_silent()
                peer.send(*[CancelRequest(b"", peer_id(peer, number)) for number in range(1, 10)])
                await until(lambda: node.live.count == 2 * MAX_LIVE_ALIKE - 8)
                await peer.close()

    run(scenario())


# --- what a peer may do wrong ------------------------------------------------------------------


def test_max_faults() -> None:
    async def scenario() -> None:
        with memory() as store:
            async with running(store) as (node, address):
                peer = await ByHand.connect(address)
                peer.raw(b"\x01\x04" * (limits.MAX_FAULTS - 1))
                assert await peer.hashes() == []
                assert only(node).faults == limits.MAX_FAULTS - 1
                peer.raw(b"\x01\x04")
                assert await peer.is_ended()

    run(scenario())


def test_max_invalid_posts() -> None:
    """MAX_INVALID_POSTS, and nothing of them is stored."""

    async def scenario(number: int) -> None:
        from cablestore.crypto import post_hash

        good = texts(number)
        forged = [post.raw[:40] + bytes((post.raw[40] ^ 1,)) + post.raw[41:] for post in good]
        by_hash = {post_hash(raw): raw for raw in forged}

        class Liar(Keeper):
            def range_of(self, asked: TimeRangeRequest) -> tuple[bytes, ...]:
                return tuple(by_hash) if asked.limit else ()

            def give(self, request_id: bytes, hashes: Any) -> None:
                self.say(PostResponse(request_id, tuple(by_hash[digest] for digest in hashes)))

        with memory() as store, logged() as log:
            async with running(store, channels=None) as (node, address):
                peer = await raw_peer(address, Liar, posts=good[:1])
                if number >= limits.MAX_INVALID_POSTS:
                    await until(lambda: peer.is_over)
                    assert f"{limits.MAX_INVALID_POSTS} invalid posts" in log.reasons()[0]
                else:
                    await until(lambda: only(node).invalid_posts == number)
                    assert not peer.is_over
                await peer.close()
            assert sum(store.stats().posts.values()) == 0

    run(scenario(limits.MAX_INVALID_POSTS))
    run(scenario(limits.MAX_INVALID_POSTS - 1))


# --- time --------------------------------------------------------------------------------------


def test_handshake_timeout_s_and_max_handshakes() -> None:
    """HANDSHAKE_TIMEOUT_S and MAX_HANDSHAKES: who does not get on with the handshake makes room for others."""

    async def scenario() -> None:
        with memory() as store, logged() as log:
            async with running(store, cabal_key=CABAL_KEY, max_handshakes=3, handshake_timeout_s=0.5) as (
                node,
                address,
            ):
                idlers = [await ByHand.connect(address) for _ in range(3)]
                await until(lambda: len(node.connections) == 3)
                one_more = await ByHand.connect(address)
                assert await one_more.is_ended()
                assert log.reasons() == ["more than 3 handshakes in progress"]
                idlers[0].raw(b"half of one")
                for idler in idlers:
                    assert await idler.is_ended()
                honest = await ByHand.connect(address, cabal_key=CABAL_KEY)
                assert await honest.hashes() == []
                await asyncio.sleep(0.6)
                assert await honest.hashes() == []  # it is done with its handshake
                await honest.close()
                assert log.reasons()[1:] == ["the handshake took too long"] * 3

    run(scenario())


def test_idle_timeout_s() -> None:
    async def scenario() -> None:
        with memory() as store, logged() as log:
            async with running(store, idle_timeout_s=0.3) as (node, address):
                silent, live, talker = [await ByHand.connect(address) for _ in range(3)]
                live.send(LIVE)
                for _ in range(10):
                    assert await talker.hashes() == []
                    await asyncio.sleep(0.05)
                assert await silent.is_ended()
                assert log.reasons() == ["idle"]
                assert len(node.connections) == 2
                await live.close()

    run(scenario())


def test_a_silent_peer_is_asked_for_no_channel_and_is_idle() -> None:
    """A peer that never says a word costs next to nothing, whatever the store holds, and goes after IDLE_TIMEOUT_S."""

    async def scenario() -> None:
        with memory(posts=[ANN.text(f"channel {i}", "x") for i in range(50)]) as store:
            settings = {"channels": None, "answer_timeout_s": 0.1, "idle_timeout_s": 0.3, "list_every_s": 0.1}
            async with running(store, **settings) as (_, address):
                peer = await ByHand.connect(address)
                heard = []
                while (message := await peer.receive()) is not None:
                    heard.append(message)
                assert ListRequest in {type(message) for message in heard}
                assert not {TimeRangeRequest, StateRequest} & {type(message) for message in heard}

    run(scenario())


def test_answer_timeout_s() -> None:
    """ANSWER_TIMEOUT_S: who says nothing to a request has it cancelled. Not while it is us who do not read."""

    async def scenario() -> None:
        with memory() as store:
            async with running(store, channels=None, answer_timeout_s=0.2) as (node, address):
                peer = await ByHand.connect(address)
                asked = await peer.receive()
                assert isinstance(asked, ListRequest)
                only(node).hold_back(Held.STORING, holds=True)
                assert await peer.is_silent(0.5)
                only(node).hold_back(Held.STORING, holds=False)
                cancel = await peer.receive()
                assert isinstance(cancel, CancelRequest)
                assert cancel.cancel_id == asked.request_id
                peer.send(ListResponse(asked.request_id, ()))  # late, not wrong
                await peer.hashes()
                assert only(node).faults == 0

    run(scenario())


def test_dialect_wait_s() -> None:
    """DIALECT_WAIT_S: a node of draft 8 lets the peer speak first; a legacy client never hears a word of draft 8."""

    async def scenario() -> None:
        with memory(dialect=DRAFT8) as store:
            async with running(store, channels=None) as (_, address):
                silent = await ByHand.connect(address, DRAFT8)
                began_s = time.monotonic()
                assert isinstance(await silent.receive(), ListRequest)
                assert time.monotonic() - began_s > limits.DIALECT_WAIT_S * 0.9
                legacy = await ByHand.connect(address, LEGACY)
                assert await legacy.is_silent(limits.DIALECT_WAIT_S / 2)
                legacy.send(ALL)
                assert isinstance(await legacy.receive(), ListRequest)

    run(scenario())


def test_end_timeout_s_when_a_slow_reader_hangs_up_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """END_TIMEOUT_S: a peer that sends no more and does not read what is left cannot stay for ever."""
    monkeypatch.setattr(limits, "END_TIMEOUT_S", 0.3)

    async def scenario() -> None:
        with memory(posts=texts(MANY)) as store, logged() as log:
            async with running(store) as (node, address):
                peer = await slow_reader(address)
                await until(lambda: only(node).queued_size_bytes > limits.SLOW_READER_SIZE_BYTES)
                peer.writer.write_eof()
                await until(lambda: not node.connections)
                assert log.reasons() == ["it does not end"]
                await peer.close()

    run(scenario())


def test_a_peer_that_reads_nothing_goes_after_idle_timeout_s() -> None:
    async def scenario() -> None:
        with memory(posts=texts(MANY)) as store, logged() as log:
            async with running(store, idle_timeout_s=0.5) as (node, address):
                peer = await slow_reader(address)
                await until(lambda: not node.connections)
                assert log.reasons() == ["it does not read"]
                await peer.close()

    run(scenario())


def test_keepalive_after_s() -> None:
    """KEEPALIVE_AFTER_S is what the system is told for every connection."""
    import socket

    async def scenario() -> None:
        with memory() as store:
            async with running(store) as (node, address):
                peer = await ByHand.connect(address)
                await peer.hashes()
                transport = only(node)._transport
                assert transport is not None
                sock = transport.get_extra_info("socket")
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                if hasattr(socket, "TCP_KEEPIDLE"):
                    idle_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                    assert idle_s == limits.KEEPALIVE_AFTER_S

    run(scenario())


# --- how many ----------------------------------------------------------------------------------


def test_max_peers_and_max_peers_per_address() -> None:
    """MAX_PEERS and MAX_PEERS_PER_ADDRESS; whoever leaves makes room."""

    async def scenario() -> None:
        with memory() as store, logged() as log:
            async with running(store, max_peers=5, max_peers_per_address=3) as (node, address):
                first = [await ByHand.connect(address) for _ in range(3)]
                assert await (await ByHand.connect(address)).is_ended()
                second = [await ByHand.connect(address, host="127.0.0.2") for _ in range(2)]
                assert await (await ByHand.connect(address, host="127.0.0.3")).is_ended()
                assert log.reasons() == ["more than 3 peers from one address", "more than 5 peers"]
                for peer in (*first, *second):
                    assert await peer.hashes() == []
                await first[0].close()
                await until(lambda: len(node.connections) == 4)
                assert await (await ByHand.connect(address, host="127.0.0.3")).hashes() == []

    run(scenario())


# --- memory ------------------------------------------------------------------------------------


def test_slow_reader_size_bytes() -> None:
    """SLOW_READER_SIZE_BYTES: nothing more is read from the store for a peer that does not read, until it does."""

    async def scenario() -> None:
        posts = texts(MANY)
        with memory(posts=posts) as store:
            async with running(store) as (node, address):
                peer = await slow_reader(address)
                await until(lambda: only(node)._is_slow)
                await asyncio.sleep(0.2)
                sent = only(node).sent_size_bytes
                await asyncio.sleep(0.2)
                assert only(node).sent_size_bytes == sent < 60 * len(posts) * 32
                queued = only(node).queued_size_bytes
                assert limits.SLOW_READER_SIZE_BYTES < queued < 2 * limits.SLOW_READER_SIZE_BYTES
                assert node.reads.waiting == 0
                other = await ByHand.connect(address)
                assert len(await other.hashes()) == len(posts)
                for number in range(1, 61):
                    assert sum(sizes_of(await peer.concluded(peer_id(peer, number)))) == len(posts)

    run(scenario())


def test_max_queued_size_bytes_where_news_wait_behind_a_history_that_is_not_read() -> None:
    """MAX_QUEUED_SIZE_BYTES holds for what waits to be told, too."""

    async def scenario() -> None:
        with memory(posts=texts(MANY)) as store, logged() as log:
            async with running(store, max_queued_size_bytes=2_000_000) as (node, address):
                peer = await slow_reader(address)
                peer.send(*[LIVE] * MAX_LIVE_ALIKE)
                await until(lambda: only(node)._is_slow and node.live.count == MAX_LIVE_ALIKE)
                most = 0
                for number in range(50):
                    store.ingest(raws(*[BOB.text("default", f"{number} {i}") for i in range(20)]), verify=False)
                    await asyncio.sleep(0.02)
                    most = max([most, *[known.queued_size_bytes for known in node.connections]])
                    if not node.connections:
                        break
                assert log.reasons() == ["it reads too slowly"]
                assert most < 2_500_000
                await peer.close()

    run(scenario())


def test_max_queued_size_bytes_where_news_are_not_read() -> None:
    async def scenario() -> None:
        with memory() as store, logged() as log:
            async with running(store, max_queued_size_bytes=100_000) as (node, address):
                peer, reader = await ByHand.connect(address, receive_size_bytes=4096), await ByHand.connect(address)
                peer.send(*[LIVE] * MAX_LIVE_ALIKE)
                reader.send(LIVE)
                await until(lambda: node.live.count == MAX_LIVE_ALIKE + 1)
                told = 0
                while len(node.connections) == 2 and told < MANY:
                    store.ingest(raws(*texts(MANY)[told : told + 500]), verify=False)
                    told += 500
                    heard = 0
                    while heard < 500:
                        message = await reader.receive()
                        heard += len(message.hashes) if isinstance(message, HashResponse) else 0
                    assert all(known.queued_size_bytes < 1_000_000 for known in node.connections)
                assert log.reasons() == ["it reads too slowly"]
                await peer.close()

    run(scenario())


def test_max_queued_total_size_bytes() -> None:
    """MAX_QUEUED_TOTAL_SIZE_BYTES: those go that have not read the most."""

    async def scenario() -> None:
        with memory(posts=texts(MANY)) as store, logged() as log:
            most = int(2.5 * limits.SLOW_READER_SIZE_BYTES)
            async with running(store, max_queued_total_size_bytes=most) as (node, address):
                slow = [await slow_reader(address) for _ in range(4)]
                honest = await ByHand.connect(address)
                await until(lambda: len(log.reasons()) >= 2)
                assert len(await honest.hashes()) == MANY
                await until(lambda: sum(known.held_size_bytes for known in node.connections) <= most)
                assert 2 <= len(log.reasons()) <= 3
                assert set(log.reasons()) == {"it reads too slowly, and the memory for queues is used up"}
                for peer in slow:
                    await peer.close()

    run(scenario())


def test_large_requests_of_a_peer_that_does_not_read_wait_unread() -> None:
    """4,096 requests of 10,000 hashes each would be 3 GB: half of MAX_QUEUED_SIZE_BYTES is what they may take."""

    async def scenario() -> None:
        posts = texts(MANY)
        with memory(posts=posts) as store:
            async with running(store) as (node, address):
                peer = await slow_reader(address)
                await until(lambda: only(node)._is_slow)
                large = PostRequest(b"", (UNKNOWN,) * 9_999 + (posts[0].hash,))
                peer.send(*[large] * 60)
                await until(lambda: Held.REQUESTS in only(node)._held)
                await asyncio.sleep(0.2)
                assert only(node)._alive_size_bytes < limits.MAX_QUEUED_SIZE_BYTES
                assert sum(isinstance(known.request, PostRequest) for known in only(node)._pending) < 15
                answers = 0
                while answers < 60:  # all are answered when the peer begins to read
                    message = await peer.receive()
                    answers += isinstance(message, PostResponse) and bool(message.posts)
                await until(lambda: not only(node).session.to_answer and not only(node)._held)

    run(scenario())


def test_requests_that_are_cancelled_before_their_turn_leave_nothing() -> None:
    async def scenario() -> None:
        with memory(posts=texts(MANY)) as store:
            async with running(store) as (node, address):
                peer = await slow_reader(address)
                await until(lambda: only(node)._is_slow)
                for _ in range(20):
                    for _ in range(100):
                        request_id = peer.new_id()
                        peer.send(ALL._replace(request_id=request_id), CancelRequest(b"", request_id))
                    await peer.writer.drain()
                    await asyncio.sleep(0.01)
                last = peer.new_id()
                peer.send(ALL._replace(request_id=last))
                await until(lambda: last in only(node).session.to_answer)
                assert len(only(node)._pending) <= 61
                assert only(node)._alive_size_bytes < 50_000
                await peer.close()

    run(scenario())


# --- shares ------------------------------------------------------------------------------------


def test_rows_per_s_and_rows_in_advance() -> None:
    """ROWS_PER_S and ROWS_IN_ADVANCE: a peer that asks for more waits, and the others do not."""

    async def scenario() -> None:
        with memory(posts=texts(MANY)) as store:
            async with running(store, rows_in_advance=MANY, rows_per_s=2 * MANY) as (_, address):
                greedy = await ByHand.connect(address)
                began_s = time.monotonic()
                await greedy.hashes()
                in_advance_s = time.monotonic() - began_s
                greedy.send(*[ALL] * 2)
                began_s = time.monotonic()
                for _ in range(5):
                    other = await ByHand.connect(address)
                    assert len(await other.hashes(limit=100)) == 100
                    await other.close()
                others_s = time.monotonic() - began_s
                for number in (2, 3):
                    await greedy.concluded(peer_id(greedy, number))
                took_s = time.monotonic() - began_s
                assert took_s > 0.75  # twice as many, or their microseconds where reading takes longer
                assert others_s < took_s / 2
                assert in_advance_s < took_s

    run(scenario())


def test_a_peer_that_keeps_the_loop_busy_is_not_read_from_for_a_while() -> None:
    """Requests that are taken back at once cost no rows; what they cost the loop counts."""

    async def scenario() -> None:
        with memory() as store:
            async with running(store) as (node, address):
                peer, other = await ByHand.connect(address), await ByHand.connect(address)
                request_id = peer.new_id()
                ask = ALL._replace(request_id=request_id)
                pair: list[Message] = [ask, CancelRequest(request_id, request_id)]
                held = 0
                for _ in range(200):
                    peer.send(*pair * 100)
                last = asyncio.ensure_future(peer.hashes())
                while not last.done():
                    assert await other.hashes() == []
                    held += any(Held.SHARE in known._held for known in node.connections)
                    await asyncio.sleep(0.002)
                assert held > 3
                assert await last == []

    run(scenario())


class _Gate:
    """Lets the thread that stores posts go on when it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        store_all: Callable[..., bool] = workers.Writes._store_all

        def waiting(writes: Any, taken: Any) -> bool:
            self.open.wait(20)
            return store_all(writes, taken)

        monkeypatch.setattr(workers.Writes, "_store_all", waiting)


def test_max_ingest_queue_size_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_INGEST_QUEUE_SIZE_BYTES: with so much waiting to be stored a peer is not read from, and then it goes on."""
    monkeypatch.setattr(limits, "MAX_INGEST_QUEUE_SIZE_BYTES", 100_000)
    gate = _Gate(monkeypatch)

    async def scenario() -> None:
        posts = texts(5_000)
        with memory() as store:
            async with running(store, channels=None) as (node, address):
                peer = await raw_peer(address, Keeper, posts=posts)
                await until(lambda: Held.STORING in only(node)._held)
                received = only(node).received_size_bytes
                await asyncio.sleep(0.2)
                assert only(node).received_size_bytes == received
                assert node.writes.queued_size_bytes < 1_000_000
                gate.open.set()
                await until(lambda: store.stats().posts.get("text") == len(posts))
                await until(lambda: not only(node)._held and not node._held_back)
                await peer.close()

    run(scenario())


def test_max_wanted_per_peer_where_a_peer_offers_without_end() -> None:
    """What it offers live is looked up in turn; behind MAX_WANTED_PER_PEER that wait nothing is read from it."""

    class Offering(Keeper):
        def answer(self, message: Any) -> None:
            if isinstance(message, TimeRangeRequest) and message.is_live:
                self.flood = asyncio.ensure_future(self.offer(message.request_id))
            elif not isinstance(message, PostRequest):
                super().answer(message)

        async def offer(self, request_id: bytes) -> None:
            for number in range(100):
                at = number * 10_000
                self.say(HashResponse(request_id, tuple(i.to_bytes(32, "big") for i in range(at, at + 10_000))))
                await self._writer.drain()

    async def scenario() -> None:
        with memory(posts=texts(1)) as store:
            async with running(store, channels=None) as (node, address):
                peer = await raw_peer(address, Offering, posts=texts(1))
                await until(lambda: node.connections and Held.OFFERS in only(node)._held)
                (offered,) = node.sync._peers.values()
                for _ in range(50):
                    other = await ByHand.connect(address)
                    assert len(await other.hashes()) == 1
                    await other.close()
                    assert offered._filtering < 2 * limits.MAX_WANTED_PER_PEER
                    assert len(node.sync.wanted) <= limits.MAX_WANTED_PER_PEER
                    assert len(node._tasks) < 20
                peer.flood.cancel()
                await peer.close()

    run(scenario())


def test_max_live_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_LIVE_CHANNELS: of further channels a node asks now and then."""
    monkeypatch.setattr(limits, "MAX_LIVE_CHANNELS", 2)

    async def scenario() -> None:
        posts = [ANN.text(f"channel {number}", "x") for number in range(4)]
        with memory() as store:
            async with running(store, channels=None, list_every_s=0.1) as (_, address):
                peer = await raw_peer(address, Keeper, posts=posts)
                await until(lambda: all(store.post(post.hash) for post in posts))
                await until(lambda: len(peer.asked(TimeRangeRequest)) > 10)
                assert len([asked for asked in peer.asked(TimeRangeRequest) if asked.is_live]) == 2
                await peer.close()

    run(scenario())


# --- what goes wrong within --------------------------------------------------------------------


def test_an_unforeseen_error_of_one_answer_is_that_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads goes on, the request is concluded, and the log tells."""
    from cablestore import answers

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(answers, "channel_state", broken)

    async def scenario() -> None:
        with memory(posts=texts(3)) as store, logged() as log:
            async with running(store) as (_, address):
                peer = await ByHand.connect(address)
                assert len(await peer.answer(StateRequest(b"", "default", 0))) == 1
                assert len(await peer.hashes()) == 3
            assert "a bug" in log.errors()[0]

    run(scenario())


def test_an_unforeseen_error_in_a_connection_ends_that_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async def scenario(store: CableStore) -> list[Any]:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with running(store) as (node, address):
            honest, victim = await ByHand.connect(address), await ByHand.connect(address)
            await honest.hashes()
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "_asked", broken)
                victim.send(ALL)
                assert await victim.is_ended()
            await until(lambda: len(node.connections) == 1)
            assert len(await honest.hashes()) == 3
        return complaints

    with memory(posts=texts(3)) as store:
        assert [str(found["exception"]) for found in asyncio.run(scenario(store))] == ["a bug"]
