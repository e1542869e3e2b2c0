"""One port of a node: it listens, connects, stays connected, and limits the number of connections."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Generic, TypeVar

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.peers import accepting, descriptors
from cablestore.peers.address import Address, listen_error
from cablestore.peers.bans import BANNED, host_name
from cablestore.peers.connecting import connected, what_is_silent
from cablestore.peers.context import PeerContext
from cablestore.peers.dialling import Dial
from cablestore.peers.link import ITSELF, PeerLink
from cablestore.peers.own_addresses import address_of, reachable_at
from cablestore.peers.peer_events import PeerUnreachable
from cablestore.peers.policy import REJECTED
from cablestore.resolution import RESOLVER

_STOP_TIMEOUT_S: Final = 5.0
_WARN_EVERY_S: Final = 600.0
"""Interval of log messages about too few file descriptors."""

L = TypeVar("L", bound=PeerLink)


class PeerListener(ABC, Generic[L]):
    """The connections of one port. Each connection adds itself with `admit` and removes itself with `remove`."""

    def __init__(
        self,
        context: PeerContext,
        new_link: Callable[[Address | None], L],
        links: set[L],
        purpose: str = "",
    ) -> None:
        """Initialize a port that adds its connections to `links`. The log contains its `purpose`."""
        self._context = context
        self._new_link = new_link
        self._purpose = {"for": purpose} if purpose else {}
        self._servers: Final[list[accepting.AcceptingSockets]] = []
        self.links: Final = links
        self.by_network: Final[Counter[str]] = Counter()
        self._kept: Final[dict[Address, asyncio.Task[None]]] = {}
        self._is_stopping = False
        self._warns_at_s = 0.0
        """The earliest time of the next log message about too few file descriptors."""

    @abstractmethod
    async def keep(self, link: L) -> None:
        """Use a kept connection until it ends."""

    async def listen(self, address: Address) -> Address:
        """Accept connections at an address. Return the address, with the assigned port for port 0. Raises NodeError."""
        return await self._context.life.call(self._listen, address)

    async def _listen(self, address: Address) -> Address:
        loop = self._context.loop
        try:
            sockets = accepting.bind(await RESOLVER.texts(address.host), address.port)
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            raise listen_error(address, error) from None
        self._servers.append(accepting.AcceptingSockets(loop, sockets, self._accept, self._not_accepted))
        found = tuple(address_of(each.getsockname()) for each in sockets)
        encrypted = self._context.settings.cabal_key is not None
        for each in found:
            self._context.log.info("listening", extra={"address": str(each), "encrypted": encrypted, **self._purpose})
        return found[0]

    def addresses(self) -> list[Address]:
        """Return the addresses to which peers can connect. Each address of the machine replaces 0.0.0.0 and ::."""
        found = (address_of(each.getsockname()) for server in self._servers for each in server.sockets)
        return [each for address in found for each in reachable_at(address)]

    def _accept(self, connection: socket.socket) -> None:
        """Create a link for an accepted connection, unless it would use up the file descriptors."""
        rejection = descriptors.rejection(connection.fileno())
        if rejection:
            self._refuse(connection, rejection)
            return

        async def use() -> None:
            try:
                await self._context.loop.connect_accepted_socket(lambda: self._new_link(None), connection)
            except OSError:  # the peer is gone
                connection.close()

        def used(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # possibly before `use` started
                connection.close()

        self._context.life.run(use()).add_done_callback(used)

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        if self._may_warn():
            self._context.log.warning("too few file descriptors: further peers are rejected", extra={"reason": reason})
        self._context.metrics.refused["descriptors"].inc()
        with suppress(OSError):  # the peer is gone
            peer = Address(*connection.getpeername()[:2])
            self._context.log.info("disconnected", extra={"peer": str(peer), "reason": reason})
        connection.close()

    def _not_accepted(self, error: OSError) -> None:
        if self._may_warn():
            self._context.log.warning("cannot accept connections", extra={"reason": str(error.strerror)})

    def _may_warn(self) -> bool:
        """Return True, at most once in `_WARN_EVERY_S`, if the log may warn about too few file descriptors now."""
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
        """Connect to a peer, including the handshake. Raises NodeError."""
        return await self._context.life.call(self._connect, address, timeout_s, new_link or self._new_link)

    async def _connect(self, address: Address, timeout_s: float, make: Callable[[Address | None], L]) -> L:
        link: L | None = None
        if self._context.bans.has(host_name(address.host)):
            raise NodeError(f"cannot connect to {address}: {BANNED}")
        if host_name(address.host) in self._context.policies.policy.peers.deny:
            raise NodeError(f"cannot connect to {address}: {REJECTED}")
        try:
            async with asyncio.timeout(timeout_s):
                link = await connected(lambda: make(address), *address)
                is_established = await asyncio.shield(link.established)
        except TimeoutError:
            reason = f"{what_is_silent(address)} does not answer within {timeout_s:g} s"
            raise NodeError(reason if link is None else link.with_cause(reason)) from None
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            raise NodeError(f"cannot connect to {address}: {getattr(error, 'strerror', None) or error}") from None
        finally:
            if link is not None and not link.is_established:
                link.close("the handshake took too long")
        if not is_established:
            raise NodeError(f"cannot connect to {address}: {await asyncio.shield(link.closed)}")
        return link

    def keep_connected(self, address: Address) -> None:
        """Stay connected to a peer. After each failure or end, connect again after a pause (`dialling`).

        Connections to this node itself, and second connections to a peer, are ended (`node_ids`).
        """
        self._context.life.check()
        if address not in self._kept:
            self._kept[address] = self._context.life.run(self._keep_reconnecting(address))

    def disconnect(self, address: Address) -> None:
        """End the connection with a peer, and stop reconnecting to it."""
        self._context.life.check()
        if address in self._kept:
            self._kept.pop(address).cancel()
        for link in self.links:
            if link.dialed == address:
                link.end("this node disconnected")

    async def _keep_reconnecting(self, address: Address) -> None:
        dials = self._context.dials
        dial = dials.add(address, only_reconciles=bool(self._purpose))
        try:
            while True:
                reason = await self._connect_and_keep(address, dial)
                if reason == ITSELF:
                    return
                settings = self._context.settings
                pause_s = dial.ended(reason, settings.first_retry_s, settings.longest_retry_s, dials.spread)
                self._context.watchers.notify(PeerUnreachable(address, reason))
                fields = {"peer": str(address), "reason": reason, "again_in_s": round(pause_s, 3)}
                self._context.log.info("no connection", extra=fields)
                await dial.pause(pause_s)
        finally:
            dials.remove(dial)

    async def _connect_and_keep(self, address: Address, dial: Dial) -> str:
        """Connect, and use the connection until it ends. Return the reason for the end or the failure."""
        try:
            link = await self.connect(address)
        except NodeError as error:
            return str(error)
        self._context.dials.connected(dial)
        await self.keep(link)
        if link.duplicate is not None:
            await asyncio.wait({link.duplicate.closed})  # afterwards this address is used again
        return await asyncio.shield(link.closed)

    def sockets(self) -> Iterator[int]:
        """Yield the descriptors of the port and its connections."""
        yield from (each.fileno() for server in self._servers for each in server.sockets)
        yield from (link.descriptor for link in self.links if link.descriptor >= 0)

    # --- limits --------------------------------------------------------------------------------

    def admit(self, link: L) -> str:
        """Add a connection, even if it is to be rejected. Return the reason to reject it, or ""."""
        self.links.add(link)
        self.by_network[link.network] += 1
        if self._is_stopping:
            return "this node is stopping"
        settings = self._context.settings
        shaking = [known.network for known in self.links if not known.is_established] if settings.cabal_key else []
        for kind, count, most, what in (
            ("peers", len(self.links), settings.max_peers, "peers"),
            ("address", self.by_network[link.network], settings.max_peers_per_address, "peers from one address"),
            ("handshakes", len(shaking), settings.max_handshakes, "handshakes in progress"),
            (
                "handshakes",
                shaking.count(link.network),
                settings.max_handshakes_per_address,
                "handshakes in progress with one address",
            ),
        ):
            if count > most:
                if not link.is_ours:
                    self._context.metrics.refused[kind].inc()
                return f"too many {what}: the maximum is {most}"
        return ""

    def remove(self, link: L) -> None:
        """Remove an ended connection."""
        self.links.discard(link)
        self.by_network[link.network] -= 1
        if not self.by_network[link.network]:
            del self.by_network[link.network]

    # --- the end -------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop accepting connections."""
        self._is_stopping = True
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """Close all connections gracefully, within a time limit."""
        for link in list(self.links):
            link.end("this node is stopping")
        if self.links:
            await asyncio.wait([link.closed for link in self.links], timeout=_STOP_TIMEOUT_S)

    async def abort(self) -> None:
        """Close all connections immediately, and wait until they are closed."""
        while links := list(self.links):
            for link in links:
                link.close("this node is stopping")
            await asyncio.wait([link.closed for link in links])

    def abandon(self) -> None:
        """Close the listening sockets and all connections without waiting, because the loop has ended."""
        self.stop()
        for link in list(self.links):
            with suppress(RuntimeError):  # the loop was closed, and the transport with it
                link.close("the event loop of this node ended")
