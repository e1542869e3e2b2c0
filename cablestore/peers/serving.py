"""Serving: answers to the requests of all peers, forwarding to other peers, and live requests."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final

from cablestore import limits
from cablestore.peers.announced import AnnouncedPosts
from cablestore.peers.answering import Answer
from cablestore.peers.connection import Connection
from cablestore.peers.context import PeerContext
from cablestore.peers.feed import Feed
from cablestore.peers.inspecting import InspectionThread
from cablestore.peers.link import BLOCKED
from cablestore.peers.live import LiveRequests
from cablestore.peers.live_changes import LiveChange
from cablestore.peers.node_ids import NodeIds
from cablestore.peers.relay import Loops, Route
from cablestore.peers.sync import Sync
from cablestore.protocol.body import INFO
from cablestore.protocol.exchange import Exchange, Fault
from cablestore.protocol.message import ListRequest, PostRequest, Request, StateRequest, TimeRangeRequest
from cablestore.protocol.post import peek_type
from cablestore.protocol.session import Session

FORWARDS_TICK_S: Final = limits.RELAY_STEP_S / 2
"""How often the timeouts of forwarded requests are checked: half of RELAY_STEP_S. The other half is left for the transfer
of the answer.
"""
_GRACE_POLL_S: Final = 0.01
"""Interval at which a stopping node checks whether peers have requested the announced posts."""
_ROWS_PER_FORWARD: Final = 20
"""The cost of forwarding to another peer, in rows."""


class Serving:
    """Answers, forwarded requests and live requests of a node. Use it on the loop.

    A thread inspects forwarded items.
    """

    def __init__(
        self, context: PeerContext, connections: Collection[Connection], sync: Sync, node_ids: NodeIds
    ) -> None:
        self._context = context
        self._connections = connections
        self._sync = sync
        self._node_ids = node_ids
        self.live: Final = LiveRequests(context.dialect)
        self.by_session: Final[dict[Session, Connection]] = {}
        self.routes: Final[dict[Exchange, Route]] = {}
        """Forwarded requests, by the request of the requesting peer."""
        self._loops: Final = Loops()
        self._announced: Final = AnnouncedPosts()
        self._inspection: Final = InspectionThread(context, self.by_session.get, self._send_on)
        self.feed: Final = Feed(context, connections, self.live, self._deliver)

    def close(self) -> None:
        """Stop watching the store, and end the thread. Callable in any thread."""
        self.feed.close()
        self._inspection.close()

    # --- connections ---------------------------------------------------------------------------

    def note_connection(self) -> None:
        """Read the restrictions if changes were not followed before, because no peer was connected."""
        if self.feed.has_skipped:
            self.feed.has_skipped = False
            self._context.restrictions.read()

    def lost(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._announced.forget(connection)
        self.by_session.pop(connection.session, None)

    async def wait_for_requests(self) -> None:
        """Wait until peers have received the local user's posts that were announced less than `grace_s` ago.

        Earlier writes are announced first. The wait for a peer that does not request posts ends after that time.
        """
        loop, grace_s = self._context.loop, self._context.settings.grace_s
        ends_s, last = loop.time() + grace_s, self._context.store.last_sequence
        while self._connections and loop.time() < ends_s:
            is_announced = self.feed.reached >= last
            await asyncio.sleep(0)  # changes that were passed to the loop are sent
            if is_announced and not self._announced.is_recent(loop.time() - grace_s):
                return
            await asyncio.sleep(_GRACE_POLL_S)

    async def expire_forwards(self) -> None:
        """Expire forwarded requests that are not answered in time, until the node stops."""
        while True:
            await asyncio.sleep(FORWARDS_TICK_S)
            is_waiting = any(route.is_waiting for route in self.routes.values())
            for connection in list(self._connections) if is_waiting else ():
                connection.expire(self._context.loop.time())

    # --- requests of peers ---------------------------------------------------------------------

    def request(self, connection: Connection, exchange: Exchange) -> bool:
        """Start to process a request of the peer. Return False if it was rejected and must not be answered.

        A request is rejected if it came from this node or returned in a loop. A live request is also rejected if the
        peer already has too many equal requests, because each of them receives all changes.
        """
        request = exchange.request
        if self._is_refused(connection, exchange):
            connection.session.reject(exchange)
            return False
        connection.received_requests += 1
        if self._is_forwarded(connection, request):
            route = self.routes[exchange] = Route(connection.session, exchange, self._inspection)
            if not isinstance(request, PostRequest):
                self._forward(route)
        if exchange.is_live:
            self.live.add(connection, exchange, self.routes.get(exchange))
        return True

    def _is_refused(self, connection: Connection, exchange: Exchange) -> bool:
        request = exchange.request
        if self._node_ids.leads_here(connection):
            return True
        if exchange.is_live and self.live.alike(connection, request) >= limits.MAX_LIVE_ALIKE:
            connection.faulted(Fault.TOO_MANY_REQUESTS.value, "equal live requests")
            return True
        self._context.metrics.requests[type(request)].inc()
        may_loop = request.ttl > 0 and self._context.settings.relays
        return may_loop and self._loops.is_loop(connection.session, request, self.by_session)

    def _is_forwarded(self, connection: Connection, request: Request) -> bool:
        """Return True if the request is forwarded to other peers. Requests for dropped channels are not forwarded."""
        if request.ttl == 0 or not self._context.settings.relays or connection.is_banished:
            return False
        if isinstance(request, ListRequest) and request.offset > 0:
            return False
        channel = request.channel if isinstance(request, TimeRangeRequest | StateRequest) else ""
        is_dropped = self._context.dialect.channel_id(channel) in self._context.restrictions.now.channels
        return not is_dropped and connection.share.is_left()

    def dropped(self, exchange: Exchange) -> None:
        """Forget an ended request of the peer."""
        if exchange.is_live:
            self.live.remove(exchange)
        route = self.routes.pop(exchange, None)
        if route is not None:
            route.end()
            self._flush_all()

    def answer(self, connection: Connection, answer: Answer, part: list[Any]) -> None:
        """Pass a part of an answer to the session, and conclude the answer after the last part."""
        exchange, session = answer.exchange, connection.session
        route = self.routes.get(exchange)
        is_announced = connection.is_banished and isinstance(exchange.request, PostRequest) and bool(part)
        if answer.error is not None:
            self._context.log.error("cannot answer", extra={"peer": connection.name, "reason": str(answer.error)})
            session.reject(exchange)
        elif isinstance(exchange.request, PostRequest):
            if session.dialect is not self._context.dialect:  # post/info has another form in that dialect
                part = [post for post in part if peek_type(post) != INFO]
            session.answer_posts(exchange, part)
        elif not isinstance(exchange.request, ListRequest):  # names are sent in only one response
            session.answer_hashes(exchange, part if route is None else route.fresh(part))
        if answer.is_complete:
            self._conclude(connection, answer, route)
        if is_announced:
            connection.flush()
            connection.end(BLOCKED)

    def _conclude(self, connection: Connection, answer: Answer, route: Route | None) -> None:
        """Record that the store's answer is sent. Conclude the request, unless other peers or changes may add to it."""
        exchange = answer.exchange
        if isinstance(exchange.request, PostRequest):
            self._announced.note_sent(connection, exchange.request.hashes)
        waited_s = self._context.loop.time() - answer.began_s
        self._context.metrics.answer_seconds[type(exchange.request)].observe(waited_s)
        if exchange.is_over:
            pass
        elif route is not None:
            self._answered_here(route, answer)
        elif isinstance(exchange.request, ListRequest):
            connection.session.answer_names(exchange, answer.names)
        else:
            connection.session.finish(exchange)
        live = self.live.get(exchange) if exchange.is_live else None
        if live is not None:
            live.finish_history(answer.sequence)
        if exchange.is_over:
            self.dropped(exchange)

    def _deliver(self, changes: list[LiveChange]) -> None:
        self._context.restrictions.on_changes(changes)
        self._sync.on_changes(changes)
        for live, items in self.live.deliver(changes).items():
            own = [item.hash for item in items if item.is_own]
            if own:
                self._announced.note_announced(live.connection, own, self._context.loop.time())
            live.connection.flush()
            if live.exchange.is_over:
                self.dropped(live.exchange)

    # --- requests that are forwarded -----------------------------------------------------------

    def _forward(self, route: Route, hashes: tuple[bytes, ...] | None = None) -> None:
        others = [known.session for known in self._connections if known.is_established and not known.is_banished]
        route.forward(others, self._context.loop.time(), hashes)
        origin = self.by_session.get(route.origin)
        if origin is not None:
            origin.share.charge(_ROWS_PER_FORWARD * len(others))
        self._flush_all()

    def _flush_all(self) -> None:
        for connection in list(self._connections):
            connection.flush()

    def _answered_here(self, route: Route, answer: Answer) -> None:
        """Add the answer of the store to a forwarded request. A post request is forwarded only now, for missing posts."""
        route.names.update(answer.names)
        if isinstance(route.exchange.request, PostRequest):
            route.fresh(answer.found)
            missing = tuple(digest for digest in route.exchange.request.hashes if digest not in answer.found)
            if missing:
                self._forward(route, missing)
        route.finish()

    def _send_on(self, route: Route) -> None:
        """Send the forwarded items of a route, and forget the request if it has ended."""
        origin = self.by_session.get(route.origin)
        if origin is not None:
            origin.flush()
        if route.exchange.is_over:
            self.dropped(route.exchange)
