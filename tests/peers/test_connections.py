"""Connections of both ports: their descriptors, events, timeouts, and the memory that they may use."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from by_hand import LIVE, ByHand, listening, on_loop, on_standing_loop
from clock import pass_time
from peering import HOST, Keeper, logged, raw_peer, soon, until
from people import ANN

from cablestore import limits, peers
from cablestore.peers import Address, PeerConnected, PeerLost
from cablestore.peers.connection import Connection, PauseReason, disconnect_slowest, size_of
from cablestore.peers.link import PeerLink
from cablestore.peers.silence import LifeCheck
from cablestore.protocol.message import (
    CancelRequest,
    ListRequest,
    ListResponse,
    ModerationRequest,
    PostRequest,
    StateRequest,
    TimeRangeRequest,
)
from cablestore.reconcile.messages import NODE


def ends_of(descriptor: int) -> tuple[Any, Any]:
    """Return the local and the remote address of a socket."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        try:
            return copy.getsockname(), copy.getpeername()
        except OSError:
            return copy.getsockname(), None


@on_loop
async def test_a_port_names_the_descriptors_of_its_sockets() -> None:
    async with listening() as (node, address):
        port = node.parts.cable_port
        peer = await ByHand.connect(address)
        link = await peer.known_to(node)
        own = peer.writer.get_extra_info("sockname")
        assert {ends_of(each) for each in port.sockets()} == {(address, None), (address, own)}
        assert list(node.parts.reconcile_port.sockets()) == []
        link.close("test")
        await soon(asyncio.shield(link.closed))
        assert link.descriptor == -1
        assert [ends_of(each) for each in port.sockets()] == [(address, None)]


@on_loop
async def test_a_connection_is_reported_with_its_reason_to_end() -> None:
    async with listening() as (node, address):
        events = node.peer_events()
        peer = await ByHand.connect(address)
        came = await soon(anext(events))
        assert isinstance(came, PeerConnected)
        found = came.peer
        assert found.number == 1
        assert found.address == Address(*peer.writer.get_extra_info("sockname"))
        assert (found.key, found.is_outgoing, found.only_reconciles, found.is_in_step) == (None, False, False, None)
        assert (found.received_requests, found.reconciliations, found.reconciled_at_ms) == (0, 0, None)
        assert (found.no_answer_s, found.received_size_bytes, found.sent_size_bytes) == (0, 0, 0)
        await peer.answer(ListRequest(b"", 0, 0))
        [now] = node.peers()
        assert (now.number, now.received_requests) == (found.number, 1)
        assert now.received_size_bytes > 0
        assert now.sent_size_bytes > 0
        await peer.close()
        lost = await soon(anext(events))
        assert isinstance(lost, PeerLost)
        assert lost.peer.number == found.number
        assert "the peer closed the connection" in lost.reason or "reset" in lost.reason
        assert node.peers() == []


@on_standing_loop
async def test_an_idle_connection_of_the_reconciliation_port_ends() -> None:
    """IDLE_TIMEOUT_S."""
    with logged() as log:
        async with listening() as (node, _):
            reader, writer = await asyncio.open_connection(*await node.reconcile_port.listen(Address(HOST, 0)))
            await until(node.peers)
            await pass_time(node.settings.idle_timeout_s - 2, step_s=1.0)
            assert node.peers()
            await pass_time(4.0, step_s=1.0)
            await soon(reader.read())  # a probe, then the end
            writer.close()
            await until(log.reasons)
        assert log.reasons() == ["idle"]


@on_loop
async def test_a_page_of_an_unknown_link_is_short_and_a_new_channel_replaces_the_request_for_moderation() -> None:
    """PAGE_HASHES_LEAST."""
    async with listening(channels=None, list_every_s=600) as (node, address):
        peer: Keeper = await raw_peer(address, Keeper, posts=[ANN.text("one", "x")])
        await until(lambda: any(asked.channels == ("one",) for asked in peer.requests_of(ModerationRequest)))
        [first] = peer.requests_of(ModerationRequest)
        await until(lambda: [asked for asked in peer.requests_of(TimeRangeRequest) if not asked.is_live])
        [page] = [asked for asked in peer.requests_of(TimeRangeRequest) if not asked.is_live]
        assert page.limit == limits.PAGE_HASHES_LEAST
        assert not peer.requests_of(CancelRequest)
        node.store.post("two", "y")
        await until(lambda: len(peer.requests_of(ModerationRequest)) == 2)
        assert peer.requests_of(ModerationRequest)[1].channels == ("one", "two")
        assert [asked.cancel_id for asked in peer.requests_of(CancelRequest)] == [first.request_id]
        await peer.close()


