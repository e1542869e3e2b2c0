"""Sync with one peer: which requests it is sent, and when.

A peer that reconciles: the node waits until both stores are compared, then sends live requests for newer posts.

Any other peer: the names of its channels, then for each channel that is followed its state, its history page by page
from the newest post back, and a live request for what comes later. What the peer offers goes to its `Fetch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Final

from cablestore import limits
from cablestore.errors import CableStoreError, StoreClosedError
from cablestore.index.reader import Reader
from cablestore.peers.connection import Connection
from cablestore.peers.context import PeerContext
from cablestore.peers.fetch import Fetch
from cablestore.peers.history import Histories
from cablestore.peers.requests import CollectedAnswer, Requests
from cablestore.peers.settings import FULL_PASS_EVERY_MS
from cablestore.protocol import cable_js
from cablestore.protocol.exchange import Step
from cablestore.protocol.message import ListRequest, ModerationRequest, Request, StateRequest, TimeRangeRequest
from cablestore.store import answers
from cablestore.store.options import system_clock_ms

_CHANNELS_AT_ONCE: Final = 8
SURELY_ALL_NAMES: Final = 16_000
"""A response of fewer names has all: this many of the longest names fit into one."""
_ROUNDS: Final = 6
"""Peers are asked for their channels each round. Once in this many rounds, those that announce new ones are asked too,
and channels without live requests are polled."""
_MODERATION_TIMEOUT_S: Final = 5.0
"""cable.rs does not know this request and does not answer."""


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
        self._requests: Final = Requests(connection, fetch, context.loop)
        self._followed: set[str] = set()
        self._histories: Final = Histories(context, connection, fetch, self._requests, self._followed)
        self._turns = asyncio.Semaphore(_CHANNELS_AT_ONCE)
        self._live: set[str] = set()
        """Channels that are followed with live requests."""
        self._quiet: set[str] = set()
        """Channels that are polled: there are too many for live requests, or the peer ended them."""
        self._moderating: CollectedAnswer | None = None
        self._word = asyncio.Event()
        self._asks = False
        """Whether the peer announced new channels."""
        self._again = False
        """Whether to ask again for all that was asked."""
        self.error: CableStoreError | None = None
        """Why the store could not be read, the last time that it happened."""
        self.task: Final[asyncio.Task[None]] = context.life.run(self._run())

    # --- what is asked -------------------------------------------------------------------------

    async def _run(self) -> None:
        """Sync all channels. If the sync is live, stay for what is new."""
        try:
            if self._is_live:
                await self._wait_for_comparison()
            await self._try(self._sync_all())
            if self._is_live:
                works = [self._by_rounds(), self._when_announced(), self._when_compared(), self._in_background()]
                await self._together(works)
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
        await self._try(self._follow(asks=not self._connection.coverage.is_all))
        await self._settle()

    async def _wait_for_comparison(self) -> None:
        """Wait until a comparison covers the posts of a peer that reconciles."""
        connection = self._connection
        if self._context.settings.reconciles:
            await connection.until_known()
            if connection.is_met:
                await connection.coverage.shared(limits.COMPARISON_WAIT_S)

    async def _when_compared(self) -> None:
        """Fetch over Cable what comparisons do not cover: when none is under way any more, and after each that fails."""
        if self._connection.is_met:
            coverage = self._connection.coverage
            await coverage.rest(limits.COMPARISON_WAIT_S)
            while True:
                await self._try(self._poll_uncovered())
                await coverage.failure()

    async def _poll_uncovered(self) -> None:
        start_ms = self._histories.window_start_ms()
        left = [name for name in self._followed if not self._connection.coverage.reaches(name, start_ms)]
        await self._by_turns(self._poll, sorted(left))
        await self._settle()

    async def _in_background(self) -> None:
        """Make a full pass over what comparisons do not cover, and another one every day."""
        began_ms = system_clock_ms()
        while True:
            await asyncio.sleep(self._context.settings.list_every_s)
            if not self._connection.is_met:
                await self._try(self._histories.check(max(began_ms, system_clock_ms() - FULL_PASS_EVERY_MS)))

    async def _by_rounds(self) -> None:
        """Ask for new channels again and again."""
        for number in count(1):
            await asyncio.sleep(self._context.settings.list_every_s)
            await self._try(self._round(is_long=number % _ROUNDS == 0))

    async def _round(self, *, is_long: bool) -> None:
        coverage, has_overflowed = self._connection.coverage, self._fetch.take_overflow()
        if has_overflowed and self._connection.is_met:
            self._connection.compare_again()
        again = self._followed if has_overflowed else self._quiet if is_long else set[str]()
        await self._by_turns(self._poll, sorted(name for name in again if not coverage.has(name)))
        if is_long and self._moderating is not None and self._moderating.done.done():
            self._moderating = None  # the peer ended it; it is asked for again
        if is_long or not self._connection.is_met:  # a peer that reconciles announces new channels itself
            await self._follow(asks=True)
        await self._settle()

    async def _when_announced(self) -> None:
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
        """Ask for all channels that are followed and for moderation once more, and follow other channels."""
        await self._together([self._by_turns(self._poll, sorted(self._followed)), self._follow(asks=asks)])
        await self._moderation(sorted(self._followed))  # actions of a user who is no longer blocked
        await self._settle()

    def unfollow(self, channels: Collection[str]) -> None:
        """Ask for these channels no more, and end what was asked of them."""
        for followed in (self._followed, self._live, self._quiet):
            followed.difference_update(channels)
        self._requests.cancel(lambda request: _channel_of(request) in channels)

    def _poll_from_now_on(self, channel: str) -> None:
        """Poll a channel, a live request for which the peer ended (wire.md 6.3.2.4), and cancel the other one."""
        if channel in self._live:
            self._live.remove(channel)
            self._quiet.add(channel)
            self._requests.cancel(lambda request: request.is_live and _channel_of(request) == channel)

    async def _follow(self, *, asks: bool) -> None:
        """Follow what is not followed yet."""
        channels = await self._new_channels(asks=asks)
        self.report.channels += len(channels)
        if channels or self._moderating is None:
            await self._together([self._by_turns(self._channel, channels), self._moderation(channels)])

    async def _settle(self) -> None:
        """Store the marks of the passes when all posts are here.

        While changes keep coming there is none.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._context.settings.list_every_s if self._is_live else None):
                await self._fetch.drained()
                await self._histories.put_marks()

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
        if session.may_be_cable_js:
            names = set(filter(cable_js.handles_channel, names))  # the others when it is known to handle them
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
            answer = self._requests.ask(ListRequest(b"", offset, 0))
            await answer.done
            offset += len(answer.names)
            listed.update(answer.names)
            is_whole = len(answer.names) < SURELY_ALL_NAMES or len(listed) == known
            if is_whole or len(listed - own) >= limits.MAX_UNSEEN_CHANNELS:
                return listed
            known = len(listed)

    async def _channel(self, channel: str) -> None:
        """Request the state and history of a channel, and new posts if there is room for live requests.

        Only what is new is requested of a channel that is compared.
        """
        coverage, start_ms = self._connection.coverage, self._histories.window_start_ms()
        is_live = self._is_live and len(self._live) < limits.MAX_LIVE_CHANNELS
        if self._is_live:
            (self._live if is_live else self._quiet).add(channel)
        if coverage.has(channel) or (not self._is_live and coverage.reaches(channel, start_ms)):
            if is_live:
                self._ask_live(StateRequest(b"", channel, 1))
                self._ask_live(TimeRangeRequest(b"", channel, max(start_ms, coverage.from_ms), 0, 0))
            return
        ask = self._ask_live if is_live else self._requests.ask
        state = ask(StateRequest(b"", channel, int(is_live)))
        live_from_ms = await self._histories.fetch(channel, whole=not self._is_live)
        if channel in self._live:
            self._ask_live(TimeRangeRequest(b"", channel, live_from_ms, 0, 0))
        else:
            await state.done

    def _ask_live(self, request: StateRequest | TimeRangeRequest) -> CollectedAnswer:
        """Send a live request. If the peer ends it, its channel is polled."""
        answer = self._requests.ask(request)

        def over(done: asyncio.Future[Step]) -> None:
            if not done.cancelled() and done.result() is Step.FINISHED:
                self._poll_from_now_on(request.channel)

        answer.done.add_done_callback(over)
        return answer

    async def _poll(self, channel: str) -> None:
        """Ask for the state and history of a channel once more."""
        state = self._requests.ask(StateRequest(b"", channel, 0))
        await self._histories.fetch(channel, whole=False)
        await state.done

    async def _moderation(self, channels: list[str]) -> None:
        """Ask for the roles, actions and blocks of the whole cabal and of all channels, again for new channels."""
        if self._moderating is not None and not channels:
            return
        names = tuple(sorted(self._followed)[: limits.MAX_HASHES_PER_REQUEST])
        request = ModerationRequest(b"", names, int(self._is_live), 0)
        self._moderating = self._requests.ask(request, timeout_s=_MODERATION_TIMEOUT_S, instead_of=self._moderating)
        if not self._is_live:
            await self._moderating.done

    @property
    def has_answered(self) -> bool:
        """True if the peer answered any request."""
        return self._requests.are_answered


def _channel_of(request: Request) -> str | None:
    return request.channel if isinstance(request, TimeRangeRequest | StateRequest) else None
