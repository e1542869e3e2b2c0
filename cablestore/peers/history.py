"""Requests for the histories of channels: passes over the history at one peer, in pages, and marks of complete passes.

The first pass goes back to the start of the window. If the connection breaks, the next connection continues the pass.
Later passes go back to a *safe point*, an hour before the mark, or less if many posts are younger. A peer may learn old
posts late, so each connection also makes a full pass in the background, at a bounded rate. The pass continues where
the last connection ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from cablestore import limits
from cablestore.index.reader import Reader
from cablestore.peers.connection import Connection
from cablestore.peers.context import PeerContext
from cablestore.peers.fetch import Fetch
from cablestore.peers.paging import Paging
from cablestore.peers.requests import Requests
from cablestore.peers.settings import SYNC_OVERLAP_MS
from cablestore.peers.sync_state import SyncMark, SyncState
from cablestore.protocol.exchange import Step
from cablestore.protocol.message import TimeRangeRequest
from cablestore.store import answers
from cablestore.store.options import system_clock_ms

_LEAST_OVERLAP: Final = 16
"""Posts that are always listed again, regardless of their age, because clocks differ."""
_HASHES_OF_REQUEST: Final = 2
"""The number of hashes that are as long as a request and the end of its answer together."""


class _Pass(NamedTuple):
    """A complete pass over a channel. `full_at_ms` is None unless the pass went back to the start of the window."""

    epoch: int
    """The epoch of the marks at the start of the pass."""
    from_ms: int
    until_ms: int
    full_at_ms: int | None


class _Page(NamedTuple):
    """A page of a history: its hashes, the number of hashes received, and whether it was the last page."""

    hashes: list[bytes]
    posts: int
    is_last: bool


class Histories:
    """Passes over the channels of one peer. `followed` are the channels that the node still follows."""

    def __init__(
        self, context: PeerContext, connection: Connection, fetch: Fetch, requests: Requests, followed: Collection[str]
    ) -> None:
        self._context = context
        self._connection = connection
        self._fetch = fetch
        self._requests = requests
        self._followed = followed
        self._passed: dict[str, _Pass] = {}
        """Complete passes by channel."""

    def window_start_ms(self, channel: str) -> int:
        """Return the date from which posts of a channel are requested."""
        settings, now_ms = self._context.settings, system_clock_ms()
        dialect = self._context.dialect
        kept_from_ms = settings.keep.of(dialect).oldest_ms(dialect.channel_id(channel), now_ms)
        return kept_from_ms if settings.window_ms is None else max(kept_from_ms, now_ms - settings.window_ms)

    async def fetch(self, channel: str, *, whole: bool) -> int:
        """Fetch a channel's history: with `whole` from the start of the window, else from the last pass's safe point.

        Return the date from which a live request must list posts.
        """
        now_ms, window_ms = system_clock_ms(), self.window_start_ms(channel)
        marks = await self._context.current_marks()
        mark, epoch = marks.get(self._peer_name, channel), marks.epoch
        if mark is not None and max(mark.until_ms, mark.full_at_ms) > now_ms:
            mark = None  # the clock was wrong: a pass from this mark would miss posts
        start_ms = window_ms
        if mark is not None and not whole:
            start_ms = max(window_ms, await self._safe_ms(channel, mark.until_ms))
        is_full = mark is None or whole
        began = SyncMark(now_ms, now_ms, now_ms)
        page = Paging(start_ms, now_ms + limits.MAX_FUTURE_MS, self._page_hashes)
        found = await self._all_pages(channel, page, began if mark is None else None)
        if (
            found is not None and mark is not None and mark.from_ms > window_ms and not whole
        ):  # the last pass was interrupted
            is_full, began = True, replace(mark, until_ms=now_ms)
            rest = await self._all_pages(channel, Paging(window_ms, mark.from_ms, self._page_hashes), began)
            found = None if rest is None else found + rest
        if found or (found == 0 and mark is not None):  # a pass without posts is cheap to repeat
            self._passed[channel] = _Pass(epoch, window_ms, now_ms, began.full_at_ms if is_full else None)
        return window_ms if mark is None else max(window_ms, await self._safe_ms(channel, now_ms))

    async def check(self, since_ms: int) -> None:
        """Request the whole history of channels without a full pass since `since_ms`, at a bounded rate.

        A pass that an earlier connection began is continued to its end. Then posts since the date that the earlier
        connection had reached are requested.
        """
        marks = await self._context.current_marks()
        for channel in sorted(self._followed):
            mark = marks.get(self._peer_name, channel)
            if mark is not None and mark.full_at_ms < since_ms:
                now_ms = system_clock_ms()
                top_ms = now_ms + limits.MAX_FUTURE_MS
                is_complete = True
                for start_ms, end_ms in ((mark.from_ms, mark.back_ms), (mark.back_ms or mark.from_ms, top_ms)):
                    is_complete = is_complete and (
                        not end_ms or await self._slow_pages(channel, marks, start_ms, end_ms)
                    )
                if is_complete:
                    self._note(channel, marks, full_at_ms=now_ms, back_ms=0)

    async def put_marks(self) -> None:
        """Store the marks of the complete passes, unless an offered post did not arrive or was not stored.

        A pass counts only while its posts are stored, and while the posts that it skipped are still rejected.
        """
        passed, self._passed = self._passed, {}
        if self._fetch.take_failed() or not passed or not self._peer_name:
            return
        marks = await self._context.current_marks()
        for channel, each in passed.items():
            before = marks.get(self._peer_name, channel)
            if each.epoch != marks.epoch:
                continue
            if each.full_at_ms is not None:
                mark = SyncMark(each.from_ms, each.until_ms, each.full_at_ms)
                marks.put(self._peer_name, channel, mark)
            elif before is not None:
                marks.put(self._peer_name, channel, replace(before, from_ms=each.from_ms, until_ms=each.until_ms))

    # --- pages ---------------------------------------------------------------------------------

    async def _all_pages(self, channel: str, page: Paging, began: SyncMark | None) -> int | None:
        """Request `page` and all later pages of a channel, as long as the channel is followed.

        `began` is the mark of a pass that the next connection may continue, None for other passes. It is stored with the
        progress of the pass. Return the number of hashes received, None if the last page was not reached.
        """
        count, epoch = 0, self._context.marks.epoch
        before: list[bytes] = []
        while True:
            reached_ms = page.end_ms
            found = await self._page(channel, page)
            if found is None:
                return None
            count += found.posts
            if found.is_last:
                return count
            if began is not None:
                await self._fetch.landed(before)
                self._keep(channel, epoch, replace(began, from_ms=min(began.from_ms, reached_ms)))
            before = found.hashes

    def _keep(self, channel: str, epoch: int, mark: SyncMark) -> None:
        """Store `mark` as the progress of a pass, if all posts of the pass so far are stored."""
        marks = self._context.marks
        if self._peer_name and epoch == marks.epoch and not self._fetch.has_failed and mark.from_ms < mark.until_ms:
            marks.put(self._peer_name, channel, mark)

    async def _slow_pages(self, channel: str, marks: SyncState, start_ms: int, end_ms: int) -> bool:
        """Request the times from `start_ms` to `end_ms` in pages, with pauses, and note the progress in `marks`.

        Return False if that was interrupted.
        """
        page = Paging(start_ms, end_ms, min(limits.BACKGROUND_PAGE_HASHES, self._page_hashes))
        epoch = marks.epoch
        while (found := await self._page(channel, page)) is not None and epoch == marks.epoch:
            await asyncio.sleep((found.posts + _HASHES_OF_REQUEST) / limits.BACKGROUND_HASHES_PER_S)
            if found.is_last:
                return True
            self._note(channel, marks, back_ms=page.end_ms)
        return False

    def _note(self, channel: str, marks: SyncState, **changes: int) -> None:
        mark = marks.get(self._peer_name, channel)
        if mark is not None:
            marks.put(self._peer_name, channel, replace(mark, **changes))

    async def _page(self, channel: str, page: Paging) -> _Page | None:
        """Request a page, offer its posts to the fetch, and advance `page`. Return None if that was interrupted."""
        if channel not in self._followed:
            return None
        request = TimeRangeRequest(b"", channel, page.start_ms, page.end_ms, page.limit)
        answer = self._requests.send_request(request, is_page=bool(page.limit))
        step = await answer.done
        hashes = answer.hashes
        await self._fetch.looked_up()
        if step in (Step.LOST, Step.CANCELLED) or (step is Step.TIMED_OUT and not hashes):
            return None
        # cable.rs does not conclude answers. Other peers may stop in the middle of an answer: request the rest.
        is_last = (step is not Step.TIMED_OUT or page.is_repeated(hashes)) and page.is_last(len(hashes))
        if not is_last:
            ends_ms = await self._ends_ms(hashes)
            await self._fetch.has_room()
            page.turn(hashes, *ends_ms, self._page_hashes)
        return _Page(hashes, answer.exchange.received, is_last)

    async def _ends_ms(self, hashes: Sequence[bytes]) -> tuple[int | None, int | None]:
        """Return the times of the first and of the last post whose time is known, both None if no time is known."""
        first_ms, last_ms = await self._times((hashes[0], hashes[-1]))
        if first_ms is None or last_ms is None:
            known = [time_ms for time_ms in await self._times(hashes) if time_ms is not None]
            first_ms, last_ms = (known[0], known[-1]) if known else (None, None)
        return first_ms, last_ms

    async def _times(self, hashes: Sequence[bytes]) -> list[int | None]:
        """Wait for those of the posts that are in transit. Return the time of each post, None if it is unknown."""
        await self._fetch.landed(hashes)

        def times(reader: Reader) -> list[int | None]:
            return [answers.time_of(reader, digest) for digest in hashes]

        return await self._context.reads.call(times)

    async def _safe_ms(self, channel: str, known_ms: int) -> int:
        """Return the safe point of a channel whose posts were all known at `known_ms`."""
        return await self._context.reads.call(partial(safe_point_ms, channel=channel, known_ms=known_ms))

    @property
    def _page_hashes(self) -> int:
        return min(self._fetch.page_hashes, self._context.settings.page_hashes)

    @property
    def _peer_name(self) -> str:
        static = self._connection.remote_static
        if static is not None:
            return static.hex()
        return str(self._connection.dialed) if self._connection.dialed else ""


def safe_point_ms(reader: Reader, channel: str, known_ms: int) -> int:
    """Return the date from which to list the posts of a channel again, if all were known at `known_ms`.

    It is an hour or `_LEAST_OVERLAP` posts earlier, whichever is more, but at most `limits.MAX_OVERLAP_POSTS` posts.
    """
    hashes = answers.channel_time_range(reader, channel, 0, known_ms, limits.MAX_OVERLAP_POSTS)
    dates = [answers.time_of(reader, digest) or 0 for digest in hashes]
    few_ms = dates[_LEAST_OVERLAP - 1] if len(dates) >= _LEAST_OVERLAP else 0
    most_ms = dates[-1] if len(dates) == limits.MAX_OVERLAP_POSTS else 0
    return max(min(known_ms - SYNC_OVERLAP_MS, few_ms), most_ms)
