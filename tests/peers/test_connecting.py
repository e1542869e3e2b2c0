"""Connecting to a host with several addresses uses the first one that answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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
