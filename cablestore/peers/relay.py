"""Forwarding of legacy requests by their ttl, and of the answers back to the peer that asked. Pure.

A request with ttl > 0 goes on to all other peers that speak the legacy dialect, under its own id and with a ttl of one
less (wire.md draft 1, 5.2.1). What they answer goes to the peer that asked us, and to nobody else, after an `Inspector`
has looked at it: what we would not take ourselves is not passed on. The store and all peers share the limit of a
request, a hash is passed on once, and a request that comes back over another way is not answered again.
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
    """A check of what peers give for others, which sends on what passes it.

    Now or later, the route gets what may be passed on, even if that is nothing.
    """

    def allowed_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those that may be passed on."""

    def send_on(self, route: Route) -> None:
        """Send what the route has passed on, and forget the route if that was the end."""

    def look_at_hashes(self, route: Route, giver: Session, hashes: tuple[bytes, ...]) -> None:
        """Give those that may be passed on to `route.pass_hashes`."""

    def look_at_posts(self, route: Route, giver: Session, posts: list[bytes]) -> None:
        """Give those that may be passed on to `route.pass_posts`."""


class Route:
    """One forwarded request, with the peer that asked us and those that we asked."""

    def __init__(self, origin: Session, exchange: Exchange, inspector: Inspector) -> None:
        self.origin: Final = origin
        self.exchange: Final = exchange
        self.names: Final[set[str]] = set()
        self._inspector: Final = inspector
        self._forwards: Final[dict[Exchange, Session]] = {}
        self._passed: set[bytes] = set()
        self._is_live: Final[bool] = exchange.request.is_live

    def forward(self, sessions: Iterable[Session], now_s: float, hashes: tuple[bytes, ...] | None = None) -> None:
        """Ask other peers the same; of a post request only `hashes`, which are not here."""
        ttl = self.exchange.request.ttl
        request: Request = self.exchange.request._replace(ttl=ttl - 1)
        if hashes is not None and isinstance(request, PostRequest):
            request = request._replace(hashes=hashes)
        if isinstance(request, ListRequest):
            # Which of a peer's names come after the offset is known when all names are together.
            request = request._replace(
                offset=0, limit=request.limit and min(request.offset + request.limit, MAX_VARINT)
            )
        if self.exchange.is_over or (isinstance(request, PostRequest) and not request.hashes):
            return
        if self.origin.may_be_cable_js and cable_js.handled_request(request) is None:
            return  # no answer could be passed on
        # A node nearer to the first to ask waits longer. Otherwise it would give up just before the answer comes.
        timeout_s = limits.RELAY_TIMEOUT_S + limits.RELAY_STEP_S * (ttl - 1)
        for session in sessions:
            said = cable_js.handled_request(request) if session.may_be_cable_js else request
            if session is not self.origin and said is not None and self._may_ask(session, said):
                self.hold()
                forwarded = session.ask(said, now_s, timeout_s, asker=ForwardedRequest(self, session))
                self._forwards[forwarded] = session

    @property
    def is_waiting(self) -> bool:
        """True if an answer of another peer may come."""
        return bool(self._forwards)

    @staticmethod
    def _may_ask(session: Session, request: Request) -> bool:
        """Tell whether a peer is known to forward by ttl, was not asked this by us or asks it, and has room left.

        Half of the requests that a peer takes from us are kept for our own.
        """
        is_known = request.request_id in session.to_answer or request.request_id in session.asked
        has_room = len(session.asked) < limits.MAX_REQUESTS_ALIVE // 2
        return session.is_recognised and session.dialect.requests_have_ttl and not is_known and has_room

    def fresh(self, hashes: Iterable[bytes]) -> list[bytes]:
        """Return the hashes that were not passed on yet, and remember as many as may be remembered."""
        found = [digest for digest in dict.fromkeys(hashes) if digest not in self._passed]
        self._passed.update(islice(found, max(limits.ROUTE_HASHES_REMEMBERED - len(self._passed), 0)))
        return found

    def end(self) -> None:
        """Cancel what is still asked: the peer that asked us no longer wants it, or has what it wanted."""
        for forwarded, session in self._forwards.items():
            session.cancel(forwarded)
        self._forwards.clear()

    def take(self, giver: Session, event: ResponseEvent) -> None:
        """Take a part of what a peer answers, or its end, unless it is not wanted any more."""
        if event.exchange not in self._forwards:
            return
        match event:
            case Hashes(_, hashes):
                self.hold()
                self._inspector.look_at_hashes(self, giver, hashes)
            case Posts(_, posts):
                self.hold()
                self._inspector.look_at_posts(self, giver, posts)
            case Names(_, names):  # kept until all peers have given theirs: there may be only one response
                self.names.update(self._inspector.allowed_names(names)[: limits.ROUTE_HASHES_REMEMBERED])
            case Concluded(forwarded, _):
                del self._forwards[forwarded]
                self.let_go()
        self._inspector.send_on(self)

    def hold(self) -> None:
        """Wait for one more source: a peer, or what it gave and is being inspected.

        A live answer of others has no end.
        """
        self.exchange.holds += not self._is_live

    def let_go(self) -> None:
        """Stop waiting for one source."""
        if not self._is_live:
            self.finish()

    def pass_hashes(self, hashes: Iterable[bytes]) -> None:
        """Pass on hashes that were inspected."""
        self.origin.answer_hashes(self.exchange, self.fresh(hashes))
        if self.exchange.is_over:
            self.end()
        self.let_go()

    def pass_posts(self, posts: Iterable[bytes]) -> None:
        """Pass on posts that were inspected."""
        by_hash = {post_hash(post): post for post in posts}
        self.origin.answer_posts(self.exchange, [by_hash[digest] for digest in self.fresh(by_hash)])
        self.let_go()

    def finish(self) -> None:
        """Note that one source, a peer or the store, has no more."""
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
    """Asker of a request that was forwarded to `giver`."""

    route: Route
    giver: Session

    def take(self, event: ResponseEvent) -> None:
        """Take a part of the answer, or its end."""
        self.route.take(self.giver, event)


class Loops:
    """Memory of which request came from which peer, to recognise one that comes back another way."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, ref[Session]] = OrderedDict()
        """Session that asked first, by request id. A weak reference."""

    def is_loop(self, session: Session, request: Request, alive: Collection[Session]) -> bool:
        """Tell whether this request came from another peer that is still connected, or from us; remember it otherwise.

        A peer that comes back after a lost connection asks again under the same id, and is answered.
        """
        seen = self._seen.get(request.request_id)
        if seen is None and any(other.has_asked(request.request_id) for other in alive):
            return True  # what we asked another peer ourselves, which forwarded it
        first = seen() if seen is not None else None
        if first is not None and first is not session and first in alive:
            return True
        self._seen[request.request_id] = ref(session)
        self._seen.move_to_end(request.request_id)
        if len(self._seen) > limits.ROUTES_REMEMBERED:
            self._seen.popitem(last=False)
        return False
