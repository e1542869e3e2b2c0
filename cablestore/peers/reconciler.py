"""The schedule of reconciliations: with which peers, when, and how many at a time.

The side that connected begins. It compares all posts first, whenever either store has changed, and once a day. In
between, it compares the recent posts at intervals.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from cablestore import limits
from cablestore.errors import CableStoreError, NodeError, StorageError
from cablestore.peers.address import Address
from cablestore.peers.agreement import Agreement
from cablestore.peers.context import PeerContext
from cablestore.peers.in_step import Agreements
from cablestore.peers.link import PeerLink
from cablestore.peers.metrics import ReconcileMetrics
from cablestore.peers.node_ids import NodeIds
from cablestore.peers.reconciliation import LostError, Reconciliation, SilentError
from cablestore.peers.report import ReconcileReport
from cablestore.peers.slots import reconciliation_to_stop
from cablestore.peers.sync import Sync
from cablestore.peers.time_ranges import TimeRanges
from cablestore.reconcile.errors import PeerRefusedError, ReconcileError, ReconcileLimitError
from cablestore.reconcile.messages import (
    CHANGED,
    EQUAL,
    HELLO,
    NEW_CHANNEL,
    NODE,
    SNAPSHOT,
    Ended,
    EndReason,
    Purpose,
    Terms,
    decode_frame,
    encode_frame,
    size_error,
)
from cablestore.store.options import system_clock_ms

_JITTER: Final = 0.1
"""Random part of an interval, so that nodes that started together do not reconcile at the same moments."""
_BUSY_S: Final = (1.0, 10.0)
"""Limits of the random pause before the next request to a busy peer."""
_END_WAIT_S: Final = 2.0
"""Timeout for the end of the previous conversation."""
_AGAIN_WAIT_S: Final = 20.0
"""Maximum wait for posts that lost peers did not deliver, before a conversation that a peer begins."""

_MAX_LOGGED_S: Final = 253_402_300_799
"""The last second of the year 9999, after which `datetime` has no dates."""

_UNDER_WAY: Final = "another reconciliation with this peer is running"

_UNDECIDED: Final = ("refused", "stopped")
"""Outcomes that do not show whether the stores are equal."""
_BROKEN_OFF: Final = ("lost", "silent", "limit")
"""Outcomes after which the posts that the conversation found missing are requested from other peers."""


class ReconcileJob(NamedTuple):
    """One reconciliation, in one or more conversations: with which peer, what to compare, and for what purpose."""

    link: PeerLink
    terms: Terms
    report: ReconcileReport
    """Receives the counts."""
    is_complete: bool = False
    """True if all common posts are compared, so that the stores are in step if nothing differs."""
    purpose: Purpose = Purpose.RECONCILE
    progress: Callable[[int], None] | None = None
    """Called with the number of posts that were just stored."""


def jittered(pause_s: float, spread: Callable[[float, float], float] = random.uniform) -> float:
    """Return `pause_s`, changed by up to `_JITTER` of it, so that nodes do not reconcile at the same moments."""
    return pause_s * spread(1 - _JITTER, 1 + _JITTER)


class Reconciler:
    """All reconciliations of a node. Use it on the loop. A separate thread compares."""

    def __init__(self, context: PeerContext, sync: Sync, links: Iterable[PeerLink]) -> None:
        """`links` are the connections of both ports."""
        self._context = context
        self._agreements = Agreements(context, links)
        self._links = links
        self.node_ids: Final = NodeIds(links)
        self._sync = sync
        self._metrics = ReconcileMetrics(context.metrics.registry)
        self._thread = ThreadPoolExecutor(1, "cablestore-reconcile")
        self._by_link: Final[dict[PeerLink, Reconciliation]] = {}
        self._by_peer: Final[dict[str, Reconciliation]] = {}
        """Reconciliations by the static key or the address of the peer."""
        self._senders: Final[WeakKeyDictionary[PeerLink, set[asyncio.Future[None]]]] = WeakKeyDictionary()
        """For each connection whose last conversation ended because other conversations transfer the same posts: the
        future of the end of each of these others. The next conversation waits for one of them to end.
        """

    def __len__(self) -> int:
        """Return the number of reconciliations in progress."""
        return len(self._by_link)

    def is_under_way(self, link: PeerLink) -> bool:
        """Return True if a reconciliation over this connection is in progress."""
        return link in self._by_link

    def close(self) -> None:
        """Stop watching the store, and end the thread. All tasks must have ended."""
        self._agreements.close()
        self._thread.shutdown()

    def compare_again(self) -> None:
        """End all agreements, so that all posts are compared again: rejected posts may be acceptable now."""
        for link in self._links:
            self._agreements.failed(link)

    # --- when -----------------------------------------------------------------------------------

    async def keep_in_step(self, link: PeerLink) -> None:
        """Reconcile with a peer that this node connected to, at intervals, until the connection ends."""
        task = self._context.loop.create_task(self._by_schedule(link))
        try:
            ends: set[asyncio.Future[Any]] = {task, link.closed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if link.closed.done() and link in self._by_link:
                await asyncio.wait({task}, timeout=1.0)  # `task` logs the lost reconciliation
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _by_schedule(self, link: PeerLink) -> None:
        loop, agreement = self._context.loop, link.agreement
        await self._sync.fetches.requested_again(link)  # otherwise these posts would be found missing again
        all_at_s = float("-inf")
        while True:
            settings = self._context.settings
            pause_s = jittered(settings.reconcile_every_s)
            report = ReconcileReport()
            is_due = loop.time() - all_at_s >= settings.reconcile_all_every_s
            is_all = is_due or not agreement.is_in_step(self._context.store.parts.engine.place)
            agreement.ended.clear()
            try:
                if is_all:
                    all_at_s = loop.time()
                    await self._everything(link, report)
                else:
                    await self._talk(ReconcileJob(link, self._recent(), report))
            except CableStoreError as error:  # it is logged; the next reconciliation finds the missing posts
                if is_limit(error) and (report.moved or self._senders.get(link)):
                    continue
                if isinstance(error, PeerRefusedError) and error.reason == "busy":
                    pause_s = min(pause_s, random.uniform(*_BUSY_S))  # noqa: S311 - no secret
            await self._rest(agreement, pause_s)

    async def _everything(self, link: PeerLink, report: ReconcileReport) -> None:
        """Reconcile all common posts. After transfers, compare again, so that both sides know the result."""
        job = ReconcileJob(link, self.own_terms(), report, is_complete=True)
        await self._all_of(job)
        if report.moved:
            await self._all_of(job)

    async def _rest(self, agreement: Agreement, pause_s: float) -> None:
        """Wait for `pause_s`. If `agreement` ends earlier, only wait until this store has not changed for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await agreement.ended.wait()
                place = None
                while place != self._context.store.parts.engine.place:
                    place = self._context.store.parts.engine.place
                    await asyncio.sleep(self._context.settings.reconcile_delay_ms / 1000)

    def _recent(self) -> Terms:
        settings = self._context.settings
        until_ms = max(1, system_clock_ms() - settings.reconcile_delay_ms)
        from_ms = max(0, until_ms - settings.reconcile_window_ms)
        return self.own_terms().narrowed(Terms(from_ms=from_ms, until_ms=until_ms))

    def own_terms(self) -> Terms:
        """Return the terms of this node: channels and times. A node that follows no channels only sends posts."""
        settings = self._context.settings
        channels = None
        if settings.channels:
            channels = frozenset(map(self._context.dialect.channel_id, settings.channels))
        # Compare only posts that every channel keeps. Otherwise each comparison would transfer removed posts again.
        now_ms = system_clock_ms()
        from_ms = settings.keep.all_kept_from_ms(now_ms)
        if settings.window_ms is not None:
            from_ms = max(from_ms, now_ms - settings.window_ms)
        # Leave out posts that are too far ahead for this clock. Otherwise each conversation would transfer them again.
        until_ms = (
            self._context.store.parts.intake.clock() + limits.MAX_FUTURE_MS if self._sync.fetches.intake.early else None
        )
        return Terms(settings.channels != frozenset(), from_ms, until_ms, channels)

    # --- once -----------------------------------------------------------------------------------

    async def once(
        self,
        address: Address,
        connect: Callable[[Address], Awaitable[PeerLink]],
        terms: Terms,
        report: ReconcileReport,
        *,
        expected: str,
        purpose: Purpose = Purpose.RECONCILE,
        progress: Callable[[int], None] | None = None,
    ) -> ReconcileReport:
        """Connect, reconcile until both sides are equal, and end the connection; see `Node.reconcile_once`.

        `expected` is the kind of server at the address, for error messages.
        """
        began_s = self._context.loop.time()
        link = await connect(address)
        try:
            own = self.own_terms().narrowed(terms)
            await self.until_equal(ReconcileJob(link, own, report, purpose=purpose, progress=progress))
        except (LostError, SilentError) as error:
            if report.received_comparing_size_bytes:
                raise
            raise NodeError(f"{address} is not {expected}, or does not answer: {error}") from None
        except ReconcileError as error:
            if isinstance(error, PeerRefusedError):
                raise type(error)(error.reason, f"{address}: {error}") from None
            raise ReconcileError(f"{address}: {error}") from None
        finally:
            report.seconds = self._context.loop.time() - began_s
            link.end("reconciled")
            await asyncio.wait({link.closed}, timeout=limits.END_TIMEOUT_S + 1)
        return report

    async def until_equal(self, job: ReconcileJob) -> None:
        """Reconcile. Repeat this after each conversation that ended at a limit, as long as posts are transferred."""
        moved = -1
        while True:
            try:
                await (self._talk(job) if job.purpose is Purpose.AUDIT else self._all_of(job))
            except ReconcileError as error:
                before, moved = moved, job.report.moved
                if not is_limit(error) or moved == before:
                    raise
            else:
                return

    # --- conversations --------------------------------------------------------------------------

    async def _all_of(self, job: ReconcileJob) -> None:
        """Reconcile all posts of `job.terms`, starting at the point where the last connection broke.

        If connections break, the posts are reconciled in parts, the newest first. Parts that an earlier connection
        completed are compared again at the end. Raises CableStoreError like `_talk`.
        """
        was_begun = await self._all_that_is_left(job)
        if was_begun:  # parts of an earlier connection may have changed since; to compare them again is cheap
            await self._all_that_is_left(job)

    async def _all_that_is_left(self, job: ReconcileJob) -> bool:
        """Reconcile the parts that no earlier connection completed.

        Return True if an earlier connection completed a part, or if stored posts may have been lost meanwhile: then all
        parts must be compared again.
        """
        keep_ms = self._context.settings.reconcile_all_every_s * 1000
        marks = await self._context.current_marks()
        time_ranges = TimeRanges(marks, _peer_of(job.link), job.terms, now_ms=system_clock_ms(), keep_ms=keep_ms)
        while (time_range := time_ranges.next) is not None:
            moved = job.report.moved
            try:
                await self._talk(
                    job._replace(terms=time_range, is_complete=job.is_complete and time_range == job.terms)
                )
                await self._context.current_marks()
                time_ranges.done()
            except (LostError, SilentError):
                time_ranges.broke(has_moved=job.report.moved > moved)
                raise
            except PeerRefusedError as error:
                if error.reason != EndReason.NOTHING.name.lower() or time_range.until_ms == job.terms.until_ms:
                    raise
                time_ranges.is_over()
        return time_ranges.was_begun or time_ranges.is_void

    async def _talk(self, job: ReconcileJob) -> None:
        """Reconcile once with a peer, and add the counts to the report.

        Raises CableStoreError. The posts received before an error are stored.
        """
        link, terms, report, is_complete, purpose, progress = job
        is_known = _peer_of(link) in self._by_peer or link in self._by_link
        rejection = _UNDER_WAY if is_known else self._rejection(link)
        if rejection:
            raise PeerRefusedError("busy", f"this node cannot reconcile now: {rejection}")
        current = Reconciliation(self._context, self._sync.fetches, self._thread, link, terms, purpose, progress)
        self._take_up(current)
        await self._run(current, report, is_ours=True, is_complete=is_complete)

    def received(self, link: PeerLink, frame: bytes) -> bool:
        """Handle a notice, the first frame of a new conversation, or a frame for the current conversation.

        Return True if the frame was handled. The current conversation ignores frames of earlier conversations. Without
        a current conversation, return False for such frames and for unknown frames.
        """
        current = self._by_link.get(link)
        if frame == NEW_CHANNEL:
            self._sync.announced_channel(link)
        elif frame == SNAPSHOT:
            link.coverage.known_there()
        elif frame in (EQUAL, CHANGED):
            self._agree(link, frame)
        elif frame.startswith(NODE):
            self.node_ids.received(link, frame)
        elif frame.startswith(HELLO) and not link.is_ours:
            self._asked(link, frame)
        elif current is not None:
            current.received(frame)
        else:
            return False
        return True

    def _agree(self, link: PeerLink, frame: bytes) -> None:
        """Handle a frame EQUAL or CHANGED once the comparison that the frame refers to has ended on this side too."""
        current = self._by_link.get(link)
        if current is None:
            self._agreements.receive(link, frame)
        else:
            current.over.add_done_callback(lambda _: self._agreements.receive(link, frame))

    def _asked(self, link: PeerLink, frame: bytes) -> None:
        """Answer a peer that begins a conversation.

        If this node has not noticed the end of the previous conversation yet, the new conversation waits for it.
        """
        error = size_error(frame)
        if error is not None:
            link.faulted("reconciliation", str(error))
            return
        rejection = self._rejection(link)
        if rejection:
            self._refuse(link, frame, rejection)
            return
        before = self._by_link.get(link)
        if before is not None:
            before.lose("the peer began another reconciliation")
        before = before or self._by_peer.get(_peer_of(link))
        current = Reconciliation(self._context, self._sync.fetches, self._thread, link, self.own_terms())
        self._take_up(current)
        current.received(frame)
        self._context.life.run(self._respond(current, before, frame))

    def _take_up(self, current: Reconciliation) -> None:
        self._by_link[current.link] = self._by_peer[_peer_of(current.link)] = current
        current.link.coverage.begin()

    def _let_go(self, current: Reconciliation, *, failed: bool = False) -> None:
        if self._by_link.get(current.link) is current:
            del self._by_link[current.link]
        if self._by_peer.get(_peer_of(current.link)) is current:
            del self._by_peer[_peer_of(current.link)]
        current.link.coverage.end(failed=failed)
        current.over.set_result(None)

    def _rejection(self, link: PeerLink) -> str:
        """Return why a conversation with this peer cannot begin now, or "". May stop another conversation for it."""
        if self._context.writes.failure:
            return "cannot store posts"
        others = [current for current in self._by_link.values() if current.link is not link and not current.is_stopping]
        if len(others) < self._context.settings.max_talks:
            return ""
        slowest = reconciliation_to_stop(others, link.network, self._context.loop.time())
        if slowest is None:
            return f"the limit of {len(others)} for simultaneous reconciliations is reached"
        slowest.stop_for_another()
        return ""

    @staticmethod
    def _refuse(link: PeerLink, frame: bytes, why: str) -> None:
        try:
            number, _ = decode_frame(frame)
        except ReconcileError as error:
            link.faulted("reconciliation", str(error))
            return
        link.send_frames([encode_frame(number, Ended(EndReason.BUSY, why))])

    async def _respond(self, current: Reconciliation, before: Reconciliation | None, hello: bytes) -> None:
        if before is not None:
            await asyncio.wait({before.over}, timeout=_END_WAIT_S)
            if not before.over.done():
                self._let_go(current)
                self._refuse(current.link, hello, _UNDER_WAY)
                return
        with suppress(TimeoutError):  # otherwise the requested posts would be found missing again
            async with asyncio.timeout(_AGAIN_WAIT_S):
                await self._sync.fetches.requested_again(current.link)
        try:
            await self._run(current, ReconcileReport(), is_ours=False)
        except CableStoreError as error:
            if outcome_of(error) == "fault":
                current.link.faulted("reconciliation", str(error))

    async def _run(
        self, current: Reconciliation, report: ReconcileReport, *, is_ours: bool, is_complete: bool = False
    ) -> None:
        link, outcome, reason, failed = current.link, "stopped", "", False
        try:
            await self._wait_for_senders(link)
            await current.run(begins=is_ours)
            outcome = "done"
        except CableStoreError as error:
            outcome, reason, failed = outcome_of(error), str(error), _is_failure(error)
            raise
        finally:
            own = ReconcileReport()
            for each in (report, own):
                current.add_to(each)
            is_audit = current.talk.purpose is Purpose.AUDIT
            if outcome == "done" and not is_audit:
                link.note_reconciled(system_clock_ms())
                self._agreements.compared(link, current.place, is_complete=is_complete, sent_posts=own.posts_sent > 0)
            elif outcome not in _UNDECIDED and not is_audit:
                self._agreements.failed(link)
            if outcome in _BROKEN_OFF:
                self._sync.fetches.remember(current.talk.missing)
            if current.is_outdated:
                others = [each for each in self._by_link.values() if each is not current and each.accepted]
                self._senders[link] = {each.over for each in others}
            compared = current.talk.compared
            self._let_go(current, failed=failed and (compared is None or compared.until_ms is None))
            self._metrics.ended(own, outcome, is_ours=is_ours, is_audit=is_audit)
            fields = {
                "peer": link.name,
                "outcome": outcome,
                "compared": _range_of(current.talk.compared),
                "posts_sent": own.posts_sent,
                "posts_received": own.posts_received,
                "seconds": round(own.seconds, 3),
            }
            fields |= {"posts_unasked": own.unasked} if own.unasked else {}
            fields |= {"reason": reason} if reason else {}
            self._context.log.info("reconciled", extra=fields)

    async def _wait_for_senders(self, link: PeerLink) -> None:
        """If the last conversation ended because others transfer the same posts, wait until one of the others ends."""
        senders = self._senders.pop(link, None)
        if senders:
            ends: set[asyncio.Future[Any]] = {link.closed, *senders}
            await asyncio.wait(ends, timeout=limits.TALK_REPEATED_WAIT_S, return_when=asyncio.FIRST_COMPLETED)


