"""One Cable connection: it sends requests, pauses reading, counts faults and enforces limits.

`PeerLink` owns the transport, `AnswerQueue` answers the peer's requests, and `shares` limits the time that the peer may
use. `cable_port` dispatches the peer's events to the parts of the node.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Final

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.peers.address import Address
from cablestore.peers.answering import Answer, AnswerQueue
from cablestore.peers.context import PeerContext
from cablestore.peers.link import BLOCKED, PeerLink
from cablestore.peers.shares import LoopShare
from cablestore.protocol import recognition
from cablestore.protocol.exchange import Event, Exchange, Requester
from cablestore.protocol.message import ListRequest, ModerationRequest, PostRequest, Request
from cablestore.protocol.session import Session
from cablestore.reconcile.messages import LIFE_REQUEST

_REQUEST_SIZE_BYTES, _HASH_SIZE_BYTES = 500, 80
"""Approximate memory of a request, and of each hash or name in a request."""
_LONG_PAUSE_S: Final = 1.0
"""Minimum length of a pause after which the timeouts of requests restart."""


class PauseReason(Enum):
    """Reason why the node pauses reading from a peer."""

    STORING = "its posts wait to be stored"
    JUDGING = "its posts wait for the policy"
    INSPECTING = "its posts for other peers wait to be checked"
    OFFERS = "its announced hashes wait to be looked up"
    REQUESTS = "its requests use much memory"
    SHARE = "its messages used more than its share of processing time"


_UNREAD: Final = (PauseReason.STORING, PauseReason.JUDGING, PauseReason.INSPECTING)
"""Pauses for these reasons may leave answers of the peer unread, so requests to the peer do not expire during them."""


class Connection(PeerLink):
    """A connection to or from the Cable port of a node, with the state of its peer."""

    def __init__(self, context: PeerContext, dialed: Address | None = None, *, is_once: bool = False) -> None:
        super().__init__(context, dialed)
        self.is_once: Final = is_once
        """True if the connection serves one task. No live sync begins."""
        self.met: Final[asyncio.Future[bool]] = context.loop.create_future()
        """Done with True when both sides know that the other side reconciles, with False if the connection ends
        earlier.
        """
        self.first_answer: Final[asyncio.Future[None]] = context.loop.create_future()
        """Done when a request is answered or times out, or the connection ends. A peer that reconciles completes `met`
        earlier.
        """
        self.is_of_another_node = False
        """True if the peer's first request shows that the peer is not this node itself."""
        self.faults = 0
        self.session: Final = _new_session(context, greets=context.settings.reconciles or is_once)
        self.answers: Final = AnswerQueue(context, self, self.session, self._answer)
        self.share: Final = self.answers.share
        self.pauses: set[PauseReason] = set()
        """The reasons why reading from the peer is paused."""
        self.changes_waiting = 0
        """Number of hashes that wait until the histories of the peer's live requests are sent."""
        self._loop_share = LoopShare(self.began_s)
        self._greetings = 0
        self._paused_at_s = 0.0
        self._slow_at_s = 0.0
        self._alive_size_bytes = 0
        """Approximate memory of the peer's open requests."""
        self._leaves_at_s: float | None = None
        """When to disconnect a peer that the local user blocks, None for other peers."""

    # --- the transport calls these -------------------------------------------------------------

    @abstractmethod
    def _dispatch(self, events: list[Event]) -> None:
        """Dispatch each event of the peer."""

    @abstractmethod
    def _answer(self, answer: Answer, part: list[Any]) -> None:
        """Send a part of an answer, and conclude the answer after the last part."""

    def _speak(self) -> None:
        self.session.speak(self._context.loop.time())
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the peer, and charge the peer for the loop time that they use."""
        watch = self._context.watch
        began_s = watch.begin()
        super().data_received(data)
        wait_s = self._loop_share.charge(watch.spent_s(began_s), self._context.loop.time())
        if wait_s and PauseReason.SHARE not in self.pauses:  # until the peer is within its share again
            self.pause(PauseReason.SHARE)
            self._context.loop.call_later(wait_s, self.resume, PauseReason.SHARE)

    def _receive(self, messages: list[bytes]) -> None:
        events: list[Event] = []
        for message in messages or [b""]:
            events += self.session.receive(message, self.received_s)
        if events:
            self._dispatch(events)
        self.flush()

    @property
    def _messages(self) -> int:
        return self.session.messages

    def pause_writing(self) -> None:
        """Stop reading the store for a peer that reads slower than this node writes."""
        self.answers.slow_down()
        self._slow_at_s = self._context.loop.time()

    def resume_writing(self) -> None:
        """Resume reading the store for the peer."""
        self.answers.speed_up()

    @property
    def is_slow(self) -> bool:
        """True if the peer reads slower than this node writes."""
        return self.answers.is_slow

    # --- sending -------------------------------------------------------------------------------

    def send_request(
        self, request: Request, requester: Requester | None = None, timeout_s: float | None = None
    ) -> Exchange:
        """Send a request to the peer. `requester` receives the answer."""
        exchange = self.session.send_request(request, self._context.loop.time(), timeout_s, requester=requester)
        self.flush()
        return exchange

    def flush(self) -> None:
        """Send the output of the session. Close the connection if too much output is queued."""
        if not self.is_established or self._transport is None:
            return
        messages = self.session.output()
        if messages:
            self._send(messages)
        if self._transport.is_closing() or self._ends_s is not None:
            return
        is_more = messages or self.changes_waiting
        if is_more and self.queued_size_bytes > self._context.settings.max_queued_size_bytes:
            self.close("the peer reads too slowly")
        if not self.met.done():
            self._meet()

    def send_frames(self, frames: list[bytes]) -> None:
        """Send frames of a reconciliation, if the peer reconciles."""
        if self.is_met and not self.closed.done():
            for frame in frames:
                self.session.send_extra(frame)
            self.flush()

    @property
    def queued_size_bytes(self) -> int:
        """The size of the data that the peer has not read yet, including pending changes."""
        return self._unread_size_bytes + self.changes_waiting * _HASH_SIZE_BYTES

    @property
    def held_size_bytes(self) -> int:
        """The memory that the peer uses: its unread data, its requests, and incomplete messages."""
        return self.queued_size_bytes + self._alive_size_bytes + self.session.held_size_bytes

    # --- recognition ---------------------------------------------------------------------------

    @property
    def is_met(self) -> bool:
        """True if both sides know that the other side reconciles."""
        return self.met.done() and self.met.result()

    async def until_known(self) -> None:
        """Wait until it is known whether the peer reconciles."""
        ends: set[asyncio.Future[Any]] = {self.met, self.first_answer}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)

    async def require_met(self) -> None:
        """Wait until both sides know that the other side reconciles.

        Raises NodeError if that takes longer than `limits.GREETING_TIMEOUT_S`.
        """
        await asyncio.wait({self.met}, timeout=limits.GREETING_TIMEOUT_S)
        if not self.is_met:
            self.end("the peer does not reconcile")
            reason = self.closed.result() if self.closed.done() else "it is not a cablestore, or does not reconcile"
            raise NodeError(
                f"{self.dialed} was not recognized as a cablestore within {limits.GREETING_TIMEOUT_S:g} s: {reason}"
            )

    def compare_again(self) -> None:
        """End the agreement, so that the stores are compared again: a post that the peer announced was not requested."""
        self.send_frames(self.agreement.failed())
        self.notify_step()

    def greet(self) -> None:
        """Send the requests by which a cablestore recognizes this node."""
        self._greetings += 1
        for _ in range(recognition.REQUESTS):
            self.send_request(ListRequest(b"", 0, 1))

    def _meet(self) -> None:
        """Complete `met` if both sides know that the other side reconciles."""
        knows_both = self.session.is_cablestore and self.session.has_greeted
        if knows_both and self._context.settings.reconciles and not self.met.done():
            self.met.set_result(True)

    # --- reading from the peer -----------------------------------------------------------------

    def pause(self, reason: PauseReason) -> None:
        """Add a reason, and stop reading from the peer."""
        self._change_pauses(self.pauses | {reason})

    def resume(self, reason: PauseReason) -> None:
        """Remove a reason, and read from the peer again after the last reason is removed."""
        if reason in self.pauses:
            self._change_pauses(self.pauses - {reason})

    def _change_pauses(self, pauses: set[PauseReason]) -> None:
        was_paused, self.pauses = bool(self.pauses), pauses
        if bool(pauses) == was_paused or self._transport is None or self._transport.is_closing():
            return
        if pauses:
            self._paused_at_s = self._context.loop.time()
            self._transport.pause_reading()
        else:
            self._postpone()
            self._transport.resume_reading()

    def _postpone(self) -> None:
        """After a long pause, restart the timeouts of all requests: the peer may have answered during the pause."""
        now_s = self._context.loop.time()
        if now_s - self._paused_at_s >= _LONG_PAUSE_S:
            self.session.postpone_all(now_s)

    # --- cost of the peer ----------------------------------------------------------------------

    def _weigh(self) -> None:
        """Sum up the memory of the peer's requests. While the sum exceeds the limit, reading from the peer is paused."""
        self._alive_size_bytes = sum(size_of(exchange.request) for exchange in self.session.to_answer.values())
        is_much = self._alive_size_bytes > self._context.settings.max_queued_size_bytes // 2
        (self.pause if is_much else self.resume)(PauseReason.REQUESTS)

    def faulted(self, what: str, detail: str) -> None:
        """Count a fault. Too many faults end the connection."""
        self.faults += 1
        self._context.log.info("fault", extra={"peer": self.name, "what": what, "detail": detail})
        if self.faults >= self._context.settings.max_faults:
            self.close(f"too many faults ({self.faults}), the last: {what} ({detail})")

    # --- a peer that the local user blocks -----------------------------------------------------

    @property
    def is_banished(self) -> bool:
        """True if the connection is ending because the local user blocks the peer."""
        return self._leaves_at_s is not None

    def banish(self) -> None:
        """End the connection with a peer that the local user blocks.

        A peer that the block notifies may request the post/block first, for up to `limits.BLOCK_NOTICE_S`.
        """
        if self.is_banished:
            return
        self._leaves_at_s = self._context.loop.time()
        if self.audience.is_notified and not self.is_once:
            self._leaves_at_s += limits.BLOCK_NOTICE_S
        else:
            self.end(BLOCKED)

    # --- the clock -----------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """End the connection if the peer does not read or the time of a blocked peer is over. Else check all timeouts."""
        is_stuck = self.is_slow and now_s - self._slow_at_s > self._context.settings.idle_timeout_s
        if is_stuck and (self._ends_s is None or now_s <= self._ends_s):
            self.close("the peer does not read")
        elif self._leaves_at_s is not None and now_s > self._leaves_at_s:
            self.end(BLOCKED)
        else:
            super().tick(now_s)

    def expire(self, now_s: float) -> None:
        """Expire requests that the peer did not answer in time, unless its answers may be unread."""
        if self.pauses.isdisjoint(_UNREAD):  # unread answers cannot be late
            events = self.session.expire(now_s)
            if events:
                self._dispatch(events)
                self.flush()

    @property
    def _is_read(self) -> bool:
        return not self.pauses

    @property
    def _is_understood(self) -> bool:
        return self.session.is_understood

    def _probe(self) -> None:
        """Send a frame that another cablestore answers immediately, or a request that other peers answer."""
        self.send_frames([LIFE_REQUEST])
        if not self._knows_life_frames:
            self.send_request(ListRequest(b"", 0, 1))

    def check_life(self) -> None:
        """Probe the peer soon, and restart the timeouts of its open requests."""
        super().check_life()
        self.session.postpone_all(self._context.loop.time())


