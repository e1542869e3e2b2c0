"""Held messages of a channel match the store, after any change of the messages and any delay of a page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from chatting import PICTURES, app_on, cabals_on, new_store, shown
from people import BOB, START_MS, raws

from cablestore import CableStore
from cablestore.chat.app import ChatApp
from cablestore.chat.cabal import Cabal
from cablestore.chat.open_cabal import OpenCabal
from cablestore.store.cursor import MessageCursor
from cablestore.store.results import Page

Pilot = Any
until = PICTURES.until
Run = Callable[[ChatApp, Pilot], Awaitable[None]]
COUNT = 500
POSTS = [BOB.text("default", f"message {at}", at=START_MS + at * 1000) for at in range(COUNT)]


def drive_on(open_cabal: Cabal, run: Run) -> None:
    async def work() -> None:
        app = app_on([open_cabal], channel="default")
        async with PICTURES.running(app, 100, 60) as pilot:
            await run(app, pilot)

    asyncio.run(work())


def with_history() -> CableStore:
    store = new_store()
    store.ingest(raws(*POSTS))
    return store


def delete(store: CableStore) -> None:
    store.ingest(raws(BOB.delete(POSTS[3])))


def hide(store: CableStore) -> None:
    store.moderation.hide(posts=[POSTS[3].hash], private=True)


def rename(store: CableStore) -> None:
    store.ingest(raws(BOB.named("robert")))


def post_late(store: CableStore) -> None:
    store.ingest(raws(BOB.text("default", "late", at=START_MS + 3500)))


def post_late_before_all(store: CableStore) -> None:
    store.ingest(raws(BOB.text("default", "late", at=START_MS - 1000)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("happen", "is_at_end"),
    [(delete, True), (delete, False), (hide, True), (rename, True), (post_late, False), (post_late_before_all, True)],
)
def test_changes_of_messages_far_above_are_visible_after_scrolling_up(
    happen: Callable[[CableStore], None], is_at_end: bool
) -> None:
    store = with_history()

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async def scroll_to_the_top() -> None:
            while app.messages.top > 0 or app.messages.timeline.has_older:
                await pilot.press("pageup")
                await until(pilot, lambda: not app.is_busy)

        await scroll_to_the_top()
        assert len(app.messages.timeline.messages) == COUNT
        if is_at_end:
            await pilot.press("ctrl+end")
        happen(store)
        await until(pilot, lambda: not app.is_busy)
        assert app.messages.is_at_end is is_at_end
        await scroll_to_the_top()
        found = store.messages("default", 2 * COUNT, newest_first=False, hidden="mark").messages
        assert app.messages.timeline.messages == found

    with cabals_on(store) as (open_cabal,):
        drive_on(open_cabal, run)


@pytest.mark.thorough
def test_messages_far_above_are_kept_when_a_new_one_arrives() -> None:
    store = with_history()

    async def run(app: ChatApp, pilot: Pilot) -> None:
        while app.messages.timeline.has_older:
            await pilot.press("pageup")
            await until(pilot, lambda: not app.is_busy)
        await pilot.press("ctrl+end")
        store.post("default", "the newest")
        await until(pilot, lambda: "the newest" in shown(app))
        assert len(app.messages.timeline.messages) == COUNT + 1

    with cabals_on(store) as (open_cabal,):
        drive_on(open_cabal, run)


class LateCabal(OpenCabal):
    """Cabal whose oldest pages arrive late."""

    may_come: asyncio.Event

    async def page(
        self, channel: str, limit: int, cursor: MessageCursor | None = None, *, newest_first: bool = True
    ) -> Page:
        found = await super().page(channel, limit, cursor, newest_first=newest_first)
        if not newest_first:
            await self.may_come.wait()
        return found


def test_the_oldest_page_of_a_channel_is_not_shown_in_another_one() -> None:
    store = with_history()
    store.post("garden", "roses")
    late = LateCabal(store, "late")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        late.may_come = asyncio.Event()
        reading = asyncio.create_task(app._pages.read_oldest())
        app.typing.insert("/join garden")
        await pilot.press("enter")
        await until(pilot, lambda: "roses" in shown(app) and not app.is_busy)
        late.may_come.set()
        await reading
        assert [message.text for message in app.messages.timeline.messages] == ["roses"]
        assert app.messages.is_at_end

    try:
        drive_on(late, run)
    finally:
        late.close()
