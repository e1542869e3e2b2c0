"""Slots of reconciliations: an address with many, or a slow one, makes room for others.

The tests use a fake clock if time matters.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from by_hand import on_loop
from peering import HOST, memory, until
from people import ANN, START_MS
from reconcile_peer import Peer, attacked
from talking import hello

from cablestore import limits
from cablestore.peers import Address, Node
from cablestore.peers.slots import reconciliation_to_stop
from cablestore.reconcile.messages import Ended, EndReason


@dataclass(eq=False)
class Held:
    """Reconciliation that began at a time and has this throughput in bytes per second."""

    network: str
    began_s: float
    bytes_per_s: float
    now_s: list[float] = field(repr=False)

    def waited_s(self, now_s: float) -> float:
        return now_s - self.began_s

    @property
    def moved_size_bytes(self) -> int:
        return int(self.bytes_per_s * self.waited_s(self.now_s[0]))


class FakeSlots:
    """The slots of a node, on a fake clock."""

    def __init__(self) -> None:
        self.now_s = [0.0]
        self.held: list[Held] = []

    def connects(self, network: str, bytes_per_s: float = 1e6) -> bool:
        if len(self.held) == limits.MAX_TALKS:
            loser = reconciliation_to_stop(self.held, network, self.now_s[0])
            if loser is None:
                return False
            self.held.remove(loser)
        self.held.append(Held(network, self.now_s[0], bytes_per_s, self.now_s))
        return True


def test_one_address_has_all_slots_until_another_one_connects() -> None:
    slots = FakeSlots()
    assert all(slots.connects("one", 1e6 + number) for number in range(limits.MAX_TALKS))
    slots.now_s[0] = 1.0
    assert not slots.connects("one")
    assert slots.connects("two")
    assert Counter(held.network for held in slots.held) == {"one": limits.MAX_TALKS - 1, "two": 1}
    assert min(held.bytes_per_s for held in slots.held if held.network == "one") == 1e6 + 1  # the slowest was stopped


def test_slots_are_shared_among_addresses() -> None:
    """In any order and number, an address has at most one slot more than another, and each gets one eventually."""
    rng = random.Random("places are shared out")
    slots = FakeSlots()
    for _ in range(500):
        slots.now_s[0] += rng.random()
        slots.connects(rng.choice(["one", "one", "one", "one", "one", "two", "three"]))
    shares = Counter(held.network for held in slots.held)
    assert set(shares) == {"one", "two", "three"}
    assert max(shares.values()) - min(shares.values()) <= 1
    before = list(slots.held)
    for network in ("one", "two", "three"):
        if shares[network] == max(shares.values()):
            assert not slots.connects(network)
    assert slots.held == before


def test_slow_conversations_make_room_for_any_address() -> None:
    """TALK_SLOW_AFTER_S, TALK_SLOW_BYTES_PER_S: a frame each 15 s from eight addresses. Faster ones keep their slots."""
    slots = FakeSlots()
    slow_bytes_per_s = limits.TALK_SLOW_BYTES_PER_S - 1
    for number in range(limits.MAX_TALKS):
        slots.connects(f"{number}", slow_bytes_per_s if number < 5 else limits.TALK_SLOW_BYTES_PER_S)
    slots.now_s[0] = limits.TALK_SLOW_AFTER_S
    assert not slots.connects("another")
    slots.now_s[0] += 1
    assert [slots.connects(f"new {number}") for number in range(8)] == [True] * 5 + [False] * 3
    assert {held.network for held in slots.held} == {"5", "6", "7"} | {f"new {number}" for number in range(5)}


async def from_address(to: Address, host: str) -> Peer:
    return Peer(*await asyncio.open_connection(*to, local_addr=(host, 0)))


@on_loop
async def test_eight_conversations_from_one_address_do_not_exclude_others() -> None:
    """The eight send only a hello. One of them must retry later, and another address reconciles."""
    async with attacked() as (node, address, _):
        crowd = [await from_address(address, HOST) for _ in range(limits.MAX_TALKS)]
        for peer in crowd:
            peer.say(hello())
        await until(lambda: len(node.parts.reconciler) == limits.MAX_TALKS)
        late = await from_address(address, HOST)
        late.say(hello())
        heard = await late.hear()
        assert heard is not None
        assert isinstance(heard[1], Ended)
        assert heard[1].reason == EndReason.BUSY
        other = await from_address(address, "127.0.0.2")
        other.say(hello())
        await until(lambda: "127.0.0.2" in {talking.network for talking in node.parts.reconciler._by_link.values()})
        await until(lambda: len(node.parts.reconciler) == limits.MAX_TALKS)
        for peer in [*crowd, late, other]:
            await peer.close()


def test_idle_conversations_make_room_for_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow reconciliations end immediately. Posts that moved before are stored, and the new store gets everything."""
    monkeypatch.setattr(limits, "TALK_SLOW_AFTER_S", 0.0)
    monkeypatch.setattr(limits, "TALK_SLOW_BYTES_PER_S", 2**60)

    @on_loop
    async def scenario() -> None:
        async with attacked() as (node, address, _):
            crowd = [await from_address(address, HOST) for _ in range(limits.MAX_TALKS)]
            for peer in crowd:
                peer.say(hello())
            await until(lambda: len(node.parts.reconciler) == limits.MAX_TALKS)
            with memory("honest", posts=[ANN.text("default", "new", at=START_MS + 10**6)]) as store:
                async with Node(store) as other:
                    report = await other.reconcile_once(address)
                assert (report.posts_sent, report.posts_received) == (1, 50)
            for peer in crowd:
                await peer.close()

    scenario()
