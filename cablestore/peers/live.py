"""Live requests: which peers are to be told what, as soon as the store learns it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from cablestore.peers.news import News, Subject
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.exchange import Exchange, State
from cablestore.protocol.message import ModerationRequest, Request, StateRequest, TimeRangeRequest
from cablestore.store import answers

if TYPE_CHECKING:
    from cablestore.peers.connection import Connection


class Live:
    """One live request. What happens while the history is still being sent waits, so that nothing falls between."""

    __slots__ = ("_known", "_waiting", "connection", "exchange")

    def __init__(self, connection: Connection, exchange: Exchange) -> None:
        self.connection: Final = connection
        self.exchange: Final = exchange
        self._waiting: dict[bytes, int] = {}
        """What is to be told, with the number of its entry in the arrival log."""
        self._known = 0
        """The last entry of the state that the peer was sent. News of it may come later than the state."""

    def tell(self, news: Iterable[News]) -> None:
        """Tell the peer what is news to it, now or when the history is sent."""
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
        """Tell what waited, as far as it is not in the history, which is sent, up to entry `sequence`."""
        self._known = sequence
        self._answer([digest for digest, known_at in self.forget().items() if known_at > sequence])

    def _answer(self, hashes: list[bytes]) -> None:
        self.connection.answer_news(self.exchange, hashes)

    def forget(self) -> dict[bytes, int]:
        """Return what waits, which waits no more."""
        waiting, self._waiting = self._waiting, {}
        self.connection.news_waiting -= len(waiting)
        return waiting

    @property
    def waiting(self) -> int:
        """How many hashes wait."""
        return len(self._waiting)


class LiveRequests:
    """All live requests of all peers, by what they are about."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._chat: defaultdict[str, dict[Exchange, Live]] = defaultdict(dict)
        self._state: defaultdict[str, dict[Exchange, Live]] = defaultdict(dict)
        self._moderation: dict[Exchange, Live] = {}
        self._alike: Counter[tuple[Connection, type[Request], str]] = Counter()
        self.state_channels: frozenset[str] = frozenset()
        """Channels with live state requests. Read by the thread that follows the log."""
        self.count = 0

    def add(self, connection: Connection, exchange: Exchange) -> Live:
        """Begin to tell a peer what it asks for."""
        live = Live(connection, exchange)
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
        """End that."""
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
        """Return how many live requests of this kind and channel a peer has."""
        return self._alike[connection, type(request), self._channel(request)]

    def get(self, exchange: Exchange) -> Live | None:
        """Return the live request that belongs to a request, if it is one."""
        return self._table(exchange.request).get(exchange)

    def deliver(self, news: Iterable[News]) -> list[Live]:
        """Tell every piece of news to those who asked. Returns the requests that something was told."""
        told: defaultdict[Live, list[News]] = defaultdict(list)
        again = False
        for item in news:
            again = again or item.subject is Subject.MODERATION_AGAIN
            for live in self._asking(item):
                told[live].append(item)
        for live, items in told.items():
            live.tell(items)
        if again:
            for live in self._moderation.values():
                live.connection.answer_again(live.exchange)
        return list(told)

    def _asking(self, item: News) -> list[Live]:
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

    def _table(self, request: Request) -> dict[Exchange, Live]:
        if isinstance(request, TimeRangeRequest):
            return self._chat.get(self._channel(request), {})
        if isinstance(request, StateRequest):
            return self._state.get(self._channel(request), {})
        return self._moderation

    def _channel(self, request: Request) -> str:
        return self._dialect.channel_id(request.channel) if isinstance(request, TimeRangeRequest | StateRequest) else ""
