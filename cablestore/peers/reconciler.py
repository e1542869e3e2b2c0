"""Reconciling: which peers are reconciled with, when, and how many at a time.

The side that connected begins: with everything, unless that was done within a day, then with what is recent, again and again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cablestore.errors import (
    CableStoreError,
    PeerRefusedError,
    ReconcileError,
    ReconcileLimitError,
    StorageError,
)
from cablestore.peers.places import gives_way
from cablestore.peers.reconcile_link import Link, LostError, SilentError, Talking
from cablestore.peers.reconcile_metrics import ReconcileMetrics
from cablestore.peers.report import ReconcileReport
from cablestore.peers.stretches import Stretches
from cablestore.peers.sync_state import Mark
from cablestore.protocol import recognition
from cablestore.protocol.exchange import Asker
from cablestore.protocol.message import ListRequest
from cablestore.reconcile.messages import (
    HELLO,
    NEW_CHANNEL,
    Ended,
    EndReason,
    Purpose,
    Terms,
    decode_frame,
    encode_frame,
)
from cablestore.store.store import system_clock_ms

if TYPE_CHECKING:
    from cablestore.peers.connection import Connection
    from cablestore.peers.node import Node

T = TypeVar("T")
_ALL_CHANNELS: Final = ""
"""Under this name of a channel, which none has, the marks know when all was reconciled."""
_JITTER: Final = 0.1
"""Of an interval, so that a crowd that began at one moment does not stay together."""
_BUSY_S: Final = (1.0, 10.0)
"""Between these is drawn when a peer that is busy is asked again."""
_END_WAIT_S: Final = 2.0
"""How long the talk before may take to hear that it is over."""
_GREETINGS: Final = 2
"""How often a greeting is tried again."""
_NOBODY: Final = Asker()


class Reconciling:
    """The reconciling of all peers. On the loop, but for what `in_thread` runs."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._metrics = ReconcileMetrics(node.metrics.registry)
        self._thread = ThreadPoolExecutor(1, "cablestore-reconcile")
        self._talking: Final[dict[Link, Talking]] = {}
        self._peers: Final[dict[str, Talking]] = {}
        """Who is reconciled with, by static key or address."""

    def __len__(self) -> int:
        """Return how many reconciliations are under way."""
        return len(self._talking)

    def is_talking(self, link: Link) -> bool:
        """Tell whether a reconciliation over this connection is under way."""
        return link in self._talking

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do something in the thread that compares."""
        return self._node.loop.run_in_executor(self._thread, work)

    async def close(self) -> None:
        """End the thread. All tasks are over by then."""
        await self._node.loop.run_in_executor(None, self._thread.shutdown)

    # --- being recognised -----------------------------------------------------------------------

    def greet(self, connection: Connection) -> None:
        """Send a peer as many requests as it takes to be recognised by a store like this one."""
        connection.greetings += 1
        for _ in range(recognition.REQUESTS):
            connection.ask(ListRequest(b"", 0, 1), _NOBODY)

    def greet_again(self, connection: Connection) -> None:
        """Go on greeting a peer that we greeted, once or twice more."""
        if 0 < connection.greetings <= _GREETINGS:
            self.greet(connection)

    def met(self, connection: Connection) -> None:
        """Begin with a peer on a Cable connection, now that both sides know what the other one is."""
        if connection.is_ours and not connection.is_once:
            self._node.run(self.keep_in_step(connection))

    # --- when -----------------------------------------------------------------------------------

    async def keep_in_step(self, link: Link) -> None:
        """Reconcile with a peer that we connected to, as long as the connection lasts."""
        schedule: Coroutine[Any, Any, None] = self._by_schedule(link)
        task = self._node.loop.create_task(schedule)
        try:
            ends: set[asyncio.Future[Any]] = {task, link.closed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if link.closed.done() and link in self._talking:
                await asyncio.wait({task}, timeout=1.0)  # what was lost is told in its own words
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _by_schedule(self, link: Link) -> None:
        settings = self._node.settings
        while True:
            pause_s = settings.reconcile_every_s * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
            now_ms = system_clock_ms()
            is_all = self._is_all_due(link, now_ms)
            terms = self.own_terms() if is_all else self._recent(now_ms)
            report = ReconcileReport()
            try:
                await (self.all_of if is_all else self.talk)(link, terms, report)
                if is_all:
                    self._node.marks.put(_peer_of(link), _ALL_CHANNELS, Mark(terms.from_ms, now_ms, now_ms))
            except CableStoreError as error:  # the log has it; the next one finds what is missing
                if is_limit(error) and report.posts_sent + report.posts_received:
                    continue
                if isinstance(error, PeerRefusedError) and error.reason == "busy":
                    pause_s = min(pause_s, random.uniform(*_BUSY_S))  # noqa: S311 - no secret
            await asyncio.sleep(pause_s)

    def _is_all_due(self, link: Link, now_ms: int) -> bool:
        mark = self._node.marks.get(_peer_of(link), _ALL_CHANNELS)
        if mark is None or mark.from_ms > self.own_terms().from_ms:
            return True
        return now_ms - mark.full_at_ms > self._node.settings.reconcile_all_every_s * 1000

    def _recent(self, now_ms: int) -> Terms:
        settings = self._node.settings
        until_ms = max(1, now_ms - settings.reconcile_delay_ms)
        from_ms = max(0, until_ms - settings.reconcile_window_ms)
        return self.own_terms().narrowed(Terms(from_ms=from_ms, until_ms=until_ms))

    def own_terms(self) -> Terms:
        """What this node keeps in step: what it follows. One that follows nothing gives, and takes nothing."""
        settings = self._node.settings
        channels = None
        if settings.channels:
            channels = frozenset(map(self._node.dialect.channel_id, settings.channels))
        from_ms = 0 if settings.window_ms is None else max(0, system_clock_ms() - settings.window_ms)
        return Terms(takes=settings.channels != frozenset(), from_ms=from_ms, channels=channels)

    # --- talks ----------------------------------------------------------------------------------

    async def all_of(
        self, link: Link, terms: Terms, report: ReconcileReport, progress: Callable[[int], None] | None = None
    ) -> None:
        """Reconcile all that the terms name with a peer, the newest first where links break, from where the last one broke.

        Raises CableStoreError as `talk` does; what is done is not done again.
        """
        was_begun = True
        while was_begun:  # what an earlier connection did may have changed since, which costs little to find out
            was_begun = await self._all_that_is_left(link, terms, report, progress)

    async def _all_that_is_left(
        self, link: Link, terms: Terms, report: ReconcileReport, progress: Callable[[int], None] | None
    ) -> bool:
        keep_ms = self._node.settings.reconcile_all_every_s * 1000
        stretches = Stretches(self._node.marks, _peer_of(link), terms, now_ms=system_clock_ms(), keep_ms=keep_ms)
        while (stretch := stretches.next) is not None:
            try:
                await self.talk(link, stretch, report, progress=progress)
                stretches.done()
            except (LostError, SilentError):
                stretches.broke()
                raise
            except PeerRefusedError as error:
                if error.reason != EndReason.NOTHING.name.lower() or stretch.until_ms == terms.until_ms:
                    raise
                stretches.is_over()
        return stretches.was_begun

    async def talk(
        self,
        link: Link,
        terms: Terms,
        report: ReconcileReport,
        purpose: Purpose = Purpose.RECONCILE,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Reconcile once with a peer, adding to the report. Raises CableStoreError; what came is stored none the less."""
        refusal = self._is_under_way(link) or self._refusal(link)
        if refusal:
            raise PeerRefusedError("busy", f"this node cannot reconcile now: {refusal}")
        talking = Talking(self._node, link, terms, purpose, progress)
        self._take_up(talking)
        await self._run(talking, report, is_ours=True)

    def received(self, link: Link, frame: bytes) -> None:
        """Take a frame of a peer: of the talk under way, the beginning of one, or news. What is left over of another is passed over."""
        talking = self._talking.get(link)
        if frame == NEW_CHANNEL:
            self._node.sync.told_of_channel(link)
        elif frame.startswith(HELLO) and not link.is_ours:
            self._asked(link, frame)
        elif talking is not None:
            talking.received(frame)

    def _asked(self, link: Link, frame: bytes) -> None:
        """Answer who begins a talk, when the one before with the same peer is over: it may not have heard yet that it is."""
        refusal = self._refusal(link)
        if refusal:
            self._refuse(link, frame, refusal)
            return
        before = self._talking.get(link)
        if before is not None:
            before.lose("the peer began another one")
        before = before or self._peers.get(_peer_of(link))
        talking = Talking(self._node, link, self.own_terms())
        self._take_up(talking)
        talking.received(frame)
        self._node.run(self._respond(talking, before, frame))

    def _take_up(self, talking: Talking) -> None:
        self._talking[talking.link] = self._peers[_peer_of(talking.link)] = talking

    def _let_go(self, talking: Talking) -> None:
        if self._talking.get(talking.link) is talking:
            del self._talking[talking.link]
        if self._peers.get(_peer_of(talking.link)) is talking:
            del self._peers[_peer_of(talking.link)]
        talking.over.set_result(None)

    def _refusal(self, link: Link) -> str:
        """Why no talk with this peer can begin now, "" where one can: there is a place, or another talk gives way."""
        if self._node.writes.failure:
            return "the disk refuses to store more"
        others = [talking for talking in self._talking.values() if talking.link is not link and not talking.gives_way]
        if len(others) < self._node.settings.max_talks:
            return ""
        slowest = gives_way(others, link.host, self._node.loop.time())
        if slowest is None:
            return f"{len(others)} reconciliations are under way"
        slowest.give_way()
        return ""

    def _is_under_way(self, link: Link) -> str:
        is_known = _peer_of(link) in self._peers or link in self._talking
        return "another reconciliation with this peer is under way" if is_known else ""

    @staticmethod
    def _refuse(link: Link, frame: bytes, why: str) -> None:
        try:
            number, _ = decode_frame(frame)
        except ReconcileError as error:
            link.faulted("reconciliation", str(error))
            return
        link.send_frames([encode_frame(number, Ended(EndReason.BUSY, why))])

    async def _respond(self, talking: Talking, before: Talking | None, hello: bytes) -> None:
        if before is not None:
            await asyncio.wait({before.over}, timeout=_END_WAIT_S)
            if not before.over.done():
                self._let_go(talking)
                self._refuse(talking.link, hello, "another reconciliation with this peer is under way")
                return
        try:
            await self._run(talking, ReconcileReport(), is_ours=False)
        except CableStoreError as error:
            if outcome_of(error) == "fault":
                talking.link.faulted("reconciliation", str(error))

    async def _run(self, talking: Talking, report: ReconcileReport, *, is_ours: bool) -> None:
        link, outcome, reason = talking.link, "stopped", ""
        try:
            await talking.run(begins=is_ours)
            outcome = "done"
        except CableStoreError as error:
            outcome, reason = outcome_of(error), str(error)
            raise
        finally:
            self._let_go(talking)
            own = ReconcileReport()
            for each in (report, own):
                each.add(talking, self._node.loop.time() - talking.began_s)
            is_audit = talking.talk.purpose is Purpose.AUDIT
            self._metrics.ended(own, outcome, is_ours=is_ours, is_audit=is_audit)
            self._tell(link, own, outcome, reason)

    def _tell(self, link: Link, report: ReconcileReport, outcome: str, reason: str) -> None:
        more = {"reason": reason} if reason else {}
        told = {
            "peer": link.name,
            "outcome": outcome,
            "posts_sent": report.posts_sent,
            "posts_received": report.posts_received,
            "seconds": round(report.seconds, 3),
        }
        self._node.log.info("reconciled", extra=told | more)


def outcome_of(error: CableStoreError) -> str:
    """Return how a talk that raised this ended, in a word."""
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


def is_limit(error: CableStoreError) -> bool:
    """Tell whether a talk found as much as it may, here or there, so that another one is to find the rest."""
    return isinstance(error, ReconcileLimitError) or (isinstance(error, PeerRefusedError) and error.reason == "limit")


def _peer_of(link: Link) -> str:
    static = link.remote_static
    return link.name if static is None else static.hex()
