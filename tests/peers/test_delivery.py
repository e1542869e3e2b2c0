"""Delivery state of connections: a peer that reads slowly is alive, regardless of how long it does not read."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import uvloop
from by_hand import LIVE, listening, on_loop, texts
from namespaces import drop_answers, machine_beside
from peering import logged, until
from people import raws
from waiting import wait_until

from cablestore import LEGACY, limits
from cablestore.peers import Address
from cablestore.peers.delivery import Delivery
from cablestore.protocol.message import encode_message

LATER_S = 1_000_000.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows acknowledgements")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as here, listener.accept()[0] as there:
            here.setblocking(False)
            yield here, there


def test_acknowledged_data_is_complete(ends: tuple[socket.socket, socket.socket]) -> None:
    delivery = Delivery(ends[0], 0.0)
    assert delivery.is_complete()
    ends[0].send(b"hello")
    wait_until(delivery.is_complete)
    assert delivery.unacknowledged_s(LATER_S) == 0


def test_a_full_window_is_neither_complete_nor_lost(ends: tuple[socket.socket, socket.socket]) -> None:
    """TCP_USER_TIMEOUT would close this connection, although the peer's machine answers each probe."""
    here, there = ends
    delivery = Delivery(here, 0.0)
    with suppress(BlockingIOError):
        while True:
            here.send(bytes(65_536))
    wait_until(lambda: delivery.unacknowledged_s(LATER_S) == 0 and not delivery.is_complete())
    there.setblocking(False)

    def is_drained() -> bool:
        with suppress(BlockingIOError):
            while there.recv(65_536):
                pass
        return delivery.is_complete()

    wait_until(is_drained)


def test_a_closed_connection_has_no_unacknowledged_data(ends: tuple[socket.socket, socket.socket]) -> None:
    delivery = Delivery(ends[0], 0.0)
    ends[0].close()
    assert delivery.unacknowledged_s(LATER_S) == 0
    assert delivery.is_complete()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_closed_transport_has_no_unacknowledged_data(
    ends: tuple[socket.socket, socket.socket], new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def closed() -> Delivery:
        _, writer = await asyncio.open_connection(sock=ends[0])
        delivery = Delivery(writer.get_extra_info("socket"), 0.0)
        writer.close()
        await writer.wait_closed()
        return delivery

    with asyncio.Runner(loop_factory=new_loop) as runner:
        delivery = runner.run(closed())
        assert delivery.unacknowledged_s(LATER_S) == 0
        assert delivery.is_complete()


_SILENT: str = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
peer.send(bytes.fromhex(sys.argv[3]))
sys.stdin.read()
"""


def test_a_peer_whose_machine_acknowledges_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """UNACKNOWLEDGED_TIMEOUT_S applies also to a peer that only listens and never got a ping."""
    monkeypatch.setattr(limits, "UNACKNOWLEDGED_TIMEOUT_S", 0.5)
    own_host, host = "10.78.77.1", "10.78.77.2"

    @on_loop
    async def scenario(name: str) -> None:
        with logged() as log:
            async with listening() as (node, _):
                port = (await node.listen(Address(own_host, 0))).port
                request = encode_message(LIVE._replace(request_id=b"live"), LEGACY).hex()
                command = ["ip", "netns", "exec", name, sys.executable, "-c", _SILENT, own_host, str(port), request]
                with subprocess.Popen(command, stdin=subprocess.PIPE) as peer:  # noqa: ASYNC220 - takes a millisecond
                    await until(lambda: node.load().live_requests == 1)
                    drop_answers(name, own_host)
                    node.store.ingest(raws(*texts(1)))
                    await until(log.reasons)
                    peer.kill()
                assert log.reasons()[0].startswith("no answer for ")

    with machine_beside(own_host, host) as name:
        scenario(name)
