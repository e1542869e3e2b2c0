"""Posts of peers on their way to the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cablestore import limits
from cablestore.index.verdict import Outcome
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.context import PeerContext
from cablestore.peers.threads import Stored


class PostIntake:
    """The queue of posts to store. While too many wait, nothing more is read from the peers that gave them."""

    def __init__(self, context: PeerContext, failed: Callable[[], None]) -> None:
        """`failed` is called if posts could not be stored."""
        self._context = context
        self._failed = failed
        self.paused: Final[set[Connection]] = set()
        """Connections that are not read from until there is room for their posts."""

    def store_posts_of(self, connection: Connection, posts: list[bytes], stored: Stored) -> None:
        """Store posts of a connection, which pauses if too many wait."""
        self.store(connection.name, posts, stored)
        if self._context.writes.queued_size_bytes > limits.MAX_INGEST_QUEUE_SIZE_BYTES:
            self.paused.add(connection)
            connection.pause(PauseReason.STORING)

    def store(self, peer: str, posts: list[bytes], stored: Stored) -> None:
        """Store posts; `stored` gets their outcomes."""

        def done(outcomes: list[Outcome] | None) -> None:
            stored(outcomes)
            writes, metrics = self._context.writes, self._context.metrics
            if outcomes is None:
                if not self._context.store.write_failure:  # the store counts its own
                    metrics.failed_writes += 1
                self._failed()
                self._context.log.error("posts could not be stored", extra={"peer": peer, "reason": writes.failure})
            else:
                for outcome in outcomes:
                    metrics.posts_in[outcome.verdict].inc()
            if writes.queued_size_bytes < limits.MAX_INGEST_QUEUE_SIZE_BYTES // 2:
                while self.paused:
                    self.paused.pop().resume(PauseReason.STORING)

        self._context.writes.submit(posts, done)
