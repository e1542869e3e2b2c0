"""Answers to the requests of a peer. They are read in parts, so that other peers do not wait.

Each peer has two queues: requests for posts, and other requests. Parts are read from them in turn, so that posts do not
wait until all hashes are sent. A peer that reads slowly receives shorter parts, which keeps its queue short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from cablestore import limits
from cablestore.index import arrival_log
from cablestore.index.log_position import LogPosition
from cablestore.index.reader import Reader, SnapshotReader
from cablestore.peers.audience import Audience
from cablestore.peers.context import PeerContext
from cablestore.peers.link import PeerLink
from cablestore.peers.live_changes import hashes_since
from cablestore.peers.shares import ReadShare
from cablestore.protocol import cable_js
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
from cablestore.protocol.session import Session
from cablestore.store import answers

_ROWS_PER_CPU_S: Final = 1_000_000
"""Rows charged for a second of CPU time. A part is charged by its rows or by its time, whichever is more."""


def items_of(reader: Reader, request: Request, *, may_be_cable_js: bool) -> Iterator[Any]:
    """Return the items that answer a request: hashes, posts or names.

    If the peer may be cable.js, a request about a channel that crashes cable.js has an empty answer.
    """
    match request:
        case TimeRangeRequest(_, channel) | StateRequest(_, channel) if may_be_cable_js and not _handles(
            reader, channel
        ):
            pass
        case TimeRangeRequest(_, channel, start_ms, end_ms, limit):
            return answers.channel_time_range(reader, channel, start_ms, end_ms, limit)
        case PostRequest(_, hashes):
            return answers.post_request(reader, hashes)
        case StateRequest(_, channel):
            return answers.channel_state(reader, channel, may_be_cable_js=may_be_cable_js)
        case ListRequest():
            return answers.channel_list(reader)
        case ModerationRequest(_, channels, _, oldest_ms):
            return answers.moderation_state(reader, channels, oldest_ms)
    return iter(())


def _handles(reader: Reader, channel: str) -> bool:
    return cable_js.handles_channel(reader.dialect.channel_id(channel))


def without_crashing(reader: Reader, request: Request, part: list[Any]) -> list[Any]:
    """Return `part` without the items that crash cable.js and that `items_of` did not filter."""
    match request:
        case ModerationRequest():
            return [digest for digest in part if answers.is_safe_for_cable_js(reader, digest)]
        case ListRequest():
            return list(filter(cable_js.handles_channel, part))
    return part


def without_blocked(reader: Reader, request: Request, part: list[Any], audience: Audience) -> list[Any]:
    """Return `part` without the hashes and names that blocks hide from the peer. This does not check posts."""
    if audience.is_everyone:
        return part
    if isinstance(request, ListRequest):
        return [] if audience.is_blocked else part
    if audience.is_blocked or isinstance(request, ModerationRequest):
        return [digest for digest in part if audience.may_get_hash(reader, digest)]
    return part


def _is_gone(reader: Reader, digest: bytes) -> bool:
    return answers.is_deleted_here(reader, digest) or answers.is_dropped_here(reader, digest)


@dataclass(slots=True, eq=False)
class Answer:
    """A request that is being answered (a `ReadJob`). All parts are read from one state of the store."""

    exchange: Final[Exchange]
    began_s: Final[float]
    queue: Final[AnswerQueue]
    """Receives the parts, on the loop."""
    link: Final[PeerLink]
    """The connection with the peer. Its audience may change between two parts."""
    may_be_cable_js: Final[bool]
    """True if items that crash cable.js are left out."""
    since: Final[LogPosition | None] = None
    """The position in the arrival log from which a live request is answered, None for the whole history."""
    names: list[str] = field(default_factory=list)
    """Names of channels, collected because only one response is permitted."""
    found: set[bytes] = field(default_factory=set)
    """Hashes that a forwarded post request must not contain: the posts are stored, or known to be deleted or dropped."""
    shrink: int = 1
    """Divisor of the length of the next part."""
    error: Exception | None = None
    cpu_s: float = 0.0
    """Seconds that the reading thread spent on the last part."""
    is_complete: bool = False
    sequence: int = 0
    """Last entry of the arrival log in the state that answers a live request."""
    _names_read: int = 0
    _items: Iterator[Any] | None = None
    _reader: SnapshotReader | None = None
    _part: list[Any] = field(default_factory=list)

    def run(self, reader: SnapshotReader) -> None:
        """Read the next part, from the same state as the first part."""
        try:
            self._read_part(reader)
        except Exception as error:  # noqa: BLE001 - the thread serves other peers too
            self.fail(error)
        if self.is_complete:
            self._let_go()
        elif self._reader is None:
            self._reader = reader.keep()

    def fail(self, error: Exception) -> None:
        """End the answer with an error."""
        self._part, self.is_complete, self.error = [], True, error
        self._let_go()

    def _read_part(self, reader: Reader) -> None:
        request = self.exchange.request
        if self._items is None:
            new = None if self.since is None else hashes_since(reader, request, self.since)
            self._items = (
                iter(new) if new is not None else items_of(reader, request, may_be_cable_js=self.may_be_cable_js)
            )
            if self.exchange.is_live:
                self.sequence = arrival_log.next_sequence(reader) - 1
        if self.exchange.is_over:
            self._part, self.is_complete = [], True
        elif isinstance(request, PostRequest):
            self._read_posts(reader, self._items, request)
        else:
            rows = limits.PART_ROWS_ANSWERED // self.shrink
            self._part = list(islice(self._items, rows))
            self.is_complete = len(self._part) < rows
            if self.may_be_cable_js:
                self._part = without_crashing(reader, request, self._part)
            self._part = without_blocked(reader, request, self._part, self.link.audience)
            if isinstance(request, ListRequest):
                self._collect(self._part, request)

    def _collect(self, names: list[str], request: ListRequest) -> None:
        """Keep those of `names` that are after the offset of the request, up to its limit.

        Reading names before the offset takes time too, so all names are read in parts.
        """
        self.names += names[max(request.offset - self._names_read, 0) :]
        self._names_read += len(names)
        if request.limit and len(self.names) >= request.limit:
            del self.names[request.limit :]
            self.is_complete = True

    def _read_posts(self, reader: Reader, posts: Iterator[bytes], request: PostRequest) -> None:
        self._part = []
        size_bytes = 0
        is_forwarded = request.ttl > 0
        audience, dialect = self.link.audience, reader.dialect
        for post in posts:
            if is_forwarded:
                self.found.add(post_hash(post))
            if (not self.may_be_cable_js or cable_js.handles_post(post)) and audience.may_get(post, dialect):
                self._part.append(post)
            size_bytes += len(post)
            if size_bytes >= limits.PART_SIZE_ANSWERED_BYTES // self.shrink:
                return
        self.is_complete = True
        if is_forwarded:
            missing = (digest for digest in request.hashes if digest not in self.found)
            self.found.update([digest for digest in missing if _is_gone(reader, digest)])

    def _let_go(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def done(self) -> None:
        """Pass the part to the queue."""
        part, self._part = self._part, []
        self.queue.accept(self, part)


class AnswerQueue:
    """Unanswered requests of one peer. Answers are read as fast as the peer reads, and as its share allows."""

    def __init__(
        self,
        context: PeerContext,
        link: PeerLink,
        session: Session,
        send: Callable[[Answer, list[Any]], None],
    ) -> None:
        """`send` is called with an answer and its next part."""
        self._context = context
        self._link = link
        self._session = session
        self._send = send
        self.is_slow = False
        """True if the peer reads slower than this node writes. Then no further part is read for it."""
        settings = context.settings
        self.share: Final = ReadShare(context.loop.time, settings.rows_per_s, settings.rows_in_advance)
        self._pending: tuple[dict[Exchange, None], dict[Exchange, None]] = ({}, {})
        """Requests whose answers have not begun: requests for posts, and other requests."""
        self._begun: list[Answer | None] = [None, None]
        """The current answer of each kind. Each holds a snapshot."""
        self._last_kind = 0
        self._shrink = 1
        self._is_reading = False
        self._wakes_up: asyncio.TimerHandle | None = None

    def add(self, exchange: Exchange) -> None:
        """Queue a request. It is answered from the store's state at its turn. A live request may be added again."""
        self._pending[_kind(exchange)][exchange] = None
        self.advance()

    def discard(self, exchange: Exchange) -> None:
        """Forget a request that ended."""
        self._pending[_kind(exchange)].pop(exchange, None)

    def close(self) -> None:
        """Forget all requests of a closed connection."""
        for pending in self._pending:
            pending.clear()
        if self._wakes_up is not None:
            self._wakes_up.cancel()
        self.advance()  # a current answer notices that it is over, and releases its state

    def slow_down(self) -> None:
        """Stop reading the store for a peer that reads slower than this node writes, and make later parts shorter."""
        self.is_slow = True
        self._shrink = limits.PARTS_SHRINK

    def speed_up(self) -> None:
        """Resume reading the store for the peer."""
        self.is_slow = False
        self.advance()

    def advance(self) -> None:
        """Read a part of the next answer, unless a part is already being read."""
        if self._is_reading or not self._has_work:
            return
        answer = next((begun for begun in self._begun if begun is not None and begun.exchange.is_over), None)
        if answer is None and not self.is_slow and self._may_read():
            answer = self._next()
        if answer is not None:
            answer.shrink = self._shrink
            self._is_reading = True
            self._context.reads.submit(answer)

    @property
    def _has_work(self) -> bool:
        return any(self._begun) or any(self._pending)

    def _next(self) -> Answer | None:
        """Return the next answer, or None. The kind that did not have the last turn comes first."""
        for kind in (1 - self._last_kind, self._last_kind):
            answer = self._begun[kind] or self._first(kind)
            if answer is not None:
                self._begun[kind] = answer
                self._last_kind = kind
                return answer
        return None

    def _first(self, kind: int) -> Answer | None:
        """Begin to answer the first unfinished request of a kind. Return None if the queue contains none."""
        pending = self._pending[kind]
        while pending:
            exchange = next(iter(pending))
            del pending[exchange]
            if not exchange.is_over:
                now_s, since = self._context.loop.time(), self._link.coverage.since(exchange.request)
                return Answer(exchange, now_s, self, self._link, self._session.may_be_cable_js, since)
        return None

    def _may_read(self) -> bool:
        """Return True if the peer's share allows another part. If not, schedule the next check."""
        if self.share.is_left():
            return True
        if self._wakes_up is None:
            self._wakes_up = self._context.loop.call_later(self.share.wait_s, self._wake_up)
        return False

    def _wake_up(self) -> None:
        self._wakes_up = None
        self.advance()

    def accept(self, answer: Answer, part: list[Any]) -> None:
        """Accept a part of an answer from the reading thread."""
        self._is_reading = False
        self._shrink = max(1, self._shrink // 2)
        self.share.charge(max(1 + len(part), answer.cpu_s * _ROWS_PER_CPU_S))
        if answer.is_complete:
            self._begun[_kind(answer.exchange)] = None
        self._send(answer, part)
        self.advance()


def _kind(exchange: Exchange) -> int:
    return 0 if isinstance(exchange.request, PostRequest) else 1
