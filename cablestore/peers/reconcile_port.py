"""The port of its own: reconciliation without Cable. TCP, frames with their sizes before them, encrypted with a cabal key."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from cablestore import limits
from cablestore.errors import HandshakeError, NodeError, ReconcileError
from cablestore.peers.reconnect import retrying
from cablestore.peers.settings import Address
from cablestore.protocol.fields import sized
from cablestore.protocol.secure_channel import SecureChannel
from cablestore.reconcile.framing import ReconcileFrameReader

if TYPE_CHECKING:
    from cablestore.peers.node import Node

_PROLOGUE: Final = b" reconcile"
"""Behind the prologue of Cable, so that the two ports are not taken for each other."""
_READ_SIZE_BYTES: Final = 65_536


class OwnLink:
    """A connection to or from another store's own port. `run` reads from it until it is over."""

    def __init__(
        self, node: Node, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], dialed: Address | None = None
    ) -> None:
        self._node = node
        self._reader, self._writer = streams
        self.dialed: Final = dialed
        peer = self._writer.get_extra_info("peername") or ("?", 0)
        self.host: Final = str(peer[0])
        self.name: str = str(Address(self.host, peer[1]))
        self.is_ours: Final = dialed is not None
        self.closed: asyncio.Future[str] = node.loop.create_future()
        self.established: Final[asyncio.Future[bool]] = node.loop.create_future()
        self.faults = self.invalid_posts = 0
        self._channel: SecureChannel | None = None
        self._frames = ReconcileFrameReader(limits.MAX_TALK_FRAME_SIZE_BYTES)
        self.why = ""
        """Why it ends, once that is decided."""

    @property
    def remote_static(self) -> bytes | None:
        """The peer's static key, where there was a handshake."""
        return self._channel.remote_static if self._channel is not None and self._channel.is_established else None

    @property
    def is_established(self) -> bool:
        """Whether frames can be exchanged."""
        return self.established.done() and self.established.result()

    # --- reading --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Shake hands and read, until the connection is over."""
        reason = "the peer closed the connection"
        try:
            self._channel = self._node.new_channel(is_initiator=self.is_ours, beside=_PROLOGUE)
            if self._channel is None:
                self.established.set_result(True)
            else:
                self._writer.write(self._channel.start())
            async with asyncio.timeout(self._node.settings.handshake_timeout_s):
                while not self.is_established and await self._read():
                    pass
            while await self._read_in_time():
                pass
        except (ReconcileError, HandshakeError) as error:
            reason = str(error)
        except TimeoutError:
            reason = "idle" if self.is_established else "the handshake took too long"
        except OSError as error:
            reason = f"the connection broke: {error}"
        except asyncio.CancelledError:
            reason = "the node stops"
            raise
        finally:
            self._over(self.why or reason)

    async def _read_in_time(self) -> bool:
        """Read once. Silence is no reason to close while there is a talk, which has limits of its own."""
        while True:
            try:
                async with asyncio.timeout(self._node.settings.idle_timeout_s):
                    return await self._read()
            except TimeoutError:
                if not self._node.reconciling.is_talking(self):
                    raise

    async def _read(self) -> bool:
        """Read what comes; tell whether more can."""
        data = await self._reader.read(_READ_SIZE_BYTES)
        if not data:
            return False
        channel = self._channel
        if channel is not None:
            messages, reply = channel.receive(data)
            self._writer.write(reply)
            data = b"".join(messages)
            if channel.is_established and not self.established.done():
                self.established.set_result(True)
        for frame in self._frames.feed(data):
            self._node.reconciling.received(self, frame)
        return channel is None or not channel.has_ended

    def _over(self, reason: str) -> None:
        self.end(reason)
        if not self.established.done():
            self.established.set_result(False)
        if not self.closed.done():
            self.closed.set_result(self.why)

    # --- writing and closing --------------------------------------------------------------------

    def send_frames(self, frames: list[bytes]) -> None:
        """Send frames. A peer that does not read them is disconnected."""
        if not self.is_established or self._writer.is_closing():
            return
        data = b"".join(map(sized, frames))
        if data:
            self._writer.write(data if self._channel is None else self._channel.send(data))
        if self._writer.transport.get_write_buffer_size() > self._node.settings.max_queued_size_bytes:
            self.close("it reads too slowly")

    def gave_invalid_posts(self, count: int, reason: str) -> None:
        """Count posts that no honest peer passes on; too many end the connection."""
        self.invalid_posts += count
        if self.invalid_posts >= self._node.settings.max_invalid_posts:
            self.close(f"{self.invalid_posts} invalid posts, the last: {reason}")

    def faulted(self, what: str, detail: str) -> None:
        """End the connection: here every fault is one of the protocol."""
        self._node.log.info("fault", extra={"peer": self.name, "what": what, "detail": detail})
        self.close(f"{what}: {detail}")

    def end(self, why: str) -> None:
        """End the connection in good order: what is written goes out."""
        self.why = self.why or why
        if self._writer.is_closing():
            return
        if self._channel is not None and self._channel.is_established and not self._channel.has_finished:
            with suppress(HandshakeError):
                self._writer.write(self._channel.finish())
        self._writer.close()

    def close(self, why: str) -> None:
        """End the connection at once."""
        self.why = self.why or why
        self._writer.transport.abort()


