"""Histories: which times a pass requests at a peer that does not reconcile, and which mark it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from by_hand import CABAL_KEY, ByHand, listening, on_loop
from peering import soon, until
from people import ANN, START_MS

from cablestore import Post, limits
from cablestore.peers import Node
from cablestore.peers.connection import Connection
from cablestore.peers.fetch import Fetch
from cablestore.peers.history import Histories
from cablestore.peers.requests import Requests
from cablestore.peers.sync_state import SyncMark
from cablestore.protocol.message import HashResponse, TimeRangeRequest
from cablestore.store.options import system_clock_ms

HOUR_MS = 3_600_000
TEXTS = [ANN.text("default", f"{number}", at=START_MS + number * HOUR_MS) for number in range(20)]
SAFE_MS = TEXTS[4].timestamp_ms
"""The safe point of any later time: the last 16 posts are listed again."""


class Passes(NamedTuple):
    """A node with `TEXTS`, a peer, and the histories of the peer."""

    node: Node
    peer: ByHand
    link: Connection
    fetch: Fetch
    requests: Requests
    histories: Histories
    followed: set[str]

    async def page(self, posts: Iterable[Post] = (), *, ends: bool = True) -> tuple[int, int, int]:
        """Answer the next request for a history. Return its times and its limit."""
        while not isinstance(request := await self.peer.receive(), TimeRangeRequest):
            assert request is not None
        hashes = tuple(post.hash for post in posts)
        if hashes:
            self.peer.send(HashResponse(request.request_id, hashes))
        if ends:
            self.peer.send(HashResponse(request.request_id, ()))
        return request.time_start_ms, request.time_end_ms, request.limit

    async def stops(self, hashes: int) -> None:
        """Let the answers time out after this many hashes."""
        await until(lambda: any(len(answer.hashes) == hashes for answer in self.requests.open.values()))
        await soon(self.fetch.looked_up())
        self.link.expire(asyncio.get_running_loop().time() + 10_000)

    def begin(self, *, whole: bool = False) -> asyncio.Task[int]:
        return asyncio.create_task(self.histories.fetch("default", whole=whole))

    @property
    def _name(self) -> str:
        assert self.link.remote_static is not None
        return self.link.remote_static.hex()

    @property
    def mark(self) -> SyncMark | None:
        return self.node.parts.context.marks.get(self._name, "default")

    @mark.setter
    def mark(self, mark: SyncMark) -> None:
        self.node.parts.context.marks.put(self._name, "default", mark)


@asynccontextmanager
async def passes(**settings: Any) -> AsyncIterator[Passes]:
    async with listening(TEXTS, cabal_key=CABAL_KEY, **settings) as (node, address):
        peer = await ByHand.connect(address, cabal_key=CABAL_KEY)
        await until(lambda: node.connections)
        link = await peer.known_to(node)
        fetch = node.parts.sync.fetches.begin(link)
        requests, followed = Requests(link, fetch, asyncio.get_running_loop()), {"default"}
        await node.parts.context.current_marks()  # marks of the test are of this state
        yield Passes(
            node,
            peer,
            link,
            fetch,
            requests,
            Histories(node.parts.context, link, fetch, requests, followed),
            followed,
        )
        await peer.close()  # a node that stops waits for the end of an encrypted connection


@on_loop
async def test_the_first_pass_is_full_and_later_ones_begin_at_the_safe_point() -> None:
    async with passes() as here:
        began_ms = system_clock_ms()
        task = here.begin()
        start_ms, end_ms, limit = await here.page(TEXTS[:1])
        assert (start_ms, limit) == (0, limits.PAGE_HASHES_LEAST)
        assert 0 <= end_ms - began_ms - limits.MAX_FUTURE_MS < HOUR_MS
        assert await soon(task) == 0
        before = here.mark
        await here.histories.put_marks()
        first = here.mark
        assert before is None
        assert first == SyncMark(0, end_ms - limits.MAX_FUTURE_MS, end_ms - limits.MAX_FUTURE_MS)
        here.mark = changed = SyncMark(0, first.until_ms, 1)
        await here.histories.put_marks()  # a pass is noted once
        assert here.mark == changed
        await asyncio.sleep(0.002)
        task = here.begin()
        start_ms, end_ms, _ = await here.page()
        assert start_ms == SAFE_MS
        assert await soon(task) == SAFE_MS
        await here.histories.put_marks()
        later_ms = end_ms - limits.MAX_FUTURE_MS
        assert here.mark == SyncMark(0, later_ms, 1)
        assert later_ms > first.until_ms
        task = here.begin(whole=True)
        start_ms, end_ms, _ = await here.page()
        assert start_ms == 0
        assert await soon(task) == SAFE_MS
        await here.histories.put_marks()
        assert here.mark == SyncMark(0, *[end_ms - limits.MAX_FUTURE_MS] * 2)


@on_loop
async def test_an_empty_first_pass_leaves_no_mark_and_a_mark_of_the_future_is_ignored() -> None:
    async with passes() as here:
        future_ms = system_clock_ms() + HOUR_MS
        for mark in (None, SyncMark(0, future_ms, 1), SyncMark(0, 1, future_ms)):
            if mark is not None:
                here.mark = mark
            task = here.begin()
            assert (await here.page())[0] == 0
            assert await soon(task) == 0
            await here.histories.put_marks()
            assert here.mark == mark


@on_loop
async def test_a_window_limits_a_pass_and_the_live_request_after_it() -> None:
    async with passes(window_ms=HOUR_MS) as here:
        task = here.begin()
        start_ms, end_ms, _ = await here.page(TEXTS[:1])
        assert end_ms - start_ms - limits.MAX_FUTURE_MS in range(HOUR_MS - 1_000, HOUR_MS + 1_000)
        assert await soon(task) == start_ms
        await here.histories.put_marks()
        assert here.mark is not None
        assert here.mark.from_ms == start_ms
        task = here.begin()
        assert (await here.page())[0] in range(start_ms, start_ms + 60_000)  # not at the earlier safe point
        assert await soon(task) >= start_ms


@on_loop
async def test_an_interrupted_pass_is_continued_to_its_start() -> None:
    async with passes() as here:
        here.mark = SyncMark(START_MS + 7, START_MS + 30 * HOUR_MS, START_MS + 1, back_ms=START_MS + 8)
        task = here.begin()
        start_ms, end_ms, _ = await here.page()
        assert start_ms == SAFE_MS
        assert (await here.page())[:2] == (0, START_MS + 7)
        assert await soon(task) == SAFE_MS
        await here.histories.put_marks()
        assert here.mark == SyncMark(0, end_ms - limits.MAX_FUTURE_MS, START_MS + 1)
        here.mark = SyncMark(START_MS + 7, START_MS + 30 * HOUR_MS, START_MS + 1)
        task = here.begin(whole=True)
        assert (await here.page())[0] == 0  # no second request
        await soon(task)


@on_loop
async def test_a_cancelled_or_failed_pass_leaves_no_mark() -> None:
    async with passes() as here:
        task = here.begin()
        await here.page(TEXTS[:1], ends=False)
        await until(lambda: any(answer.hashes for answer in here.requests.open.values()))
        here.requests.cancel(lambda _: True)
        await soon(task)
        await here.histories.put_marks()
        assert here.mark is None
        task = here.begin()
        await here.page(ends=False)
        here.link.expire(asyncio.get_running_loop().time() + 10_000)  # not a single hash arrived
        await soon(task)
        await here.histories.put_marks()
        assert here.mark is None
        here.followed.clear()
        assert await soon(here.begin()) == 0  # nothing is requested
        here.followed.add("default")
        task = here.begin()
        await here.page(TEXTS[:1])
        await soon(task)
        here.node.parts.context.marks.clear()  # the store lost posts
        await here.histories.put_marks()
        assert here.mark is None


@on_loop
async def test_the_rest_of_an_answer_that_stops_is_requested() -> None:
    async with passes() as here:
        task = here.begin()
        for number in (9, 5, 5):
            await here.page(reversed(TEXTS[number : number + 5]), ends=False)
            await here.stops(5)
        assert await soon(task) == 0
        await here.histories.put_marks()
        assert here.mark is not None


@on_loop
async def test_the_next_page_begins_at_the_last_post_whose_time_is_known() -> None:
    """If no time is known, all the rest is requested. A post that does not arrive prevents the mark."""
    lost = [ANN.text("default", "lost", at=START_MS + number) for number in range(3)]
    async with passes() as here:
        task = here.begin()
        pages = []
        for posts in ([*reversed(TEXTS[5:10]), lost[0]], lost[1:]):
            pages.append(await here.page(posts, ends=False))
            await here.stops(len(posts))
        pages.append(await here.page())
        end_ms = TEXTS[5].timestamp_ms + 1
        assert pages[1:] == [(0, end_ms, limits.PAGE_HASHES_LEAST), (0, end_ms, 0)]
        await soon(task)
        await here.histories.put_marks()
        assert here.mark is None


@on_loop
async def test_a_background_check_covers_both_parts_of_an_unfinished_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels with a later full pass are not requested."""
    monkeypatch.setattr(limits, "BACKGROUND_HASHES_PER_S", 10_000)
    async with passes() as here:
        since_ms = START_MS + 100
        here.mark = SyncMark(5, START_MS, since_ms)
        await soon(here.histories.check(since_ms))
        for back_ms, expected in ((0, [5]), (START_MS + 9, [5, START_MS + 9])):
            here.mark = SyncMark(5, START_MS, since_ms - 1, back_ms=back_ms)
            task = asyncio.create_task(here.histories.check(since_ms))
            found = [await here.page(TEXTS[:1]) for _ in expected]
            await soon(task)
            assert [page[0] for page in found] == expected
            assert found[0][1] == back_ms or not back_ms
            full_at_ms = found[-1][1] - limits.MAX_FUTURE_MS
            assert found[-1][2] == min(limits.BACKGROUND_PAGE_HASHES, limits.PAGE_HASHES_LEAST)
            assert here.mark == SyncMark(5, START_MS, full_at_ms)
