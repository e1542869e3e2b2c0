"""One connection: bytes from and to a peer, its session, its share of the store's time, and its limits."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any, Final, cast

from cablestore import limits
from cablestore.errors import DecodeError, HandshakeError
from cablestore.peers.answering import Answer, readable_to
from cablestore.peers.held import Held
from cablestore.peers.settings import Address
from cablestore.protocol.dialect import DRAFT8
from cablestore.protocol.exchange import Asked, Asker, Dropped, Event, Exchange, Extra, Fault, Violation
from cablestore.protocol.message import ListRequest, ModerationRequest, PostRequest, Request, TimeRangeRequest
from cablestore.protocol.secure_channel import SecureChannel

if TYPE_CHECKING:
    from cablestore.peers.node import Node

_ROWS_PER_CPU_S: Final = 1_000_000
"""What rows come to: reading that finds little and takes long is charged by its time."""
_REQUEST_SIZE_BYTES: Final = 500
_HASH_SIZE_BYTES: Final = 80
"""What a request, and each hash or name of it, takes in memory, about."""


class Connection(asyncio.Protocol):
    """A peer that is connected. All of it runs on the loop."""

    def __init__(self, node: Node, dialed: Address | None = None) -> None:
        self._node = node
        self.dialed: Final = dialed
        self.name = str(dialed or "?")
        self.host = "?"
        self.is_established = False
        self.is_ours: Final = dialed is not None
        self.is_once: Final = dialed in node.once
        """Whether the peer was called for one purpose: nothing else is asked of it."""
        self.closed: asyncio.Future[str] = node.loop.create_future()
        """Done with the reason when the connection is over."""
        self.established: Final[asyncio.Future[bool]] = node.loop.create_future()
        """Done with True when messages can be exchanged, with False when it never came to that."""
        self.met: Final[asyncio.Future[bool]] = node.loop.create_future()
        """Done with True when both sides know of each other that they reconcile, with False when it never came to that."""
        self.greetings = 0
        """How often we greeted the peer."""
        self.began_s = self.heard_s = node.loop.time()
        self.received_size_bytes = self.sent_size_bytes = 0
        self.faults = self.invalid_posts = 0
        self.session: Final = node.new_session(greets=node.settings.reconciles or self.is_once)
        self._transport: asyncio.Transport | None = None
        self._channel: SecureChannel | None = None
        self.news_waiting = 0
        """Hashes that live requests of the peer are to be told when their history is sent."""
        self._pending: dict[Exchange, None] = {}
        self._answer: Answer | None = None
        self._is_reading = False
        self._is_slow = False
        self._held: set[Held] = set()
        self._held_at_s = 0.0
        self._slow_at_s = 0.0
        self._alive_size_bytes = 0
        """What the peer's requests that are alive take in memory, about."""
        self._loop_debt_s = 0.0
        self._loop_debt_at_s = self.began_s
        self._wakes_up: asyncio.TimerHandle | None = None
        self._rows_left = float(node.settings.rows_in_advance)
        self._rows_at_s = self.began_s
        self._why = ""
        self._ends_s: float | None = None
        """Until when the peer may take its time to end the stream too."""

    # --- the transport calls these -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many already."""
        self._transport = cast(asyncio.Transport, transport)  # what a stream protocol gets
        address = transport.get_extra_info("peername")
        if address:
            self.host = address[0]
            self.name = str(Address(address[0], address[1]))
            _keep_alive(transport.get_extra_info("socket"))
        refusal = self._node.admit(self)
        if refusal:
            self.close(refusal)
            return
        self._transport.set_write_buffer_limits(high=limits.SLOW_READER_SIZE_BYTES)
        self._channel = self._node.new_channel(is_initiator=self.dialed is not None)
        if self._channel is None:
            self._establish()
        else:
            self._write(self._channel.start())

    def data_received(self, data: bytes) -> None:
        """Take what the peer sent."""
        watch = self._node.watch
        began_s = watch.begin()
        self._receive(data)
        self._took(watch.spent_s(began_s))

    def _receive(self, data: bytes) -> None:
        self.heard_s = self._node.loop.time()
        self.received_size_bytes += len(data)
        try:
            if self._channel is None:
                events = self.session.receive(data, self.heard_s)
            else:
                events = self._decrypt(self._channel, data)
        except (DecodeError, HandshakeError) as error:
            self.close(str(error))
            return
        if events:
            self._take(events)
        self.flush()

    def pause_writing(self) -> None:
        """The peer reads slower than we write: read no more for it."""
        self._is_slow = True
        self._slow_at_s = self._node.loop.time()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_slow = False
        self._answer_next()

    def eof_received(self) -> None:
        """The peer sends no more: what is written goes out, as far as the peer reads it in time."""
        if self._ends_s is None:
            self._ends_s = self._node.loop.time() + limits.END_TIMEOUT_S

    def connection_lost(self, exc: Exception | None) -> None:
        """End everything that was under way."""
        reason = self._why or (f"the connection broke: {exc}" if exc else "the peer closed the connection")
        if self._channel is not None and self.is_established and not self._channel.has_ended and not self._why:
            reason = "the connection ended without the end of the stream"
        self._take(self.session.lose())
        self._pending.clear()
        if self._wakes_up is not None:
            self._wakes_up.cancel()
        self._answer_next()  # what is being answered sees that it is over and lets go of its state
        if not self.established.done():
            self.established.set_result(False)
        if not self.met.done():
            self.met.set_result(False)
        if not self.closed.done():
            self.closed.set_result(reason)
        self._node.lost(self, reason)

    # --- sending and closing -------------------------------------------------------------------

    def ask(self, request: Request, owner: Asker, timeout_s: float | None = None) -> Exchange:
        """Ask the peer something; `owner` hears what comes of it."""
        exchange = self.session.ask(request, self._node.loop.time(), owner, timeout_s)
        self.flush()
        return exchange

    def flush(self) -> None:
        """Send what the session has to say."""
        if not self.is_established or self._transport is None:
            return
        messages = self.session.output()
        if self._transport.is_closing() or self._ends_s is not None:
            return
        if self._channel is not None:
            messages = [self._channel.send(message) for message in messages]
        if messages:
            self._write(messages[0] if len(messages) == 1 else b"".join(messages))
        if self.queued_size_bytes > self._node.settings.max_queued_size_bytes:
            self.close("it reads too slowly")
        self._meet()

    def send_frames(self, frames: list[bytes]) -> None:
        """Send frames of a reconciliation to a peer that was met."""
        if self.met.done() and self.met.result() and not self.closed.done():
            for frame in frames:
                self.session.send_extra(frame)
            self.flush()

    def _meet(self) -> None:
        """Notice that both sides know what the other one is."""
        knows_both = self.session.is_cablestore and self.session.has_greeted
        if knows_both and self._node.settings.reconciles and not self.met.done():
            self.met.set_result(True)
            self._node.reconciling.met(self)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self.sent_size_bytes += len(data)
            self._transport.write(data)

    @property
    def queued_size_bytes(self) -> int:
        """How many bytes the peer has not read yet, with what waits to be told to it."""
        written = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return written + self.news_waiting * _HASH_SIZE_BYTES

    @property
    def held_size_bytes(self) -> int:
        """How much memory the peer takes up: what it has not read, its requests, and what it has begun to say."""
        return self.queued_size_bytes + self._alive_size_bytes + self.session.held_size_bytes

    def close(self, why: str) -> None:
        """End the connection at once, for a reason that the log tells."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    def end(self, why: str) -> None:
        """End the connection in good order: what is written goes out, then the end of the stream (handshake.md 4.4)."""
        self._why = self._why or why
        if self._transport is None or self._transport.is_closing() or self._ends_s is not None:
            return
        self._ends_s = self._node.loop.time() + limits.END_TIMEOUT_S
        if self._channel is None or not self.is_established:
            self._transport.close()
            return
        if not self._channel.has_finished:
            self._write(self._channel.finish())
        if self._channel.has_ended:
            self._transport.close()

    def hold_back(self, why: Held, *, holds: bool) -> None:
        """Stop reading from the peer for a reason, or go on where that was the last one."""
        was_held = bool(self._held)
        (self._held.add if holds else self._held.discard)(why)
        if bool(self._held) == was_held or self._transport is None or self._transport.is_closing():
            return
        if self._held:
            self._held_at_s = self._node.loop.time()
            self._transport.pause_reading()
        else:
            self._postpone()
            self._transport.resume_reading()

    def _postpone(self) -> None:
        """Give the peer time for what it may have answered while we did not read."""
        now_s = self._node.loop.time()
        if now_s - self._held_at_s < 1:
            return
        for exchange in self.session.asked.values():
            if exchange.deadline_s is not None:
                exchange.deadline_s = max(exchange.deadline_s, now_s + exchange.timeout_s)

    def _took(self, seconds: float) -> None:
        """Count what the peer's bytes cost the loop; a peer beyond its share is not read from until that is made up."""
        now_s = self._node.loop.time()
        paid_s = (now_s - self._loop_debt_at_s) * limits.LOOP_SHARE
        self._loop_debt_s = max(0.0, self._loop_debt_s - paid_s) + seconds
        self._loop_debt_at_s = now_s
        if self._loop_debt_s > limits.LOOP_SHARE_IN_ADVANCE_S and Held.SHARE not in self._held:
            self.hold_back(Held.SHARE, holds=True)
            self._node.loop.call_later(self._loop_debt_s / limits.LOOP_SHARE, self._share_is_made_up)

    def _share_is_made_up(self) -> None:
        self.hold_back(Held.SHARE, holds=False)

    # --- what the peer says --------------------------------------------------------------------

    def _decrypt(self, channel: SecureChannel, data: bytes) -> list[Event]:
        messages, reply = channel.receive(data)
        self._write(reply)
        if channel.is_established and not self.is_established:
            self._establish()
        events = [event for message in messages for event in self.session.receive(message, self.heard_s)]
        if channel.has_ended and self._ends_s is None:
            self.end("the peer ended the stream")
        elif channel.has_ended and self._transport is not None:
            self._transport.close()
        return events

    def _establish(self) -> None:
        self.is_established = True
        if not self.established.done():
            self.established.set_result(True)
        if self._channel is None and self.session.dialect is DRAFT8:
            self._node.loop.call_later(limits.DIALECT_WAIT_S, self._speak)
        else:
            self._speak()
        self._node.established(self)

    def _speak(self) -> None:
        self.session.speak(self._node.loop.time())
        self.flush()

    @property
    def remote_static(self) -> bytes | None:
        """The peer's static key, where there was a handshake."""
        return self._channel.remote_static if self._channel is not None and self._channel.is_established else None

    def _take(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Asked(exchange):
                    self._asked(exchange)
                case Dropped(exchange):
                    self._dropped(exchange)
                case Violation(fault, detail):
                    # cable-core.js sends the answers that it passes on to everyone.
                    if fault is not Fault.UNASKED or not self.session.dialect.requests_have_ttl:
                        self.faulted(fault.value, detail)
                case Extra(content):
                    self._meet()  # it may come together with the last of the greeting
                    if self.met.done():
                        self._node.reconciling.received(self, content)
                case _:
                    event.tell()
                    self._node.relayed(event.exchange.owner)

    def _dropped(self, exchange: Exchange) -> None:
        self._pending.pop(exchange, None)
        self._alive_size_bytes -= _size_of(exchange.request)
        self._node.dropped(exchange)

    def faulted(self, what: str, detail: str) -> None:
        """Count a fault; too many end the connection."""
        self.faults += 1
        self._node.log.info("fault", extra={"peer": self.name, "what": what, "detail": detail})
        if self.faults >= self._node.settings.max_faults:
            self.close(f"{self.faults} faults, the last: {what} ({detail})")

    def gave_invalid_posts(self, count: int, reason: str) -> None:
        """Count posts that no honest peer passes on; too many end the connection."""
        self.invalid_posts += count
        if self.invalid_posts >= self._node.settings.max_invalid_posts:
            self.close(f"{self.invalid_posts} invalid posts, the last: {reason}")

    def tick(self, now_s: float) -> None:
        """Look at the clock: requests without an answer, handshakes that take too long, silence."""
        settings = self._node.settings
        if self._ends_s is not None and now_s > self._ends_s:
            self.close("it does not end")
        elif self._is_slow and now_s - self._slow_at_s > settings.idle_timeout_s:
            self.close("it does not read")
        elif not self.is_established:
            if now_s - self.began_s > settings.handshake_timeout_s:
                self.close("the handshake took too long")
        else:
            self._look_at_requests(now_s)

    def _look_at_requests(self, now_s: float) -> None:
        if self._held.isdisjoint((Held.STORING, Held.INSPECTING)):  # what we do not read cannot be late
            events = self.session.expire(now_s)
            if events:
                self._take(events)
                self.flush()
        self._weigh()
        if self.session.is_recognised and not self.session.has_greeted:
            self._node.reconciling.greet_again(self)  # it changed the dialect in the middle of our greeting
        is_alive = self.session.is_recognised and self.session.asked  # whoever never said a word answers nothing
        is_idle = not is_alive and not self.session.to_answer and not self._node.reconciling.is_talking(self)
        if is_idle and now_s - self.heard_s > self._node.settings.idle_timeout_s:
            self.end("idle")

    # --- answering -----------------------------------------------------------------------------

    def _asked(self, exchange: Exchange) -> None:
        request = exchange.request
        if isinstance(request, ModerationRequest) and len(request.channels) > limits.MAX_HASHES_PER_REQUEST:
            self.faulted(Fault.TOO_MANY_HASHES.value, f"{len(request.channels)} channels")
            self.session.refuse(exchange)
            return
        if self._node.is_asked_too_often(self, request):
            self.faulted(Fault.TOO_MANY_REQUESTS.value, "live requests for the same")
            self.session.refuse(exchange)
            return
        self._alive_size_bytes += _size_of(request)
        if self._alive_size_bytes > self._node.settings.max_queued_size_bytes // 2:
            self._weigh()
        if self._node.takes_up(self, exchange):
            self._pending[exchange] = None
            self._answer_next()

    def _weigh(self) -> None:
        """Find out how much memory the peer's requests take; where it is too much, further ones wait unread."""
        self._alive_size_bytes = sum(_size_of(exchange.request) for exchange in self.session.to_answer.values())
        is_much = self._alive_size_bytes > self._node.settings.max_queued_size_bytes // 2
        self.hold_back(Held.REQUESTS, holds=is_much)

    def answer_news(self, exchange: Exchange, hashes: list[bytes]) -> None:
        """Tell the peer hashes that a live request of it asked for. Texts that it got from others it gets no more.

        State is told again: after a deletion what counts instead may be what was told before.
        """
        is_once = isinstance(exchange.request, TimeRangeRequest)
        self.session.answer_hashes(exchange, self._node.to_give(exchange, hashes) if is_once else hashes)

    def answer_again(self, exchange: Exchange) -> None:
        """Answer a live request once more from the present state, unless that is about to happen."""
        self._pending[exchange] = None
        self._answer_next()

    def _answer_next(self) -> None:
        """Go on with the request that is being answered, or with the next one, as far as the peer reads and its share goes."""
        while not self._is_reading:
            is_over = self._answer is not None and self._answer.exchange.is_over
            if not is_over and ((self._answer is None and not self._pending) or self._is_slow or not self._may_read()):
                return
            if self._answer is None:
                exchange = next(iter(self._pending))
                del self._pending[exchange]
                if exchange.is_over:
                    continue
                self._answer = Answer(self, exchange, self._node.loop.time())
            self._read(self._answer)

    def charge(self, rows: float) -> None:
        """Take something off the peer's share of our time."""
        self._rows_left -= rows

    def is_within_its_share(self) -> bool:
        """Tell whether the peer's share of our time allows for more."""
        if self._rows_left <= 0:
            settings = self._node.settings
            now_s = self._node.loop.time()
            earned = (now_s - self._rows_at_s) * settings.rows_per_s
            self._rows_left = min(self._rows_left + earned, settings.rows_in_advance)
            self._rows_at_s = now_s
        return self._rows_left > 0

    def _may_read(self) -> bool:
        """Tell whether the peer's share allows another part; otherwise look again when it does."""
        if self.is_within_its_share():
            return True
        if self._wakes_up is None:
            wait_s = 0.01 - self._rows_left / self._node.settings.rows_per_s
            self._wakes_up = self._node.loop.call_later(wait_s, self._wake_up)
        return False

    def _wake_up(self) -> None:
        self._wakes_up = None
        self._answer_next()

    def _read(self, answer: Answer) -> None:
        self._is_reading = True
        self._node.reads.submit(answer)

    def answered(self, answer: Answer, part: list[Any]) -> None:
        """Take a part of an answer from the thread that reads."""
        self._is_reading = False
        exchange = answer.exchange
        self.charge(max(1 + len(part), answer.cpu_s * _ROWS_PER_CPU_S))
        if answer.error is not None:
            self._node.log.error("cannot answer", extra={"peer": self.name, "reason": str(answer.error)})
            self.session.refuse(exchange)
        elif not exchange.is_over:
            self._give(exchange, part)
        if answer.is_whole:
            self._answer = None
            self._node.answered(self, answer)
            if exchange.is_over and Held.REQUESTS in self._held:
                self._weigh()
        self.flush()
        self._answer_next()

    def _give(self, exchange: Exchange, part: list[Any]) -> None:
        if isinstance(exchange.request, PostRequest):
            is_ours = self.session.dialect is self._node.dialect
            self.session.answer_posts(exchange, readable_to(part, is_of_our_dialect=is_ours))
        elif not isinstance(exchange.request, ListRequest):  # whose names may go out in one response only
            self.session.answer_hashes(exchange, self._node.to_give(exchange, part))


def _size_of(request: Request) -> int:
    """Return what a request takes in memory, about."""
    match request:
        case PostRequest(_, hashes):
            return _REQUEST_SIZE_BYTES + _HASH_SIZE_BYTES * len(hashes)
        case ModerationRequest(_, channels):
            return _REQUEST_SIZE_BYTES + _HASH_SIZE_BYTES * len(channels)
    return _REQUEST_SIZE_BYTES


def new_request_id(size_bytes: int) -> bytes:
    """Make a random id; one of draft 8 does not begin as a circuit id of the legacy dialect does."""
    while True:
        found = os.urandom(size_bytes)
        if found[:4] != bytes(4):
            return found


def _keep_alive(peer: socket.socket) -> None:
    """Have the system find out about peers that vanished: Cable has no ping, and a live request never times out."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.KEEPALIVE_AFTER_S)
