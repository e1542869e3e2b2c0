"""A node's limits on memory and queues, reached by peers that do not read, and by peers that send too much."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from by_hand import ALL, LIVE, MANY, UNKNOWN, ByHand, listening, on_loop, only, peer_id, sizes_of, slow_reader, texts
from peering import Keeper, logged, raw_peer, until
from people import BOB, raws
from waiting import LIMIT_S

from cablestore import limits
from cablestore.peers import threads
from cablestore.peers.connection import PauseReason
from cablestore.protocol.message import CancelRequest, HashResponse, PostRequest, PostResponse, TimeRangeRequest

pytestmark = pytest.mark.usefixtures("quick_clock")


# --- sending -----------------------------------------------------------------------------------


@on_loop
async def test_slow_reader_size_bytes_stops_reads_for_a_slow_peer() -> None:
    """SLOW_READER_SIZE_BYTES: the store is not read for a peer that does not read, until it reads again."""
    posts = texts(MANY)
    async with listening(posts) as (node, address):
        peer = await slow_reader(address)
        slow = only(node)
        await until(lambda: slow.is_slow and not slow.answers._is_reading)
        sent = slow.sent_size_bytes
        other = await ByHand.connect(address)
        assert len(await other.hashes()) == len(posts)
        assert slow.sent_size_bytes == sent < 60 * len(posts) * 32
        assert limits.SLOW_READER_SIZE_BYTES / 4 < slow.queued_size_bytes < 2 * limits.SLOW_READER_SIZE_BYTES
        for number in range(1, 61):
            assert sum(sizes_of(await peer.concluded(peer_id(peer, number)))) == len(posts)


@pytest.mark.thorough
@on_loop
async def test_max_queued_size_bytes_includes_announcements_behind_an_unread_history() -> None:
    """MAX_QUEUED_SIZE_BYTES also applies to changes that wait to be sent."""
    with logged() as log:
        async with listening(texts(MANY), max_queued_size_bytes=2_000_000) as (node, address):
            peer = await slow_reader(address)
            peer.send(*[LIVE] * limits.MAX_LIVE_ALIKE)
            await until(lambda: only(node).is_slow and node.parts.serving.live.count == limits.MAX_LIVE_ALIKE)
            known, most, number = only(node), 0, 0
            while node.connections:
                before = known.queued_size_bytes
                node.store.ingest(raws(*[BOB.text("default", f"{number} {i}") for i in range(20)]), verify=False)
                await until(lambda before=before: not node.connections or known.queued_size_bytes > before)  # type: ignore[misc]  # mypy does not see the default
                most, number = max(most, known.queued_size_bytes), number + 1
            assert log.reasons() == ["the peer reads too slowly"]
            assert most < 2_500_000
            await peer.close()


@on_loop
async def test_max_queued_size_bytes_disconnects_a_peer_with_unread_announcements() -> None:
    with logged() as log:
        async with listening(max_queued_size_bytes=100_000) as (node, address):
            peer, reader = await ByHand.connect(address, receive_size_bytes=4096), await ByHand.connect(address)
            peer.send(*[LIVE] * limits.MAX_LIVE_ALIKE)
            reader.send(LIVE)
            await until(lambda: node.parts.serving.live.count == limits.MAX_LIVE_ALIKE + 1)
            announced = 0
            while len(node.connections) == 2 and announced < MANY:
                node.store.ingest(raws(*texts(MANY)[announced : announced + 500]), verify=False)
                announced += 500
                heard = 0
                while heard < 500:
                    message = await reader.receive()
                    heard += len(message.hashes) if isinstance(message, HashResponse) else 0
                assert all(known.queued_size_bytes < 1_000_000 for known in node.connections)
            assert log.reasons() == ["the peer reads too slowly"]
            await peer.close()


@on_loop
async def test_max_queued_total_size_bytes_disconnects_the_slowest_peers() -> None:
    """MAX_QUEUED_TOTAL_SIZE_BYTES: the peers with the most unread bytes are disconnected."""
    with logged() as log:
        async with listening(texts(MANY)) as (node, address):
            slow = [await slow_reader(address) for _ in range(4)]
            await until(lambda: all(known.is_slow and not known.answers._is_reading for known in node.connections))
            honest = await ByHand.connect(address)
            assert len(await honest.hashes()) == MANY
            # The number of queued bytes depends on the buffers of the operating system.
            most = int(0.6 * sum(known.held_size_bytes for known in node.connections))
            node.change_settings(replace(node.settings, max_queued_total_size_bytes=most))
            await until(lambda: sum(known.held_size_bytes for known in node.connections) <= most)
            assert len(await honest.hashes()) == MANY
            await until(lambda: len(log.reasons()) >= 1)
            assert len(log.reasons()) <= 3
            assert set(log.reasons()) == {"the peer reads too slowly, and the memory for queues is used up"}
            for peer in slow:
                await peer.close()


@pytest.mark.thorough
@on_loop
async def test_large_requests_of_a_peer_that_does_not_read_wait_unread() -> None:
    """4,096 requests of 10,000 hashes each would be 3 GB. They may use half of MAX_QUEUED_SIZE_BYTES."""
    posts = texts(MANY)
    async with listening(posts) as (node, address):
        peer = await slow_reader(address)
        await until(lambda: only(node).is_slow)
        large = PostRequest(b"", (UNKNOWN,) * 9_999 + (posts[0].hash,))
        peer.send(*[large] * 60)
        await until(lambda: PauseReason.REQUESTS in only(node).pauses)
        await asyncio.sleep(0.2)
        assert only(node)._alive_size_bytes < limits.MAX_QUEUED_SIZE_BYTES
        assert len(only(node).answers._pending[0]) < 15
        answers = histories = 0
        while answers < 60 or histories < 60:  # all are answered when the peer begins to read
            message = await peer.receive()
            answers += isinstance(message, PostResponse) and bool(message.posts)
            histories += isinstance(message, HashResponse) and not message.hashes
        await until(lambda: not only(node).session.to_answer and not only(node).pauses)


@pytest.mark.thorough
@on_loop
async def test_requests_that_are_cancelled_before_their_turn_leave_no_state() -> None:
    async with listening(texts(MANY)) as (node, address):
        peer = await slow_reader(address)
        await until(lambda: only(node).is_slow)
        for _ in range(20):
            for _ in range(100):
                request_id = peer.new_id()
                peer.send(ALL._replace(request_id=request_id), CancelRequest(b"", request_id))
            await peer.writer.drain()
            await asyncio.sleep(0.01)
        last = peer.new_id()
        peer.send(ALL._replace(request_id=last))
        await until(lambda: last in only(node).session.to_answer)
        assert sum(map(len, only(node).answers._pending)) <= 61
        assert only(node)._alive_size_bytes < 50_000
        await peer.close()


# --- receiving ---------------------------------------------------------------------------------


class _Gate:
    """Gate for the thread that stores posts. The test opens it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        store_all: Callable[..., None] = threads.WriteThread._store_all

        def waiting(writes: Any, taken: Any) -> None:
            self.open.wait(LIMIT_S)
            store_all(writes, taken)

        monkeypatch.setattr(threads.WriteThread, "_store_all", waiting)


