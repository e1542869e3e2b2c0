"""Inspection of posts and hashes that are forwarded for other peers, in a separate thread that does not block the loop.

Posts are decoded, verified and compared with the known deletions and with the restrictions of moderation, like all
received posts. Hashes of posts that are known to be deleted or dropped are removed. Items that blocks hide from the
requesting peer (`audience`) are removed too. If the requesting peer may be cable.js, items that crash cable.js are also
removed. False claims count against the peer that sent them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from cablestore import limits
from cablestore.index.verdict import FALSE_CLAIMS, Verdict
from cablestore.peers.audience import EVERYONE, Audience
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.context import PeerContext
from cablestore.peers.relay import Route
from cablestore.protocol import cable_js
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.session import Session
from cablestore.store import answers

_ROWS_PER_POST: Final = 60
_ROWS_PER_HASH: Final = 2
"""Rows charged to the requesting peer for one inspection. Verifying a signature takes as long as reading
`_ROWS_PER_POST` rows.
"""

T = TypeVar("T")


class Appraised(NamedTuple):
    """Posts that may be forwarded, and the reasons why other posts are false claims."""

    taken: list[bytes]
    false_claims: list[str]


class InspectionThread:
    """The `Inspector` of all routes. Use it on the loop. A separate thread inspects."""

    def __init__(
        self,
        context: PeerContext,
        connection_of: Callable[[Session], Connection | None],
        send_on: Callable[[Route], None],
    ) -> None:
        """`connection_of` returns the connection of a session, and `send_on` sends the forwarded items of a route."""
        self._context = context
        self._connection_of = connection_of
        self.send_on: Final = send_on
        self._thread = ThreadPoolExecutor(1, "cablestore-relay")
        self._waiting_size_bytes = 0
        self._paused: Final[set[Connection]] = set()
        """Connections that are paused until the queue is shorter."""

    def close(self) -> None:
        """Complete the queued inspections, and end the thread."""
        self._thread.shutdown()

    def allowed_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of channels that this store has not dropped.

        The names are from peers that may not have dropped these channels (moderation.md 5.1.3.7).
        """
        dropped, channel_id = self._context.restrictions.now.channels, self._context.dialect.channel_id
        return tuple(name for name in names if channel_id(name) not in dropped)

    def inspect_hashes(self, route: Route, sender: Session, hashes: tuple[bytes, ...]) -> None:
        """Pass the permitted hashes to `route.pass_hashes`."""
        may_be_cable_js, audience = route.origin.may_be_cable_js, self._audience(route)

        def inspect() -> list[bytes]:
            with self._context.store.snapshot() as snapshot:
                reader = snapshot.reader
                found = [digest for digest in hashes if not answers.is_deleted_here(reader, digest)]
                found = [digest for digest in found if not answers.is_dropped_here(reader, digest)]
                found = [digest for digest in found if audience.may_get_hash(reader, digest)]
                return (
                    [digest for digest in found if answers.is_safe_for_cable_js(reader, digest)]
                    if may_be_cable_js
                    else found
                )

        self._charge(route, _ROWS_PER_HASH * len(hashes))
        self._inspect(sender, inspect, len(hashes) * HASH_SIZE_BYTES, partial(self._pass_hashes, route))

    def inspect_posts(self, route: Route, sender: Session, posts: list[bytes]) -> None:
        """Pass the permitted posts to `route.pass_posts`."""
        dialect, may_be_cable_js, audience = sender.dialect, route.origin.may_be_cable_js, self._audience(route)

        def inspect() -> Appraised:
            found = list(zip(posts, self._context.store.parts.appraise(posts, dialect), strict=True))
            taken = [post for post, outcome in found if outcome.verdict is Verdict.ACCEPTED]
            taken = [post for post in taken if audience.may_get(post, dialect)]
            false_claims = [outcome.reason for _, outcome in found if outcome.verdict in FALSE_CLAIMS]
            return Appraised(list(filter(cable_js.handles_post, taken)) if may_be_cable_js else taken, false_claims)

        self._charge(route, _ROWS_PER_POST * len(posts))
        self._inspect(sender, inspect, sum(map(len, posts)), partial(self._pass_posts, route, sender))

    def _audience(self, route: Route) -> Audience:
        origin = self._connection_of(route.origin)
        return EVERYONE if origin is None else origin.audience

    def _charge(self, route: Route, rows: int) -> None:
        origin = self._connection_of(route.origin)
        if origin is not None:
            origin.share.charge(rows)

    def _inspect(
        self, sender: Session, inspect: Callable[[], T], size_bytes: int, done: Callable[[T | None], None]
    ) -> None:
        self._waiting_size_bytes += size_bytes
        connection = self._connection_of(sender)
        if connection is not None and self._waiting_size_bytes > limits.MAX_INSPECTED_QUEUE_SIZE_BYTES:
            self._paused.add(connection)
            connection.pause(PauseReason.INSPECTING)
        future = self._context.loop.run_in_executor(self._thread, inspect)
        future.add_done_callback(partial(self._inspected, size_bytes, done))

    def _inspected(self, size_bytes: int, done: Callable[[Any], None], future: asyncio.Future[Any]) -> None:
        self._waiting_size_bytes -= size_bytes
        if self._waiting_size_bytes <= limits.MAX_INSPECTED_QUEUE_SIZE_BYTES // 2:
            while self._paused:
                self._paused.pop().resume(PauseReason.INSPECTING)
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._context.log.error("cannot inspect forwarded data", extra={"reason": str(error)})
        done(None if future.cancelled() or error is not None else future.result())

    def _pass_hashes(self, route: Route, hashes: list[bytes] | None) -> None:
        route.pass_hashes(hashes or ())
        self.send_on(route)

    def _pass_posts(self, route: Route, sender: Session, found: Appraised | None) -> None:
        taken, false_claims = found or Appraised([], [])
        connection = self._connection_of(sender)
        if false_claims and connection is not None:
            connection.count_invalid_posts(len(false_claims), false_claims[-1])
        route.pass_posts(taken)
        self.send_on(route)
