"""Sync with one peer: which requests it is sent, and when.

First the names of its channels. Then, for each channel that is followed: its state, its history page by page from the
newest post back, and a live request for what comes later. What the peer offers goes to its `Fetch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from cablestore import limits
from cablestore.errors import CableStoreError, StoreClosedError
from cablestore.index.reader import Reader
from cablestore.peers.connection import Connection
from cablestore.peers.context import PeerContext
from cablestore.peers.fetch import Fetch
from cablestore.peers.paging import Paging
from cablestore.peers.settings import FULL_PASS_EVERY_MS, SYNC_OVERLAP_MS
from cablestore.peers.sync_state import SyncMark
from cablestore.protocol import cable_js
from cablestore.protocol.exchange import Concluded, Exchange, Hashes, Names, ResponseEvent, Step
from cablestore.protocol.message import ListRequest, ModerationRequest, Request, StateRequest, TimeRangeRequest
from cablestore.store import answers
from cablestore.store.store import system_clock_ms

_CHANNELS_AT_ONCE: Final = 8
SURELY_ALL_NAMES: Final = 16_000
"""A response of fewer names has all: this many of the longest names fit into one."""
_ROUNDS: Final = 6
"""Peers are asked for their channels each round. Once in this many rounds, those that announce new ones are asked too,
and channels without live requests are polled."""
_MODERATION_TIMEOUT_S: Final = 5.0
"""cable.rs does not know this request and does not answer."""


@dataclass(slots=True, eq=False)
class CollectedAnswer:
    """Answer to a request: hashes or names, and its end."""

    exchange: Exchange
    done: asyncio.Future[Step]
    """Done when nothing more comes."""
    is_page: bool
    """Whether hashes are collected too, because the next page depends on them."""
    hashes: list[bytes] = field(default_factory=list)
    names: tuple[str, ...] = ()


def own_channels(reader: Reader) -> list[str]:
    """Return the names of the channels that the store has."""
    return list(answers.channel_list(reader))


@asynccontextmanager
async def _tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """Give a group of tasks that raises the first error itself, not in a group: who catches errors knows their types."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


