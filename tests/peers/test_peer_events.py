"""Peer events for programs: connected peers, connection times, the state "in step", and changes."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from itertools import pairwise

import pytest
from peering import HOST, QUICK, every, memory, network, run, soon, until
from people import ANN, raws

from cablestore import CableStore, limits
from cablestore.peers import (
    Address,
    Node,
    NodeSettings,
    Peer,
    PeerConnected,
    PeerEvent,
    PeerEvents,
    PeerEventsMissed,
    PeerInStep,
    PeerLost,
    PeerUnreachable,
)
from cablestore.peers.link import ITSELF
from cablestore.peers.peer_events import PeerWatchers
from cablestore.protocol.crypto import exchange_public_key
from cablestore.store.options import system_clock_ms

IN_STEP = replace(QUICK, reconciles=True, reconcile_every_s=0.05, reconcile_delay_ms=20)
"""Settings with which peers compare again at once if a store changed during a comparison."""


def shown(peers: dict[int, Peer], event: PeerEvent) -> None:
    """Apply an event like a program that shows a list of peers."""
    match event:
        case PeerConnected(peer) | PeerInStep(peer):
            peers[peer.number] = peer
        case PeerLost(peer, _):
            del peers[peer.number]


async def followed(node: Node, log: list[PeerEvent]) -> dict[int, Peer]:
    """Follow the peers of a node until it stops. Return those that are left."""
    events = node.peer_events()
    peers = {peer.number: peer for peer in node.peers()}
    async for event in events:
        log.append(event)
        shown(peers, event)
        assert {number: (peer.address, peer.is_in_step) for number, peer in peers.items()} == {
            peer.number: (peer.address, peer.is_in_step) for peer in node.peers()
        } or events._waiting
    return peers


def sizes_agree(one: Node, other: Node) -> bool:
    """Return True if each of two peers received all bytes of the other. This is so between two reconciliations."""
    [here], [there] = one.peers(), other.peers()
    to, back = (here.sent_size_bytes, there.received_size_bytes), (there.sent_size_bytes, here.received_size_bytes)
    return to[0] == to[1] > 0 and back[0] == back[1] > 0


@pytest.mark.thorough("encrypted")
@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["open", "encrypted"])
def test_peers_are_reported_when_they_connect_are_in_step_and_disconnect(key: bytes | None) -> None:
    async def scenario() -> None:
        began_ms = system_clock_ms()
        stores = [memory("one"), memory("two", posts=[ANN.text("default", "x")])]
        async with network(*stores, settings=replace(IN_STEP, cabal_key=key, reconcile_every_s=300)) as net:
            one, two = net.nodes
            assert one.peers() == two.peers() == []
            log: list[PeerEvent] = []
            following = asyncio.create_task(followed(one, log))
            await asyncio.sleep(0)
            link = await net.link(two, one)
            await every((one, two), lambda node: [peer.is_in_step for peer in node.peers()] == [True])
            [came], [went] = one.peers(), two.peers()
            assert went.address == net.addresses[one]
            assert came.address.host == HOST
            assert (came.is_outgoing, went.is_outgoing) == (False, True)
            assert not came.only_reconciles
            assert (came.no_answer_s, went.no_answer_s) == (0, 0)
            assert [len(node.parts.sync) for node in (one, two)] == [1, 1]
            assert began_ms <= came.since_ms <= system_clock_ms()
            static = [exchange_public_key(store.identity.public_key) if key else None for store in stores]
            assert [went.key, came.key] == static
            await until(lambda: sizes_agree(one, two))
            link.close("cut by the test")
            await until(lambda: one.peers() == two.peers() == [])
            again = await net.link(two, one)
            await until(lambda: len(one.peers()) == 1)
            assert one.peers()[0].number > came.number
            again.close("cut by the test")
            await until(lambda: not one.peers())
            late = one.peer_events()
            await net.stop(one)
            assert await soon(following) == {}
            assert [type(event) for event in log[:3]] == [PeerConnected, PeerInStep, PeerLost]
            assert {event.peer.is_in_step for event in log if isinstance(event, PeerConnected)} == {None}
            lost = [event.reason for event in log if isinstance(event, PeerLost)]
            assert len(lost) == 2
            assert all(lost)
            for ended in (late, one.peer_events()):
                assert [event async for event in ended] == []

    run(scenario())


def test_requests_and_reconciliations_are_counted_for_each_connection() -> None:
    async def scenario() -> None:
        stores = [memory(name) for name in ("one", "two", "three")]
        async with network(*stores, settings=replace(IN_STEP, reconcile_every_s=300)) as net:
            one, two, three = net.nodes
            began_ms = system_clock_ms()
            await net.link(two, one)
            await every((one, two), lambda node: [peer.is_in_step for peer in node.peers()] == [True])
            for node in (one, two):
                [peer] = node.peers()
                assert peer.reconciliations == 1
                assert peer.reconciled_at_ms is not None
                assert began_ms <= peer.since_ms <= peer.reconciled_at_ms <= system_clock_ms()
                assert peer.received_requests > 0
            [before] = one.peers()
            await net.link(three, one)
            await until(lambda: [peer.reconciliations for peer in three.peers()] == [1])
            await until(lambda: [peer.reconciliations for peer in one.peers()] == [1, 1])
            assert one.peers()[0].reconciled_at_ms == before.reconciled_at_ms

    run(scenario())


def test_a_failed_attempt_to_connect_is_reported_with_its_reason() -> None:
    async def scenario() -> None:
        async with network(memory("one")) as net:
            [node] = net.nodes
            events = node.peer_events()
            nobody = Address(HOST, 1)
            node.keep_connected(nobody)
            assert await soon(anext(events)) == PeerUnreachable(nobody, node.dials()[0].reason)
            assert "Connect call failed" in node.dials()[0].reason

    run(scenario())


def test_a_peer_that_does_not_reconcile_is_neither_in_step_nor_out_of_it() -> None:
    async def scenario() -> None:
        async with network(memory("one"), memory("two"), settings=QUICK) as net:
            one, two = net.nodes
            await net.link(two, one)
            await until(lambda: len(one.peers()) == 1)
            two.store.ingest(raws(ANN.text("default", "x")))
            await net.are_alike()
            peers = [peer for node in (one, two) for peer in node.peers()]
            assert [peer.is_in_step for peer in peers] == [None, None]
            assert [(peer.reconciliations, peer.reconciled_at_ms) for peer in peers] == [(0, None)] * 2
            assert min(peer.received_requests for peer in peers) > 0

    run(scenario())


def test_a_reconciliation_that_breaks_off_is_out_of_step_until_one_succeeds() -> None:
    async def scenario() -> None:
        async with network(memory("one"), memory("two"), settings=IN_STEP, may_complain=True) as net:
            one, two = net.nodes
            await net.link(two, one)
            await until(lambda: [peer.is_in_step for peer in two.peers()] == [True])
            log: list[PeerEvent] = []
            following = asyncio.create_task(followed(two, log))
            await asyncio.sleep(0)
            two.parts.context.settings = replace(IN_STEP, talk_silence_s=0)
            await until(lambda: [peer.is_in_step for peer in two.peers()] == [False])
            two.parts.context.settings = IN_STEP
            await until(lambda: [peer.is_in_step for peer in two.peers()] == [True])
            await net.stop(two)
            await soon(following)
            steps = [event.peer.is_in_step for event in log if isinstance(event, PeerInStep)]
            assert steps[0] is False
            assert True in steps
            assert all(before is not after for before, after in pairwise(steps))

    run(scenario())


@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["open", "encrypted"])
def test_a_node_does_not_stay_connected_to_itself(key: bytes | None) -> None:
    """An invitation names the peer of its creator."""

    async def scenario() -> None:
        settings = replace(IN_STEP, cabal_key=key)
        async with network(memory("one"), memory("two"), settings=settings) as net:
            one, two = net.nodes
            one.keep_connected(net.addresses[two])
            await until(lambda: [peer.is_in_step for peer in one.peers()] == [True])
            tasks = len(one.parts.context.life.tasks)
            one.keep_connected(net.addresses[one])
            assert len(one.parts.context.life.tasks) == tasks + 1
            await until(lambda: net.log.reasons() == [ITSELF, ITSELF])
            await until(lambda: len(one.parts.context.life.tasks) == tasks)  # it is not tried again
            assert [peer.address for peer in one.peers()] == [net.addresses[two]]

    run(scenario())


def test_connections_of_the_reconciliation_port_are_reported() -> None:
    async def scenario() -> None:
        async with network(memory("one"), memory("two"), settings=IN_STEP) as net:
            one, two = net.nodes
            address = await one.reconcile_port.listen(Address(HOST, 0))
            two.reconcile_port.keep_connected(address)
            await every((one, two), lambda node: [peer.is_in_step for peer in node.peers()] == [True])
            assert [peer.only_reconciles for node in (one, two) for peer in node.peers()] == [True, True]
            assert two.peers()[0].address == address
            assert two.connections == set()

    run(scenario())


def test_a_slow_reader_is_notified_that_it_missed_events() -> None:
    async def scenario() -> None:
        watchers = PeerWatchers()
        events = watchers.follow()
        peer = Peer(1, Address(HOST, 1), None, True, False, 0, 0, 0, None)
        for _ in range(2 * limits.MAX_PEER_EVENTS):
            watchers.notify(PeerConnected(peer))
        assert len(events._waiting) <= limits.MAX_PEER_EVENTS
        watchers.close()
        found = [event async for event in events]
        assert isinstance(found[0], PeerEventsMissed)
        assert found[0].number + len(found) - 1 == 2 * limits.MAX_PEER_EVENTS
        assert set(found[1:]) == {PeerConnected(peer)}
        forgotten = PeerEvents()
        watchers._followers.add(forgotten)
        del forgotten, events
        gc.collect()
        assert not watchers._followers

    run(scenario())


def test_an_iteration_is_ended_by_its_reader_or_by_a_cancellation() -> None:
    async def scenario() -> None:
        watchers = PeerWatchers()
        events = watchers.follow()
        reading = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        watchers.notify(PeerEventsMissed(1))
        assert await soon(anext(events)) == PeerEventsMissed(1)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        events.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        watchers.notify(PeerEventsMissed(1))
        assert [event async for event in events] == []

    run(scenario())


def test_a_node_has_only_documented_public_names() -> None:
    with CableStore.in_memory() as store:
        node = Node(store, NodeSettings())
        assert node.peers() == []
        assert {name for name in dir(node) if not name.startswith("_")} == {
            "addresses",
            "change_settings",
            "connect",
            "connections",
            "control",
            "dial_now",
            "dials",
            "disconnect",
            "health",
            "keep_connected",
            "listen",
            "load",
            "parts",  # for the exporter and for tests
            "peer_events",
            "peers",
            "reconcile_once",
            "reconcile_port",
            "reload_policy",
            "settings",
            "store",
            "sync_once",
        }
