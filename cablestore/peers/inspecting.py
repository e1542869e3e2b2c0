"""Inspecting what peers give for others before it is passed on, in a thread of its own, so that nobody waits for it.

Posts are decoded, verified and compared with the known deletions and with what moderation drops and blocks, as all posts
that come. Hashes of posts that are known to be deleted or dropped are removed. So is what the asking peer must not get
because of blocks (`audience`), and what crashes cable.js if the asking peer may be that program. False claims count against the
peer that gave them.
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
"""What inspecting one costs the peer that asked for it, in rows: verifying a signature takes as long as reading this
many."""

T = TypeVar("T")


class Appraised(NamedTuple):
    """Posts that may be passed on, and the reasons why others are false claims."""

    taken: list[bytes]
    false_claims: list[str]


class InspectionThread:
    """The `Inspector` of all routes. On the loop, except for what the thread runs."""

    def __init__(
        self,
        context: PeerContext,
        connection_of: Callable[[Session], Connection | None],
        send_on: Callable[[Route], None],
    ) -> None:
        """`connection_of` returns the connection of a session, `send_on` sends what a route has passed on."""
        self._context = context
        self._connection_of = connection_of
        self.send_on: Final = send_on
        self._thread = ThreadPoolExecutor(1, "cablestore-relay")
        self._waiting_size_bytes = 0
        self._paused: Final[set[Connection]] = set()
        """Givers that are not read from until less waits."""

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def allowed_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those that are not dropped here. Others may know a channel that is (moderation.md 5.1.3.7)."""
        dropped, channel_id = self._context.restrictions.now.channels, self._context.dialect.channel_id
        return tuple(name for name in names if channel_id(name) not in dropped)

    def look_at_hashes(self, route: Route, giver: Session, hashes: tuple[bytes, ...]) -> None:
        """Give those that are not known to be deleted to `route.pass_hashes`."""
        may_be_cable_js, audience = route.origin.may_be_cable_js, self._audience(route)

        def look() -> list[bytes]:
            with self._context.store.snapshot() as snapshot:
                reader = snapshot.reader
                found = [digest for digest in hashes if not answers.is_deleted_here(reader, digest)]
                found = [digest for digest in found if not answers.is_dropped_here(reader, digest)]
                found = [digest for digest in found if audience.may_hear(reader, digest)]
                return (
                    [digest for digest in found if answers.is_safe_for_cable_js(reader, digest)]
                    if may_be_cable_js
                    else found
                )

        self._charge(route, _ROWS_PER_HASH * len(hashes))
        self._look(giver, look, len(hashes) * HASH_SIZE_BYTES, partial(self._pass_hashes, route))

    def look_at_posts(self, route: Route, giver: Session, posts: list[bytes]) -> None:
        """Give those that may be passed on to `route.pass_posts`."""
        dialect, may_be_cable_js, audience = giver.dialect, route.origin.may_be_cable_js, self._audience(route)

        def look() -> Appraised:
            found = list(zip(posts, self._context.store.parts.appraise(posts, dialect), strict=True))
            taken = [post for post, outcome in found if outcome.verdict is Verdict.ACCEPTED]
            taken = [post for post in taken if audience.may_get(post, dialect)]
            false_claims = [outcome.reason for _, outcome in found if outcome.verdict in FALSE_CLAIMS]
            return Appraised(list(filter(cable_js.handles_post, taken)) if may_be_cable_js else taken, false_claims)

        self._charge(route, _ROWS_PER_POST * len(posts))
        self._look(giver, look, sum(map(len, posts)), partial(self._pass_posts, route, giver))

    def _audience(self, route: Route) -> Audience:
        origin = self._connection_of(route.origin)
        return EVERYONE if origin is None else origin.audience

    def _charge(self, route: Route, rows: int) -> None:
        origin = self._connection_of(route.origin)
        if origin is not None:
            origin.share.charge(rows)

    def _look(self, giver: Session, look: Callable[[], T], size_bytes: int, done: Callable[[T | None], None]) -> None:
        self._waiting_size_bytes += size_bytes
        connection = self._connection_of(giver)
        if connection is not None and self._waiting_size_bytes > limits.MAX_INSPECTED_QUEUE_SIZE_BYTES:
            self._paused.add(connection)
            connection.pause(PauseReason.INSPECTING)
        future = self._context.loop.run_in_executor(self._thread, look)
        future.add_done_callback(partial(self._looked, size_bytes, done))

    def _looked(self, size_bytes: int, done: Callable[[Any], None], future: asyncio.Future[Any]) -> None:
        self._waiting_size_bytes -= size_bytes
        if self._waiting_size_bytes <= limits.MAX_INSPECTED_QUEUE_SIZE_BYTES // 2:
            while self._paused:
                self._paused.pop().resume(PauseReason.INSPECTING)
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._context.log.error("cannot inspect what is passed on", extra={"reason": str(error)})
        done(None if future.cancelled() or error is not None else future.result())

    def _pass_hashes(self, route: Route, hashes: list[bytes] | None) -> None:
        route.pass_hashes(hashes or ())
        self.send_on(route)

    def _pass_posts(self, route: Route, giver: Session, found: Appraised | None) -> None:
        taken, false_claims = found or Appraised([], [])
        connection = self._connection_of(giver)
        if false_claims and connection is not None:
            connection.gave_invalid_posts(len(false_claims), false_claims[-1])
        route.pass_posts(taken)
        self.send_on(route)