def _range_of(terms: Terms | None) -> str:
    """Describe the compared posts in words."""
    if terms is None:
        return "nothing"
    ends = [f"from {_utc(terms.from_ms)}"] if terms.from_ms else []
    ends += [] if terms.until_ms is None else [f"until {_utc(terms.until_ms)}"]
    times = " ".join(ends) or "all"
    if terms.channels is None:
        return times
    count = len(terms.channels)
    return f"{times}, {count} channel{'s' * (count != 1)}"


def _utc(time_ms: int) -> str:
    """Format a time, which may come from a peer."""
    return datetime.fromtimestamp(min(time_ms // 1000, _MAX_LOGGED_S), UTC).isoformat(timespec="seconds")


def outcome_of(error: CableStoreError) -> str:
    """Return the outcome of a conversation that raised this error, in one word."""
    if is_limit(error):
        return "limit"
    for kind, outcome in (
        (PeerRefusedError, "refused"),
        (LostError, "lost"),
        (SilentError, "silent"),
        (StorageError, "storage"),
        (ReconcileError, "fault"),
    ):
        if isinstance(error, kind):
            return outcome
    return "stopped"


def _is_failure(error: CableStoreError) -> bool:
    """Return True if later conversations on this connection probably fail too."""
    is_busy = isinstance(error, PeerRefusedError) and error.reason == "busy"
    return not is_busy and not is_limit(error)


def is_limit(error: CableStoreError) -> bool:
    """Return True if a conversation ended at a limit of either side, so that the next conversation finds the rest."""
    return isinstance(error, ReconcileLimitError) or (isinstance(error, PeerRefusedError) and error.reason == "limit")


def _peer_of(link: PeerLink) -> str:
    static = link.remote_static
    return link.name if static is None else static.hex()