class OwnPort:
    """The own ports that a node listens on, and its connections to those of others."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._servers: Final[list[asyncio.Server]] = []
        self.links: Final[set[OwnLink]] = set()
        self._runs: Final[set[asyncio.Task[None]]] = set()

    async def listen(self, address: Address) -> Address:
        """Take connections. Returns where, with the port that was given for port 0. Raises NodeError."""
        try:
            server = await asyncio.start_server(self._taken, address.host, address.port)
        except (OSError, ValueError) as error:
            raise NodeError(f"cannot listen on {address}: {getattr(error, 'strerror', None) or error}") from None
        self._servers.append(server)
        found = Address(*server.sockets[0].getsockname()[:2])
        encrypted = self._node.settings.cabal_key is not None
        self._node.log.info("listening", extra={"address": str(found), "encrypted": encrypted, "for": "reconciling"})
        return found

    async def connect(self, address: Address, timeout_s: float = limits.HANDSHAKE_TIMEOUT_S) -> OwnLink:
        """Connect to another store's own port, the handshake included. Raises NodeError."""
        link: OwnLink | None = None
        try:
            async with asyncio.timeout(timeout_s):
                link = OwnLink(self._node, await asyncio.open_connection(*address), address)
                self._run(link)
                is_established = await asyncio.shield(link.established)
        except TimeoutError:
            raise NodeError(f"{address} does not answer within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:
            raise NodeError(f"cannot connect to {address}: {getattr(error, 'strerror', None) or error}") from None
        finally:
            if link is not None and not link.is_established:
                link.close("the handshake was not done in time")
        if not is_established:
            raise NodeError(f"no connection with {address}: {await asyncio.shield(link.closed)}")
        return link

    def keep_connected(self, address: Address) -> None:
        """Stay connected to another store's own port, and in step with it."""

        async def connected() -> None:
            await self._node.reconciling.keep_in_step(await self.connect(address))

        self._node.run(retrying(self._node, address, connected))

    async def close(self) -> None:
        """End all connections in good order."""
        for server in self._servers:
            server.close()
        for link in list(self.links):
            link.end("the node stops")
        for task in list(self._runs):
            task.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)

    # --- connections ----------------------------------------------------------------------------

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = OwnLink(self._node, (reader, writer))
        refusal = self._refusal(link)
        if refusal:
            self._node.log.info("disconnected", extra={"peer": link.name, "reason": refusal})
            link.close(refusal)
            return
        self._run(link)

    def _refusal(self, link: OwnLink) -> str:
        """Why no more connections are taken, "" where they are."""
        settings = self._node.settings
        shaking = [known.host for known in self.links if not known.established.done()]
        for count, most, what in (
            (len(self.links), settings.max_peers, "peers"),
            (
                Counter(known.host for known in self.links)[link.host],
                settings.max_peers_per_address,
                "peers from one address",
            ),
            (len(shaking), settings.max_handshakes, "handshakes in progress"),
            (shaking.count(link.host), settings.max_handshakes_per_address, "handshakes in progress with one address"),
        ):
            if count >= most:
                return f"more than {most} {what}"
        return ""

    def _run(self, link: OwnLink) -> None:
        self.links.add(link)
        work: Coroutine[Any, Any, None] = link.run()
        task = self._node.loop.create_task(work)
        self._runs.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._runs.discard(task)
            self.links.discard(link)
            link.close("the node stops")  # what was cancelled before it began
            if not task.cancelled() and task.exception() is not None:
                self._node.log.error("a task failed", exc_info=task.exception())
            self._node.log.info("disconnected", extra={"peer": link.name, "reason": link.why})

        task.add_done_callback(over)
