"""Client on stores in memory and served stores: keys, typed commands, and posts that arrive while it runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from chatting import PICTURES, app_on, cabals_on, new_store, served_cabals_on, shown
from people import ANN, BOB, START_MS, raws
from stores import channels_of
from textual.events import MouseScrollUp

from cablestore import CableStore
from cablestore.chat.app import ChatApp
from cablestore.chat.display_limits import MAX_HELD

Pilot = Any
until = PICTURES.until
Run = Callable[[ChatApp, Pilot], Awaitable[None]]


Drive = Callable[..., None]


@pytest.fixture(params=["own", "served"])
def drive(request: pytest.FixtureRequest, tmp_path: Path) -> Drive:
    """Run a client on separate stores, or on stores over sockets."""

    def run_client(run: Run, *stores: CableStore, size: tuple[int, int] = (100, 24)) -> None:
        async def work() -> None:
            cabals = cabals_on(*stores) if request.param == "own" else served_cabals_on(tmp_path, *stores)
            with cabals as open_cabals:
                app = app_on(open_cabals)
                async with PICTURES.running(app, *size) as pilot:
                    await run(app, pilot)

        asyncio.run(work())

    return run_client


async def enter(app: ChatApp, pilot: Pilot, text: str) -> None:
    app.typing.insert(text)
    await pilot.press("enter")
    await until(pilot, lambda: not app.is_busy)


def messages_in_view(app: ChatApp) -> list[str]:
    return re.findall(r"message \d+", shown(app))


def with_history(count: int) -> CableStore:
    """Return a store with numbered messages of others."""
    store = new_store(moderated=False)
    store.ingest(raws(*(BOB.text("default", f"message {at}", at=START_MS + at * 1000) for at in range(count))))
    return store


@pytest.mark.thorough
def test_typed_commands_change_the_store_and_the_screen(drive: Drive) -> None:
    store = new_store()
    store.ingest(raws(BOB.named("bob"), BOB.text("default", "from bob")))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await enter(app, pilot, "/nick ann")
        assert store.user(store.identity.public_key).name == "ann"
        await enter(app, pilot, "//not a command")
        assert "/not a command" in shown(app)
        await enter(app, pilot, "/join garden")
        await enter(app, pilot, "/topic what grows")
        assert shown(app).startswith(" #garden  what grows")
        await enter(app, pilot, "/leave")
        assert "garden" not in channels_of(store, store.identity.public_key)
        await enter(app, pilot, "/join default")
        await enter(app, pilot, "/hide bob")
        assert "from bob" not in shown(app)
        assert "hidden" in shown(app)
        await enter(app, pilot, "/unhide bob")
        assert "from bob" in shown(app)
        await enter(app, pilot, "/block bob")
        assert store.user(BOB.key).is_blocked
        await enter(app, pilot, "/hide nobody")
        assert "User not found: 'nobody'" in shown(app)
        assert app.typing.text == ""
        await pilot.press("up")
        assert app.typing.text == "/hide nobody"

    drive(run, store)


@pytest.mark.thorough
def test_a_rejected_text_stays_in_the_input_field(drive: Drive) -> None:
    async def run(app: ChatApp, pilot: Pilot) -> None:
        long = "x" * 5000
        await enter(app, pilot, long)
        assert app.typing.text == long
        assert "4096" in shown(app).replace(",", "")
        await enter(app, pilot, "")
        assert app.typing.text == long

    drive(run, new_store())


@pytest.mark.thorough
def test_arriving_messages_are_shown_and_deleted_ones_disappear(drive: Drive) -> None:
    store = new_store()
    post = BOB.text("default", "on second thought")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        store.ingest(raws(BOB.named("bob"), post, BOB.topic("default", "thoughts"), BOB.text("other", "elsewhere")))
        await until(pilot, lambda: "bob on second thought" in shown(app))
        await until(pilot, lambda: "#default  thoughts" in shown(app))
        await until(pilot, lambda: "#other" in shown(app))
        store.ingest(raws(BOB.delete(post), BOB.named("robert")))
        await until(pilot, lambda: "second thought" not in shown(app))
        await until(pilot, lambda: " robert" in shown(app))

    drive(run, store)


@pytest.mark.thorough
def test_a_chosen_message_is_deleted_after_confirmation(drive: Drive) -> None:
    store = new_store()
    store.post("default", "first")
    store.post("default", "second")

    async def ask(app: ChatApp, pilot: Pilot) -> None:
        await pilot.press("escape", "up", "enter")
        await until(pilot, lambda: "Delete it, here and on peers" in shown(app))
        await pilot.press("down", "enter")
        await until(pilot, lambda: "Delete this message" in shown(app))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await ask(app, pilot)
        await pilot.press("enter", *"yes", "escape")
        await until(pilot, lambda: "Delete this message" not in shown(app))
        assert app.typing.text == "yes"
        app.typing.clear()
        await ask(app, pilot)
        await pilot.press("ctrl+y")
        await until(pilot, lambda: "first" not in shown(app))
        assert [message.text for message in store.messages("default").messages] == ["second"]

    drive(run, store)


@pytest.mark.thorough
def test_keys_complete_names_and_recall_sent_texts(drive: Drive) -> None:
    store = new_store()
    store.ingest(raws(BOB.named("bob"), BOB.join("default"), ANN.named("barbara"), ANN.join("default")))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await pilot.press("b", "tab")
        assert app.typing.text == "barbara: "
        await pilot.press("tab")
        assert app.typing.text == "bob: "
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: not app.is_busy)
        await pilot.press("/", "t", "o", "tab")
        assert app.typing.text == "/topic "
        await pilot.press("up")
        assert app.typing.text == "bob: hi"
        await pilot.press("down")
        assert app.typing.text == "/topic "

    drive(run, store)


@pytest.mark.thorough
def test_a_draft_is_kept_in_its_channel(drive: Drive) -> None:
    store = new_store()
    store.post("default", "here")
    store.post("other", "there")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await pilot.press(*"half a")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: app.channel == "other" and not app.is_busy)
        assert app.typing.text == ""
        await pilot.press("ctrl+n")
        await until(pilot, lambda: app.typing.text == "half a")
        await pilot.press("ctrl+q")

    drive(run, store)


@pytest.mark.thorough
def test_the_mouse_chooses_channels_and_messages_and_scrolls(drive: Drive) -> None:
    store = with_history(100)
    store.post("other", "there")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await pilot.click("#channels", offset=(2, 0))
        await until(pilot, lambda: app.channel == "other" and not app.is_busy)
        await until(pilot, lambda: "▸ 1 other channel" in shown(app))
        await pilot.click("#channels", offset=(2, 1))
        await until(pilot, lambda: "▾ 1 other channel" in shown(app))
        await pilot.click("#channels", offset=(2, 2))
        await until(pilot, lambda: app.channel == "default" and not app.is_busy)
        await pilot.click("#messages", offset=(20, 10))
        assert app.messages.chosen is not None
        await pilot._post_mouse_events([MouseScrollUp], "#messages")
        assert not app.messages.is_at_end
        assert "End shows the newest" in shown(app)

    drive(run, store)


@pytest.mark.thorough
def test_a_search_leads_to_the_message_in_its_channel(drive: Drive) -> None:
    pytest.importorskip("apsw")
    store = with_history(1_000)

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await enter(app, pilot, '/search "message 77"')
        await until(pilot, lambda: "1 result for" in shown(app))
        await pilot.press("enter")
        await until(pilot, lambda: "message 78" in shown(app))
        assert app.messages.chosen is not None
        assert app.messages.chosen.text == "message 77"
        assert "message 77" in shown(app)
        await pilot.press("ctrl+end")
        await until(pilot, lambda: "message 999" in shown(app))
        await pilot.press("escape")
        await enter(app, pilot, "/search xyzzy")
        await until(pilot, lambda: "no results for xyzzy" in shown(app))

    drive(run, store)


@pytest.mark.thorough
def test_scrolling_through_a_long_history_shows_every_message(drive: Drive) -> None:
    """Scroll to the beginning and back, by screens: each message is drawn, in order, and few are in memory."""
    count = MAX_HELD * 3 // 2
    store = with_history(count)

    async def run(app: ChatApp, pilot: Pilot) -> None:
        seen: dict[str, None] = {}

        def look() -> None:
            rows = [row.text for row in app.messages._rows[app.messages.top :][: app.messages.size.height]]
            seen.update(dict.fromkeys(row for row in rows if row.startswith("message")))
            assert len(app.messages.timeline.messages) <= MAX_HELD

        look()
        while "message 0" not in seen:
            await pilot.press("pageup")
            await until(pilot, lambda: not app.messages.is_loading)
            look()
        assert seen.keys() == {f"message {at}" for at in range(count)}
        seen.clear()
        look()
        while not app.messages.is_at_end:
            await pilot.press("pagedown")
            await until(pilot, lambda: not app.messages.is_loading)
            look()
        assert list(seen) == [f"message {at}" for at in range(count)]

    drive(run, store, size=(60, 100))


@pytest.mark.thorough
def test_the_scroll_position_is_kept_while_posts_arrive(drive: Drive) -> None:
    store = with_history(500)

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await pilot.press("pageup", "pageup")
        before = messages_in_view(app)
        store.ingest(raws(*(BOB.text("default", f"flood {at}", at=START_MS + 900_000 + at) for at in range(2_000))))
        await until(pilot, lambda: not app.is_busy)
        assert messages_in_view(app) == before
        await pilot.press("ctrl+end")
        await until(pilot, lambda: "flood 1999" in shown(app))

    drive(run, store)


@pytest.mark.thorough
def test_a_rebuilt_store_is_read_again(drive: Drive) -> None:
    store = with_history(10)

    async def run(app: ChatApp, pilot: Pilot) -> None:
        store.rebuild()
        store.post("default", "after it")
        await until(pilot, lambda: "after it" in shown(app))
        assert "message 9" in shown(app)

    drive(run, store)
