"""Forwarding of legacy requests by their ttl, and of the answers back to the requesting peer.

A request with ttl > 0 is forwarded to all other peers with the legacy dialect. The forwarded request has the same id and
a ttl reduced by one (wire.md draft 1, 5.2.1). An `Inspector` checks the answers, and they are sent only to the requesting
peer. Posts that this node would reject are not forwarded. The limit of a request applies to the answers of the store and
all peers together. Each hash is sent once. A request that returns on another path is not answered again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final, NamedTuple, Protocol
from weakref import ref

from cablestore import limits
from cablestore.protocol import cable_js
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import Concluded, Exchange, Hashes, Names, Posts, ResponseEvent
from cablestore.protocol.message import ListRequest, PostRequest, Request
from cablestore.protocol.session import Session
from cablestore.protocol.varint import MAX_VARINT


class Inspector(Protocol):
    """Inspector of posts and hashes that peers send for other peers. It forwards the permitted items.

    For each part, it calls `pass_hashes` or `pass_posts` of the route once, now or later, even if nothing is permitted.
    """

    def allowed_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that may be forwarded."""

    def send_on(self, route: Route) -> None:
        """Send the forwarded items of a route, and forget the route if it has ended."""

    def inspect_hashes(self, route: Route, sender: Session, hashes: tuple[bytes, ...]) -> None:
        """Pass the permitted hashes to `route.pass_hashes`."""

    def inspect_posts(self, route: Route, sender: Session, posts: list[bytes]) -> None:
        """Pass the permitted posts to `route.pass_posts`."""


