"""The path of received posts to the store."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from cablestore import limits
from cablestore.index.verdict import Outcome, Verdict
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.context import PeerContext
from cablestore.peers.early_posts import EarlyPosts
from cablestore.protocol.post import decode_post


class PostIntake:
    """The queue of posts to store. While it is too long, the connections that fill it are paused."""

    def __init__(self, context: PeerContext) -> None:
        self._context = context
        self.early: Final[EarlyPosts[Connection]] = EarlyPosts()
        """Posts that were rejected as too far ahead."""
        self.paused: Final[set[Connection]] = set()
        """Connections that are paused until the queue has room."""

    def store(self, peer: str, posts: list[bytes], sender: Connection | None = None) -> asyncio.Future[list[Outcome]]:
        """Queue posts for storing, and return a future of their outcomes. It raises CableStoreError if storing fails.

        The posts can be requested again by hash from `sender`. It is paused if too many posts wait.
        """
        future = self._context.writes.submit(posts)
        future.add_done_callback(partial(self._stored, peer, posts, sender))
        if sender is not None and self._context.writes.queued_size_bytes > limits.MAX_INGEST_QUEUE_SIZE_BYTES:
            self.paused.add(sender)
            sender.pause(PauseReason.STORING)
        return future

    def _stored(
        self, peer: str, posts: list[bytes], sender: Connection | None, future: asyncio.Future[list[Outcome]]
    ) -> None:
        """Count outcomes, before the waiting code gets them."""
        metrics, error = self._context.metrics, future.exception()
        if error is not None:
            metrics.failed_writes += not self._context.store.write_state.failure  # the store counts its own
            self._context.log.error("cannot store received posts", extra={"peer": peer, "reason": str(error)})
        else:
            for post, outcome in zip(posts, future.result(), strict=True):
                metrics.posts_in[outcome.verdict].inc()
                if outcome.verdict is Verdict.TOO_FAR_AHEAD:
                    self._reject_early(post, outcome.hash, sender)
        if self._context.writes.queued_size_bytes < limits.MAX_INGEST_QUEUE_SIZE_BYTES // 2:
            while self.paused:
                self.paused.pop().resume(PauseReason.STORING)

    def _reject_early(self, raw: bytes, digest: bytes, sender: Connection | None) -> None:
        due_ms = decode_post(raw, self._context.dialect).timestamp_ms - limits.MAX_FUTURE_MS + 1
        self.early.reject(digest, due_ms, None if sender is None or sender.closed.done() else sender)
