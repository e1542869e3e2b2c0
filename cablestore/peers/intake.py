"""Posts of peers on their way to the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cablestore import limits
from cablestore.index.verdict import Outcome, Verdict
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.context import PeerContext
from cablestore.peers.early_posts import EarlyPosts
from cablestore.peers.threads import Stored
from cablestore.protocol.post import decode_post


class PostIntake:
    """The queue of posts to store. While too many wait, nothing more is read from the peers that gave them."""

    def __init__(self, context: PeerContext, failed: Callable[[], None]) -> None:
        """`failed` is called if posts could not be stored."""
        self._context = context
        self._failed = failed
        self.early: Final[EarlyPosts[Connection]] = EarlyPosts()
        """Posts that were refused as too far ahead."""
        self.paused: Final[set[Connection]] = set()
        """Connections that are not read from until there is room for their posts."""

    def store_posts_of(self, connection: Connection, posts: list[bytes], stored: Stored) -> None:
        """Store posts of a connection, which pauses if too many wait."""
        self.store(connection.name, posts, stored, connection)
        if self._context.writes.queued_size_bytes > limits.MAX_INGEST_QUEUE_SIZE_BYTES:
            self.paused.add(connection)
            connection.pause(PauseReason.STORING)

    def store(self, peer: str, posts: list[bytes], stored: Stored, giver: Connection | None = None) -> None:
        """Store posts; `stored` gets their outcomes. The `giver` can be asked for them by hash again."""

        def done(outcomes: list[Outcome] | None) -> None:
            stored(outcomes)
            writes, metrics = self._context.writes, self._context.metrics
            if outcomes is None:
                if not self._context.store.write_failure:  # the store counts its own
                    metrics.failed_writes += 1
                self._failed()
                self._context.log.error("posts could not be stored", extra={"peer": peer, "reason": writes.failure})
            else:
                for post, outcome in zip(posts, outcomes, strict=True):
                    metrics.posts_in[outcome.verdict].inc()
                    if outcome.verdict is Verdict.TOO_FAR_AHEAD:
                        self._refuse_early(post, outcome.hash, giver)
            if writes.queued_size_bytes < limits.MAX_INGEST_QUEUE_SIZE_BYTES // 2:
                while self.paused:
                    self.paused.pop().resume(PauseReason.STORING)

        self._context.writes.submit(posts, done)

    def _refuse_early(self, raw: bytes, digest: bytes, giver: Connection | None) -> None:
        due_ms = decode_post(raw, self._context.dialect).timestamp_ms - limits.MAX_FUTURE_MS + 1
        self.early.refuse(digest, due_ms, None if giver is None or giver.closed.done() else giver)
