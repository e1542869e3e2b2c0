"""Connecting to a host with several addresses uses the first one that answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from by_hand import on_loop
from peering import HOST, soon

from cablestore.peers.connecting import connected
from cablestore.resolution import AddressInfo, Resolver

SILENT = "127.0.0.2"


@contextmanager
def silent_at(host: str, port: int) -> Iterator[None]:
    """Listen at an address with a full backlog, so that it does not answer connections."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server((host, port), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield


@on_loop
async def test_an_address_that_does_not_answer_delays_the_next_one_for_a_moment_only() -> None:
    """EYEBALLS_DELAY_S: the operating system retries the first address for minutes."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, HOST, 0)
    port = server.sockets[0].getsockname()[1]

    def found(_: str) -> list[AddressInfo]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 0)) for host in (SILENT, HOST)]

    with silent_at(SILENT, port):
        made: list[asyncio.Transport] = []

        class Kept(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                made.append(transport)

        await soon(connected(Kept, "two.example", port, Resolver(found)))
        assert made[0].get_extra_info("peername")[0] == HOST
        made[0].abort()
    server.close()


class Ended(asyncio.Protocol):
    """Protocol that runs a function when it is created, and notes its end."""

    def __init__(self, created: Callable[[], object]) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        created()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


def has_ended(connection: socket.socket) -> bool:
    """Return True if the other end is closed."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except BlockingIOError:
        return False


@pytest.mark.parametrize("fails", [False, True])
@on_loop
async def test_a_cancelled_attempt_leaves_no_connection(fails: bool) -> None:
    """Even if the cancellation arrives when the connection is just being created."""
    made: list[Ended] = []

    def cancel() -> None:
        attempt.cancel()
        if fails:
            raise OSError("cannot create the protocol")

    def make() -> Ended:
        made.append(Ended(cancel))
        return made[-1]

    with socket.create_server((HOST, 0)) as server:
        attempt = asyncio.create_task(connected(make, HOST, server.getsockname()[1]))
        with pytest.raises(asyncio.CancelledError):
            await soon(attempt)
        with server.accept()[0] as other_end:
            if not fails:
                await soon(made[0].ended)
            assert has_ended(other_end)


@on_loop
async def test_an_attempt_whose_protocol_fails_closes_its_connection() -> None:
    def make() -> asyncio.Protocol:
        raise OSError("cannot create the protocol")

    with socket.create_server((HOST, 0)) as server:
        with pytest.raises(OSError, match="cannot create the protocol"):
            await soon(connected(make, HOST, server.getsockname()[1]))
        with server.accept()[0] as other_end:
            assert has_ended(other_end)


@on_loop
async def test_a_refused_attempt_is_looked_up_again() -> None:
    """The address of the host may have changed. Other hosts are not looked up again."""
    asked: list[str] = []

    def found(host: str) -> list[AddressInfo]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (HOST, 0))]

    resolver = Resolver(found)
    with socket.socket() as held:
        held.bind((HOST, 0))
        for _ in range(2):
            with pytest.raises(OSError, match="Connect call failed"):
                await soon(connected(asyncio.Protocol, "one.example", held.getsockname()[1], resolver))
    assert asked == ["one.example"] * 2
