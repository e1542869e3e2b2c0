"""Live requests: which peers get what, as soon as the store has it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from cablestore.peers.connection import Connection
from cablestore.peers.news import News, Subject
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.exchange import Exchange, State
from cablestore.protocol.message import ModerationRequest, Request, StateRequest, TimeRangeRequest
from cablestore.store import answers


class LiveRequest:
    """One live request. News that come while the history is still being sent wait, so that nothing is missed."""

    __slots__ = ("_known", "_waiting", "connection", "exchange")

    def __init__(self, connection: Connection, exchange: Exchange) -> None:
        self.connection: Final = connection
        self.exchange: Final = exchange
        self._waiting: dict[bytes, int] = {}
        """Hashes that wait, with the numbers of their entries in the arrival log."""
        self._known = 0
        """Last entry of the state that the peer got. News of it may come later than the state."""

    def tell(self, news: Iterable[News]) -> None:
        """Send the peer what is news to it, now or when the history is sent."""
        if self.connection.session.is_spared:
            news = [item for item in news if item.is_bearable]
        is_live = self.exchange.state is State.LIVE
        if is_live:
            self._answer([item.hash for item in news if item.sequence > self._known])
        else:
            before = len(self._waiting)
            self._waiting |= {item.hash: item.sequence for item in news}
            self.connection.news_waiting += len(self._waiting) - before

    def caught_up(self, sequence: int) -> None:
        """Send what waited, except for what the history has, which is sent up to entry `sequence`."""
        self._known = sequence
        self._answer([digest for digest, known_at in self.forget().items() if known_at > sequence])

    def _answer(self, hashes: list[bytes]) -> None:
        self.connection.answer_news(self.exchange, hashes)

    def forget(self) -> dict[bytes, int]:
        """Remove and return what waits."""
        waiting, self._waiting = self._waiting, {}
        self.connection.news_waiting -= len(waiting)
        return waiting


class LiveRequests:
    """All live requests of all peers, by their subjects."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._chat: defaultdict[str, dict[Exchange, LiveRequest]] = defaultdict(dict)
        self._state: defaultdict[str, dict[Exchange, LiveRequest]] = defaultdict(dict)
        self._moderation: dict[Exchange, LiveRequest] = {}
        self._alike: Counter[tuple[Connection, type[Request], str]] = Counter()
        self.state_channels: frozenset[str] = frozenset()
        """Channels with live state requests. Read by the thread that follows the log."""
        self.count = 0

    def add(self, connection: Connection, exchange: Exchange) -> LiveRequest:
        """Add a live request of a peer."""
        live = LiveRequest(connection, exchange)
        request = exchange.request
        if isinstance(request, TimeRangeRequest):
            self._chat[self._channel(request)][exchange] = live
        elif isinstance(request, StateRequest):
            self._state[self._channel(request)][exchange] = live
        else:
            self._moderation[exchange] = live
        self._alike[connection, type(request), self._channel(request)] += 1
        self.count += 1
        self.state_channels = frozenset(self._state)
        return live

    def remove(self, exchange: Exchange) -> None:
        """Remove a live request that is over."""
        live = self._table(exchange.request).pop(exchange, None)
        if live is None:
            return
        live.forget()
        self.count -= 1
        channel = self._channel(exchange.request)
        alike = (live.connection, type(exchange.request), channel)
        self._alike[alike] -= 1
        if not self._alike[alike]:
            del self._alike[alike]
        for tables in (self._chat, self._state):
            if channel in tables and not tables[channel]:
                del tables[channel]
        self.state_channels = frozenset(self._state)

    def alike(self, connection: Connection, request: Request) -> int:
        """Return how many live requests of this type and channel a peer has."""
        return self._alike[connection, type(request), self._channel(request)]

    def get(self, exchange: Exchange) -> LiveRequest | None:
        """Return the live request of an exchange, None if it is not live."""
        return self._table(exchange.request).get(exchange)

    def deliver(self, news: Iterable[News]) -> list[LiveRequest]:
        """Send news to the peers that asked for them. Returns the requests that got any."""
        told: defaultdict[LiveRequest, list[News]] = defaultdict(list)
        again = False
        for item in news:
            again = again or item.subject is Subject.MODERATION_AGAIN
            for live in self._asking(item):
                told[live].append(item)
        for live, items in told.items():
            live.tell(items)
        if again:
            for live in self._moderation.values():
                live.connection.answers.add(live.exchange)
        return list(told)

    def _asking(self, item: News) -> list[LiveRequest]:
        if item.subject is Subject.CHAT:
            return [
                live
                for live in self._chat.get(item.channel, {}).values()
                if isinstance(live.exchange.request, TimeRangeRequest)
                and item.timestamp_ms >= live.exchange.request.time_start_ms
            ]
        if item.subject is Subject.STATE:
            return list(self._state.get(item.channel, {}).values())
        if item.subject is Subject.MODERATION_AGAIN:
            return []
        return [live for live in self._moderation.values() if self._is_concerned(live.exchange.request, item)]

    def _is_concerned(self, request: Request, item: News) -> bool:
        return (
            isinstance(request, ModerationRequest)
            and item.post is not None
            and answers.concerns_moderation(item.post, frozenset(request.channels), request.oldest_ms, self._dialect)
        )

    def _table(self, request: Request) -> dict[Exchange, LiveRequest]:
        if isinstance(request, TimeRangeRequest):
            return self._chat.get(self._channel(request), {})
        if isinstance(request, StateRequest):
            return self._state.get(self._channel(request), {})
        return self._moderation

    def _channel(self, request: Request) -> str:
        return self._dialect.channel_id(request.channel) if isinstance(request, TimeRangeRequest | StateRequest) else ""
