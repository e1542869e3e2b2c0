"""One reconciliation in progress: it passes frames and posts between a link and the threads that compare and store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from cablestore import limits
from cablestore.errors import CableStoreError, StorageError
from cablestore.gc_pause import gc_paused
from cablestore.index.log_position import LogPosition
from cablestore.index.verdict import FALSE_CLAIMS, Outcome, Verdict
from cablestore.peers.context import PeerContext
from cablestore.peers.fetch import Fetches
from cablestore.peers.link import PeerLink
from cablestore.peers.report import ReconcileReport
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.post import Post
from cablestore.reconcile.conversation import ArrivedPosts, Hooks, ReconcileConversation
from cablestore.reconcile.errors import PeerRefusedError, ReconcileError, ReconcileLimitError
from cablestore.reconcile.messages import EndReason, Purpose, Terms, size_error
from cablestore.reconcile.sets import OrderedSet
from cablestore.reconcile.stored_set import stored_set
from cablestore.store.queries import Snapshot

T = TypeVar("T")
Job = Callable[[], list[ArrivedPosts]]
_GENUINE: Final = frozenset({Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.DELETED, Verdict.DROPPED, Verdict.BLOCKED})
"""Verdicts of posts that the report does not count as rejected."""


class LostError(ReconcileError):
    """The connection ended during a reconciliation."""


class SilentError(ReconcileError):
    """The peer was silent during a reconciliation."""


class Reconciliation:
    """A conversation with one peer. `run` completes it. Meanwhile, `received` accepts the peer's frames."""

    def __init__(
        self,
        context: PeerContext,
        fetches: Fetches,
        thread: Executor,
        link: PeerLink,
        terms: Terms,
        purpose: Purpose = Purpose.RECONCILE,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """`fetches` requests the posts that remain missing. All work on the conversation is done in `thread`."""
        self._context = context
        self._fetches = fetches
        self._thread = thread
        self.link: Final = link
        hooks = Hooks(self._items, self._post, os.urandom)
        self.talk: Final = ReconcileConversation(terms, hooks, context.dialect, purpose=purpose)
        self.accepted = self.refused = self.unstored = 0
        self._repeated = 0
        self.is_outdated = False
        """True if the conversation ended because another peer sends the same posts."""
        self.over: Final[asyncio.Future[None]] = context.loop.create_future()
        """Done when the conversation has ended completely."""
        self.began_s: Final = context.loop.time()
        self._progress = progress
        self._snapshot: Snapshot | None = None
        self.place: LogPosition | None = None
        """The log position of the compared state, None before the comparison begins."""
        self._is_noted = False
        self._jobs: asyncio.Queue[Job | CableStoreError] = asyncio.Queue()
        """Work for the thread, and errors that end the conversation after the work before them."""
        self._storing = 0
        self._waited_s = 0.0
        self._waits_since_s: float | None = None
        self.is_stopping = False

    @property
    def network(self) -> str:
        """The network of the peer's address."""
        return self.link.network

    @property
    def moved_size_bytes(self) -> int:
        """The number of bytes transferred in both directions."""
        found = self.talk.findings
        return sum(each.comparing + each.transferring for each in (found.sent, found.received))

    def waited_s(self, now_s: float) -> float:
        """Return for how long in total this node has waited for the peer."""
        return self._waited_s + (0.0 if self._waits_since_s is None else now_s - self._waits_since_s)

    def stop_for_another(self) -> None:
        """End the conversation so that another conversation can begin.

        The peer receives the reason BUSY and tries again later.
        """
        self.is_stopping = True
        self._jobs.put_nowait(self._end_for_another)

    def _end_for_another(self) -> list[ArrivedPosts]:
        why = "other peers wait, and this reconciliation is slow or its address uses more than its share"
        self.talk.end(EndReason.BUSY, why)
        raise PeerRefusedError(
            "busy", f"the reconciliation was stopped for another one: {why}. Received posts are stored"
        )

    def received(self, frame: bytes) -> None:
        """Queue a frame of the peer for the thread. Too many waiting frames end the conversation."""
        waiting, error = self._jobs.qsize(), size_error(frame)

        def receive() -> list[ArrivedPosts]:
            if waiting > limits.MAX_TALK_QUEUE_FRAMES:
                raise ReconcileError(
                    f"the peer sent {waiting} frames ahead, the maximum is {limits.MAX_TALK_QUEUE_FRAMES}"
                )
            with gc_paused():  # comparing creates an object for each id
                return self.talk.receive(frame, at_s=self._context.loop.time())

        if waiting <= limits.MAX_TALK_QUEUE_FRAMES + 1:  # frames after the one that ends the conversation are discarded
            self._jobs.put_nowait(error or receive)

    async def run(self, *, begins: bool) -> None:
        """Reconcile to the end. Raises CableStoreError. The posts received before an error are stored."""
        self.link.closed.add_done_callback(self._lost)
        try:
            async with asyncio.timeout(limits.MAX_TALK_S):
                if begins:
                    await self._do(self._begin)
                while not self.talk.is_finished:
                    job = await self._next()
                    if isinstance(job, CableStoreError):
                        raise job
                    await self._do(job)
        except TimeoutError:
            raise self._ended(
                SilentError(f"the reconciliation timed out: the peer did not finish within {limits.MAX_TALK_S:g} s")
            ) from None
        except CableStoreError as error:
            raise self._ended(error) from None
        except asyncio.CancelledError:
            self._say_end(EndReason.STOPPING, "this node is stopping")
            raise
        finally:
            self.link.closed.remove_done_callback(self._lost)
            if self._snapshot is not None:
                await asyncio.shield(self._in_thread(self._snapshot.close))

    async def _next(self) -> Job | CableStoreError:
        """Wait for the next job. The peer's silence does not count while its posts are being stored."""
        silence_s = self._context.settings.talk_silence_s
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    return await self._job()
            except TimeoutError:
                if not self._storing:
                    raise SilentError(
                        f"the reconciliation timed out: the peer sent nothing for {silence_s:g} s. Received posts are "
                        "stored"
                    ) from None

    async def _job(self) -> Job | CableStoreError:
        """Wait for a job. Unless posts are being stored, count the time as waiting for the peer."""
        if not self._storing:
            self._waits_since_s = self._context.loop.time()
        try:
            return await self._jobs.get()
        finally:
            self._waited_s = self.waited_s(self._context.loop.time())
            self._waits_since_s = None

    async def _do(self, job: Job) -> None:
        arrived = await self._in_thread(job)
        self.link.send_frames(self.talk.output())
        self._note_state()
        for batch, posts in arrived:
            self._storing += 1
            for post in posts:
                self._fetches.note_received(self.link, post)
            stored = self._fetches.intake.store(self.link, posts)
            stored.add_done_callback(partial(self._stored, batch, posts))

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._context.loop.run_in_executor(self._thread, work)

    def _begin(self) -> list[ArrivedPosts]:
        self.talk.begin()
        return []

    def _items(self, channels: frozenset[str] | None) -> OrderedSet:
        """Return the ids of posts in `channels` (None: all), in a snapshot that `run` closes. Runs in the thread."""
        self._snapshot = self._context.store.snapshot()
        self.place = LogPosition.of(self._snapshot.reader)
        return stored_set(self._snapshot.reader, channels)

    def _note_state(self) -> None:
        """Announce the compared state once, to a peer that may send live requests."""
        compared, place = self.talk.compared, self.place
        if compared is None or place is None or self._is_noted:
            return
        self._is_noted = True
        if self.talk.purpose is Purpose.RECONCILE and not self.link.port_name:
            self.link.send_frames(self.link.coverage.read(compared, place))

    def _post(self, digest: bytes) -> Post | None:
        """Return a post that the peer lacks, None if it was removed or the peer may not get it. Runs in the thread."""
        post = self._context.store.get(digest)
        is_given = post is not None and self.link.audience.may_get(post.raw, self._context.dialect)
        return post if is_given else None

    def _stored(self, batch: int, posts: list[bytes], stored: asyncio.Future[list[Outcome]]) -> None:
        self._storing -= 1
        error = stored.exception()
        if error is not None:
            self._fetches.not_stored(posts)
            self.unstored += len(posts)
            self._jobs.put_nowait(StorageError(f"cannot store received posts: {error}"))
            return
        outcomes = stored.result()
        for outcome in outcomes:
            self._fetches.settled(outcome.hash, has_arrived=True)
        verdicts = [outcome.verdict for outcome in outcomes]
        self.accepted += verdicts.count(Verdict.ACCEPTED)
        self.refused += sum(verdict not in _GENUINE for verdict in verdicts)
        false_claims = [outcome.reason for outcome in outcomes if outcome.verdict in FALSE_CLAIMS]
        if false_claims:
            self.link.count_invalid_posts(len(false_claims), false_claims[-1])
        if self._progress is not None:
            self._progress(len(posts))
        self.is_outdated = self._is_repeated(verdicts)
        if self.is_outdated:
            why = "another peer has sent the same posts since the comparison began"
            self._jobs.put_nowait(ReconcileLimitError(f"{why}. Remaining differences are compared later"))
            return
        self._jobs.put_nowait(lambda: self.talk.stored(batch, at_s=self._context.loop.time()))

    def _is_repeated(self, verdicts: list[Verdict]) -> bool:
        """Count the duplicates since the last new post. Return True if there are enough to end the comparison.

        A comparison that a caller waits for continues, because it would not be repeated later.
        """
        is_new = any(verdict is not Verdict.DUPLICATE for verdict in verdicts)
        self._repeated = 0 if is_new else self._repeated + len(verdicts)
        return self._repeated >= limits.MAX_TALK_REPEATED and (self.link.is_kept or not self.link.is_ours)

    def _lost(self, closed: asyncio.Future[str]) -> None:
        self.lose("the connection ended" if closed.cancelled() else closed.result())

    def lose(self, why: str) -> None:
        """End the conversation after all pending work, unless the work completes it."""
        self._jobs.put_nowait(
            LostError(f"the connection ended during the reconciliation: {why}. Received posts are stored")
        )

    def _ended(self, error: CableStoreError) -> CableStoreError:
        """Send the peer the reason for the end, unless the peer knows it. Return `error`."""
        if isinstance(error, ReconcileLimitError):
            self._say_end(EndReason.LIMIT, str(error))
        elif isinstance(error, StorageError):
            self._say_end(EndReason.STORAGE, "cannot store posts")
        elif isinstance(error, PeerRefusedError):
            self.link.send_frames(self.talk.output())  # contains the refusal if this node refused
        elif isinstance(error, ReconcileError) and not isinstance(error, LostError):
            self._say_end(EndReason.FAULT, str(error))
        elif not isinstance(error, ReconcileError):
            self._say_end(EndReason.OTHER, "cannot read the store")
        return error

    def _say_end(self, reason: EndReason, text: str) -> None:
        self.talk.end(reason, text)
        self.link.send_frames(self.talk.output())

    def add_to(self, report: ReconcileReport) -> None:
        """Add the counts of the conversation, complete or not."""
        found = self.talk.findings
        report.talks += 1
        report.posts_sent += found.posts_sent
        report.posts_received += self.accepted
        report.refused += self.refused
        report.missing += len(self.talk.missing)
        report.unasked += found.unasked
        report.unstored += self.unstored
        report.here_only += found.here_only
        report.there_only += found.there_only
        report.rounds += found.rounds
        report.sent_comparing_size_bytes += found.sent.comparing
        report.received_comparing_size_bytes += found.received.comparing
        report.sent_posts_size_bytes += found.sent.transferring
        report.received_posts_size_bytes += found.received.transferring
        for (from_ns, _), (until_ns, prefix) in found.differing:
            report.differing_ms.append((from_ns // NS_PER_MS, until_ns // NS_PER_MS + bool(prefix)))
        report.is_by_design |= found.is_by_design
        report.seconds += self._context.loop.time() - self.began_s
