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
    """Answer to a request: hashes or names, and its end."""

    exchange: Exchange
    done: asyncio.Future[Step]
    """Done when nothing more comes."""
    is_page: bool
    """Whether hashes are collected too, because the next page depends on them."""
    hashes: list[bytes] = field(default_factory=list)
    names: tuple[str, ...] = ()


class Requests:
    """Requests of one sync that are not concluded."""

    def __init__(self, connection: Connection, fetch: Fetch, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._fetch = fetch
        self._loop = loop
        self._answers: Final[dict[Exchange, CollectedAnswer]] = {}

    def ask(
        self,
        request: Request,
        *,
        is_page: bool = False,
        timeout_s: float | None = None,
        instead_of: CollectedAnswer | None = None,
    ) -> CollectedAnswer:
        """Send a request to the peer, and cancel the one that it replaces."""
        if instead_of is not None:
            self._connection.session.cancel(instead_of.exchange)
            self._answers.pop(instead_of.exchange, None)
        exchange = self._connection.ask(request, timeout_s)
        answer = self._answers[exchange] = CollectedAnswer(exchange, self._loop.create_future(), is_page)
        return answer

    def take(self, event: ResponseEvent) -> None:
        """Take a part of an answer, or its end. Posts go to the fetch."""
        answer = self._answers.get(event.exchange)
        if answer is None:
            self._fetch.take(event)
            return
        match event:
            case Hashes(_, hashes):
                self._fetch.offer_soon(hashes)
                if answer.is_page:
                    answer.hashes += hashes
            case Names(_, names):
                answer.names = names
            case Concluded(exchange, step):
                del self._answers[exchange]
                if not answer.done.done():
                    answer.done.set_result(step)

    def cancel(self, is_unwanted: Callable[[Request], bool]) -> None:
        """Cancel requests."""
        for exchange, answer in list(self._answers.items()):
            if is_unwanted(exchange.request):
                self._connection.session.cancel(exchange)
                if self._answers.pop(exchange, None) is not None and not answer.done.done():
                    answer.done.set_result(Step.CANCELLED)
        self._connection.flush()
