"""Requests to one peer for hashes and names, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cablestore.peers.connection import Connection
from cablestore.peers.fetch import Fetch
from cablestore.protocol.exchange import Concluded, Exchange, Hashes, Names, ResponseEvent, Step
from cablestore.protocol.message import Request


@dataclass(slots=True, eq=False)
class CollectedAnswer:
    """Collector of the answer to a request: hashes or names, and its end."""

    requests: Final[Requests]
    done: Final[asyncio.Future[Step]]
    """Done when the answer has ended."""
    is_page: Final[bool]
    """True if hashes are collected too, because the next page depends on them."""
    exchange: Exchange = field(init=False)
    hashes: list[bytes] = field(default_factory=list)
    names: tuple[str, ...] = ()

    def handle(self, event: ResponseEvent) -> None:
        """Handle a part of the answer, or its end."""
        self.requests.are_answered |= not (isinstance(event, Concluded) and event.step is Step.TIMED_OUT)
        match event:
            case Hashes(_, hashes):
                self.requests.fetch.offer_soon(hashes)
                if self.is_page:
                    self.hashes += hashes
            case Names(_, names):
                self.names = names
            case Concluded(_, step):
                self.end(step)

    def end(self, step: Step) -> None:
        """Record the end of the answer."""
        self.requests.open.pop(self.exchange, None)
        if not self.done.done():
            self.done.set_result(step)


class Requests:
    """Requests of one sync for hashes and names. `fetch` requests the posts of these hashes."""

    def __init__(self, connection: Connection, fetch: Fetch, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self.fetch: Final = fetch
        self.open: Final[dict[Exchange, CollectedAnswer]] = {}
        """Answers that have not ended."""
        self.are_answered = False
        """True if the peer answered a request."""

    def send_request(
        self,
        request: Request,
        *,
        is_page: bool = False,
        timeout_s: float | None = None,
        instead_of: CollectedAnswer | None = None,
    ) -> CollectedAnswer:
        """Send a request to the peer, and return its answer. Cancel the request of the answer `instead_of`."""
        if instead_of is not None:
            self._connection.session.cancel(instead_of.exchange)
            self.open.pop(instead_of.exchange, None)
        answer = CollectedAnswer(self, self._loop.create_future(), is_page)
        answer.exchange = self._connection.send_request(request, answer, timeout_s)
        self.open[answer.exchange] = answer
        return answer

    def cancel(self, is_unwanted: Callable[[Request], bool]) -> None:
        """Cancel the requests for which `is_unwanted` returns True."""
        for exchange, answer in list(self.open.items()):
            if is_unwanted(exchange.request):
                self._connection.session.cancel(exchange)
                answer.end(Step.CANCELLED)
        self._connection.flush()
