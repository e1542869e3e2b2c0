"""A peer that requests everything gets only its share of the node's time, and other peers are served.

The tests use a fake clock with a fixed cost for each piece of work, and count what each peer gets.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from abuse_child import AT_ONCE, flood_of, request
from by_hand import MANY, ByHand, is_last, listening, on_standing_loop, texts
from clock import pass_time
from peering import soon, until

from cablestore import limits
from cablestore.peers import Node, threads
from cablestore.peers.answering import AnswerQueue
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.threads import Stopwatch

READ_S = 0.001
"""Time in which the reading thread reads a part of an answer: 1,000 rows."""
BYTE_S = 0.000_000_1
"""Time in which the loop processes a byte of a peer."""
IN_ADVANCE = 60_000
FLOODS = ["taken back", "nonsense"]
REQUESTS = ["history", "posts", "unknown posts", "moderation", "names"]
STEP_S = 0.1
STEPS = 5


class Reading(Stopwatch):
    """Clock on which each piece of work takes the same time."""

    def spent_s(self, began_s: float) -> float:
        return READ_S


class Hearing(Stopwatch):
    """Clock on which the time of a piece of work depends on the received bytes."""

    def __init__(self, node: Node) -> None:
        super().__init__(lambda: sum(known.received_size_bytes for known in node.connections) * BYTE_S)

    def spent_s(self, began_s: float) -> float:
        return self.begin() - began_s


class Spent:
    """Share of the node's time for each peer, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading_s: Counter[AnswerQueue] = Counter()
        accept = AnswerQueue.accept

        def counted(queue: AnswerQueue, answer: object, part: object) -> None:
            self.reading_s[queue] += READ_S  # type: ignore[assignment] # a Counter of seconds
            accept(queue, answer, part)  # type: ignore[arg-type] # passed on unchanged

        monkeypatch.setattr(AnswerQueue, "accept", counted)

    def on(self, peer: Connection) -> float:
        return self.reading_s[peer.answers] + peer.received_size_bytes * BYTE_S

    def used_up(self, peer: Connection) -> tuple[float, float]:
        """Return the time for reading the store for the peer, and for reading from the peer, until the clock moves."""
        is_answered_no_more = peer.answers._wakes_up is not None or PauseReason.SHARE in peer.pauses
        return (
            self.reading_s[peer.answers] if is_answered_no_more else 0.0,
            peer.received_size_bytes * BYTE_S if PauseReason.SHARE in peer.pauses else 0.0,
        )


async def request_without_end(peer: ByHand, kind: str) -> None:
    asked = request(kind)
    peer.send(*[asked] * AT_ONCE)
    while (message := await peer.receive()) is not None:
        if is_last(message):
            peer.send(asked)


async def flood_without_end(peer: ByHand, kind: str) -> None:
    sent = flood_of(peer, kind)
    while True:
        peer.writer.write(sent * 2_000)
        await peer.writer.drain()


@asynccontextmanager
async def greedy(node: Node, address: object, kind: str) -> AsyncIterator[Connection]:
    """Yield the node's connection to a peer that requests everything."""
    peer = await ByHand.connect(address)  # type: ignore[arg-type] # an Address
    known = await peer.known_to(node)
    work = asyncio.ensure_future((flood_without_end if kind in FLOODS else request_without_end)(peer, kind))
    try:
        yield known
        assert not work.done(), "the node ended the connection, so no time was shared"
    finally:
        await peer.close()
        with suppress(OSError):  # the task ends with its connection
            await soon(work)


def has_had_its_share(peer: Connection) -> bool:
    """Return True if the node does not serve the peer further before the clock moves."""
    waits_to_be_answered = peer.answers._wakes_up is not None
    is_answered = not (peer.answers._has_work or peer.answers._is_reading)
    return waits_to_be_answered or (PauseReason.SHARE in peer.pauses and is_answered)


async def serve_others(honest: ByHand, times: int) -> None:
    for _ in range(times):
        assert len(await honest.hashes(limit=50)) == 50


@pytest.mark.thorough("moderation", "names", "nonsense", "posts", "taken back", "unknown posts")
@pytest.mark.parametrize("kind", [*REQUESTS, *FLOODS])
def test_a_peer_that_requests_everything_gets_its_share_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """ROWS_PER_S and LOOP_SHARE of one peer together leave more than half of the time to the others."""
    monkeypatch.setattr(threads, "Stopwatch", Reading)
    spent = Spent(monkeypatch)

    @on_standing_loop
    async def scenario() -> None:
        async with listening(texts(MANY), rows_in_advance=IN_ADVANCE) as (node, address):
            node.parts.context.watch = Hearing(node)
            honest = await ByHand.connect(address)
            async with greedy(node, address, kind) as peer:
                await until(lambda: has_had_its_share(peer), lambda: vars(peer))
                at_first_s = spent.on(peer)
                for _ in range(STEPS):
                    before_s = spent.used_up(peer)
                    await serve_others(honest, 3)
                    assert spent.used_up(peer) == before_s, "the peer is served beyond its share"
                    await pass_time(STEP_S, STEP_S)
                    await until(lambda: has_had_its_share(peer), lambda: vars(peer))
                seconds = STEPS * STEP_S
                share = (spent.on(peer) - at_first_s) / seconds
                assert 0.05 < share < 0.5
            await honest.close()

    scenario()
    assert limits.LOOP_SHARE + limits.ROWS_PER_S * READ_S / 1_000 < 0.5
