"""The intake of received posts: they are judged, then stored, in the order in which each peer sent them.

If the policy changes meanwhile, posts are judged again and may be stored after later ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import CableStoreError
from cablestore.index.verdict import Outcome, Verdict
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.context import PeerContext
from cablestore.peers.early_posts import EarlyPosts
from cablestore.peers.judge import PostJudge
from cablestore.peers.link import PeerLink
from cablestore.peers.quota import Quota
from cablestore.peers.rejected_posts import RejectionReason
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.post import decode_post

_MS_PER_S: Final = 1000
_REASONS: Final = frozenset(RejectionReason)


class ReceivedPosts(NamedTuple):
    """Posts of one peer, and the future of their outcomes.

    `sender` is the connection from which the posts can be requested again by hash. It is paused while too many posts
    wait. It is None for posts that were received during reconciliation.
    """

    posts: list[bytes]
    link: PeerLink
    sender: Connection | None
    outcomes: asyncio.Future[list[Outcome]]


class PostIntake:
    """The queue of posts to store. While it is too long, the connections that fill it are paused."""

    def __init__(self, context: PeerContext, judge: PostJudge, quota: Quota) -> None:
        self._context = context
        self._judge = judge
        self._quota = quota
        self.rejected: Final = judge.rejected
        self.early: Final[EarlyPosts[Connection]] = EarlyPosts()
        """Posts that were rejected as too far ahead."""
        self.postponed: Final[EarlyPosts[Connection]] = EarlyPosts(limits.MAX_POSTPONED_POSTS)
        """Posts that are requested and judged again later."""
        self.paused: Final[set[Connection]] = set()
        """Connections that are paused until the queue has room."""
        self._turns: dict[PeerLink, asyncio.Future[None]] = {}
        """For each peer whose posts are being judged: done when the last of these posts are in the queue."""
        self._judged_size_bytes: Counter[PeerLink] = Counter()

    def store(
        self, link: PeerLink, posts: list[bytes], sender: Connection | None = None
    ) -> asyncio.Future[list[Outcome]]:
        """Queue posts for storing, and return a future of their outcomes.

        Awaiting the future may raise CableStoreError. The posts can be requested again by hash from `sender`, which is
        paused if too many posts wait.
        """
        batch = ReceivedPosts(posts, link, sender, self._context.loop.create_future())
        batch.outcomes.add_done_callback(partial(self._stored, batch))
        if self._judge.has_rules or link in self._turns:
            self._judge_soon(batch)
        else:
            self._submit(batch)
        if sender is not None and self._context.writes.queued_size_bytes > limits.MAX_INGEST_QUEUE_SIZE_BYTES:
            self.paused.add(sender)
            sender.pause(PauseReason.STORING)
        return batch.outcomes

    def _submit(self, batch: ReceivedPosts) -> None:
        """Submit posts for storing without judging them, because no rule can reject them now."""
        self._quota.accept(len(batch.posts), sum(map(len, batch.posts)))
        written = self._context.writes.submit(batch.posts, policy_version=self._context.policies.version)
        written.add_done_callback(partial(self._written, batch))

    def _written(self, batch: ReceivedPosts, written: asyncio.Future[list[Outcome] | None]) -> None:
        error = written.exception()
        if error is not None:
            batch.outcomes.set_exception(error)
        elif (outcomes := written.result()) is not None:
            batch.outcomes.set_result(outcomes)
        else:
            self._judge_soon(batch)

    # --- judging -------------------------------------------------------------------------------

    def _judge_soon(self, batch: ReceivedPosts) -> None:
        """Judge posts in a task. While many posts of a peer wait, reading from the peer is paused."""
        size_bytes = sum(map(len, batch.posts))
        self._judged_size_bytes[batch.link] += size_bytes
        if batch.sender is not None and self._judged_size_bytes[batch.link] > limits.MAX_JUDGED_SIZE_BYTES_PER_PEER:
            batch.sender.pause(PauseReason.JUDGING)
        previous, turn = self._turns.get(batch.link), self._context.loop.create_future()
        self._turns[batch.link] = turn
        task = self._context.life.run(self._judge_and_store(batch, previous, turn))
        task.add_done_callback(partial(self._finished, batch, turn, size_bytes))

    async def _judge_and_store(
        self, batch: ReceivedPosts, previous: asyncio.Future[None] | None, turn: asyncio.Future[None]
    ) -> None:
        await self._judge.wait_for_share(batch.link, len(batch.posts))
        outcomes: dict[int, Outcome] = {}
        left = list(enumerate(batch.posts))
        while left:  # the policy may change before posts are written, or before a rejection is noted
            version, epoch = self._context.policies.version, self.rejected.epoch
            judgement = await self._judge.judge([post for _, post in left], batch.link)
            if previous is not None:
                await previous
            if version != self._context.policies.version:
                continue
            taken = [post for (_, post), rejection in zip(left, judgement.outcomes, strict=True) if rejection is None]
            future = self._context.writes.submit(taken, policy_version=version, is_verified=judgement.is_verified)
            if not turn.done():
                turn.set_result(None)
            try:
                written = await future
            except CableStoreError as error:
                batch.outcomes.set_exception(error)
                return
            if written is None:
                continue
            is_current = (version, epoch) == (self._context.policies.version, self.rejected.epoch)
            positions = [at for at, _ in left]
            outcomes |= self._outcomes(positions, judgement.outcomes, written, is_current=is_current)
            left = [(at, post) for at, post in left if at not in outcomes]
        batch.outcomes.set_result([outcomes[at] for at in range(len(batch.posts))])

    def _outcomes(
        self, positions: list[int], rejections: list[Outcome | None], written: list[Outcome], *, is_current: bool
    ) -> dict[int, Outcome]:
        """Return outcomes by position: those in `rejections`, and for each None the next outcome of `written`.

        Add rejections to `rejected`. Unless `is_current` is True, they are outdated and left out.
        """
        accepted, found = iter(written), dict[int, Outcome]()
        for at, rejection in zip(positions, rejections, strict=True):
            if rejection is None:
                found[at] = next(accepted)
            elif is_current:
                found[at] = rejection
                if rejection.verdict is Verdict.REJECTED:
                    self.rejected.add(rejection.hash, RejectionReason(rejection.reason))
        return found

    def _finished(
        self, batch: ReceivedPosts, turn: asyncio.Future[None], size_bytes: int, task: asyncio.Task[None]
    ) -> None:
        """Let the peer's next posts continue, also if the task was cancelled because the node stops."""
        del task
        if not turn.done():
            turn.set_result(None)
        if self._turns.get(batch.link) is turn:
            del self._turns[batch.link]
        self._judged_size_bytes[batch.link] -= size_bytes
        if self._judged_size_bytes[batch.link] <= limits.MAX_JUDGED_SIZE_BYTES_PER_PEER // 2 and batch.sender:
            batch.sender.resume(PauseReason.JUDGING)
        if not self._judged_size_bytes[batch.link]:
            del self._judged_size_bytes[batch.link]
        if not batch.outcomes.done():
            stopped = [Outcome(post_hash(post), Verdict.POSTPONED, "the node stops") for post in batch.posts]
            batch.outcomes.set_result(stopped)

    # --- outcomes ------------------------------------------------------------------------------

    def _stored(self, batch: ReceivedPosts, future: asyncio.Future[list[Outcome]]) -> None:
        """Count the outcomes before the waiting code receives them."""
        metrics, error = self._context.metrics, future.exception()
        if error is not None:
            # The store counts its failed writes itself.
            metrics.failed_writes += not self._context.store.write_state.failure
            fields = {"peer": batch.link.name, "reason": str(error)}
            self._context.log.error("cannot store received posts", extra=fields)
        else:
            for post, outcome in zip(batch.posts, future.result(), strict=True):
                metrics.posts_in[outcome.verdict].inc()
                self._note(post, outcome, batch.sender)
        if self._context.writes.queued_size_bytes < limits.MAX_INGEST_QUEUE_SIZE_BYTES // 2:
            while self.paused:
                self.paused.pop().resume(PauseReason.STORING)

    def _note(self, raw: bytes, outcome: Outcome, sender: Connection | None) -> None:
        sender = None if sender is None or sender.closed.done() else sender
        match outcome.verdict:
            case Verdict.TOO_FAR_AHEAD:
                due_ms = decode_post(raw, self._context.dialect).timestamp_ms - limits.MAX_FUTURE_MS + 1
                self.early.reject(outcome.hash, due_ms, sender)
            case Verdict.REJECTED:
                self._context.metrics.rejected_posts[RejectionReason(outcome.reason)].inc()
            case Verdict.POSTPONED if outcome.reason in _REASONS:  # by the policy, not because the node stops
                self._context.metrics.rejected_posts[RejectionReason(outcome.reason)].inc()
                is_full = len(self.postponed) >= limits.MAX_POSTPONED_POSTS
                wait_s = limits.POSTPONED_OVERFLOW_S if is_full else limits.POSTPONED_S
                now_ms = self._context.store.parts.intake.clock()
                self.postponed.reject(outcome.hash, now_ms + int(wait_s * _MS_PER_S), sender)
