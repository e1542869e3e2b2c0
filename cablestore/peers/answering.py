"""Answering one request of a peer: a part of it at a time, so that all peers get their turn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from cablestore import limits
from cablestore.index import arrival_log
from cablestore.index.reader import Reader
from cablestore.peers.threads import SharedState
from cablestore.protocol import cable_js
from cablestore.protocol.body import INFO
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import Exchange
from cablestore.protocol.message import (
    ListRequest,
    ModerationRequest,
    PostRequest,
    Request,
    StateRequest,
    TimeRangeRequest,
)
from cablestore.protocol.post import peek_type
from cablestore.store import answers

if TYPE_CHECKING:
    from cablestore.peers.connection import Connection


def items_of(reader: Reader, request: Request, *, is_spared: bool) -> Iterator[Any]:
    """Return what answers a request: hashes, posts or names. Of channels that end cable.js, a peer that is spared gets none."""
    match request:
        case TimeRangeRequest(_, channel) | StateRequest(_, channel) if is_spared and not _bears(reader, channel):
            pass
        case TimeRangeRequest(_, channel, start_ms, end_ms, limit):
            return answers.channel_time_range(reader, channel, start_ms, end_ms, limit)
        case PostRequest(_, hashes):
            return answers.post_request(reader, hashes)
        case StateRequest(_, channel):
            return answers.channel_state(reader, channel, is_spared=is_spared)
        case ListRequest():
            return answers.channel_list(reader)
        case ModerationRequest(_, channels, _, oldest_ms):
            return answers.moderation_state(reader, channels, oldest_ms)
    return iter(())


def _bears(reader: Reader, channel: str) -> bool:
    return cable_js.bears_channel(reader.dialect.channel_id(channel))


def bearable(reader: Reader, request: Request, part: list[Any]) -> list[Any]:
    """Leave out of a part of an answer what ends cable.js, as far as `items_of` has not."""
    match request:
        case ModerationRequest():
            return [digest for digest in part if answers.is_bearable(reader, digest)]
        case ListRequest():
            return list(filter(cable_js.bears_channel, part))
    return part


class Answer:
    """A request that is being answered (a `Job`). Between its parts it holds on to the state that it began in."""

    __slots__ = (
        "_is_spared",
        "_items",
        "_part",
        "_state",
        "_to_skip",
        "began_s",
        "connection",
        "cpu_s",
        "error",
        "exchange",
        "found",
        "is_whole",
        "names",
        "sequence",
    )

    def __init__(self, connection: Connection, exchange: Exchange, now_s: float) -> None:
        self.connection: Final = connection
        self.exchange: Final = exchange
        self.began_s: Final = now_s
        self._is_spared: Final = connection.session.is_spared
        self._to_skip = exchange.request.offset if isinstance(exchange.request, ListRequest) else 0
        self.names: list[str] = []
        """Names of channels: there may be one response only, so they are collected."""
        self.found: set[bytes] = set()
        """Of a post request that may be forwarded, the hashes that are here, or known to be deleted."""
        self.error: Exception | None = None
        self.cpu_s = 0.0
        """Seconds that the reading thread spent on the last part."""
        self.is_whole = False
        self.sequence = 0
        """Of a live request, the last entry of the arrival log in the state that it is answered from."""
        self._items: Iterator[Any] | None = None
        self._state: SharedState | None = None
        self._part: list[Any] = []

    def run(self, state: SharedState) -> None:
        """Read the next part."""
        try:
            self._read_part(state)
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread goes on for the other peers
            self._part, self.is_whole, self.error = [], True, error
        if self.is_whole:
            self._let_go()
        elif self._state is None:
            self._state = state.keep()

    def _read_part(self, state: SharedState) -> None:
        request = self.exchange.request
        if self._items is None:
            self._items = items_of(state.reader, request, is_spared=self._is_spared)
            if request.is_live:
                self.sequence = arrival_log.next_sequence(state.reader) - 1
        if self.exchange.is_over:
            self._part, self.is_whole = [], True
        elif isinstance(request, PostRequest):
            self._read_posts(state.reader, self._items, request)
        else:
            self._part = list(islice(self._items, limits.PART_ROWS_ANSWERED))
            self.is_whole = len(self._part) < limits.PART_ROWS_ANSWERED
            if self._is_spared:
                self._part = bearable(state.reader, request, self._part)
            if isinstance(request, ListRequest):
                self._collect(self._part, request)

    def _collect(self, names: list[str], request: ListRequest) -> None:
        """Keep names behind the offset: what is skipped takes time too, and is read part by part."""
        skipped = min(self._to_skip, len(names))
        self._to_skip -= skipped
        self.names += names[skipped:]
        if request.limit and len(self.names) >= request.limit:
            del self.names[request.limit :]
            self.is_whole = True

    def _read_posts(self, reader: Reader, posts: Iterator[bytes], request: PostRequest) -> None:
        self._part = []
        size_bytes = 0
        is_forwarded = request.ttl > 0
        for post in posts:
            if is_forwarded:
                self.found.add(post_hash(post))
            if not self._is_spared or cable_js.bears_post(post):
                self._part.append(post)
            size_bytes += len(post)
            if size_bytes >= limits.PART_SIZE_ANSWERED_BYTES:
                return
        self.is_whole = True
        if is_forwarded:
            missing = (digest for digest in request.hashes if digest not in self.found)
            self.found.update([digest for digest in missing if answers.is_deleted_here(reader, digest)])

    def _let_go(self) -> None:
        if self._state is not None:
            self._state.release()
            self._state = None

    def done(self) -> None:
        """Hand the part to the connection."""
        part, self._part = self._part, []
        self.connection.answered(self, part)


def readable_to(posts: list[bytes], *, is_of_our_dialect: bool) -> list[bytes]:
    """Leave out what a peer of the other dialect cannot read, and may end at: post/info has another form there."""
    return posts if is_of_our_dialect else [post for post in posts if peek_type(post) != INFO]