def _new_session(context: PeerContext, *, greets: bool) -> Session:
    """Create the session of a connection.

    It sends nothing before `speak`. If `greets` is True, its first request ids are a greeting for another cablestore.
    """
    settings = context.settings
    return Session(
        context.dialect,
        recognition.Greeter(_new_request_id) if greets else _new_request_id,
        speaks_first=False,
        spares=settings.spares_cable_js and settings.cabal_key is None,
        max_requests_alive=settings.max_requests_alive,
        answer_timeout_s=settings.answer_timeout_s,
    )


def size_of(request: Request) -> int:
    """Return the approximate memory of a request in bytes."""
    match request:
        case PostRequest(_, hashes):
            return _REQUEST_SIZE_BYTES + _HASH_SIZE_BYTES * len(hashes)
        case ModerationRequest(_, channels):
            return _REQUEST_SIZE_BYTES + _HASH_SIZE_BYTES * len(channels)
    return _REQUEST_SIZE_BYTES


def _new_request_id(size_bytes: int) -> bytes:
    """Return a random id. It does not begin with four zero bytes, which would be a circuit id of the legacy dialect."""
    while True:
        found = os.urandom(size_bytes)
        if found[:4] != bytes(4):
            return found


class Links:
    """The connections of a node, at both ports. Iteration uses a copy."""

    def __init__(self) -> None:
        self.cable: Final[set[Connection]] = set()
        self.reconcile: Final[set[PeerLink]] = set()

    def __iter__(self) -> Iterator[PeerLink]:
        """Yield all connections."""
        return iter((*self.cable, *self.reconcile))


def disconnect_slowest(connections: Iterable[Connection], max_size_bytes: int) -> None:
    """Close the connections that use the most memory, until the total is at most `max_size_bytes`."""
    sizes = {connection: connection.held_size_bytes for connection in connections}
    held_size_bytes = sum(sizes.values())
    by_size = sorted(sizes, key=sizes.__getitem__)
    while held_size_bytes > max_size_bytes:
        slowest = by_size.pop()
        held_size_bytes -= sizes[slowest]
        slowest.close("the peer reads too slowly, and the memory for queues is used up")
