"""TCP connections to hosts by name or address. The first address that answers is used (RFC 8305)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from aiohappyeyeballs import AddrInfoType, start_connection

from cablestore import limits
from cablestore.peers.address import Address
from cablestore.resolution import RESOLVER, Resolver

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)


async def connected(make: Callable[[], ProtocolT], host: str, port: int, resolver: Resolver = RESOLVER) -> ProtocolT:
    """Connect, and return the protocol that `make` created. Raises OSError, and ValueError for an invalid host name."""
    loop = asyncio.get_running_loop()
    addresses = await resolver.resolve(host, port)
    made: list[socket.socket] = []

    def new_socket(info: AddrInfoType) -> socket.socket:
        made.append(socket.socket(*info[:3]))
        return made[-1]

    try:
        connection = await start_connection(
            addresses, happy_eyeballs_delay=limits.EYEBALLS_DELAY_S, socket_factory=new_socket
        )
    except RuntimeError as error:  # raised by uvloop
        resolver.doubt(host)
        raise OSError(str(error)) from None
    except (OSError, asyncio.CancelledError):  # refused, or timed out
        resolver.doubt(host)
        for each in made:  # including one that was just connected
            each.close()
        raise
    making = asyncio.ensure_future(loop.create_connection(make, sock=connection))
    try:
        return (await asyncio.shield(making))[1]
    except asyncio.CancelledError:  # a cancelled `making` would close the descriptor twice: uvloop and the socket
        making.add_done_callback(partial(_abort, connection))
        await asyncio.wait({making})  # one loop iteration
        raise
    except OSError:
        connection.close()
        raise


def _abort(connection: socket.socket, making: asyncio.Task[tuple[asyncio.Transport, ProtocolT]]) -> None:
    if making.cancelled():  # it has closed the descriptor
        return
    if making.exception() is not None:
        connection.close()
    else:
        making.result()[0].abort()


def what_is_silent(address: Address) -> str:
    """Return the beginning of a timeout error: it names the name server or the peer, whichever has not answered."""
    return f"cannot connect to {address}: the name server" if RESOLVER.is_looking_up(address.host) else str(address)
