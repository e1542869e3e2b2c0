"""One port of a node: it listens, connects, stays connected, and limits how many connections there are."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final, Generic, TypeVar

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.peers import accepting, descriptors
from cablestore.peers.address import Address
from cablestore.peers.context import PeerContext
from cablestore.peers.link import ITSELF, PeerLink

_STOP_TIMEOUT_S: Final = 5.0
_FIRST_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 300.0
_WARN_EVERY_S: Final = 600.0
"""How often the log repeats that there are too few file descriptors."""

L = TypeVar("L", bound=PeerLink)


class PeerListener(Generic[L]):
    """The connections of one port. Each connection adds itself by `admit` and removes itself by `remove`."""

    def __init__(
        self,
        context: PeerContext,
        new_link: Callable[[Address | None], L],
        keep: Callable[[L], Awaitable[None]],
        purpose: str = "",
    ) -> None:
        """`keep` uses a connection that is kept, until the connection is over.

        The log tells the `purpose` of the port.
        """
        self._context = context
        self._new_link = new_link
        self._keep = keep
        self._purpose = {"for": purpose} if purpose else {}
        self._servers: Final[list[accepting.AcceptingSockets]] = []
        self.links: Final[set[L]] = set()
        self._by_host: Final[Counter[str]] = Counter()
        self._kept: Final[dict[Address, asyncio.Task[None]]] = {}
        self._is_stopping = False
        self._warns_at_s = 0.0
        """When the log may say again that there are too few file descriptors."""

    async def listen(self, address: Address) -> Address:
        """Accept connections. Returns the address, with the port that was given for port 0. Raises NodeError."""
        loop = self._context.loop
        try:
            sockets = await accepting.bind(loop, address.host, address.port)
        except (OSError, ValueError) as error:  # ValueError: no host can have this name
            raise NodeError(f"cannot listen on {address}: {getattr(error, 'strerror', None) or error}") from None
        self._servers.append(accepting.AcceptingSockets(loop, sockets, self._accept, self._not_accepted))
        found = Address(*sockets[0].getsockname()[:2])
        encrypted = self._context.settings.cabal_key is not None
        self._context.log.info("listening", extra={"address": str(found), "encrypted": encrypted, **self._purpose})
        return found

    def _accept(self, connection: socket.socket) -> None:
        """Make a link of a connection that was accepted, unless it would use up the file descriptors."""
        refusal = descriptors.refusal(connection.fileno())
        if refusal:
            self._refuse(connection, refusal)
            return

        async def use() -> None:
            try:
                await self._context.loop.connect_accepted_socket(lambda: self._new_link(None), connection)
            except OSError:  # the peer is gone
                connection.close()

        def used(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # maybe before it began
                connection.close()

        self._context.run(use()).add_done_callback(used)

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        if self._may_warn():
            self._context.log.warning("too few file descriptors: more peers are refused", extra={"reason": reason})
        self._context.metrics.refused["descriptors"].inc()
        with suppress(OSError):  # the peer is gone
            peer = Address(*connection.getpeername()[:2])
            self._context.log.info("disconnected", extra={"peer": str(peer), "reason": reason})
        connection.close()

    def _not_accepted(self, error: OSError) -> None:
        if self._may_warn():
            self._context.log.warning("connections cannot be accepted", extra={"reason": str(error.strerror)})

    def _may_warn(self) -> bool:
        """Return True if the log may say now that there are too few file descriptors. It does so a few times an hour."""
        now_s = self._context.loop.time()
        may_warn = now_s >= self._warns_at_s
        if may_warn:
            self._warns_at_s = now_s + _WARN_EVERY_S
        return may_warn

    async def connect(
        self,
        address: Address,
        timeout_s: float = limits.HANDSHAKE_TIMEOUT_S,
        new_link: Callable[[Address | None], L] | None = None,
    ) -> L:
        """Connect to a peer, the handshake included. Raises NodeError."""
        make = new_link or self._new_link
        link: L | None = None
        try:
            async with asyncio.timeout(timeout_s):
                _, link = await self._context.loop.create_connection(lambda: make(address), *address)
                is_established = await asyncio.shield(link.established)
        except TimeoutError:
            raise NodeError(f"{address} does not answer within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: no host can have this name
            raise NodeError(f"cannot connect to {address}: {getattr(error, 'strerror', None) or error}") from None
        finally:
            if link is not None and not link.is_established:
                link.close("the handshake was not done in time")
        if not is_established:
            raise NodeError(f"no connection with {address}: {await asyncio.shield(link.closed)}")
        return link

    def keep_connected(self, address: Address) -> None:
        """Stay connected to a peer. After a failure, try again after longer and longer pauses.

        Not to this node itself, and not twice to one peer: `node_ids`.
        """
        if address not in self._kept:
            self._kept[address] = self._context.run(self._keep_reconnecting(address))

    def disconnect(self, address: Address) -> None:
        """End the connection with a peer, and do not connect to it again by itself."""
        if address in self._kept:
            self._kept.pop(address).cancel()
        for link in self.links:
            if link.dialed == address:
                link.end("the node disconnects")

    async def _keep_reconnecting(self, address: Address) -> None:
        loop, pause_s = self._context.loop, _FIRST_RETRY_S
        while True:
            began_s = loop.time()
            try:
                link = await self.connect(address)
                await self._keep(link)
                if link.closed.done() and link.closed.result() == ITSELF:
                    return
                if link.twin is not None:
                    await asyncio.wait({link.twin.closed})  # then this address is the one to use
            except NodeError as error:
                fields = {"peer": str(address), "reason": str(error), "again_in_s": pause_s}
                self._context.log.info("no connection", extra=fields)
            # A connection that lasted was no failure. The randomness keeps a crowd from coming back at the same moment.
            pause_s = _FIRST_RETRY_S if loop.time() - began_s > pause_s else min(2 * pause_s, _LONGEST_RETRY_S)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - no secret

    def sockets(self) -> Iterator[int]:
        """Yield the descriptors of the port and its connections."""
        yield from (each.fileno() for server in self._servers for each in server.sockets)
        yield from (link.descriptor for link in self.links if link.descriptor >= 0)

    # --- limits --------------------------------------------------------------------------------

    def admit(self, link: L) -> str:
        """Add a connection. Returns the limit that it exceeds, or ""."""
        self.links.add(link)
        self._by_host[link.host] += 1
        if self._is_stopping:
            return "the node stops"
        settings = self._context.settings
        shaking = [known.host for known in self.links if not known.is_established] if settings.cabal_key else []
        for kind, count, most, what in (
            ("peers", len(self.links), settings.max_peers, "peers"),
            ("address", self._by_host[link.host], settings.max_peers_per_address, "peers from one address"),
            ("handshakes", len(shaking), settings.max_handshakes, "handshakes in progress"),
            (
                "handshakes",
                shaking.count(link.host),
                settings.max_handshakes_per_address,
                "handshakes in progress with one address",
            ),
        ):
            if count > most:
                if not link.is_ours:
                    self._context.metrics.refused[kind].inc()
                return f"more than {most} {what}"
        return ""

    def remove(self, link: L) -> None:
        """Remove a connection that is over."""
        self.links.discard(link)
        self._by_host[link.host] -= 1
        if not self._by_host[link.host]:
            del self._by_host[link.host]

    # --- the end -------------------------------------------------------------------------------

    def stop(self) -> None:
        """Accept no more connections."""
        self._is_stopping = True
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """End all connections in good order, and abort those that do not end in time."""
        self.stop()
        for link in list(self.links):
            link.end("the node stops")
        if self.links:
            await asyncio.wait([link.closed for link in self.links], timeout=_STOP_TIMEOUT_S)
        for link in list(self.links):
            link.close("the node stops")
