"""A lost peer: both ends notice it, on both ports, with and without encryption. Others are not affected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from by_hand import CABAL_KEY, ByHand, listening, on_standing_loop, only, texts
from clock import StandingLoop, pass_time
from peering import HOST, Keeper, Log, logged, memory, raw_peer, soon, until
from swallowing import SwallowingWire

from cablestore import limits
from cablestore.peers import Address, Node, NodeSettings, PeerSilent
from cablestore.peers.connection import PauseReason
from cablestore.peers.network_watch import SleepDetector
from cablestore.protocol.message import ListRequest

NOTICED_S = 60.0
STEP_S = 0.5


@asynccontextmanager
async def wired(
    *, key: bytes | None = None, reconciling: bool = False, **settings: Any
) -> AsyncIterator[tuple[Node, Node, SwallowingWire, Log]]:
    """Run two nodes that are connected through a wire. The second one stays connected."""
    chosen = NodeSettings(cabal_key=key, **settings)
    with logged() as log, memory("a", posts=texts(1)) as first, memory("b") as second:
        async with Node(first, chosen) as one, Node(second, chosen) as other:
            port, other_port = (one.reconcile_port, other.reconcile_port) if reconciling else (one, other)
            async with SwallowingWire(await port.listen(Address(HOST, 0))) as wire:
                other_port.keep_connected(wire.address)
                await until(lambda: one.store.dump_digest() == other.store.dump_digest() and one.peers())
                yield one, other, wire, log


async def pass_steps(seconds: float) -> None:
    """Advance the clock. Sockets and threads get real time at each step."""
    for _ in range(int(seconds / STEP_S)):
        await pass_time(STEP_S, STEP_S)
        await asyncio.to_thread(time.sleep, 0.005)  # the system acknowledges the sent bytes


async def pass_until(is_so: Any, most_s: float = NOTICED_S) -> None:
    """Advance the clock as `pass_steps` does until a condition is true."""
    passed_s = 0.0
    while not is_so():
        assert passed_s < most_s
        await pass_steps(STEP_S)
        passed_s += STEP_S


@pytest.mark.parametrize("reconciling", [False, True], ids=["cable", "reconciling"])
@pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "encrypted"])
@on_standing_loop
async def test_both_ends_notice_a_peer_that_vanished(key: bytes | None, reconciling: bool) -> None:
    """Both ends report the loss in `peers`, in the log and in the metrics, and close the connection within a minute."""
    async with wired(key=key, reconciling=reconciling) as (one, other, wire, log):
        await pass_steps(limits.SILENCE_S * 3)  # they answer each other all the time
        assert not log.reasons()
        events = one.peer_events()
        wire.swallows = True
        for node in (one, other):
            await pass_until(lambda node=node: any(peer.no_answer_s for peer in node.peers()) or log.reasons())
        # The first of them may dial again before the second one notices.
        await pass_until(lambda: sum(reason.startswith("no answer for ") for reason in log.reasons()) == 2)
        assert log.reasons()[0].startswith("no answer for ")
        silent = [vars(record)["seconds"] for record in log.records if record.getMessage() == "no answer"]
        assert len(silent) == 2
        assert min(silent) >= limits.SILENCE_S
        while not isinstance(event := await soon(anext(events)), PeerSilent):
            pass
        assert event.peer.no_answer_s >= limits.SILENCE_S
        assert sum(value for name, value in vanished(one, other)) == 2


def vanished(*nodes: Node) -> list[tuple[str, float]]:
    """Return the counters of closed connections."""
    families = (family for node in nodes for family in node.parts.context.metrics.registry.collect())
    samples = (sample for family in families for sample in family.samples)
    return [(sample.name, sample.value) for sample in samples if sample.name == "cablestore_vanished_peers_total"]


@on_standing_loop
async def test_a_peer_that_answers_again_is_kept() -> None:
    async with wired() as (one, _, wire, log):
        wire.swallows = True
        await pass_until(lambda: any(peer.no_answer_s for peer in one.peers()))
        wire.swallows = False
        await pass_until(lambda: not any(peer.no_answer_s for peer in one.peers()))
        await pass_steps(limits.SILENCE_S * 5)
        assert not log.reasons()


@on_standing_loop
async def test_a_peer_that_answers_no_requests_is_kept() -> None:
    """Some clients answer few requests. While its machine answers, such a peer is only idle."""
    with logged() as log:
        async with listening(texts(1)) as (node, address):
            peer = await ByHand.connect(address)
            await peer.hashes()
            await pass_time(limits.SILENCE_S * 10, STEP_S)
            assert not log.reasons()
            assert [peer.no_answer_s for peer in node.peers()] == [0]
            await peer.close()


@on_standing_loop
async def test_a_node_that_does_not_read_disconnects_nobody() -> None:
    """Bytes of the peer are unread while posts are stored."""
    with logged() as log:
        async with listening(texts(1), channels=None) as (node, address):
            peer = await raw_peer(address, Keeper, posts=[])
            await until(lambda: node.connections and only(node).silence.is_answerable)
            only(node).pause(PauseReason.STORING)
            await pass_time(limits.SILENCE_S * 10, STEP_S)
            assert not log.reasons()
            await peer.close()


# --- sleep ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", [0, 1], ids=["loop's clock", "wall clock"])
def test_sleep_is_noticed_by_either_clock(moved: int) -> None:
    """The loop's clock stops during the sleep of some systems, and continues on others."""
    clocks = [1_000.0, 5.0]
    detector = SleepDetector(clocks[0], lambda: clocks[1])

    def slept_s(**passed_s: float) -> float:
        clocks[0] += 1
        clocks[1] += 1
        clocks[moved] += passed_s.get("more", 0.0)
        return detector.slept_s(clocks[0])

    assert [slept_s() for _ in range(3)] == [0.0] * 3
    assert slept_s(more=3_600) == pytest.approx(3_601)
    assert slept_s() == 0.0
    assert slept_s(more=3) == 0.0, "a busy loop is not sleep"


@on_standing_loop
async def test_after_sleep_peers_are_checked_and_dialled_at_once() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StandingLoop)
    with logged() as log:
        async with listening(texts(1), first_retry_s=7_200.0, longest_retry_s=7_200.0) as (node, address):
            node.keep_connected(Address(HOST, 1))
            peer = await raw_peer(address, Keeper, posts=[])
            await until(lambda: attempts(log) == 1 and node.connections)
            await pass_time(limits.SILENCE_S / 2, STEP_S)
            assert (attempts(log), peer.requests_of(ListRequest)) == (1, [])
            loop.now_s += 3_000
            await pass_time(2, STEP_S)
            await until(lambda: attempts(log) == 2 and peer.requests_of(ListRequest))
            await peer.close()


def attempts(log: Log) -> int:
    return sum(record.getMessage() == "no connection" for record in log.records)
