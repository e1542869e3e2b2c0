"""Common base class of the connections at both ports: handshake, encryption, limits, and closing with a reason."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final, cast

from cablestore import limits
from cablestore.errors import DecodeError
from cablestore.peers.address import Address, network_of
from cablestore.peers.agreement import Agreement
from cablestore.peers.audience import Audience
from cablestore.peers.bans import BANNED, host_name
from cablestore.peers.context import PeerContext
from cablestore.peers.coverage import Coverage
from cablestore.peers.delivery import Delivery, keep_alive, keep_queue_short
from cablestore.peers.key_warnings import probable_cause
from cablestore.peers.network_watch import has_address, source_address
from cablestore.peers.own_addresses import address_of
from cablestore.peers.pace import MessagePace
from cablestore.peers.peer_events import Peer, PeerConnected, PeerInStep, PeerLost, PeerSilent
from cablestore.peers.policy import REJECTED
from cablestore.peers.rate import Rate
from cablestore.peers.silence import LifeCheck, Silence
from cablestore.protocol.secure_channel import HandshakeError, SecureChannel
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.messages import LIFE_REQUEST, LIFE_SIGN
from cablestore.store.options import system_clock_ms

BLOCKED: Final = "the local user blocks the peer"
ITSELF: Final = "the peer is this node itself"
KICKED: Final = "disconnected by `cablestore peers kick`"
"""Reasons for the end of a connection."""


class PeerLink(asyncio.Protocol, ABC):
    """A TCP connection to or from a peer.

    It runs on the loop of its node, and only changes there. Other threads only read:

    * the threads that read the store and that compare stores: `audience`, to choose the posts that the peer may get;
    * any thread, through `Node.load`: sizes, counts, and `is_silent`. The values may not belong to the same moment.

    Other threads pass data to a connection through the loop: as the result of a job, or as a future.
    """

    port_name: bytes = b""
    """The name of the port in the prologue of the handshake."""
    remote_static: bytes | None = None
    """The peer's static key, None before the end of a handshake."""

    def __init__(self, context: PeerContext, dialed: Address | None) -> None:
        self._context = context
        self.dialed: Final = dialed
        self.name = str(dialed or "?")
        self.host = self.network = "?"
        """Address of the peer, and the network that shares its limits: see `network_of`."""
        self.number: Final = context.watchers.next_number()
        self.agreement: Final = Agreement()
        """Agreement about whether the stores are in step."""
        self.coverage: Final = Coverage()
        self._step_announced: bool | None = None
        self.is_kept = False
        """True if this node connects again after the connection ends."""
        self.node_id = b""
        """Id of the peer's node, b"" until the peer has sent it."""
        self.duplicate: PeerLink | None = None
        """The other connection with the same peer that replaces this one."""
        self.ends: tuple[Any, Any] = (None, None)
        """Local and remote addresses of the socket."""
        self._address = dialed or Address("?", 0)
        self._since_ms = 0
        self.is_ours: Final = dialed is not None
        self.closed: Final[asyncio.Future[str]] = context.loop.create_future()
        """Completes with the reason when the connection has ended."""
        self.established: Final[asyncio.Future[bool]] = context.loop.create_future()
        """Completes with True when messages can be exchanged, with False if the connection ends earlier."""
        self.is_established = False
        """True if messages can be exchanged. It remains True after the end of the connection."""
        self.began_s = self.received_s = context.loop.time()
        self.silence: Final = Silence(self.began_s, is_ours=self.is_ours)
        self._delivery: Delivery | None = None
        self._knows_life_frames = False
        self.is_silent = False
        """True if the last notification of watchers was that the peer does not answer."""
        self.received_size_bytes = self.sent_size_bytes = 0
        self._received_rate, self._sent_rate = Rate(self.began_s), Rate(self.began_s)
        self._pace = MessagePace(0, self.began_s)
        self.received_requests = 0
        """Requests of the peer that this node answers."""
        self.reconciliations = 0
        self.reconciled_at_ms: int | None = None
        """When the last complete reconciliation ended."""
        self.invalid_posts = 0
        self.received_posts: Final[OrderedDict[bytes, None]] = OrderedDict()
        """Hashes of the latest posts that the peer sent. They are not announced to it."""
        self._transport: asyncio.Transport | None = None
        self._channel: SecureChannel | None = None
        self._reason = ""
        """The reason for the end of the connection, once it is decided."""
        self._ends_s: float | None = None
        """The deadline for the peer to end its stream, after this side has ended its own stream."""

    # --- calls of a port -----------------------------------------------------------------------

    @abstractmethod
    def _admit(self) -> str:
        """Add the connection to the connections of the port. Return the reason for its rejection, or ""."""

    @abstractmethod
    def _begin(self) -> None:
        """Start to exchange messages."""

    @abstractmethod
    def _receive(self, messages: list[bytes]) -> None:
        """Handle decrypted bytes of the peer. Raises DecodeError or ReconcileError if they end the connection."""

    @property
    @abstractmethod
    def _messages(self) -> int:
        """The number of complete messages of the peer."""

    @abstractmethod
    def _check_silence(self, now_s: float) -> None:
        """Check the timeouts of an established connection."""

    @abstractmethod
    def _probe(self) -> None:
        """Send the peer a request that it answers immediately."""

    @property
    @abstractmethod
    def _is_read(self) -> bool:
        """True if reading is not paused, so that silence is due to the peer."""

    @property
    @abstractmethod
    def _is_understood(self) -> bool:
        """True if a valid message of the peer was received."""

    @abstractmethod
    def _lost(self) -> None:
        """Remove the connection from the connections of the port."""

    @abstractmethod
    def send_frames(self, frames: list[bytes]) -> None:
        """Send frames of a reconciliation."""

    @abstractmethod
    def faulted(self, what: str, detail: str) -> None:
        """Log a fault of the peer. Too many faults end the connection."""

    @property
    def descriptor(self) -> int:
        """The descriptor of the connection, -1 if it has ended."""
        socket = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if socket is None else int(socket.fileno())

    # --- the transport calls these -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake, unless the port, a ban or the policy rejects the connection."""
        self._transport = cast(asyncio.Transport, transport)  # stream protocols always get this type
        address = transport.get_extra_info("peername")
        if address:
            self.host = address[0]
            self.network = network_of(self.host)
            found = address_of(address)
            self.ends = (transport.get_extra_info("sockname"), address)
            self.name, self._address = str(found), self.dialed or found
            connection = transport.get_extra_info("socket")
            keep_alive(connection)
            self._delivery = Delivery(connection, self.began_s)
        rejection = self._admit()
        rejection = self._rejection(is_complete=self._context.settings.cabal_key is None) or rejection
        if rejection:
            self.close(rejection)
            return
        keep_queue_short(self._transport)
        self._channel = self._context.new_channel(is_initiator=self.is_ours, port_name=self.port_name)
        if self._channel is None:
            self._establish()
        else:
            self._write(self._channel.start())

    def data_received(self, data: bytes) -> None:
        """Decrypt and handle bytes of the peer."""
        self.received_s = self._context.loop.time()
        self.received_size_bytes += len(data)
        try:
            self._receive([data] if self._channel is None else self._decrypt(self._channel, data))
        except HandshakeError as error:
            if self.key_cause:
                self._context.key_warnings.suspect(self._known_as, str(error))
            self.close(str(error))
        except (DecodeError, ReconcileError) as error:
            self.close(self.with_cause(str(error)))
        else:
            if self._channel is not None and self._channel.has_ended:
                self._handle_end()

    def _decrypt(self, channel: SecureChannel, data: bytes) -> list[bytes]:
        messages, reply = channel.receive(data)
        self._write(reply)
        if channel.is_established and not self.is_established:
            self.remote_static = channel.remote_static
            self._establish()
        return messages if self.is_established else []

    def _handle_end(self) -> None:
        """End the connection after the peer ended its stream."""
        if self._ends_s is None:
            self.end("the peer ended the stream")
        elif self._transport is not None:
            self._transport.close()

    def _rejection(self, *, is_complete: bool) -> str:
        """Return the reason to reject the peer if it is banned, or if the policy rejects it, else "".

        `is_complete` is False while the peer may still send a key. Then only bans and denied names count.
        """
        dialed = "" if self.dialed is None else host_name(self.dialed.host)
        names = [host_name(self.host), dialed, "" if self.remote_static is None else self.remote_static.hex()]
        lists = self._context.policies.policy.peers
        if self._context.bans.has(*names):
            kind, reason = "banned", BANNED
        elif not lists.deny.isdisjoint(names) or (is_complete and lists.rejects(*names)):
            kind, reason = "policy", REJECTED
        else:
            return ""
        if not self.is_ours:
            self._context.metrics.refused[kind].inc()
        return reason

    def _establish(self) -> None:
        if self._channel is not None and (rejection := self._rejection(is_complete=True)):
            self.close(rejection)
            return
        self.is_established = True
        self.established.set_result(True)
        self._pace = MessagePace(self.received_size_bytes, self._context.loop.time())
        self._since_ms = system_clock_ms()
        self._context.watchers.notify(PeerConnected(self.peer))
        self._begin()

    def eof_received(self) -> None:
        """Keep the connection open so that pending output can be sent, within a time limit."""
        if self._ends_s is None:
            self._ends_s = self._context.loop.time() + limits.END_TIMEOUT_S

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete `established` and `closed`, notify the port and the watchers, and log the reason."""
        reason = self._reason
        if not reason:
            reason = f"the connection was lost: {exc}" if exc else "the peer closed the connection"
            if exc is None or isinstance(exc, ConnectionResetError):
                reason = self.with_cause(reason)
        if self._channel is not None and self.is_established and not self._channel.has_ended and not self._reason:
            reason = "the connection ended without an end-of-stream marker"
        if not self.established.done():
            self.established.set_result(False)
        if not self.closed.done():
            self.closed.set_result(reason)
        self._lost()
        if self._is_understood:
            self._context.key_warnings.understood(self._known_as)
        if self.is_established:
            self._context.watchers.notify(PeerLost(self.peer, reason))
        self._context.log.info("disconnected", extra={"peer": self.name, "reason": reason})

    # --- state ---------------------------------------------------------------------------------

    @property
    def peer(self) -> Peer:
        """A snapshot of the connection for programs."""
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
            no_answer_s=self._no_answer_s(self._context.loop.time()),
            received_bytes_per_s=self._received_rate.bytes_per_s,
            sent_bytes_per_s=self._sent_rate.bytes_per_s,
            queued_size_bytes=self.queued_size_bytes,
            received_requests=self.received_requests,
            reconciliations=self.reconciliations,
            reconciled_at_ms=self.reconciled_at_ms,
        )

    @property
    def _is_in_step(self) -> bool | None:
        return self.agreement.is_in_step(self._context.store.parts.engine.place)

    def notify_step(self) -> None:
        """Notify watchers if `Peer.is_in_step` has changed since the last notification."""
        is_in_step = self._is_in_step
        if self._step_announced is not is_in_step and not self.closed.done():
            self._step_announced = is_in_step
            self._context.watchers.notify(PeerInStep(self.peer))

    def note_reconciled(self, at_ms: int) -> None:
        """Count a complete reconciliation."""
        self.reconciliations += 1
        self.reconciled_at_ms = at_ms

    @property
    def audience(self) -> Audience:
        """The peer's present rights to posts."""
        return self._context.restrictions.audience(self.remote_static)

    def banish(self) -> None:
        """End the connection: the local user blocks the peer."""
        self.end(BLOCKED)

    @property
    def queued_size_bytes(self) -> int:
        """The size of the data that the peer has not read yet."""
        return self._unread_size_bytes

    @property
    def _unread_size_bytes(self) -> int:
        """The number of bytes that the peer has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def tick(self, now_s: float) -> None:
        """Check the timeouts: the end of the stream, the handshake, silence. Measure the rates."""
        self._received_rate.update(now_s, self.received_size_bytes)
        self._sent_rate.update(now_s, self.sent_size_bytes)
        if self._ends_s is not None and now_s > self._ends_s:
            self.close("the peer does not close the connection")
        elif self.is_established and self._is_too_slow(now_s):
            self.close("the peer sends messages too slowly")
        elif self.is_established:
            self._check_life(now_s)
            self._check_silence(now_s)
        elif now_s - self.began_s > self._context.settings.handshake_timeout_s:
            self.close(self.with_cause("the handshake took too long"))

    # --- peers that vanish ---------------------------------------------------------------------

    def _check_life(self, now_s: float) -> None:
        """Probe a silent peer, and close the connection if it does not respond."""
        if not self._is_read:
            self.received_s = now_s
        undelivered_s = self._undelivered_s(now_s)
        is_delivered = not self._unread_size_bytes and (self._delivery is None or self._delivery.is_complete())
        check = self.silence.check(now_s, self.received_s, is_delivered=is_delivered)
        if check is LifeCheck.GIVE_UP or undelivered_s > limits.UNACKNOWLEDGED_TIMEOUT_S:
            self._context.metrics.vanished.inc()
            self.close(f"no answer for {now_s - self.received_s:.0f} s")
            return
        if check is LifeCheck.PROBE:
            self._probe()
        is_silent = self._no_answer_s(now_s) > 0
        if is_silent is not self.is_silent:
            self.is_silent = is_silent
            if is_silent:
                fields = {"peer": self.name, "seconds": self._no_answer_s(now_s)}
                self._context.log.info("no answer", extra=fields)
            self._context.watchers.notify(PeerSilent(self.peer))

    def _handle_life_frame(self, frame: bytes) -> bool:
        """Handle a request for a sign of life, or a sign of life. Return False for other frames."""
        if frame not in (LIFE_REQUEST, LIFE_SIGN):
            return False
        self._knows_life_frames = self.silence.is_answerable = True
        if frame == LIFE_REQUEST:
            self.send_frames([LIFE_SIGN])
        return True

    def _undelivered_s(self, now_s: float) -> float:
        """Return how long the peer's machine has not acknowledged sent data, 0.0 if it has acknowledged all."""
        if self._delivery is None or now_s - self.received_s < 1:
            return 0.0
        return self._delivery.unacknowledged_s(now_s)

    def _no_answer_s(self, now_s: float) -> int:
        """Return for how many seconds an expected answer of the peer is missing, else 0."""
        is_late = self.silence.is_unanswered or self._undelivered_s(now_s) > limits.LIFE_SIGN_TIMEOUT_S
        return max(1, round(now_s - self.received_s)) if is_late and not self.closed.done() else 0

    def check_life(self) -> None:
        """Probe the peer soon: it may have been unreachable until now."""
        now_s = self._context.loop.time()
        self.silence.check_now()
        if self._delivery is not None:
            self._delivery.restart(now_s)

    def check_path(self) -> None:
        """Check the connection after the machine's addresses or routes changed.

        Close it if the machine has lost its local address. Probe the peer if packets would now leave from another one.
        """
        here, there = self.ends
        if not here or not there or self.closed.done():
            return
        if not has_address(here):
            self.close(f"this machine no longer has the address {here[0]}")
        elif source_address(there) != here[0]:
            self.check_life()

    # --- why it fails --------------------------------------------------------------------------

    @property
    def _known_as(self) -> str:
        """The name of the peer in warnings. The peer's next connection has the same name."""
        return str(self.dialed or self.host)

    @property
    def key_cause(self) -> str:
        """The probable reason why the peer sent no valid message, "" if it did or if the reason is unknown."""
        has_key = self._channel is not None
        is_answered = has_key and not self.is_ours and self.sent_size_bytes  # a peer without a key never gets an answer
        if self._is_understood or is_answered or (has_key and self.is_established):
            return ""
        return probable_cause(is_ours=self.is_ours, has_key=has_key, received_size_bytes=self.received_size_bytes)

    def with_cause(self, reason: str) -> str:
        """Return a reason, followed by its probable cause if one is known. Log the cause as a warning, once per peer."""
        cause = self.key_cause
        if not cause:
            return reason
        self._context.key_warnings.suspect(self._known_as, cause)
        return f"{reason}: {cause}"

    def _is_too_slow(self, now_s: float) -> bool:
        """Return True if the peer sends a message byte by byte. Called about every second."""
        if not self._is_read:
            return False
        self._pace.check(self.received_size_bytes, self._messages, now_s)
        most_s = limits.MAX_SLOW_FIRST_S if self._pace.is_first else limits.MAX_SLOW_S
        return self._pace.slow_checks > min(most_s, self._context.settings.idle_timeout_s)

    # --- sending and ending --------------------------------------------------------------------

    def _send(self, messages: list[bytes]) -> None:
        """Encrypt and send messages, unless the connection is ending."""
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

    def note_received(self, digest: bytes) -> None:
        """Remember that the peer sent a post."""
        self.received_posts[digest] = None
        if len(self.received_posts) > limits.MAX_RECEIVED_REMEMBERED:
            self.received_posts.popitem(last=False)

    def count_invalid_posts(self, count: int, reason: str) -> None:
        """Count posts that an honest peer never forwards. Too many of them end the connection."""
        self.invalid_posts += count
        if self.invalid_posts >= self._context.settings.max_invalid_posts:
            self.close(f"too many invalid posts ({self.invalid_posts}), the last: {reason}")

    def close(self, reason: str) -> None:
        """Close the connection immediately, and log the reason."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def end(self, reason: str) -> None:
        """Close the connection gracefully: send pending output, then the end of the stream (handshake.md 4.4)."""
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
