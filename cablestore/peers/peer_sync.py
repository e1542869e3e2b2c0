"""Sync with one peer: its requests, and when they are sent.

For a peer that reconciles, the node waits until both stores are compared. Then it sends live requests for newer posts.

From any other peer, the node requests the list of channels. For each followed channel, it requests the state and the
history, in pages from the newest post back. A live request follows later posts. A `Fetch` requests the offered posts.
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
"""A response with fewer names is complete: this many of the longest names fit into one response."""
_ROUNDS: Final = 6
"""Each round, channel lists are requested from peers that do not announce new channels. After this many rounds, they are
requested from all peers, and channels without live requests are polled.
"""
_MODERATION_TIMEOUT_S: Final = 5.0
"""Timeout of a moderation request. cable.rs does not know this request and does not answer."""


def own_channels(reader: Reader) -> list[str]:
    """Return the names of the store's channels."""
    return list(answers.channel_list(reader))


@asynccontextmanager
async def _tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a task group that raises its first error itself, not in an ExceptionGroup: callers catch it by type."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


class PeerSync:
    """The sync with one peer, which starts immediately. `fetch` requests the offered posts."""

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
        """Channels that are polled, because the live requests are used up or the peer ended them."""
        self._moderating: CollectedAnswer | None = None
        self._word = asyncio.Event()
        self._requests_channels = False
        """True if the names of the peer's channels must be requested."""
        self._again = False
        """True if all followed channels must be requested again."""
        self.error: CableStoreError | None = None
        """The last error of reading the store, None without one."""
        self.task: Final[asyncio.Task[None]] = context.life.run(self._run())

    # --- requests ------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Sync all channels. A live sync then follows new posts."""
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
        """Run `work`, and log an error of reading the store. The next round repeats the requests that failed."""
        try:
            await work
        except StoreClosedError:
            raise
        except CableStoreError as error:
            self._raise_or_log(error)

    def _raise_or_log(self, error: CableStoreError) -> None:
        self.error = error
        if self._is_live:
            self._context.log.error("cannot sync", extra={"peer": self._connection.name, "reason": str(error)})

    async def _sync_all(self) -> None:
        """Fetch all channels once. Posts of readable channels are fetched even if other channels fail."""
        await self._try(self._follow(requests_channels=not self._connection.coverage.is_all))
        await self._settle()

    async def _wait_for_comparison(self) -> None:
        """If the peer reconciles, wait until both sides have read the compared state, or a comparison fails."""
        connection = self._connection
        if self._context.settings.reconciles:
            await connection.until_known()
            if connection.is_met:
                await connection.coverage.shared(limits.COMPARISON_WAIT_S)

    async def _when_compared(self) -> None:
        """Request posts that comparisons do not cover, after the first comparisons and after each failed comparison."""
        if self._connection.is_met:
            coverage = self._connection.coverage
            await coverage.rest(limits.COMPARISON_WAIT_S)
            while True:
                await self._try(self._poll_uncovered())
                await coverage.failure()

    async def _poll_uncovered(self) -> None:
        start_ms_of, coverage = self._histories.window_start_ms, self._connection.coverage
        left = [name for name in self._followed if not coverage.reaches(name, start_ms_of(name))]
        await self._by_turns(self._poll, sorted(left))
        await self._settle()

    async def _in_background(self) -> None:
        """At a peer that does not reconcile, run a full pass over all followed channels, and repeat it every day."""
        began_ms = system_clock_ms()
        while True:
            await asyncio.sleep(self._context.settings.list_every_s)
            if not self._connection.is_met:
                await self._try(self._histories.check(max(began_ms, system_clock_ms() - FULL_PASS_EVERY_MS)))

    async def _by_rounds(self) -> None:
        """At intervals, request new channels, and poll the channels without live requests."""
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
            self._moderating = None  # the peer ended it; request it again
        if is_long or not self._connection.is_met:  # a peer that reconciles announces new channels
            await self._follow(requests_channels=True)
        await self._settle()

    async def _when_announced(self) -> None:
        """Follow new channels as soon as they are announced."""
        async with _tasks() as group:
            while True:
                await self._word.wait()
                self._word.clear()
                requests_channels, self._requests_channels = self._requests_channels, False
                again, self._again = self._again, False
                work = (
                    self._request_again(requests_channels=requests_channels)
                    if again
                    else self._follow(requests_channels=requests_channels)
                )
                group.create_task(self._try(work))
                if requests_channels:
                    await asyncio.sleep(limits.CHANNELS_REQUESTED_EVERY_S)

    def check(self, *, requests_channels: bool, again: bool = False) -> None:
        """Look for new channels in the store, and with `requests_channels` also at the peer.

        With `again`, request the state and history of all other channels again.
        """
        self._requests_channels |= requests_channels
        self._again |= again
        self._word.set()

    async def _request_again(self, *, requests_channels: bool) -> None:
        """Request all followed channels and moderation again, and follow new channels."""
        await self._together(
            [self._by_turns(self._poll, sorted(self._followed)), self._follow(requests_channels=requests_channels)]
        )
        await self._moderation(sorted(self._followed))  # it may now return actions of a user who is no longer blocked
        await self._settle()

    def unfollow(self, channels: Collection[str]) -> None:
        """Stop following these channels, and cancel their requests."""
        for followed in (self._followed, self._live, self._quiet):
            followed.difference_update(channels)
        self._requests.cancel(lambda request: _channel_of(request) in channels)

    def _poll_from_now_on(self, channel: str) -> None:
        """Poll a channel after the peer ended one of its live requests (wire.md 6.3.2.4), and cancel the other request."""
        if channel in self._live:
            self._live.remove(channel)
            self._quiet.add(channel)
            self._requests.cancel(lambda request: request.is_live and _channel_of(request) == channel)

    async def _follow(self, *, requests_channels: bool) -> None:
        """Follow channels that are not followed yet."""
        channels = await self._new_channels(requests_channels=requests_channels)
        self.report.channels += len(channels)
        if channels or self._moderating is None:
            await self._together([self._by_turns(self._channel, channels), self._moderation(channels)])

    async def _settle(self) -> None:
        """Store the marks of the passes when all posts are stored.

        A live sync does not store marks while changes keep arriving.
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
        """Run the work for each channel that is still followed when its turn comes.

        A peer limits the number of open requests, and a task for each channel would use memory. A channel whose data in
        the store cannot be read is unfollowed, so that it is new in the next round. The other channels continue, then
        the first error is raised.
        """
        left = iter(channels)
        errors: list[CableStoreError] = []

        async def take_turns() -> None:
            for channel in left:
                async with self._turns:
                    if channel not in self._followed:  # it was dropped meanwhile
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

    async def _new_channels(self, *, requests_channels: bool) -> list[str]:
        """Return new channels to follow: from the store, and with `requests_channels` also from the peer.

        A peer may invent names, so the number of channels without a post in the store is limited.
        """
        session, channel_id = self._connection.session, self._context.dialect.channel_id
        chosen = self._context.settings.channels
        own = set(map(channel_id, await self._context.reads.call(own_channels) if chosen is None else chosen))
        listed = await self._listed(own) if requests_channels else set[str]()
        session.reads_everything |= any(map(cable_js.is_too_long, listed))
        if self._is_live and not session.is_recognised:
            return []  # the peer has not sent a message; channels are requested after its first one
        names = own if chosen is not None else own | set(map(channel_id, listed))
        if session.may_be_cable_js:
            names = set(
                filter(cable_js.handles_channel, names)
            )  # the others follow when the peer is known to handle them
        names = names - self._followed - self._context.restrictions.now.channels
        room = max(0, limits.MAX_UNSEEN_CHANNELS - len(self._followed - own))
        found = sorted(names & own) + sorted(names - own)[:room]
        self._followed.update(found)
        return found

    async def _listed(self, own: set[str]) -> set[str]:
        """Request and return the names of the peer's channels. After a long response, request further names by offset.

        Stop when `limits.MAX_UNSEEN_CHANNELS` names are not in `own`.
        """
        listed: set[str] = set()
        offset = known = 0
        while True:
            answer = self._requests.send_request(ListRequest(b"", offset, 0))
            await answer.done
            offset += len(answer.names)
            listed.update(answer.names)
            is_complete = len(answer.names) < SURELY_ALL_NAMES or len(listed) == known
            if is_complete or len(listed - own) >= limits.MAX_UNSEEN_CHANNELS:
                return listed
            known = len(listed)

    async def _channel(self, channel: str) -> None:
        """Request the state and history of a channel, and new posts if live requests are left.

        For a compared channel, only new posts are requested.
        """
        coverage, start_ms = self._connection.coverage, self._histories.window_start_ms(channel)
        is_live = self._is_live and len(self._live) < limits.MAX_LIVE_CHANNELS
        if self._is_live:
            (self._live if is_live else self._quiet).add(channel)
        if coverage.has(channel) or (not self._is_live and coverage.reaches(channel, start_ms)):
            if is_live:
                self._request_live(StateRequest(b"", channel, 1))
                self._request_live(TimeRangeRequest(b"", channel, max(start_ms, coverage.from_ms), 0, 0))
            return
        ask = self._request_live if is_live else self._requests.send_request
        state = ask(StateRequest(b"", channel, int(is_live)))
        live_from_ms = await self._histories.fetch(channel, whole=not self._is_live)
        if channel in self._live:
            self._request_live(TimeRangeRequest(b"", channel, live_from_ms, 0, 0))
        else:
            await state.done

    def _request_live(self, request: StateRequest | TimeRangeRequest) -> CollectedAnswer:
        """Send a live request. If the peer ends it, poll the channel from then on."""
        answer = self._requests.send_request(request)

        def over(done: asyncio.Future[Step]) -> None:
            if not done.cancelled() and done.result() is Step.FINISHED:
                self._poll_from_now_on(request.channel)

        answer.done.add_done_callback(over)
        return answer

    async def _poll(self, channel: str) -> None:
        """Request the state and history of a channel again."""
        state = self._requests.send_request(StateRequest(b"", channel, 0))
        await self._histories.fetch(channel, whole=False)
        await state.done

    async def _moderation(self, channels: list[str]) -> None:
        """Request the roles, actions and blocks of the cabal and of all followed channels.

        `channels` are new channels. Without them, nothing is requested if an earlier request exists.
        """
        if self._moderating is not None and not channels:
            return
        names = tuple(sorted(self._followed)[: limits.MAX_HASHES_PER_REQUEST])
        request = ModerationRequest(b"", names, int(self._is_live), 0)
        self._moderating = self._requests.send_request(
            request, timeout_s=_MODERATION_TIMEOUT_S, instead_of=self._moderating
        )
        if not self._is_live:
            await self._moderating.done

    @property
    def has_answered(self) -> bool:
        """True if the peer answered any request."""
        return self._requests.are_answered


def _channel_of(request: Request) -> str | None:
    return request.channel if isinstance(request, TimeRangeRequest | StateRequest) else None
