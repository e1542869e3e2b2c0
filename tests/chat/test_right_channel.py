"""Typed text and requests go to the channel in which they were entered, even if another one is shown afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chatting import PICTURES, app_on, cabals_on, new_store, shown
from textual.events import Key
from waiting import LIMIT_S

from cablestore import CableStore
from cablestore.chat.app import ChatApp

Pilot = Any
until = PICTURES.until
Run = Callable[[ChatApp, Pilot], Awaitable[None]]
TOO_LONG = "x" * 5000


def drive(run: Run, *stores: CableStore) -> None:
    async def work() -> None:
        with cabals_on(*stores) as open_cabals:
            app = app_on(open_cabals, channel="apples")
            async with PICTURES.running(app, 100, 24) as pilot:
                await run(app, pilot)

    asyncio.run(work())


@asynccontextmanager
async def writes_held(app: ChatApp, pilot: Pilot) -> AsyncIterator[None]:
    """Block writes to the shown cabal during the body; then wait for all of them."""
    held = threading.Event()
    busy = asyncio.create_task(app.open_cabal.write(lambda _: held.wait(LIMIT_S)))
    try:
        yield
    finally:
        held.set()
        await busy
    await until(pilot, lambda: not app.is_busy)


async def send(app: ChatApp, pilot: Pilot, text: str) -> None:
    app.typing.insert(text)
    await pilot.press("enter")


async def go(app: ChatApp, pilot: Pilot, key: str, cabal: int, channel: str) -> None:
    await pilot.press(key)
    await until(pilot, lambda: (app._place.cabal, app.channel) == (cabal, channel))


def with_channels(*channels: str, name: str = "ann") -> CableStore:
    store = new_store(name)
    for channel in channels:
        store.post(channel, f"begin of {channel}")
    return store


def texts(store: CableStore, channel: str) -> list[str]:
    return [message.text for message in store.messages(channel, newest_first=False).messages]


def test_a_text_is_sent_to_the_channel_in_which_it_was_entered() -> None:
    store = with_channels("apples", "bees")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async with writes_held(app, pilot):
            for text in ("one", "secret", "/topic about apples"):
                await send(app, pilot, text)
            await go(app, pilot, "ctrl+n", 0, "bees")
            await send(app, pilot, "buzz")
        assert texts(store, "apples") == ["begin of apples", "one", "secret"]
        assert texts(store, "bees") == ["begin of bees", "buzz"]
        assert store.topic("apples") == "about apples"
        assert not store.topic("bees")
        assert app.channel == "bees"

    drive(run, store)


def test_a_text_is_sent_to_the_cabal_in_which_it_was_entered() -> None:
    first, second = with_channels("apples"), with_channels("apples", name="bob")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        before = second.stats().posts
        async with writes_held(app, pilot):
            for text in ("one", "secret", "/nick anna", "/leave"):
                await send(app, pilot, text)
            await go(app, pilot, "ctrl+n", 1, "apples")
        assert texts(first, "apples") == ["begin of apples", "one", "secret"]
        assert first.user(first.identity.public_key).name == "anna"
        assert second.stats().posts == before

    drive(run, first, second)


@pytest.mark.thorough
def test_texts_after_a_join_are_sent_to_the_joined_channel() -> None:
    """The user may view another channel before the join completes."""
    first, second = with_channels("apples"), with_channels("bees", name="bob")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async with writes_held(app, pilot):
            for text in ("/join #garden", "roses", "/topic what grows"):
                await send(app, pilot, text)
            await go(app, pilot, "ctrl+n", 1, "bees")
            await send(app, pilot, "buzz")
        assert texts(first, "garden") == ["roses"]
        assert first.topic("garden") == "what grows"
        assert texts(second, "bees") == ["begin of bees", "buzz"]
        assert [channel.name for channel in second.channels()] == ["bees"]

    drive(run, first, second)


@pytest.mark.thorough
def test_texts_after_a_failed_join_are_not_sent_elsewhere() -> None:
    """The shown channel continues to work."""
    store, name = with_channels("apples"), "g" * 100

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async with writes_held(app, pilot):
            await send(app, pilot, f"/join {name}")
            await send(app, pilot, "secret")
        assert texts(store, "apples") == ["begin of apples"]
        assert app.typing.text == "secret"
        app.typing.clear()
        await send(app, pilot, "still here")
        await until(pilot, lambda: not app.is_busy)
        assert texts(store, "apples") == ["begin of apples", "still here"]

    drive(run, store)


@pytest.mark.thorough
def test_a_rejected_text_becomes_the_draft_of_its_channel() -> None:
    store = with_channels("apples", "bees")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async with writes_held(app, pilot):
            await send(app, pilot, TOO_LONG)
            await go(app, pilot, "ctrl+n", 0, "bees")
        assert app.typing.text == ""
        assert store.local.draft("apples") == TOO_LONG
        await go(app, pilot, "ctrl+p", 0, "apples")
        await until(pilot, lambda: app.typing.text == TOO_LONG)

    drive(run, store)


@pytest.mark.thorough
def test_a_rejected_text_does_not_replace_a_later_draft() -> None:
    store = with_channels("apples", "bees")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async with writes_held(app, pilot):
            await send(app, pilot, TOO_LONG)
            await pilot.press(*"half")
            await go(app, pilot, "ctrl+n", 0, "bees")
        assert store.local.draft("apples") == "half"

    drive(run, store)


@pytest.mark.thorough("command")
@pytest.mark.parametrize(
    "asking", [("escape", "enter", "down", "enter"), (*"/delete", "enter")], ids=["menu", "command"]
)
def test_a_message_is_deleted_in_its_own_cabal(asking: tuple[str, ...]) -> None:
    first, second = with_channels("apples"), with_channels("apples", name="bob")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        before = second.stats().posts
        await pilot.press(*asking)
        await until(pilot, lambda: "Delete this message" in shown(app))
        await go(app, pilot, "ctrl+n", 1, "apples")
        await pilot.press("ctrl+y")
        await until(pilot, lambda: not app.is_busy)
        assert texts(first, "apples") == []
        assert second.stats().posts == before

    drive(run, first, second)


@pytest.mark.thorough
def test_keys_that_arrive_together_are_handled_in_order() -> None:
    """Keys arrive together after a pause of the connection to the terminal.

    The drafts of both channels are known, so none is read.
    """
    store = with_channels("apples", "bees")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async with writes_held(app, pilot):
            for key, channel in (("ctrl+n", "bees"), ("ctrl+p", "apples")):
                await pilot.press(*"half")
                await go(app, pilot, key, 0, channel)
            for key in (*" a secret", "enter", *"more", "ctrl+n"):
                app.post_message(Key({" ": "space"}.get(key, key), key if len(key) == 1 else None))
            await until(pilot, lambda: app.channel == "bees")
        assert texts(store, "apples") == ["begin of apples", "half a secret"]
        assert texts(store, "bees") == ["begin of bees"]
        assert store.local.draft("apples") == "more"
        assert app.typing.text == "half"

    drive(run, store)
