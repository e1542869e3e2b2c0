"""Sync: what a node asks its peers for.

Of each peer first the names of its channels; then for each channel that is followed its state, its history page by page
from the newest back, and live what it learns from then on. Hashes that are here, that are known to be deleted, or that
are on their way already are not asked for. What a peer owes when it is lost is asked of others that offered it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cablestore import answers, limits
from cablestore.body import INFO
from cablestore.crypto import post_hash
from cablestore.errors import NodeError, StoreClosedError
from cablestore.message import ListRequest, ModerationRequest, PostRequest, Request, StateRequest, TimeRangeRequest
from cablestore.node.held import Held
from cablestore.node.marks import Mark
from cablestore.node.paging import Paging
from cablestore.node.settings import FULL_PASS_EVERY_MS, SYNC_OVERLAP_MS, Address
from cablestore.post import peek_type
from cablestore.reader import Reader
from cablestore.session import Exchange, Step
from cablestore.store import system_clock_ms
from cablestore.verdict import Outcome, Verdict
from cablestore.wanted import Wanted

if TYPE_CHECKING:
    from cablestore.node.node import Node
    from cablestore.node.wire import Connection

_FETCH_POSTS: Final = 500
"""Posts of one request: some 120 kB of answer."""
_FETCHES_OPEN: Final = 4
_SHARE_WAIT_S: Final = 0.05
"""How long a peer that offered more than its share allows waits before it is looked at again."""
_CHANNELS_AT_ONCE: Final = 8
_MODERATION_TIMEOUT_S: Final = 5.0
"""cable.rs does not know this request and says nothing."""

_USELESS: Final = frozenset(
    {Verdict.MALFORMED, Verdict.UNKNOWN_TYPE, Verdict.BAD_SIGNATURE, Verdict.TOO_FAR_AHEAD, Verdict.LOCAL_ONLY}
)
"""Posts that are not asked for again."""
_LIES: Final = frozenset({Verdict.MALFORMED, Verdict.BAD_SIGNATURE})
"""Posts that no honest peer passes on."""


@dataclass(slots=True)
class SyncReport:
    """What a sync brought. Sizes are in bytes as they went over the wire."""

    channels: int = 0
    posts: int = 0
    refused: int = 0
    missing: int = 0
    """Posts that the peer offered and did not deliver."""
    unstored: int = 0
    """Posts that came and that the disk refused."""
    received_size_bytes: int = 0
    sent_size_bytes: int = 0
    seconds: float = 0.0


class Sync:
    """The syncing of all peers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.wanted: Final[Wanted[Connection]] = Wanted()
        self.storing: Final[set[bytes]] = set()
        """Hashes of posts that have come and are not stored yet."""
        self._peers: Final[dict[Connection, PeerSync]] = {}
        self.is_halted = False
        self._useless: OrderedDict[bytes, None] = OrderedDict()
        self._once: Final[set[Address]] = set()

    def begin(self, connection: Connection) -> None:
        """Begin with a peer that has connected, unless nothing is followed."""
        if self._node.settings.channels != frozenset() and connection.dialed not in self._once:
            peer = self._peers[connection] = PeerSync(self._node, self, connection, is_live=True)
            peer.task = self._node.run(peer.run())

    def lost(self, connection: Connection) -> None:
        """Ask others for what a lost peer owes."""
        peer = self._peers.pop(connection, None)
        if peer is not None:
            peer.lose()
        busier, missing = self.wanted.lose(connection)
        self.go_on(busier)
        for digest in missing:
            self.settled(digest)

    def go_on(self, connections: Iterable[Connection]) -> None:
        """Fetch what has been moved to these peers."""
        for connection in connections:
            peer = self._peers.get(connection)
            if peer is not None:
                peer.fetch()

    def settled(self, digest: bytes, *, has_come: bool = False) -> None:
        """Tell everyone who waits for a post that it is here, or will not come."""
        for peer in self._peers.values():
            peer.settled(digest, has_come=has_come)

    def halt(self) -> None:
        """Fetch nothing more: the store takes nothing until it is opened again, and would be offered the same for ever."""
        self.is_halted = True
        for connection, peer in self._peers.items():
            _, missing = self.wanted.lose(connection)
            for digest in missing:
                self.settled(digest)
            peer.wake()

    def is_useless(self, digest: bytes) -> bool:
        """Tell whether a post was refused before."""
        return digest in self._useless

    def refuse(self, digest: bytes) -> None:
        """Remember a post that was refused."""
        self._useless[digest] = None
        if len(self._useless) > limits.MAX_WANTED_PER_PEER:
            self._useless.popitem(last=False)

    async def once(self, address: Address, progress: Callable[[int], None] | None) -> SyncReport:
        """Fetch what a peer has, once."""
        began_s = self._node.loop.time()
        self._once.add(address)
        try:
            connection = await self._node.connect(address)
        finally:
            self._once.discard(address)
        peer = self._peers[connection] = PeerSync(self._node, self, connection, is_live=False, progress=progress)
        work = peer.task = self._node.run(peer.run())
        try:
            ends: set[asyncio.Future[Any]] = {work, connection.closed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() or work.cancelled():
                why = await asyncio.shield(connection.closed)
                raise NodeError(f"{address} ended the connection: {why}. What came is stored")
            await work
        finally:
            work.cancel()
            connection.end("synced")
            self._peers.pop(connection, None)
        await asyncio.wait({connection.closed}, timeout=limits.HANDSHAKE_TIMEOUT_S)
        report = peer.report
        report.received_size_bytes = connection.received_size_bytes
        report.sent_size_bytes = connection.sent_size_bytes
        report.seconds = self._node.loop.time() - began_s
        self._node.marks.save()
        return report


class Question:
    """A request whose hashes or names are collected (an `Asker`); `done` when nothing more comes."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_hashes: Callable[[Sequence[bytes]], None] | None = None
    ) -> None:
        self.hashes: list[bytes] = []
        self.names: tuple[str, ...] = ()
        self.done: Final[asyncio.Future[Step]] = loop.create_future()
        self._on_hashes = on_hashes

    def on_hashes(self, exchange: Exchange, hashes: tuple[bytes, ...]) -> None:  # noqa: ARG002 - one request each
        """Keep hashes, or hand them on."""
        if self._on_hashes is None:
            self.hashes += hashes
        else:
            self._on_hashes(hashes)

    def on_posts(self, exchange: Exchange, posts: list[bytes]) -> None:
        """Nothing: no posts were asked for."""

    def on_names(self, exchange: Exchange, names: tuple[str, ...]) -> None:  # noqa: ARG002 - as above
        """Keep names."""
        self.names = names

    def on_concluded(self, exchange: Exchange, step: Step) -> None:  # noqa: ARG002 - as above
        """Nothing more comes."""
        if not self.done.done():
            self.done.set_result(step)


class PeerSync:
    """The syncing of one peer. It is the `Asker` of its post requests."""

    def __init__(
        self,
        node: Node,
        sync: Sync,
        connection: Connection,
        *,
        is_live: bool,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._node = node
        self._sync = sync
        self._connection = connection
        self._is_live = is_live
        self._progress = progress
        self.task: asyncio.Task[None] | None = None
        self.report: Final = SyncReport()
        self._followed: set[str] = set()
        self._fetching = 0
        self._storing = 0
        self._filtering = 0
        """Hashes that wait to be looked up."""
        self._offers: deque[Sequence[bytes]] = deque()
        self._failed = 0
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()
        self._turns = asyncio.Semaphore(_CHANNELS_AT_ONCE)
        self._live = 0
        self._quiet: set[str] = set()
        """Channels that are followed by passes alone: there are too many for live requests."""
        self._passed: dict[str, Mark] = {}
        self._elsewhere: set[bytes] = set()
        """Hashes that the peer offered while they were on their way already, maybe from others."""
        self._moderating: Exchange | None = None
        self._has_overflowed = False
        """Whether there was no room for something that the peer offered live: another pass finds it."""

    # --- what is asked -------------------------------------------------------------------------

    async def run(self) -> None:
        """Sync all channels; stay for what is new where the sync is live."""
        with suppress(StoreClosedError):
            while True:
                channels = await self._new_channels()
                self.report.channels += len(channels)
                await self._together([self._channel(channel) for channel in channels], self._moderation(channels))
                await self._settle()
                if not self._is_live:
                    return
                await asyncio.sleep(self._node.settings.list_every_s)
                again = self._followed if self._has_overflowed else self._quiet
                self._has_overflowed = False
                await self._together([self._history(channel) for channel in sorted(again)])

    async def _settle(self) -> None:
        """Note what was passed, when all of it is here. Where news come without a break there is no such moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._node.settings.list_every_s if self._is_live else None):
                await self._drained()
                self._put_marks()

    async def _together(self, works: list[Coroutine[Any, Any, None]], *others: Coroutine[Any, Any, None]) -> None:
        async with asyncio.TaskGroup() as group:
            for work in (*works, *others):
                group.create_task(work)

    async def _new_channels(self) -> list[str]:
        """Return the channels to follow that are not followed yet: those of the peer, and those of the store."""
        question = Question(self._node.loop)
        self._ask(ListRequest(b"", 0, 0), question)
        await question.done
        if self._is_live and not self._connection.session.is_recognised:
            return []  # it has not said a word: whoever it is, it is asked for channels when it does
        if self._node.settings.channels is not None:
            names = set(self._node.settings.channels)
        else:
            known = await self._node.reads.call(lambda reader: list(answers.channel_list(reader)))
            names = {*question.names, *known}
        found = sorted({self._node.dialect.channel_id(name) for name in names} - self._followed)
        self._followed.update(found)
        return found

    async def _channel(self, channel: str) -> None:
        is_live = self._is_live and self._live < limits.MAX_LIVE_CHANNELS
        self._live += is_live
        if self._is_live and not is_live:
            self._quiet.add(channel)
        state = Question(self._node.loop, self._offer_soon)
        self._ask(StateRequest(b"", channel, int(is_live)), state)
        await self._history(channel)
        if is_live:
            start_ms = self._window_start_ms()
            self._ask(TimeRangeRequest(b"", channel, start_ms, 0, 0), Question(self._node.loop, self._offer_soon))
        else:
            await state.done

    async def _moderation(self, channels: list[str]) -> None:
        """Ask for the roles, actions and blocks of the whole cabal and of all channels, again when there are new ones."""
        if self._moderating is not None:
            if not channels:
                return
            self._connection.session.cancel(self._moderating)
        question = Question(self._node.loop, self._offer_soon)
        names = tuple(sorted(self._followed)[: limits.MAX_HASHES_PER_REQUEST])
        request = ModerationRequest(b"", names, int(self._is_live), 0)
        self._moderating = self._connection.ask(request, question, _MODERATION_TIMEOUT_S)
        if not self._is_live:
            await question.done

    def _ask(self, request: Request, question: Question) -> Exchange:
        return self._connection.ask(request, question)

    def _window_start_ms(self) -> int:
        window_ms = self._node.settings.window_ms
        return 0 if window_ms is None else max(0, system_clock_ms() - window_ms)

    # --- history -------------------------------------------------------------------------------

    async def _history(self, channel: str) -> None:
        """Fetch a channel's history, from what the last pass left on or from the window's start."""
        now_ms = system_clock_ms()
        window_ms = self._window_start_ms()
        mark = self._node.marks.get(self._peer_name(), channel)
        is_full = mark is None or mark.from_ms > window_ms or now_ms - mark.full_at_ms > FULL_PASS_EVERY_MS
        start_ms = window_ms if mark is None or is_full else max(window_ms, mark.until_ms - SYNC_OVERLAP_MS)
        async with self._turns:
            is_whole = await self._pages(channel, start_ms, now_ms + limits.MAX_FUTURE_MS)
        if is_whole and self._peer_name():
            full_at_ms = now_ms if mark is None or is_full else mark.full_at_ms
            self._passed[channel] = Mark(window_ms, now_ms, full_at_ms)

    def _put_marks(self) -> None:
        """Note the passes that are whole, unless something that was offered did not come or was not stored."""
        passed, self._passed = self._passed, {}
        failed, self._failed = self._failed, 0
        if not failed:
            for channel, mark in passed.items():
                self._node.marks.put(self._peer_name(), channel, mark)

    async def _pages(self, channel: str, start_ms: int, end_ms: int) -> bool:
        """Ask for page after page; tell whether the last one was reached."""
        page = Paging(start_ms, end_ms, self._node.settings.page_hashes)
        while True:
            question = Question(self._node.loop, None if page.limit else self._offer_soon)
            self._ask(TimeRangeRequest(b"", channel, page.start_ms, page.end_ms, page.limit), question)
            step = await question.done
            hashes = question.hashes
            await self._offer(hashes)
            if step is Step.TIMED_OUT:
                return bool(hashes)  # cable.rs does not conclude what it has answered
            if step in (Step.LOST, Step.CANCELLED):
                return False
            if page.is_last(len(hashes)):
                return True
            page.turn(hashes, *await self._ends_ms(hashes))

    async def _ends_ms(self, hashes: Sequence[bytes]) -> tuple[int | None, int | None]:
        """Return the times of the first and the last post of a page, of those that can be known."""
        first_ms, last_ms = await self._times((hashes[0], hashes[-1]))
        if first_ms is None or last_ms is None:
            known = [time_ms for time_ms in await self._times(hashes) if time_ms is not None]
            first_ms, last_ms = (known[0], known[-1]) if known else (None, None)
        return first_ms, last_ms

    async def _times(self, hashes: Sequence[bytes]) -> list[int | None]:
        """Return the times of posts, as soon as those that are on their way are stored."""
        for digest in hashes:
            if digest in self._sync.wanted or digest in self._sync.storing:
                future = self._waiting.setdefault(digest, self._node.loop.create_future())
                await future

        def times(reader: Reader) -> list[int | None]:
            return [answers.time_of(reader, digest) for digest in hashes]

        return await self._node.reads.call(times)

    def _peer_name(self) -> str:
        static = self._connection.remote_static
        if static is not None:
            return static.hex()
        return str(self._connection.dialed) if self._connection.dialed else ""

    # --- fetching ------------------------------------------------------------------------------

    def _offer_soon(self, hashes: Sequence[bytes]) -> None:
        """Look up hashes one lot after the other. Where many wait, nothing more is read from the peer meanwhile."""
        self._offers.append(hashes)
        self._filtering += len(hashes)
        if self._filtering > limits.MAX_WANTED_PER_PEER:
            self._connection.hold_back(Held.OFFERS, holds=True)
        if len(self._offers) == 1:
            self._node.run(self._offer_all())

    async def _offer_all(self) -> None:
        try:
            while self._offers and not self._connection.closed.done():
                await self._offer(self._offers[0], waits=False)
                self._filtering -= len(self._offers.popleft())
                if self._filtering <= limits.MAX_WANTED_PER_PEER // 2:
                    self._connection.hold_back(Held.OFFERS, holds=False)
        finally:
            self._offers.clear()
            self._filtering = 0
            self._connection.hold_back(Held.OFFERS, holds=False)
            self._changed.set()

    async def _offer(self, hashes: Sequence[bytes], *, waits: bool = True) -> None:
        """Fetch those of a peer's hashes that are worth it, and that nobody fetches yet.

        What there is no room for is waited for, or left to the next pass.
        """
        if self._sync.is_halted:
            self._failed += len(hashes)
            return
        for at in range(0, len(hashes), limits.PART_ROWS_ANSWERED):
            part = hashes[at : at + limits.PART_ROWS_ANSWERED]
            while not self._connection.is_within_its_share() and not self._connection.closed.done():  # noqa: ASYNC110 - time passing is what changes it
                await asyncio.sleep(_SHARE_WAIT_S)
            self._connection.charge(2 * len(part))
            found = await self._node.reads.call(lambda reader, part=part: list(answers.worth_requesting(reader, part)))  # type: ignore[misc]  # mypy does not see the default
            if self._connection.closed.done():
                return
            sync = self._sync
            self._elsewhere.update(digest for digest in found if digest in sync.wanted or digest in sync.storing)
            left = [digest for digest in found if digest not in sync.storing and not sync.is_useless(digest)]
            left = sync.wanted.offer(self._connection, left)
            self.fetch()
            while left and waits and not self._sync.is_halted and not self._connection.closed.done():
                await self._change()
                left = sync.wanted.offer(self._connection, left)
                self.fetch()
            self._failed += len(left)
            self._has_overflowed = self._has_overflowed or bool(left)

    def fetch(self) -> None:
        """Ask for posts, a few requests at a time."""
        while self._fetching < _FETCHES_OPEN and not self._sync.is_halted and not self._connection.closed.done():
            hashes = self._sync.wanted.take(self._connection, _FETCH_POSTS)
            if not hashes:
                return
            self._fetching += 1
            self._connection.ask(PostRequest(b"", tuple(hashes)), self)

    def on_hashes(self, exchange: Exchange, hashes: tuple[bytes, ...]) -> None:
        """Nothing: no hashes were asked for."""

    def on_names(self, exchange: Exchange, names: tuple[str, ...]) -> None:
        """Nothing: no names were asked for."""

    def on_posts(self, exchange: Exchange, posts: list[bytes]) -> None:  # noqa: ARG002 - what came is what counts
        """Have posts stored that were asked for."""
        for post in posts:
            digest = post_hash(post)
            self._sync.wanted.arrived(digest)
            self._sync.storing.add(digest)
        self._storing += 1
        self._node.store_posts(self._connection, posts, lambda outcomes: self._stored(posts, outcomes))

    def on_concluded(self, exchange: Exchange, step: Step) -> None:  # noqa: ARG002 - what is missing is what counts
        """Ask others for what did not come."""
        self._fetching -= 1
        if exchange.missing:
            busier, missing = self._sync.wanted.failed(self._connection, exchange.missing)
            self.report.missing += len(missing)
            self._failed += len(missing)
            self._sync.go_on(busier)
            for digest in missing:
                self._sync.settled(digest)
        self.fetch()
        self._changed.set()

    def _stored(self, posts: list[bytes], outcomes: list[Outcome] | None) -> None:
        self._storing -= 1
        if outcomes is None:
            self._failed += len(posts)
            self.report.unstored += len(posts)
        is_ours = self._connection.session.dialect is self._node.dialect
        for index, post in enumerate(posts):
            digest = post_hash(post) if outcomes is None else outcomes[index].hash
            self._sync.storing.discard(digest)
            if outcomes is not None:
                self._count(post, outcomes[index], is_ours=is_ours)
            self._sync.settled(digest, has_come=outcomes is not None)
        if self._progress is not None:
            self._progress(len(posts))
        self._changed.set()

    def _count(self, post: bytes, outcome: Outcome, *, is_ours: bool) -> None:
        self.report.posts += outcome.verdict is Verdict.ACCEPTED
        if outcome.verdict in _USELESS:
            self.report.refused += 1
            self._sync.refuse(outcome.hash)
        # post/info of the other dialect cannot be read here, and is no lie.
        if outcome.verdict in _LIES and (is_ours or peek_type(post) != INFO):
            self._connection.gave_invalid_posts(1, outcome.reason)

    # --- waiting -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look again at what is waited for."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _drained(self) -> None:
        """Wait until all that was offered has come and is stored, or will not come."""
        wanted = self._sync.wanted
        while not self._connection.closed.done() and (
            self._fetching or self._storing or self._filtering or self._elsewhere or wanted.waiting(self._connection)
        ):
            await self._change()

    def settled(self, digest: bytes, *, has_come: bool) -> None:
        """Go on where this post was waited for."""
        if digest in self._elsewhere:
            self._elsewhere.remove(digest)
            self._failed += not has_come
            self._changed.set()
        future = self._waiting.pop(digest, None)
        if future is not None and not future.done():
            future.set_result(None)

    def lose(self) -> None:
        """End all waiting: the peer is lost."""
        if self.task is not None:
            self.task.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
        self._changed.set()