@on_loop
async def test_max_ingest_queue_size_bytes_pauses_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_INGEST_QUEUE_SIZE_BYTES: the node stops reading from a peer with this much data to store, and resumes later."""
    monkeypatch.setattr(limits, "MAX_INGEST_QUEUE_SIZE_BYTES", 10_000)
    gate = _Gate(monkeypatch)
    posts = texts(5_000)
    async with listening(channels=None) as (node, address):
        peer = await raw_peer(address, Keeper, posts=posts)
        await until(lambda: PauseReason.STORING in only(node).pauses)
        received = only(node).received_size_bytes
        await asyncio.sleep(0.2)
        assert only(node).received_size_bytes == received
        assert node.parts.context.writes.queued_size_bytes < 1_000_000
        gate.open.set()
        await until(lambda: node.store.stats().posts.get("text") == len(posts))
        await until(lambda: not only(node).pauses and not node.parts.intake.paused)
        await peer.close()


@on_loop
async def test_max_pending_hashes_per_peer_pauses_a_peer_with_endless_offers() -> None:
    """The peer's live offers are looked up in turn. After MAX_PENDING_HASHES_PER_PEER waiting ones, the node stops
    reading from the peer.
    """

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

    async with listening(texts(1), channels=None) as (node, address):
        peer = await raw_peer(address, Offering, posts=texts(1))
        await until(lambda: node.connections and PauseReason.OFFERS in only(node).pauses)
        (offered,) = node.parts.sync.fetches._of_peers.values()
        for _ in range(50):
            other = await ByHand.connect(address)
            assert len(await other.hashes()) == 1
            await other.close()
            assert offered._offered < 2 * limits.MAX_PENDING_HASHES_PER_PEER
            assert len(node.parts.sync.fetches.pending) <= limits.MAX_PENDING_HASHES_PER_PEER
            assert len(node.parts.context.life.tasks) < 20
        peer.flood.cancel()
        await peer.close()