class Route:
    """One forwarded request, with the requesting peer and the peers that it was forwarded to."""

    def __init__(self, origin: Session, exchange: Exchange, inspector: Inspector) -> None:
        self.origin: Final = origin
        self.exchange: Final = exchange
        self.names: Final[set[str]] = set()
        self._inspector: Final = inspector
        self._forwards: Final[dict[Exchange, Session]] = {}
        self._passed: set[bytes] = set()
        self._is_live: Final[bool] = exchange.is_live

    def forward(self, sessions: Iterable[Session], now_s: float, hashes: tuple[bytes, ...] | None = None) -> None:
        """Forward the request to other peers. A post request is forwarded only for `hashes`, which the store lacks."""
        ttl = self.exchange.request.ttl
        request: Request = self.exchange.request._replace(ttl=ttl - 1)
        if hashes is not None and isinstance(request, PostRequest):
            request = request._replace(hashes=hashes)
        if isinstance(request, ListRequest):
            # The offset applies to the names of all peers together.
            request = request._replace(
                offset=0, limit=request.limit and min(request.offset + request.limit, MAX_VARINT)
            )
        if self.exchange.is_over or (isinstance(request, PostRequest) and not request.hashes):
            return
        if self.origin.may_be_cable_js and cable_js.handled_request(request) is None:
            return  # the requesting peer could not handle any answer
        # A node that is nearer to the original requester waits longer. Otherwise it would give up just before the
        # answer.
        timeout_s = limits.RELAY_TIMEOUT_S + limits.RELAY_STEP_S * (ttl - 1)
        for session in sessions:
            said = cable_js.handled_request(request) if session.may_be_cable_js else request
            if session is not self.origin and said is not None and self._may_ask(session, said):
                self.hold()
                forwarded = session.send_request(said, now_s, timeout_s, requester=ForwardedRequest(self, session))
                self._forwards[forwarded] = session

    @property
    def is_waiting(self) -> bool:
        """True if another peer may still answer."""
        return bool(self._forwards)

    @staticmethod
    def _may_ask(session: Session, request: Request) -> bool:
        """Return True if a peer forwards by ttl, does not know this request yet, and has capacity left.

        Half of the requests that a peer accepts are reserved for requests of this node itself.
        """
        is_known = request.request_id in session.to_answer or request.request_id in session.open_requests
        has_room = len(session.open_requests) < limits.MAX_REQUESTS_ALIVE // 2
        return session.is_recognised and session.dialect.requests_have_ttl and not is_known and has_room

    def fresh(self, hashes: Iterable[bytes]) -> list[bytes]:
        """Return the hashes that were not forwarded yet, and remember them up to a limit."""
        found = [digest for digest in dict.fromkeys(hashes) if digest not in self._passed]
        self._passed.update(islice(found, max(limits.ROUTE_HASHES_REMEMBERED - len(self._passed), 0)))
        return found

    def end(self) -> None:
        """Cancel the forwarded requests: the requesting peer has its answer, or no longer needs it."""
        for forwarded, session in self._forwards.items():
            session.cancel(forwarded)
        self._forwards.clear()

    def handle(self, sender: Session, event: ResponseEvent) -> None:
        """Handle a part of a peer's answer, or its end. Ignore it if the request was cancelled."""
        if event.exchange not in self._forwards:
            return
        match event:
            case Hashes(_, hashes):
                self.hold()
                self._inspector.inspect_hashes(self, sender, hashes)
            case Posts(_, posts):
                self.hold()
                self._inspector.inspect_posts(self, sender, posts)
            case Names(_, names):  # collected from all peers, because only one response is permitted
                self.names.update(self._inspector.allowed_names(names)[: limits.ROUTE_HASHES_REMEMBERED])
            case Concluded(forwarded, _):
                del self._forwards[forwarded]
                self.let_go()
        self._inspector.send_on(self)

    def hold(self) -> None:
        """Count one more source that must finish: a peer, or a batch of its items under inspection.

        Sources of a live request are not counted, because their answers do not end.
        """
        self.exchange.holds += not self._is_live

    def let_go(self) -> None:
        """Record that a source that `hold` counted has finished."""
        if not self._is_live:
            self.finish()

    def pass_hashes(self, hashes: Iterable[bytes]) -> None:
        """Forward inspected hashes."""
        self.origin.answer_hashes(self.exchange, self.fresh(hashes))
        if self.exchange.is_over:
            self.end()
        self.let_go()

    def pass_posts(self, posts: Iterable[bytes]) -> None:
        """Forward inspected posts."""
        by_hash = {post_hash(post): post for post in posts}
        self.origin.answer_posts(self.exchange, [by_hash[digest] for digest in self.fresh(by_hash)])
        self.let_go()

    def finish(self) -> None:
        """Record that one source has finished. After the last source, the answer is complete."""
        if isinstance(self.exchange.request, ListRequest):
            self.exchange.holds -= 1
            if self.exchange.holds == 0:
                self.origin.answer_names(self.exchange, self._wanted_names(self.exchange.request))
        else:
            self.origin.finish(self.exchange)
        if self.exchange.is_over:
            self.end()

    def _wanted_names(self, request: ListRequest) -> list[str]:
        known = filter(cable_js.handles_channel, self.names) if self.origin.may_be_cable_js else self.names
        names = sorted(known, key=str.encode)
        return names[request.offset : request.offset + request.limit] if request.limit else names[request.offset :]


class ForwardedRequest(NamedTuple):
    """Receiver of the answer to a request that was forwarded to `sender`."""

    route: Route
    sender: Session

    def handle(self, event: ResponseEvent) -> None:
        """Handle a part of the answer, or its end."""
        self.route.handle(self.sender, event)


class Loops:
    """Record of the peer that sent each request, to detect a request that returns on another path."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, ref[Session]] = OrderedDict()
        """Weak references to the session that sent each request first, by request id."""

    def is_loop(self, session: Session, request: Request, alive: Collection[Session]) -> bool:
        """Return True if another connected peer sent this request first, or this node did. Otherwise note its sender.

        `alive` are the sessions with the connected peers. A peer that reconnects repeats its request with the same id,
        and is answered.
        """
        seen = self._seen.get(request.request_id)
        if seen is None and any(other.has_requested(request.request_id) for other in alive):
            return True  # a request of this node, which another peer forwarded
        first = seen() if seen is not None else None
        if first is not None and first is not session and first in alive:
            return True
        self._seen[request.request_id] = ref(session)
        self._seen.move_to_end(request.request_id)
        if len(self._seen) > limits.ROUTES_REMEMBERED:
            self._seen.popitem(last=False)
        return False
