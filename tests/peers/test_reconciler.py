"""Reconciliations of a node: the outcome of each error, the pauses between two of them, and what is compared."""

from __future__ import annotations

import asyncio
import time

import pytest
from by_hand import ByHand, listening, on_loop, on_standing_loop
from clock import pass_time
from peering import HOST, Raw, logged, memory, raw_listener, soon, until
from people import ANN

from cablestore import limits
from cablestore.errors import CableStoreError, NodeError, StorageError
from cablestore.peers import Address, Node, NodeSettings
from cablestore.peers.reconciler import is_limit, jittered, outcome_of
from cablestore.peers.reconciliation import LostError, SilentError
from cablestore.peers.report import ReconcileReport
from cablestore.protocol.fields import sized
from cablestore.reconcile.errors import PeerRefusedError, ReconcileError, ReconcileLimitError
from cablestore.reconcile.messages import Accepted, ReconcileFrameReader, Terms, decode_frame, encode_frame
from cablestore.store.options import system_clock_ms


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ReconcileLimitError("too many"), "limit"),
        (PeerRefusedError("limit", "too many there"), "limit"),
        (PeerRefusedError("busy", "later"), "refused"),
        (LostError("gone"), "lost"),
        (SilentError("silent"), "silent"),
        (StorageError("full"), "storage"),
        (ReconcileError("nonsense"), "fault"),
        (NodeError("stopped"), "stopped"),
    ],
)
def test_each_error_has_an_outcome(error: CableStoreError, outcome: str) -> None:
    assert outcome_of(error) == outcome
    assert is_limit(error) is (outcome == "limit")


def test_pauses_differ_by_a_tenth() -> None:
    assert jittered(100.0, min) == 90.0
    assert round(jittered(100.0, max), 9) == 110.0


@on_loop
async def test_the_terms_of_a_node_are_its_channels_and_times() -> None:
    for settings, accepts_posts, channels in (
        ({"channels": None}, True, None),
        ({"channels": frozenset()}, False, None),
        ({"channels": frozenset({"a", "b"})}, True, frozenset({"a", "b"})),
    ):
        async with listening(**settings) as (node, _):
            assert node.parts.reconciler.own_terms() == Terms(accepts_posts, 0, None, channels)
    before_ms = system_clock_ms()
    async with listening(window_ms=1_000) as (node, address):
        terms = node.parts.reconciler.own_terms()
        assert before_ms - 1_000 <= terms.from_ms <= system_clock_ms() - 1_000
        link = await (await ByHand.connect(address)).known_to(node)
        clock = node.store.parts.intake.clock
        early = ANN.text("default", "early", at=clock() + limits.MAX_FUTURE_MS + 1_000)
        await node.parts.intake.store(link, [early.raw], link)
        # Later posts are not compared: each comparison would transfer them again.
        assert node.parts.reconciler.own_terms().until_ms == clock() + limits.MAX_FUTURE_MS


@pytest.mark.parametrize("over_cable", [False, True], ids=["own port", "over Cable"])
@on_loop
async def test_errors_of_a_single_reconciliation_name_the_address(over_cable: bool) -> None:
    settings = NodeSettings(reconciles=True)
    with memory("b", posts=[ANN.text("default", "x")]) as store:
        async with listening(channels=None, reconciles=True) as (node, cable), Node(store, settings) as other:
            address = cable if over_cable else await node.reconcile_port.listen(Address(HOST, 0))
            node.parts.context.writes.failure = "the disk is full"
            report = ReconcileReport()
            with pytest.raises(PeerRefusedError, match=f"{address}: .*cannot store posts") as found:
                await soon(other.reconcile_once(address, over_cable=over_cable, report=report))
            assert found.value.reason == "busy"
            assert (report.talks, report.posts_sent) == (1, 0)
            node.parts.context.writes.failure = ""
            report = await soon(other.reconcile_once(address, over_cable=over_cable))
            assert (report.posts_sent, report.moved) == (1, 1)
            await until(lambda: not other.connections)


@on_loop
async def test_a_sync_requests_all_posts_if_the_peer_cannot_reconcile_now() -> None:
    with logged() as log, memory("b") as store:
        async with (
            listening([ANN.text("default", "x")], channels=None, reconciles=True) as (node, address),
            Node(store) as other,
        ):
            node.parts.context.writes.failure = "the disk is full"
            report = await soon(other.sync_once(address))
            assert (report.posts, report.channels, report.missing) == (1, 1, 0)
            assert report.received_size_bytes > 0 < report.sent_size_bytes
            [fields] = [vars(record) for record in log.records if record.getMessage() == "requesting all posts"]
            assert "cannot store posts" in fields["reason"]
            node.parts.context.writes.failure = ""


@on_standing_loop
async def test_a_sync_with_a_peer_that_answers_nothing_fails() -> None:
    async with listening(channels=None) as (node, _), raw_listener(Raw) as (address, _):
        syncing = asyncio.create_task(node.sync_once(address))
        while not syncing.done():
            await pass_time(1.0, step_s=0.5)
            await asyncio.to_thread(lambda: None)
        with pytest.raises(NodeError, match=f"{address} did not answer within {node.settings.answer_timeout_s:g} s"):
            await syncing


@on_standing_loop
async def test_a_busy_peer_is_requested_again_soon() -> None:
    """Until then, it is unknown whether the stores are in step."""
    with logged() as log, memory("b") as store:
        async with listening(reconciles=True, channels=None) as (node, _), Node(store) as other:
            address = await node.reconcile_port.listen(Address(HOST, 0))
            node.parts.context.writes.failure = "the disk is full"
            other.reconcile_port.keep_connected(address)

            def outcomes() -> list[str]:
                return [vars(record)["outcome"] for record in log.records if record.getMessage() == "reconciled"]

            await until(lambda: outcomes() == ["refused"])
            await pass_time(0.9)
            assert outcomes() == ["refused"]
            assert [peer.is_in_step for peer in other.peers()] == [None]
            began_s = asyncio.get_running_loop().time()
            for number in (2, 3):
                while len(outcomes()) < number:
                    await pass_time(1.0, step_s=0.5)
                    await asyncio.to_thread(time.sleep, 0.01)
                node.parts.context.writes.failure = ""
            assert outcomes()[:3] == ["refused", "refused", "done"]
            assert asyncio.get_running_loop().time() - began_s < node.settings.reconcile_every_s / 2
            await until(lambda: [peer.is_in_step for peer in other.peers()] == [True])


@on_loop
async def test_an_invalid_frame_ends_a_single_reconciliation_with_an_error_that_names_the_address() -> None:
    async with listening() as (node, _):

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = await reader.read(65_536)
            [hello] = ReconcileFrameReader(limits.MAX_TALK_FRAME_SIZE_BYTES).feed(data)
            number, _ = decode_frame(hello)
            writer.write(sized(encode_frame(number, Accepted(Terms()))[:-1]))
            await reader.read()
            writer.close()

        async with await asyncio.start_server(answer, HOST, 0) as server:
            address = Address(*server.sockets[0].getsockname()[:2])
            with pytest.raises(ReconcileError, match=f"{address}: ") as found:
                await soon(node.reconcile_once(address))
            assert not isinstance(found.value, PeerRefusedError)