@on_loop
async def test_a_changed_network_closes_a_connection_or_probes_the_peer() -> None:
    async with listening() as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        here, there = link.ends
        now_s = asyncio.get_running_loop().time()
        for host, expected in ((HOST, LifeCheck.WAIT), ("127.0.0.2", LifeCheck.PROBE)):
            link.ends = ((host, here[1]), there)
            link.check_path()
            assert link.silence.check(now_s, now_s, is_delivered=True) is expected
        link.ends = (("192.0.2.1", here[1]), there)
        link.check_path()
        assert await soon(asyncio.shield(link.closed)) == "this machine no longer has the address 192.0.2.1"
        link.ends = (None, None)
        link.check_path()


@on_loop
async def test_the_last_permitted_fault_or_invalid_post_ends_the_connection() -> None:
    """MAX_FAULTS, MAX_INVALID_POSTS."""
    async with listening(max_faults=3, max_invalid_posts=5) as (node, address):
        acts: list[tuple[Callable[[Connection], None], int, str]] = [
            (lambda link: link.faulted("nonsense", "here"), 2, "too many faults (3), the last: nonsense (here)"),
            (lambda link: link.count_invalid_posts(2, "unsigned"), 2, "too many invalid posts (6), the last: unsigned"),
            (lambda link: link.count_invalid_posts(1, "unsigned"), 4, "too many invalid posts (5), the last: unsigned"),
        ]
        for act, times, reason in acts:
            link = await (await ByHand.connect(address)).known_to(node)
            for _ in range(times):
                act(link)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not link.closed.done()
            act(link)
            assert await soon(asyncio.shield(link.closed)) == reason


@on_loop
async def test_only_the_latest_posts_of_a_peer_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_RECEIVED_REMEMBERED."""
    monkeypatch.setattr(limits, "MAX_RECEIVED_REMEMBERED", 2)
    async with listening() as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        for digest in (b"a", b"b", b"b", b"c"):
            link.note_received(digest)
        assert list(link.received_posts) == [b"b", b"c"]


@on_loop
async def test_reading_is_paused_until_no_reason_is_left() -> None:
    async with listening() as (node, address):
        peer = await ByHand.connect(address)
        link = await peer.known_to(node)
        await peer.answer(ListRequest(b"", 0, 0))
        for reason in (PauseReason.STORING, PauseReason.SHARE):
            link.pause(reason)
        link.resume(PauseReason.STORING)
        link.resume(PauseReason.OFFERS)
        assert link.pauses == {PauseReason.SHARE}
        peer.send(ListRequest(b"", 0, 0))
        await asyncio.sleep(0.02)
        assert link.received_requests == 1
        link.resume(PauseReason.SHARE)
        await until(lambda: link.received_requests == 2)


@pytest.mark.parametrize("part_rows", [2, 1_000])
@on_loop
async def test_names_are_listed_from_the_offset_up_to_the_limit(
    part_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are collected in parts of PART_ROWS_ANSWERED."""
    monkeypatch.setattr(limits, "PART_ROWS_ANSWERED", part_rows)
    names = ["a", "b", "c", "d", "e"]
    async with listening([ANN.text(name, "x") for name in names]) as (_, address):
        peer = await ByHand.connect(address)
        for offset in range(7):
            for limit in range(7):
                [answer] = await peer.answer(ListRequest(b"", offset, limit))
                assert isinstance(answer, ListResponse)
                assert list(answer[1]) == names[offset : offset + limit if limit else None]


