"""Live requests: the peers that receive a change as soon as it is stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cablestore.peers.audience import Audience
from cablestore.peers.connection import Connection
from cablestore.peers.live_changes import LiveChange, Subject, concerns
from cablestore.peers.relay import Route
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.exchange import Exchange, State
from cablestore.protocol.message import ModerationRequest, Request, StateRequest, TimeRangeRequest


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One live request. Changes wait while the history is being sent, so that none is missed."""

    connection: Final[Connection]
    exchange: Final[Exchange]
    route: Final[Route | None] = None
    """The route of the request if it is forwarded."""
    _waiting: dict[bytes, int] = field(default_factory=dict)
    """Waiting hashes, with the numbers of their entries in the arrival log."""
    _known: int = 0
    """Last log entry in the history sent to the peer. A change may be added after a history that includes it was
    sent."""

    def announce(self, changes: Iterable[LiveChange]) -> None:
        """Send the changes that the peer may receive, now or after the history."""
        if self.connection.session.may_be_cable_js:
            changes = [item for item in changes if item.is_safe_for_cable_js]
        audience = self.connection.audience
        if not audience.is_everyone:
            changes = [item for item in changes if _may_get_hash(audience, item)]
        if self.exchange.state is State.LIVE:
            self._answer([item.hash for item in changes if item.sequence > self._known])
        else:
            before = len(self._waiting)
            self._waiting |= {item.hash: item.sequence for item in changes}
            self.connection.changes_waiting += len(self._waiting) - before

    def finish_history(self, sequence: int) -> None:
        """Send the waiting changes, except for those in the history, which includes log entries up to `sequence`."""
        self._known = sequence
        self._answer([digest for digest, known_at in self.forget().items() if known_at > sequence])

    def _answer(self, hashes: list[bytes]) -> None:
        """Send hashes, except for texts that the peer sent or already received.

        State is sent again: after a deletion, the post that becomes current may have been sent before.
        """
        if isinstance(self.exchange.request, TimeRangeRequest):
            hashes = [digest for digest in hashes if digest not in self.connection.received_posts]
            hashes = hashes if self.route is None else self.route.fresh(hashes)
        self.connection.session.answer_hashes(self.exchange, hashes)

    def forget(self) -> dict[bytes, int]:
        """Remove and return the waiting hashes."""
        waiting, self._waiting = self._waiting, {}
        self.connection.changes_waiting -= len(waiting)
        return waiting


def _may_get_hash(audience: Audience, item: LiveChange) -> bool:
    return not audience.is_blocked if item.post is None else audience.may_get_hash_of(item.post)


class LiveRequests:
    """All live requests of all peers, by type and channel. For a moderation request the channel is ""."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._tables: defaultdict[tuple[type[Request], str], dict[Exchange, LiveRequest]] = defaultdict(dict)
        self._alike: Counter[tuple[Connection, type[Request], str]] = Counter()
        self.state_channels: frozenset[str] = frozenset()
        """Channels with live state requests."""
        self.count = 0

    def add(self, connection: Connection, exchange: Exchange, route: Route | None = None) -> None:
        """Add a live request of a peer, with its route if it is forwarded."""
        key = self._key(exchange.request)
        is_first = key not in self._tables
        self._tables[key][exchange] = LiveRequest(connection, exchange, route)
        self._alike[connection, *key] += 1
        self.count += 1
        if is_first:
            self._note_channels()

    def remove(self, exchange: Exchange) -> None:
        """Remove an ended live request."""
        key = self._key(exchange.request)
        live = self.get(exchange)
        if live is None:
            return
        live.forget()
        self.count -= 1
        self._alike[live.connection, *key] -= 1
        if not self._alike[live.connection, *key]:
            del self._alike[live.connection, *key]
        del self._tables[key][exchange]
        if not self._tables[key]:
            del self._tables[key]
            self._note_channels()

    def _note_channels(self) -> None:
        self.state_channels = frozenset(channel for kind, channel in self._tables if kind is StateRequest)

    def alike(self, connection: Connection, request: Request) -> int:
        """Return the number of a peer's live requests of this type and channel."""
        return self._alike[connection, *self._key(request)]

    def get(self, exchange: Exchange) -> LiveRequest | None:
        """Return the live request of an exchange, None if it is not live."""
        return self._tables.get(self._key(exchange.request), {}).get(exchange)

    def deliver(self, changes: Iterable[LiveChange]) -> dict[LiveRequest, list[LiveChange]]:
        """Pass changes to the live requests that receive them. Return these changes by live request.

        New posts do not go back to the peer that sent them.
        """
        announced: defaultdict[LiveRequest, list[LiveChange]] = defaultdict(list)
        again = False
        for item in changes:
            again = again or item.subject is Subject.MODERATION_AGAIN
            for live in self._requests_for(item):
                is_from_peer = item.is_new and item.hash in live.connection.received_posts
                if not is_from_peer and concerns(live.exchange.request, item, self._dialect):
                    announced[live].append(item)
        for live, items in announced.items():
            live.announce(items)
        if again:
            for live in self._tables.get((ModerationRequest, ""), {}).values():
                live.connection.answers.add(live.exchange)
        return announced

    def _requests_for(self, item: LiveChange) -> Iterable[LiveRequest]:
        """Return the live requests of the type and the channel of a change."""
        key: tuple[type[Request], str]
        match item.subject:
            case Subject.CHAT:
                key = TimeRangeRequest, item.channel
            case Subject.STATE:
                key = StateRequest, item.channel
            case Subject.MODERATION:
                key = ModerationRequest, ""
            case Subject.MODERATION_AGAIN | Subject.CONSENT | Subject.PRIVATE:
                return ()
        return self._tables.get(key, {}).values()

    def _key(self, request: Request) -> tuple[type[Request], str]:
        if isinstance(request, TimeRangeRequest | StateRequest):
            return type(request), self._dialect.channel_id(request.channel)
        return type(request), ""
