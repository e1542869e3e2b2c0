"""Requests of a client to its store when messages arrive: one of each kind per update, as small as the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest
from chatting import PICTURES, app_on, new_store, shown
from people import BOB, START_MS, raws

from cablestore import CableStore
from cablestore.chat.display_limits import MAX_EVENTS, SCREENS_FOLLOWED
from cablestore.chat.entries import ChannelEntry
from cablestore.chat.open_cabal import OpenCabal
from cablestore.store.cursor import MessageCursor
from cablestore.store.results import Page

T = TypeVar("T")
until = PICTURES.until
WIDTH, HEIGHT = 100, 24


class CountingCabal(OpenCabal):
    """Cabal that counts its requests."""

    def __init__(self, store: CableStore) -> None:
        super().__init__(store, "cabal")
        self.forget()

    def forget(self) -> None:
        self.reads = self.lists = 0
        self.page_limits: list[int] = []

    async def read(self, function: Callable[[CableStore], T]) -> T:
        self.reads += 1
        return await super().read(function)

    async def channels(self) -> list[ChannelEntry]:
        self.lists += 1
        return await super().channels()

    async def page(
        self, channel: str, limit: int, cursor: MessageCursor | None = None, *, newest_first: bool = True
    ) -> Page:
        self.page_limits.append(limit)
        return await super().page(channel, limit, cursor, newest_first=newest_first)


def asked_for(*, posts: int) -> CountingCabal:
    """Return the cabal of an idle client after this number of messages arrived and were displayed."""
    store = new_store()
    store.ingest(raws(*(BOB.text("default", f"message {at}", at=START_MS + at * 1000) for at in range(300))))
    cabal = CountingCabal(store)

    async def run() -> None:
        app = app_on([cabal], channel="default")
        async with PICTURES.running(app, WIDTH, HEIGHT) as pilot:
            await until(pilot, lambda: not app.is_busy)
            cabal.forget()
            texts = (BOB.text("default", f"new {at}", at=START_MS + 1_000_000 + at) for at in range(posts))
            store.ingest(raws(*texts))
            await until(pilot, lambda: f"new {posts - 1}" in shown(app) and not app.is_busy)

    try:
        asyncio.run(run())
    finally:
        cabal.close()
    return cabal


@pytest.mark.thorough
def test_an_update_reads_the_lists_and_the_displayed_messages_once() -> None:
    cabal = asked_for(posts=1)
    assert cabal.lists
    assert cabal.reads <= len(cabal.page_limits) + 2 * cabal.lists


@pytest.mark.thorough
def test_pages_are_not_longer_than_the_screen_needs_while_messages_arrive() -> None:
    cabal = asked_for(posts=10 * MAX_EVENTS)
    assert cabal.page_limits
    assert max(cabal.page_limits) <= SCREENS_FOLLOWED * HEIGHT
