"""A node that reports a peer as in step has the same posts, and it reports this soon."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from by_hand import CABAL_KEY, on_loop
from hypothesis import given
from hypothesis import strategies as st
from peering import HOST, QUICK, every, memory, until
from people import ANN, BOB, START_MS, raws
from reconciling_nodes import two_nodes

from cablestore import CableStore
from cablestore.index.log_position import LogPosition
from cablestore.peers import Address, Node, NodeSettings, PeerInStep
from cablestore.peers.agreement import Agreement
from cablestore.peers.in_step import Agreements
from cablestore.reconcile.messages import CHANGED, EQUAL

ONCE = NodeSettings(reconcile_every_s=600, reconcile_delay_ms=20)
"""Settings without a second turn unless something changes."""
WAYS = pytest.mark.parametrize("over_cable", [False, True], ids=["own port", "beside Cable"])


def in_step(node: Node) -> list[bool | None]:
    return [peer.is_in_step for peer in node.peers()]


def is_out(event: PeerInStep) -> bool:
    return event.peer.is_in_step is False


def old_logs(count: int, name: str = "logs") -> list[bytes]:
    """Return posts of a channel, dated years ago, as in an import of old logs."""
    return raws(*(BOB.text(name, f"{number}", at=START_MS - 10**9 + number) for number in range(count)))


@WAYS
@on_loop
async def test_old_posts_that_arrived_while_a_member_was_away_are_exchanged(tmp_path: Path, over_cable: bool) -> None:
    """The member reconnects, and restarts. Each time everything is compared before the peer is in step."""
    here = CableStore.open(tmp_path / "here")
    here.ingest(raws(*(ANN.text("default", f"{number}") for number in range(50))))
    settings = replace(ONCE, cabal_key=CABAL_KEY)
    async with Node(here, settings) as one:
        listens = one.listen if over_cable else one.reconcile_port.listen
        address = await listens(Address(HOST, 0))
        for turn in range(3):
            with CableStore.open(tmp_path / "there") as there:
                async with Node(there, settings) as other:
                    (other if over_cable else other.reconcile_port).keep_connected(address)
                    await every((one, other), lambda node: in_step(node) == [True])
                    assert here.dump_digest() == there.dump_digest()
            await until(lambda: not one.peers())
            here.ingest(old_logs(38, f"logs {turn}"))
    here.close()


@WAYS
@pytest.mark.parametrize("changes", [0, 1])
@on_loop
async def test_a_change_ends_in_step_immediately_on_both_sides(over_cable: bool, changes: int) -> None:
    """`is_in_step` is True again after a complete comparison, without waiting for the next turn."""
    async with two_nodes(memory("one"), memory("other"), over_cable=over_cable, settings=ONCE) as (one, other, address):
        (other if over_cable else other.reconcile_port).keep_connected(address)
        await every((one, other), lambda node: in_step(node) == [True])
        nodes = (one, other)
        events = [node.peer_events() for node in nodes]
        for number in range(3):
            nodes[changes].store.ingest(old_logs(10, f"logs {number}"))
            assert in_step(nodes[changes]) == [False]
            for follower in events:
                while (event := await anext(follower)) and not (isinstance(event, PeerInStep) and is_out(event)):
                    pass
            await every(nodes, lambda node: in_step(node) == [True])
            assert one.store.dump_digest() == other.store.dump_digest()


@WAYS
@on_loop
async def test_lost_posts_end_in_step_and_are_returned(tmp_path: Path, over_cable: bool) -> None:
    """The posts are lost by a rebuild or discarded. The peer returns them."""
    stores = CableStore.open(tmp_path / "one"), CableStore.open(tmp_path / "other")
    stores[0].ingest(old_logs(30))
    async with two_nodes(*stores, over_cable=over_cable, settings=ONCE) as (one, other, address):
        (other if over_cable else other.reconcile_port).keep_connected(address)
        await every((one, other), lambda node: in_step(node) == [True])
        hashes = [message.hash for message in other.store.messages("logs").messages]
        for lose in (lambda: other.store.discard(hashes[:5]), other.store.rebuild):
            await asyncio.to_thread(lose)
            assert in_step(other) == [False]
            await every((one, other), lambda node: in_step(node) == [True])
            assert one.store.dump_digest() == other.store.dump_digest()


@pytest.mark.thorough("1-own port", "2-beside Cable", "2-own port")
@WAYS
@pytest.mark.parametrize("seed", [1, 2])
@on_loop
async def test_in_step_means_equal_stores(over_cable: bool, seed: int) -> None:
    """At any moment of a busy hour, both sides report it only while their stores are equal."""
    choice = Random(seed)
    settings = replace(QUICK, reconciles=True, reconcile_every_s=0.05, reconcile_delay_ms=5)
    async with two_nodes(memory("one"), memory("other"), over_cable=over_cable, settings=settings) as (
        one,
        other,
        address,
    ):
        (other if over_cable else other.reconcile_port).keep_connected(address)
        agreed = 0
        for number in range(60):
            store = choice.choice((one, other)).store
            store.ingest(old_logs(choice.randrange(1, 4), f"c{number}"))
            await asyncio.sleep(choice.random() * 0.06)
            if in_step(one) == in_step(other) == [True]:
                agreed += 1
                assert one.store.dump_digest() == other.store.dump_digest()
        await every((one, other), lambda node: in_step(node) == [True])
        assert one.store.dump_digest() == other.store.dump_digest()


# --- messages between two sides -----------------------------------------------------------------


class Side:
    """Side of a connection: its agreement, its store as a number of changes, and the frames in transit to it."""

    def __init__(self, *, is_ours: bool) -> None:
        self.agreement = Agreement()
        self.is_ours = is_ours
        self.changes = self.compared = 0
        self.inbox: list[bytes] = []
        self.peer = self

    @property
    def place(self) -> LogPosition:
        return LogPosition("db", self.changes, b"")

    @property
    def is_in_step(self) -> bool | None:
        return self.agreement.is_in_step(self.place)

    def change(self) -> None:
        self.changes += 1

    def check(self) -> None:
        """Notice changes on the loop."""
        self.peer.inbox += self.agreement.changed(self.place)

    def take(self) -> None:
        """Process a frame, if one has arrived."""
        frame = self.inbox.pop(0) if self.inbox else None
        if frame == EQUAL:
            self.peer.inbox += self.agreement.peer_is_equal(self.place, answers=not self.is_ours)
        elif frame == CHANGED:
            self.agreement.peer_changed()

    def recent(self, received: int = 0) -> None:
        """Compare the recent posts, of which some arrive.

        Earlier frames of the peer are processed before the comparison ends.
        """
        while self.inbox:
            self.take()
        before = self.place
        self.changes += received
        self.peer.inbox += self.agreement.compared(before, self.place)

    def compare(self) -> None:
        """Compare all posts, and find no difference."""
        self.recent()
        self.compared = self.changes


def compare(ours: Side, theirs: Side) -> None:
    theirs.compare()
    ours.compare()
    theirs.inbox += ours.agreement.claim(is_certain=True)


PLACE, LATER = LogPosition("db", 1, b""), LogPosition("db", 2, b"")


def test_a_side_tells_its_peer_of_a_change_only_if_it_claimed_to_be_equal() -> None:
    for claims in (False, True):
        changed = [CHANGED] if claims else []
        for end in (
            lambda agreement: agreement.changed(LATER),
            lambda agreement: agreement.compared(PLACE, LATER),
            lambda agreement: agreement.compared(LATER, LATER),
            Agreement.failed,
        ):
            agreement = Agreement()
            assert (agreement.is_in_step(PLACE), agreement.has_place) == (None, False)
            assert agreement.claim(is_certain=True) == agreement.changed(PLACE) == []
            assert agreement.compared(PLACE, PLACE) == []
            assert (agreement.is_in_step(PLACE), agreement.has_place) == (None, True)
            if claims:
                assert agreement.claim(is_certain=False) == [EQUAL]
                assert agreement.is_in_step(PLACE) is None
            assert agreement.peer_is_equal(PLACE, answers=False) == agreement.changed(PLACE) == []
            assert (agreement.is_in_step(PLACE), agreement.is_in_step(LATER)) == (True, False)
            assert not agreement.ended.is_set()
            assert end(agreement) == changed
            assert agreement.ended.is_set()
            assert agreement.is_in_step(PLACE) is agreement.is_in_step(LATER) is False
            assert agreement.failed() == []  # the peer knows it


def test_the_answer_to_a_peer_that_is_equal_depends_on_the_own_store() -> None:
    agreement = Agreement()
    for answers in (False, True):
        assert agreement.peer_is_equal(PLACE, answers=answers) == ([CHANGED] if answers else [])
    assert agreement.is_in_step(PLACE) is None
    agreement.compared(PLACE, PLACE)
    assert agreement.peer_is_equal(LATER, answers=True) == [CHANGED]
    assert agreement.is_in_step(PLACE) is None
    assert agreement.peer_is_equal(PLACE, answers=True) == [EQUAL]
    assert agreement.is_in_step(PLACE) is True
    assert agreement.changed(LATER) == [CHANGED]
    agreement.compared(LATER, LATER)
    assert agreement.is_in_step(LATER) is False
    assert agreement.claim(is_certain=True) == [EQUAL]
    assert agreement.is_in_step(LATER) is True
    agreement.peer_changed()
    assert (agreement.is_in_step(LATER), agreement.has_place) == (False, False)
    assert agreement.failed() == []
    unsure = Agreement()
    assert unsure.failed() == []
    assert unsure.is_in_step(PLACE) is False


def test_a_write_after_the_end_of_the_loop_does_not_fail() -> None:
    """A node whose loop was closed cannot stop watching the store."""
    link: Any = SimpleNamespace(agreement=Agreement(), notify_step=lambda: None)
    with memory("a") as store:

        async def main() -> Agreements:
            async with Node(store) as node:
                agreements = Agreements(node.parts.context, [link])
                agreements.compared(link, store.parts.engine.place, is_complete=False, sent_posts=False)
                return agreements

        agreements = asyncio.run(main())
        assert link.agreement.has_place
        store.post("default", "x")
        store.post("default", "y")
        agreements.close()


STEP = st.tuples(st.integers(0, 1), st.sampled_from(["change", "check", "take", "compare", "recent", "receive"]))


@given(st.lists(STEP))
def test_each_change_is_known_on_both_sides_after_all_frames(steps: list[tuple[int, str]]) -> None:
    """The frames of both sides may cross. After a comparison without a change both sides are in step."""
    ours, theirs = sides = Side(is_ours=True), Side(is_ours=False)
    ours.peer, theirs.peer = theirs, ours

    def deliver() -> None:
        while any(side.inbox for side in sides):
            for side in sides:
                side.take()

    for number, step in steps:
        match step:
            case "compare":
                compare(*sides)
            case "receive":
                sides[number].recent(received=1)
            case _:
                getattr(sides[number], step)()
    for side in sides:
        side.check()
    deliver()
    has_changed = any(side.changes != side.compared for side in sides)
    assert not (has_changed and any(side.is_in_step for side in sides))
    compare(*sides)
    deliver()
    assert [side.is_in_step for side in sides] == [True, True]