class PeerSync:
    """The syncing of one peer, which starts at once. What the peer offers goes to `fetch`."""

    def __init__(self, context: PeerContext, connection: Connection, fetch: Fetch, *, is_live: bool) -> None:
        self._context = context
        self._connection = connection
        self._fetch = fetch
        self._is_live = is_live
        self.report: Final = fetch.report
        self._answers: Final[dict[Exchange, CollectedAnswer]] = {}
        self._followed: set[str] = set()
        self._turns = asyncio.Semaphore(_CHANNELS_AT_ONCE)
        self._live: set[str] = set()
        """Channels that are followed with live requests."""
        self._quiet: set[str] = set()
        """Channels that are polled: there are too many for live requests, or the peer ended them."""
        self._passed: dict[str, tuple[int, SyncMark]] = {}
        """Marks of complete passes by channel, with the epoch in which each pass began."""
        self._moderating: CollectedAnswer | None = None
        self._word = asyncio.Event()
        self._asks = False
        """Whether the peer announced new channels."""
        self._again = False
        """Whether to ask again for all that was asked."""
        self.has_answered = False
        """Whether the peer answered any request."""
        self.error: CableStoreError | None = None
        """Why the store could not be read, the last time that it happened."""
        self.task: Final[asyncio.Task[None]] = context.run(self._run())

    # --- what is asked -------------------------------------------------------------------------

    async def _run(self) -> None:
        """Sync all channels. If the sync is live, stay for what is new."""
        try:
            await self._try(self._sync_all())
            if self._is_live:
                await self._together([self._by_rounds(), self._when_told()])
        except StoreClosedError as error:
            self.error = error

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work of one round. What fails because the store cannot be read is asked for in the next round."""
        try:
            await work
        except StoreClosedError:
            raise
        except CableStoreError as error:
            self._take_error(error)

    def _take_error(self, error: CableStoreError) -> None:
        self.error = error
        if self._is_live:
            self._context.log.error("cannot sync", extra={"peer": self._connection.name, "reason": str(error)})

    async def _sync_all(self) -> None:
        """Fetch all once. Posts of channels that could be read still come if others could not."""
        await self._try(self._follow(asks=True))
        await self._settle()

    async def _by_rounds(self) -> None:
        """Ask for new channels again and again."""
        for number in count(1):
            await asyncio.sleep(self._context.settings.list_every_s)
            await self._try(self._round(is_long=number % _ROUNDS == 0))

    async def _round(self, *, is_long: bool) -> None:
        again = self._followed if self._fetch.take_overflow() else self._quiet if is_long else set[str]()
        await self._by_turns(self._poll, sorted(again))
        if is_long and self._moderating is not None and self._moderating.done.done():
            self._moderating = None  # the peer ended it; it is asked for again
        if is_long or not self._connection.is_met:  # a peer that reconciles announces new channels itself
            await self._follow(asks=True)
        await self._settle()

    async def _when_told(self) -> None:
        """Follow new channels as soon as they are announced."""
        async with _tasks() as group:
            while True:
                await self._word.wait()
                self._word.clear()
                asks, self._asks = self._asks, False
                again, self._again = self._again, False
                work = self._ask_again(asks=asks) if again else self._follow(asks=asks)
                group.create_task(self._try(work))
                if asks:
                    await asyncio.sleep(limits.CHANNELS_ASKED_EVERY_S)

    def look(self, *, asks: bool, again: bool = False) -> None:
        """Look for new channels among those of the store, and if `asks` among those of the peer.

        With `again`, ask for the state and history of all others once more.
        """
        self._asks |= asks
        self._again |= again
        self._word.set()

    async def _ask_again(self, *, asks: bool) -> None:
        """Ask for all channels that are followed once more, and follow others."""
        await self._together([self._by_turns(self._poll, sorted(self._followed)), self._follow(asks=asks)])
        await self._settle()

    def unfollow(self, channels: Collection[str]) -> None:
        """Ask for these channels no more, and end what was asked of them."""
        for followed in (self._followed, self._live, self._quiet):
            followed.difference_update(channels)
        self._cancel(lambda request: request.channel in channels)

    def _cancel(self, is_unwanted: Callable[[TimeRangeRequest | StateRequest], bool]) -> None:
        for exchange, answer in list(self._answers.items()):
            request = exchange.request
            if isinstance(request, TimeRangeRequest | StateRequest) and is_unwanted(request):
                self._connection.session.cancel(exchange)
                if self._answers.pop(exchange, None) is not None and not answer.done.done():
                    answer.done.set_result(Step.CANCELLED)
        self._connection.flush()

    def _poll_from_now_on(self, channel: str) -> None:
        """Poll a channel, a live request for which the peer ended (wire.md 6.3.2.4), and cancel the other one."""
        if channel in self._live:
            self._live.remove(channel)
            self._quiet.add(channel)
            self._cancel(lambda request: request.is_live and request.channel == channel)

    async def _follow(self, *, asks: bool) -> None:
        """Follow what is not followed yet."""
        channels = await self._new_channels(asks=asks)
        self.report.channels += len(channels)
        if channels or self._moderating is None:
            await self._together([self._by_turns(self._channel, channels), self._moderation(channels)])

    async def _settle(self) -> None:
        """Store the marks of the passes when all posts are here.

        If news come without a break there is no such moment.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._context.settings.list_every_s if self._is_live else None):
                await self._fetch.drained()
                await self._put_marks()

    async def _together(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        async with _tasks() as group:
            for work in works:
                group.create_task(work)

    async def _by_turns(self, work: Callable[[str], Coroutine[Any, Any, None]], channels: Iterable[str]) -> None:
        """Do the work for each channel that is still followed when its turn comes.

        A peer allows a number of requests at a time, and a task for each channel would take memory. A channel for which
        the store cannot be read is followed no more, so that it is new in the next round; the others go on. Then the
        first error is raised.
        """
        left = iter(channels)
        errors: list[CableStoreError] = []

        async def take_turns() -> None:
            for channel in left:
                async with self._turns:
                    if channel not in self._followed:  # it was dropped by now
                        continue
                    try:
                        await work(channel)
                    except StoreClosedError:
                        raise
                    except CableStoreError as error:
                        self.unfollow([channel])
                        errors.append(error)

        await self._together(take_turns() for _ in range(_CHANNELS_AT_ONCE))
        if errors:
            raise errors[0]

    async def _new_channels(self, *, asks: bool) -> list[str]:
        """Return the channels to follow that are not followed yet: the store's, and if `asks` the peer's.

        A peer may invent names, so those of which the store has no post are limited.
        """
        session, channel_id = self._connection.session, self._context.dialect.channel_id
        chosen = self._context.settings.channels
        own = set(map(channel_id, await self._context.reads.call(own_channels) if chosen is None else chosen))
        listed = await self._listed(own) if asks else set[str]()
        session.reads_everything |= any(map(cable_js.is_too_long, listed))
        if self._is_live and not session.is_recognised:
            return []  # the peer has not said a word; it is asked for channels when it does
        names = own if chosen is not None else own | set(map(channel_id, listed))
        if session.is_spared:
            names = set(filter(cable_js.bears_channel, names))  # the others when it is known to bear them
        names = names - self._followed - self._context.restrictions.now.channels
        room = max(0, limits.MAX_UNSEEN_CHANNELS - len(self._followed - own))
        found = sorted(names & own) + sorted(names - own)[:room]
        self._followed.update(found)
        return found

    async def _listed(self, own: set[str]) -> set[str]:
        """Ask for the names of the peer's channels, by offset as long as a response may lack some and brings others."""
        listed: set[str] = set()
        offset = known = 0
        while True:
            answer = self._ask(ListRequest(b"", offset, 0))
            await answer.done
            offset += len(answer.names)
            listed.update(answer.names)
            is_whole = len(answer.names) < SURELY_ALL_NAMES or len(listed) == known
            if is_whole or len(listed - own) >= limits.MAX_UNSEEN_CHANNELS:
                return listed
            known = len(listed)

    async def _channel(self, channel: str) -> None:
        """Ask for the state and history of a channel, and for what is new if there is room for live requests."""
        is_live = self._is_live and len(self._live) < limits.MAX_LIVE_CHANNELS
        if self._is_live:
            (self._live if is_live else self._quiet).add(channel)
        state = self._ask(StateRequest(b"", channel, int(is_live)))
        await self._history(channel)
        if channel in self._live:
            self._ask(TimeRangeRequest(b"", channel, self._window_start_ms(), 0, 0))
        else:
            await state.done

    async def _poll(self, channel: str) -> None:
        """Ask for the state and history of a channel once more."""
        state = self._ask(StateRequest(b"", channel, 0))
        await self._history(channel)
        await state.done

    async def _moderation(self, channels: list[str]) -> None:
        """Ask for the roles, actions and blocks of the whole cabal and of all channels, again for new channels."""
        if self._moderating is not None:
            if not channels:
                return
            self._connection.session.cancel(self._moderating.exchange)
            self._answers.pop(self._moderating.exchange, None)
        names = tuple(sorted(self._followed)[: limits.MAX_HASHES_PER_REQUEST])
        request = ModerationRequest(b"", names, int(self._is_live), 0)
        self._moderating = self._ask(request, timeout_s=_MODERATION_TIMEOUT_S)
        if not self._is_live:
            await self._moderating.done

    def _ask(self, request: Request, *, is_page: bool = False, timeout_s: float | None = None) -> CollectedAnswer:
        exchange = self._connection.ask(request, timeout_s)
        answer = self._answers[exchange] = CollectedAnswer(exchange, self._context.loop.create_future(), is_page)
        return answer

    def take(self, event: ResponseEvent) -> None:
        """Take a part of the answer to a request, or its end."""
        self.has_answered |= not (isinstance(event, Concluded) and event.step is Step.TIMED_OUT)
        answer = self._answers.get(event.exchange)
        if answer is None:
            self._fetch.take(event)
            return
        match event:
            case Hashes(_, hashes):
                self._fetch.offer_soon(hashes)
                if answer.is_page:
                    answer.hashes += hashes
            case Names(_, names):
                answer.names = names
            case Concluded(exchange, step):
                del self._answers[exchange]
                if not answer.done.done():
                    answer.done.set_result(step)
                request = exchange.request
                if step is Step.FINISHED and isinstance(request, TimeRangeRequest | StateRequest) and request.is_live:
                    self._poll_from_now_on(request.channel)

    def _window_start_ms(self) -> int:
        window_ms = self._context.settings.window_ms
        return 0 if window_ms is None else max(0, system_clock_ms() - window_ms)

    # --- history -------------------------------------------------------------------------------

    async def _history(self, channel: str) -> None:
        """Fetch a channel's history, from where the last pass ended or from the start of the window."""
        now_ms = system_clock_ms()
        window_ms, marks = self._window_start_ms(), await self._context.current_marks()
        mark, epoch = marks.get(self._peer_name(), channel), marks.epoch
        if mark is not None and max(mark.until_ms, mark.full_at_ms) > now_ms:
            mark = None  # the clock was wrong: no pass would reach back to what is written until then
        is_full = mark is None or mark.from_ms > window_ms or now_ms - mark.full_at_ms > FULL_PASS_EVERY_MS
        start_ms = window_ms if mark is None or is_full else max(window_ms, mark.until_ms - SYNC_OVERLAP_MS)
        count = await self._pages(channel, start_ms, now_ms + limits.MAX_FUTURE_MS)
        is_worth_a_mark = bool(count) or (
            count == 0 and mark is not None
        )  # one that brought nothing costs little again
        if is_worth_a_mark and self._peer_name():
            full_at_ms = now_ms if mark is None or is_full else mark.full_at_ms
            self._passed[channel] = epoch, SyncMark(window_ms, now_ms, full_at_ms)

    async def _put_marks(self) -> None:
        """Store the marks of the complete passes, unless an offered post did not come or was not stored.

        A pass counts only if its posts are still here, and if what it did not ask for is still refused.
        """
        passed, self._passed = self._passed, {}
        if not self._fetch.take_failed() and passed:
            marks = await self._context.current_marks()
            for channel, (epoch, mark) in passed.items():
                if epoch == marks.epoch:
                    marks.put(self._peer_name(), channel, mark)

    async def _pages(self, channel: str, start_ms: int, end_ms: int) -> int | None:
        """Ask for page after page, until the channel is dropped.

        Returns how many hashes came, None if the last page was not reached.
        """
        page = Paging(start_ms, end_ms, self._page_hashes)
        count = 0
        while channel in self._followed:
            request = TimeRangeRequest(b"", channel, page.start_ms, page.end_ms, page.limit)
            answer = self._ask(request, is_page=bool(page.limit))
            step = await answer.done
            hashes = answer.hashes
            count += answer.exchange.received
            await self._fetch.looked_up()
            if step in (Step.LOST, Step.CANCELLED) or (step is Step.TIMED_OUT and not hashes):
                return None
            # cable.rs concludes nothing. Others may break off in the middle, so the rest is asked for.
            if (step is not Step.TIMED_OUT or page.is_repeated(hashes)) and page.is_last(len(hashes)):
                return count
            ends_ms = await self._ends_ms(hashes)
            await self._fetch.has_room()
            page.turn(hashes, *ends_ms, self._page_hashes)
        return None

    @property
    def _page_hashes(self) -> int:
        """How many hashes the next page has."""
        return min(self._fetch.page_hashes, self._context.settings.page_hashes)

    async def _ends_ms(self, hashes: Sequence[bytes]) -> tuple[int | None, int | None]:
        """Return the times of the first and the last post of a page whose times are known."""
        first_ms, last_ms = await self._times((hashes[0], hashes[-1]))
        if first_ms is None or last_ms is None:
            known = [time_ms for time_ms in await self._times(hashes) if time_ms is not None]
            first_ms, last_ms = (known[0], known[-1]) if known else (None, None)
        return first_ms, last_ms

    async def _times(self, hashes: Sequence[bytes]) -> list[int | None]:
        """Return the times of posts, after those that are on their way are stored."""
        await self._fetch.landed(hashes)

        def times(reader: Reader) -> list[int | None]:
            return [answers.time_of(reader, digest) for digest in hashes]

        return await self._context.reads.call(times)

    def _peer_name(self) -> str:
        static = self._connection.remote_static
        if static is not None:
            return static.hex()
        return str(self._connection.dialed) if self._connection.dialed else ""
