"""What the connections of both ports have in common: handshake, encryption, limits, and an end with a reason."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final, cast

from cablestore import limits
from cablestore.errors import DecodeError, HandshakeError, ReconcileError
from cablestore.peers.address import Address
from cablestore.peers.agreement import Agreement
from cablestore.peers.audience import Audience
from cablestore.peers.context import PeerContext
from cablestore.peers.coverage import Coverage
from cablestore.peers.peer_events import Peer, PeerConnected, PeerInStep, PeerLost
from cablestore.protocol.secure_channel import SecureChannel
from cablestore.store.store import system_clock_ms

BLOCKED: Final = "the local user blocks the peer"
ITSELF: Final = "it is this node itself"
"""Why a connection ends."""


class PeerLink(asyncio.Protocol, ABC):
    """A TCP connection to or from a peer. All of it runs on the loop."""

    port_name: bytes = b""
    """What the prologue of the handshake says of the port."""

    def __init__(self, context: PeerContext, dialed: Address | None) -> None:
        self._context = context
        self.dialed: Final = dialed
        self.name = str(dialed or "?")
        self.host = "?"
        self.number: Final = context.watchers.next_number()
        self.agreement: Final = Agreement()
        self.coverage: Final = Coverage()
        """Whether the stores are in step."""
        self._step_told: bool | None = None
        self.ends: tuple[Any, Any] = (None, None)
        """Addresses of the socket here and of the one there."""
        self._address = dialed or Address("?", 0)
        self._since_ms = 0
        self.is_ours: Final = dialed is not None
        self.closed: Final[asyncio.Future[str]] = context.loop.create_future()
        """Done with the reason when the connection is over."""
        self.established: Final[asyncio.Future[bool]] = context.loop.create_future()
        """Done with True when messages can be exchanged, with False if the connection ends before."""
        self.began_s = self.heard_s = context.loop.time()
        self.received_size_bytes = self.sent_size_bytes = 0
        self.invalid_posts = 0
        self.given: Final[OrderedDict[bytes, None]] = OrderedDict()
        """Hashes of posts that the peer gave last: it is not told of them."""
        self._transport: asyncio.Transport | None = None
        self._channel: SecureChannel | None = None
        self._reason = ""
        """Why the connection ends, once that is decided."""
        self._ends_s: float | None = None
        """When the peer must have ended the stream too, once we have."""

    # --- what a port does with it --------------------------------------------------------------

    @abstractmethod
    def _admit(self) -> str:
        """Add the connection to those of the port. Returns why it is refused, or ""."""

    @abstractmethod
    def _begin(self) -> None:
        """Start: messages can be exchanged."""

    @abstractmethod
    def _receive(self, messages: list[bytes]) -> None:
        """Take bytes of the peer, decrypted. Raises DecodeError or ReconcileError if they end the connection."""

    @abstractmethod
    def _look_at_silence(self, now_s: float) -> None:
        """Act on what takes too long on an established connection."""

    @abstractmethod
    def _lost(self) -> None:
        """Remove the connection from those of the port."""

    @abstractmethod
    def send_frames(self, frames: list[bytes]) -> None:
        """Send frames of a reconciliation."""

    @abstractmethod
    def faulted(self, what: str, detail: str) -> None:
        """Log a fault of the peer. Too many end the connection."""

    @property
    def descriptor(self) -> int:
        """The descriptor of the connection, -1 if it is over."""
        socket = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if socket is None else int(socket.fileno())

    # --- the transport calls these -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake, unless the port refuses the connection."""
        self._transport = cast(asyncio.Transport, transport)  # what a stream protocol gets
        address = transport.get_extra_info("peername")
        if address:
            self.host = address[0]
            found = Address(address[0], address[1])
            self.ends = (transport.get_extra_info("sockname"), address)
            self.name, self._address = str(found), self.dialed or found
            _keep_alive(transport.get_extra_info("socket"))
        refusal = self._admit()
        if refusal:
            self.close(refusal)
            return
        _keep_queue_short(self._transport)
        self._channel = self._context.new_channel(is_initiator=self.is_ours, port_name=self.port_name)
        if self._channel is None:
            self._establish()
        else:
            self._write(self._channel.start())

    def data_received(self, data: bytes) -> None:
        """Decrypt what the peer sent, and take it."""
        self.heard_s = self._context.loop.time()
        self.received_size_bytes += len(data)
        try:
            self._receive([data] if self._channel is None else self._decrypt(self._channel, data))
        except (DecodeError, HandshakeError, ReconcileError) as error:
            self.close(str(error))
        else:
            self._take_end()

    def _decrypt(self, channel: SecureChannel, data: bytes) -> list[bytes]:
        messages, reply = channel.receive(data)
        self._write(reply)
        if channel.is_established and not self.is_established:
            self._establish()
        return messages

    def _take_end(self) -> None:
        """End the connection if the peer has ended its stream."""
        if self._channel is None or not self._channel.has_ended:
            return
        if self._ends_s is None:
            self.end("the peer ended the stream")
        elif self._transport is not None:
            self._transport.close()

    def _establish(self) -> None:
        self.established.set_result(True)
        self._since_ms = system_clock_ms()
        self._context.watchers.tell(PeerConnected(self.peer))
        self._begin()

    def eof_received(self) -> None:
        """Wait for what is written to go out, as far as the peer reads it in time."""
        if self._ends_s is None:
            self._ends_s = self._context.loop.time() + limits.END_TIMEOUT_S

    def connection_lost(self, exc: Exception | None) -> None:
        """Settle both futures, tell the port, and log the reason."""
        reason = self._reason or (f"the connection broke: {exc}" if exc else "the peer closed the connection")
        if self._channel is not None and self.is_established and not self._channel.has_ended and not self._reason:
            reason = "the connection ended without the end of the stream"
        if not self.established.done():
            self.established.set_result(False)
        if not self.closed.done():
            self.closed.set_result(reason)
        self._lost()
        if self.is_established:
            self._context.watchers.tell(PeerLost(self.peer, reason))
        self._context.log.info("disconnected", extra={"peer": self.name, "reason": reason})

    # --- state ---------------------------------------------------------------------------------

    @property
    def is_established(self) -> bool:
        """Whether messages can be exchanged."""
        return self.established.done() and self.established.result()

    @property
    def peer(self) -> Peer:
        """What programs see of the connection at this moment."""
        return Peer(
            number=self.number,
            address=self._address,
            key=self.remote_static,
            is_outgoing=self.is_ours,
            only_reconciles=bool(self.port_name),
            since_ms=self._since_ms,
            received_size_bytes=self.received_size_bytes,
            sent_size_bytes=self.sent_size_bytes,
            is_in_step=self._is_in_step,
        )

    @property
    def _is_in_step(self) -> bool | None:
        return self.agreement.is_in_step(self._context.store.place)

    def tell_step(self) -> None:
        """Notify watchers if the peer is in step and was not, or the other way round."""
        is_in_step = self._is_in_step
        if self._step_told is not is_in_step and not self.closed.done():
            self._step_told = is_in_step
            self._context.watchers.tell(PeerInStep(self.peer))

    @property
    def remote_static(self) -> bytes | None:
        """The peer's static key, if there was a handshake."""
        return self._channel.remote_static if self._channel is not None and self._channel.is_established else None

    @property
    def audience(self) -> Audience:
        """What the peer may get now."""
        return self._context.restrictions.audience(self.remote_static)

    def banish(self) -> None:
        """End the connection: the local user blocks the peer."""
        self.end(BLOCKED)

    @property
    def _unread_size_bytes(self) -> int:
        """How many bytes the peer has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def tick(self, now_s: float) -> None:
        """Act on what takes too long: the end of the stream, the handshake, silence."""
        if self._ends_s is not None and now_s > self._ends_s:
            self.close("it does not end")
        elif self.is_established:
            self._look_at_silence(now_s)
        elif now_s - self.began_s > self._context.settings.handshake_timeout_s:
            self.close("the handshake took too long")

    # --- sending and ending --------------------------------------------------------------------

    def _send(self, messages: list[bytes]) -> None:
        """Encrypt and send. Nothing is sent on a connection that ends."""
        if self._transport is None or self._transport.is_closing() or self._ends_s is not None:
            return
        if self._channel is not None:
            messages = [self._channel.send(message) for message in messages]
        if messages:
            self._write(messages[0] if len(messages) == 1 else b"".join(messages))

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self.sent_size_bytes += len(data)
            self._transport.write(data)

    def note_given(self, digest: bytes) -> None:
        """Remember that the peer gave a post."""
        self.given[digest] = None
        if len(self.given) > limits.MAX_GIVEN_REMEMBERED:
            self.given.popitem(last=False)

    def gave_invalid_posts(self, count: int, reason: str) -> None:
        """Count posts that no honest peer passes on. Too many end the connection."""
        self.invalid_posts += count
        if self.invalid_posts >= self._context.settings.max_invalid_posts:
            self.close(f"{self.invalid_posts} invalid posts, the last: {reason}")

    def close(self, reason: str) -> None:
        """End the connection at once. The log tells the reason."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def end(self, reason: str) -> None:
        """End the connection in good order: what is written goes out, then the end of the stream (handshake.md 4.4)."""
        self._reason = self._reason or reason
        if self._transport is None or self._transport.is_closing() or self._ends_s is not None:
            return
        self._ends_s = self._context.loop.time() + limits.END_TIMEOUT_S
        if self._channel is None or not self.is_established:
            self._transport.close()
            return
        if not self._channel.has_finished:
            with suppress(HandshakeError):
                self._write(self._channel.finish())
        if self._channel.has_ended:
            self._transport.close()


def _keep_queue_short(transport: asyncio.Transport) -> None:
    """Have the peer's queue wait here and not in the system, where nothing can overtake it."""
    transport.set_write_buffer_limits(high=limits.SLOW_READER_SIZE_BYTES)
    peer = transport.get_extra_info("socket")
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and peer.family in (socket.AF_INET, socket.AF_INET6):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.SLOW_READER_SIZE_BYTES)


def _keep_alive(peer: socket.socket) -> None:
    """Have the system find out about peers that vanished: Cable has no ping, and a live request never times out."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.KEEPALIVE_AFTER_S)