@on_loop
async def test_live_requests_are_counted_by_peer_type_and_channel() -> None:
    async with listening() as (node, address):
        live = node.parts.serving.live
        peer = await ByHand.connect(address)
        link = await peer.known_to(node)
        states = [StateRequest(peer.new_id(), name, 1) for name in ("a", "b", "b")]
        text = LIVE._replace(request_id=peer.new_id())
        peer.send(text, *states)
        await until(lambda: live.count == 4)
        assert (live.alike(link, text), live.alike(link, states[0]), live.alike(link, states[1])) == (1, 1, 2)
        assert live.alike(link, LIVE._replace(channel="b")) == 0
        assert live.state_channels == {"a", "b"}
        ends = ((states[1].request_id, {"a", "b"}), (states[0].request_id, {"b"}), (text.request_id, {"b"}))
        for number, (request_id, channels) in enumerate(ends):
            peer.send(CancelRequest(peer.new_id(), request_id))
            await until(lambda number=number: live.count == 3 - number)  # type: ignore[misc] # the argument has its default
            assert live.state_channels == channels
        await peer.close()
        await until(lambda: live.count == 0)
        assert live.state_channels == frozenset()


@on_loop
async def test_a_fault_or_a_slow_reader_ends_a_connection_of_the_reconciliation_port() -> None:
    """MAX_QUEUED_SIZE_BYTES."""
    with logged() as log:
        async with listening(max_queued_size_bytes=1_000_000) as (node, _):
            address = await node.reconcile_port.listen(Address(HOST, 0))
            acts: list[tuple[Callable[[PeerLink], None], str]] = [
                (lambda link: link.faulted("nonsense", "here"), "nonsense: here"),
                (lambda link: link.send_frames([bytes(1_000_000)] * 20), "the peer reads too slowly"),
            ]
            for act, reason in acts:
                _, writer = await asyncio.open_connection(*address)
                await until(node.peers)
                [link] = node.parts.links.reconcile
                link.send_frames([])
                act(link)
                assert await soon(asyncio.shield(link.closed)) == reason
                writer.close()
        assert log.faults() == ["nonsense"]


@on_loop
async def test_the_id_of_a_node_has_a_fixed_size() -> None:
    """A longer one is of a later version."""
    async with listening() as (node, address):
        link = await (await ByHand.connect(address)).known_to(node)
        for size_bytes in (15, 17, 16):
            node.parts.reconciler.node_ids.received(link, NODE + bytes(size_bytes))
            assert link.node_id == (bytes(16) if size_bytes == 16 else b"")
        assert not link.closed.done()


def test_the_package_exports_all_names_that_it_imports() -> None:
    names = {name for name, value in vars(peers).items() if name[0].isupper() and not isinstance(value, ModuleType)}
    assert names == set(peers.__all__)


# --- memory -------------------------------------------------------------------------------------


class Queue:
    """Connection that uses an amount of memory."""

    def __init__(self, held_size_bytes: int) -> None:
        self.held_size_bytes = held_size_bytes
        self.is_closed = False

    def close(self, reason: str) -> None:
        assert "reads too slowly" in reason
        self.is_closed = True


@pytest.mark.parametrize(
    ("max_size_bytes", "closed"), [(17, []), (16, [9]), (8, [9]), (7, [5, 9]), (3, [5, 9]), (2, [3, 5, 9])]
)
def test_the_largest_queues_are_closed_until_the_rest_fits(max_size_bytes: int, closed: list[int]) -> None:
    """MAX_QUEUED_TOTAL_SIZE_BYTES."""
    queues: list[Any] = [Queue(size) for size in (5, 9, 3)]
    disconnect_slowest(queues, max_size_bytes)
    assert sorted(each.held_size_bytes for each in queues if each.is_closed) == closed


def test_requests_with_many_hashes_or_channels_use_more_memory() -> None:
    least = size_of(ListRequest(b"", 0, 0))
    assert size_of(StateRequest(b"", "default", 1)) == size_of(PostRequest(b"", ())) == least > 0
    per_hash = size_of(PostRequest(b"", (bytes(32),))) - least
    assert per_hash > 32
    assert size_of(PostRequest(b"", (bytes(32),) * 10)) == least + 10 * per_hash
    assert size_of(ModerationRequest(b"", ("a", "b", "c"), 0, 0)) == least + 3 * per_hash
