"""The Cable port and its connections.

The session of a connection turns received bytes into events. `CableConnection._dispatch` passes each event to the part
of the node that handles it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from cablestore import limits
from cablestore.peers.address import Address
from cablestore.peers.answering import Answer
from cablestore.peers.connection import Connection, PauseReason, size_of
from cablestore.peers.context import PeerContext
from cablestore.peers.link import ITSELF
from cablestore.peers.listener import PeerListener
from cablestore.peers.reconciler import Reconciler
from cablestore.peers.serving import Serving
from cablestore.peers.sync import Sync
from cablestore.protocol.dialect import DRAFT8
from cablestore.protocol.exchange import Dropped, Event, Exchange, Extra, Fault, Names, PeerRequest, Violation

_GREETINGS: Final = 2
"""Maximum number of repeated greetings on one connection."""


class CableConnection(Connection):
    """A connection to or from the Cable port of a node."""

    def __init__(
        self, context: PeerContext, port: CablePort, dialed: Address | None = None, *, is_once: bool = False
    ) -> None:
        super().__init__(context, dialed, is_once=is_once)
        self._port = port
        self.met.add_done_callback(self._decided)

    # --- its life ------------------------------------------------------------------------------

    def _admit(self) -> str:
        self._port.serving.by_session[self.session] = self
        self._context.metrics.connections[self.is_ours].inc()
        return self._port.admit(self)

    def _begin(self) -> None:
        if self._channel is None and self.session.dialect is DRAFT8:
            self._context.loop.call_later(limits.DIALECT_WAIT_S, self._speak)
        else:
            self._speak()
        self._context.log.info("connected", extra={"peer": self.name, "dialed": self.is_ours})
        other_end = next((known for known in self._port.links if known.ends == self.ends[::-1]), None)
        if other_end is not None and all(self.ends):
            self.close(ITSELF)
            other_end.close(ITSELF)
            return
        self._port.serving.note_connection()
        if self.audience.is_blocked:
            self.banish()
            return
        self._port.sync.begin(self)
        if self._context.settings.reconciles or self.is_once:
            self.greet()  # before any answer: a peer that gets an answer first concludes that this is another program

    def _decided(self, met: asyncio.Future[bool]) -> None:
        """Start to reconcile if this node connected and both sides know that the other side reconciles."""
        if met.result() and self.is_ours and not self.is_once and not self.is_banished:
            self._context.life.run(self._port.reconciler.keep_in_step(self))

    def _check_silence(self, now_s: float) -> None:
        self.expire(now_s)
        self._weigh()
        if self.session.is_recognised and not self.session.has_greeted and 0 < self._greetings <= _GREETINGS:
            self.greet()  # the dialect changed during the last greeting, which ended it
        is_alive = (
            self.session.is_recognised and self.session.open_requests
        )  # open requests count only at a peer that has sent a message: others do not answer
        is_idle = not is_alive and not self.session.to_answer and not self._port.reconciler.is_under_way(self)
        if is_idle and now_s - self.received_s > self._context.settings.idle_timeout_s:
            self.end("idle")

    def _lost(self) -> None:
        self._dispatch(self.session.lose())
        self.answers.close()
        if not self.met.done():
            self.met.set_result(False)
        self._note_answer()
        self._port.remove(self)
        self._port.serving.lost(self)
        self._context.metrics.disconnected(self.received_size_bytes, self.sent_size_bytes)
        self._port.sync.lost(self)

    # --- messages of the peer ------------------------------------------------------------------

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case PeerRequest(exchange):
                    self._asked(exchange)
                case Dropped(exchange):
                    self._dropped(exchange)
                case Violation(fault, detail):
                    # Not a fault in legacy: cable-core.js sends forwarded answers to all its peers.
                    if fault is not Fault.UNREQUESTED or not self.session.dialect.requests_have_ttl:
                        self.faulted(fault.value, detail)
                case Extra(content):
                    self._meet()  # the frame may arrive together with the end of the greeting
                    if self.met.done() and not self._handle_life_frame(content) and not self.is_banished:
                        self._port.reconciler.received(self, content)
                case _:
                    if isinstance(event, Names):
                        self.silence.is_answerable = True
                    self._note_answer()
                    if event.exchange.requester is not None:
                        event.exchange.requester.handle(event)

    def _note_answer(self) -> None:
        if not self.first_answer.done():
            self.first_answer.set_result(None)

    def _asked(self, exchange: Exchange) -> None:
        if self._port.serving.request(self, exchange):
            self._alive_size_bytes += size_of(exchange.request)
            if self._alive_size_bytes > self._context.settings.max_queued_size_bytes // 2:
                self._weigh()
            self.answers.add(exchange)

    def _dropped(self, exchange: Exchange) -> None:
        self.answers.discard(exchange)
        self._alive_size_bytes -= size_of(exchange.request)
        self._port.serving.dropped(exchange)

    def _answer(self, answer: Answer, part: list[Any]) -> None:
        self._port.serving.answer(self, answer, part)
        if answer.is_complete and answer.exchange.is_over and PauseReason.REQUESTS in self.pauses:
            self._weigh()
        self.flush()


class CablePort(PeerListener[Connection]):
    """The Cable ports of a node, with its Cable connections in both directions."""

    def __init__(
        self, context: PeerContext, serving: Serving, sync: Sync, reconciler: Reconciler, links: set[Connection]
    ) -> None:
        super().__init__(context, partial(CableConnection, context, self), links)
        self.serving: Final = serving
        self.sync: Final = sync
        self.reconciler: Final = reconciler

    async def keep(self, link: Connection) -> None:
        """Register a kept connection, exchange node ids if the peer reconciles, and wait until the connection closes."""
        self.reconciler.node_ids.keep(link)
        if await asyncio.shield(link.met):
            self.reconciler.node_ids.announce(link)
        await asyncio.wait({link.closed})

    async def connect_once(self, address: Address) -> Connection:
        """Connect to a peer for one task. No live sync begins."""
        return await self.connect(address, new_link=partial(CableConnection, self._context, self, is_once=True))

    async def connect_met(self, address: Address) -> Connection:
        """Connect to a store that reconciles at its Cable port. Raises NodeError."""
        connection = await self.connect_once(address)
        await connection.require_met()
        return connection
