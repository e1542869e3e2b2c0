"""Keys and the mouse of a client in this process, and the resulting screen: moving, choosing, folding, copying, windows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from chatting import PICTURES, app_on, cabals_on, new_store, screen_lines, shown
from people import BOB, CYD, START_MS, raws
from textual.events import MouseScrollDown, MouseScrollUp

from cablestore import CableStore, Post
from cablestore.chat.app import ChatApp
from cablestore.chat.hosting import Hosting
from cablestore.chat.timeline import LINES_SHOWN
from cablestore.peers import NodeSettings

Pilot = Any
until = PICTURES.until
Run = Callable[[ChatApp, Pilot], Awaitable[None]]
COUNT = 420
HEIGHT = 24


def drive(
    run: Run,
    *stores: CableStore,
    size: tuple[int, int] = (100, HEIGHT),
    channel: str = "",
    hosting: Hosting | None = None,
) -> None:
    async def work() -> None:
        with cabals_on(*stores, hosting=hosting) as cabals:
            app = app_on(cabals, channel=channel)
            async with PICTURES.running(app, *size) as pilot:
                await run(app, pilot)

    asyncio.run(work())


async def press(app: ChatApp, pilot: Pilot, *keys: str) -> None:
    await pilot.press(*keys)
    await until(pilot, lambda: not app.is_busy)


def numbers(app: ChatApp) -> list[int]:
    """Return the numbers of the visible messages, from top to bottom."""
    lines = (line.partition("message ") for line in screen_lines(app))
    return [int(number.split()[0]) for _, found, number in lines if found]


def line_with(app: ChatApp, part: str) -> int:
    return next(at for at, line in enumerate(screen_lines(app)) if part in line)


def time_of(number: int) -> str:
    """Return the shown time of a numbered message."""
    return f"{datetime.fromtimestamp(START_MS / 1000 + number, UTC):%H:%M}"


def with_history() -> CableStore:
    store = new_store(moderated=False)
    posts = (BOB.text("default", f"message {at} .", at=START_MS + at * 1000) for at in range(COUNT))
    store.ingest(raws(BOB.named("bob", at=START_MS), *posts), verify=False)
    return store


@pytest.mark.thorough
def test_keys_move_between_the_ends_of_a_long_channel() -> None:
    async def run(app: ChatApp, pilot: Pilot) -> None:
        rows = app.messages.size.height
        newest = list(range(COUNT - rows, COUNT))
        assert screen_lines(app)[-1].split("   ")[1] == app.open_cabal.own_key.hex()[:8]
        assert numbers(app) == newest
        await press(app, pilot, "pageup")
        assert numbers(app) == [at - rows + 2 for at in newest[:-1]]
        assert f"14 November 2023, {time_of(numbers(app)[0])}, Ctrl+End shows the newest" in shown(app)
        await press(app, pilot, "pagedown")
        assert numbers(app) == newest
        assert "shows the newest" not in shown(app)
        while 0 not in numbers(app):
            await press(app, pilot, "pageup")
            assert len(numbers(app)) >= rows - 3
        while not app.messages.is_at_end:
            await press(app, pilot, "pagedown")
        assert numbers(app) == newest

        await press(app, pilot, "ctrl+home")
        oldest = numbers(app)
        assert oldest == list(range(rows - 3))  # below the day and the line of unread messages
        assert "Tuesday 14 November 2023" in screen_lines(app)[1]
        await press(app, pilot, "pagedown")
        assert numbers(app) == list(range(oldest[-1], oldest[-1] + rows - 1))
        await press(app, pilot, "ctrl+end")
        assert numbers(app) == newest
        await press(app, pilot, "ctrl+home", "pagedown", "pagedown", "pagedown", "ctrl+home")
        assert [message.text for message in app.messages.timeline.messages][:2] == ["message 0 .", "message 1 ."]
        assert numbers(app)[0] == 0

    drive(run, with_history(), size=(100, 60))


def test_messages_are_chosen_by_keys() -> None:
    async def run(app: ChatApp, pilot: Pilot) -> None:
        def chosen() -> str:
            return "" if app.messages.chosen is None else app.messages.chosen.text

        await press(app, pilot, "escape")
        assert chosen() == f"message {COUNT - 1} ."
        await press(app, pilot, "down")
        assert chosen() == f"message {COUNT - 1} ."
        await press(app, pilot, *["up"] * (app.messages.size.height - 1))
        top = COUNT - app.messages.size.height
        assert (chosen(), numbers(app)[0]) == (f"message {top} .", top)
        await press(app, pilot, "up")
        assert (chosen(), numbers(app)[0]) == (f"message {top - 1} .", top - 1)
        assert f"{time_of(top - 1)} bob message {top - 1} ." in " ".join(screen_lines(app)[1].split())
        await press(app, pilot, *["down"] * app.messages.size.height)
        assert (chosen(), numbers(app)[-1]) == (f"message {COUNT - 1} .", COUNT - 1)
        await press(app, pilot, "home")
        assert numbers(app)[0] == 0
        assert len(app.messages.timeline.messages) < COUNT
        await press(app, pilot, *["pagedown"] * 8)
        assert len(app.messages.timeline.messages) > COUNT // 2
        assert numbers(app) == list(range(numbers(app)[0], numbers(app)[-1] + 1))
        await press(app, pilot, "escape", "up")
        assert chosen() == f"message {numbers(app)[-1] - 1} ."
        await press(app, pilot, "end")
        assert (chosen(), numbers(app)[-1]) == ("", COUNT - 1)
        await press(app, pilot, "escape", "escape")
        assert chosen() == ""

    drive(run, with_history())


@pytest.mark.thorough
def test_arriving_messages_do_not_move_the_view() -> None:
    """They are read again where the view is, and shown at the end."""
    store = with_history()
    store.join("default")

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await press(app, pilot, "pageup")
        before = numbers(app)
        late, hidden = (BOB.text("default", "late", at=START_MS + before[3] * 1000 + 500), before[5])
        store.ingest(raws(late, BOB.text("default", f"message {COUNT} .", at=START_MS + COUNT * 1000)))
        await until(pilot, lambda: "late" in shown(app) and not app.is_busy)
        assert numbers(app) == before[: len(before) - 1]
        store.ingest(raws(BOB.delete(BOB.text("default", f"message {hidden} .", at=START_MS + hidden * 1000))))
        await until(pilot, lambda: hidden not in numbers(app) and not app.is_busy)
        assert numbers(app) == [at for at in before if at != hidden]
        await press(app, pilot, "ctrl+end")
        assert numbers(app)[-1] == COUNT
        store.ingest(raws(BOB.text("default", f"message {COUNT + 1} .", at=START_MS + (COUNT + 1) * 1000)))
        await until(pilot, lambda: numbers(app)[-1] == COUNT + 1 and not app.is_busy)
        store.ingest(raws(BOB.text("default", "far above", at=START_MS + 10_500)))
        await until(pilot, lambda: badge(app, "default") == "1")
        assert numbers(app)[-1] == COUNT + 1
        await press(app, pilot, "f5")
        assert line_with(app, "unread messages") == line_with(app, "far above") - 1
        assert 10 in numbers(app)
        await until(pilot, lambda: not badge(app, "default"))

    drive(run, store)


def badge(app: ChatApp, channel: str) -> str:
    """Return the words after a channel in the list of channels."""
    found = next(line[:24].split() for line in screen_lines(app)[1:] if line.strip().startswith(f"#{channel}"))
    return " ".join(found[1:])


@pytest.mark.thorough
def test_a_line_precedes_messages_that_arrived_in_another_channel() -> None:
    store, line = new_store(), "unread messages"
    for channel in ("garden", "shed"):
        store.join(channel)
        store.ingest(raws(BOB.text(channel, f"read in {channel}", at=START_MS)))

    def garden(text: str, minute: float) -> Post:
        return BOB.text("garden", text, at=START_MS + int(minute * 60_000))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async def all_read(channel: str) -> None:
            await until(pilot, lambda: not store.read_state(channel).unread and not badge(app, channel))

        await all_read("garden")
        assert badge(app, "shed") == "1"
        await press(app, pilot, "ctrl+n")
        await all_read("shed")
        one = garden("new one", 1)
        store.ingest(raws(one, garden("new two", 2)))
        await until(pilot, lambda: badge(app, "garden") == "2")
        await press(app, pilot, "f5")
        assert app.channel == "garden"
        assert line_with(app, "read in garden") < line_with(app, line) == line_with(app, "new one") - 1
        await all_read("garden")
        store.ingest(raws(garden("new three", 3), garden("late", 0.5)))
        await until(pilot, lambda: "new three" in shown(app) and "late" in shown(app) and not app.is_busy)
        assert line_with(app, "late") < line_with(app, line) == line_with(app, "new one") - 1
        await all_read("garden")
        store.ingest(raws(BOB.delete(one)))
        await until(pilot, lambda: "new one" not in shown(app) and not app.is_busy)
        assert line_with(app, line) == line_with(app, "new two") - 1
        await press(app, pilot, "ctrl+n", "ctrl+p")
        assert line not in shown(app)

    drive(run, store, channel="garden")


def test_long_messages_fold_and_text_is_copied() -> None:
    store = new_store()
    lines = [f"line {number}" for number in range(LINES_SHOWN + 4)]
    store.ingest(raws(BOB.named("bob"), BOB.text("default", "\n".join(lines)), BOB.text("default", "two words")))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        top = app.messages.region.y
        assert "… 4 more lines" in shown(app)
        assert lines[-1] not in shown(app)
        await press(app, pilot, "escape", "right")
        assert lines[-1] not in shown(app)  # the last message is not long
        await press(app, pilot, "up", "right")
        assert f"{lines[-1]}\n" in shown(app)
        await press(app, pilot, "left")
        assert "… 4 more lines" in shown(app)
        await pilot.click("#messages", offset=(30, line_with(app, "… 4 more lines") - top))
        await until(pilot, lambda: f"{lines[-1]}\n" in shown(app) and not app.is_busy)
        await pilot.click("#messages", offset=(30, line_with(app, "… Left collapses") - top))
        await until(pilot, lambda: "… 4 more lines" in shown(app) and not app.is_busy)

        await press(app, pilot, "escape", "escape", "ctrl+c")
        assert app.clipboard == "two words"
        assert "Copied, if the terminal allows it" in shown(app)
        await press(app, pilot, "escape", "ctrl+c")
        assert "Nothing to copy. Escape chooses a message" in shown(app)
        row = line_with(app, "two words")
        column = screen_lines(app)[row].index("words") - app.messages.region.x
        await pilot.click("#messages", offset=(column + 1, row - top), times=2)
        await press(app, pilot, "ctrl+c")
        assert app.clipboard == "words"
        await pilot.mouse_down("#messages", offset=(column - 3, row - top))
        await pilot.hover("#messages", offset=(column + 1, row - top))
        await pilot.mouse_up("#messages", offset=(column + 1, row - top))
        store.ingest(raws(BOB.text("default", "arrives meanwhile")))
        await until(pilot, lambda: "arrives meanwhile" in shown(app) and not app.is_busy)
        await press(app, pilot, "ctrl+c")
        assert app.clipboard in {"wo wo", "wo w"}

    drive(run, store, size=(100, 34))


def test_a_message_is_hidden_and_shown_again_by_its_menu() -> None:
    store = new_store()
    store.set_name("ann")
    store.ingest(raws(BOB.named("bob"), BOB.text("default", "rude\nwords")))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await press(app, pilot, "escape")
        await pilot.press("enter")
        await until(pilot, lambda: "Copy its text" in shown(app))
        assert "bob: rude words" in shown(app)
        assert "Hide it, only for you" in shown(app)
        assert "Delete it" not in shown(app)
        await press(app, pilot, "down", "enter")
        await until(pilot, lambda: "The message is hidden, only for you" in shown(app) and not app.is_busy)
        assert "rude" not in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: "Show it again" in shown(app))
        await press(app, pilot, "enter")
        await until(pilot, lambda: "rude" in shown(app) and not app.is_busy)

    drive(run, store)


@pytest.mark.thorough
def test_a_window_lists_the_mentions_of_all_cabals() -> None:
    first, second = new_store(), new_store("bob")
    for store, channel, text in ((first, "garden", "ann: the rake"), (second, "kitchen", "bob: tea?")):
        store.set_name("ann" if store is first else "bob")
        now_ms = next(store.posts_by(store.identity.public_key)).timestamp_ms
        at_ms = now_ms + (1 if store is first else 5000)
        store.ingest(raws(CYD.named("cyd"), CYD.text(channel, text, at=at_ms), CYD.text("quiet", "-", at=now_ms)))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await press(app, pilot, "f4")
        assert "This client is offline. " in shown(app)
        await press(app, pilot, "f6")
        assert "2 messages with mentions of you, 2 unread" in shown(app)
        at = line_with(app, "bob: tea?")
        assert "#kitchen  cyd  cabal 2" in screen_lines(app)[at - 1]
        assert screen_lines(app)[at + 1].split("●")[1].split()[2:6] == ["#garden", "cyd", "cabal", "1"]
        assert line_with(app, "ann: the rake") == at + 2
        await press(app, pilot, "down", "enter")
        await until(pilot, lambda: app.place == (0, "garden") and not app.is_busy)
        assert app.messages.chosen is not None
        assert app.messages.chosen.text == "ann: the rake"
        await until(pilot, lambda: "@1" in shown(app) and not app.is_busy)
        await press(app, pilot, "f6", "escape")
        assert app.place == (0, "garden")
        await press(app, pilot, "f5")
        assert app.place == (1, "kitchen")
        await until(pilot, lambda: not second.read_state("kitchen").unread)
        await press(app, pilot, "f5")
        assert "No other channel has unread messages" in shown(app)
        await press(app, pilot, "f3")
        assert app.theme == "cablestore-light"
        await press(app, pilot, "f3")
        assert app.theme == "cablestore-dark"
        await press(app, pilot, "f1")
        assert "Keys and commands" in shown(app)
        second.ingest(raws(CYD.text("kitchen", "while a window is open", at=at_ms + 1)))
        await until(pilot, lambda: not app.is_busy)
        assert len(second.read_state("kitchen").unread) == 1
        await press(app, pilot, "f1")
        assert "Keys and commands" not in shown(app)
        await until(pilot, lambda: not second.read_state("kitchen").unread)
        assert screen_lines(app)[-1].split("   ")[1] == "bob"

    drive(run, first, second, channel="quiet")


def test_windows_show_the_invitation_and_search_results() -> None:
    pytest.importorskip("apsw")
    key, store = bytes(range(32)), new_store()
    words = [
        BOB.text("shed", text, at=START_MS + at * 60_000) for at, text in enumerate(("red boat", "/me boats", "x"))
    ]
    store.ingest(raws(BOB.named("bob", at=START_MS), *words))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await press(app, pilot, "f4")
        assert "Invitation to this cabal" in shown(app)
        assert f"cable:{key.hex()}" in shown(app)
        await press(app, pilot, "ctrl+c")
        assert app.clipboard == f"cable:{key.hex()}"
        assert "Copied, if the terminal allows it. Escape closes" in shown(app)
        await press(app, pilot, "escape")
        assert "Invitation to this cabal" not in shown(app)
        app.typing.insert("/search boat")
        await press(app, pilot, "enter")
        await until(pilot, lambda: "2 results for boat" in shown(app))
        assert (
            line_with(app, "* bob") < line_with(app, "boats") < line_with(app, "shed  bob") < line_with(app, "red boat")
        )
        assert "2023-11-14 22:14  #shed  * bob" in shown(app)
        await press(app, pilot, "down", "enter")
        await until(pilot, lambda: app.channel == "shed" and app.messages.chosen is not None and not app.is_busy)
        assert app.messages.chosen is not None
        assert app.messages.chosen.text == "red boat"
        app.typing.insert("/search nothing")
        await press(app, pilot, "enter")
        await until(pilot, lambda: "no results for nothing" in shown(app))
        await press(app, pilot, "escape")

    drive(run, store, channel="garden", hosting=Hosting(NodeSettings(cabal_key=key)))


def test_lists_scroll_and_react_to_clicks() -> None:
    store = new_store()
    store.join("a00")
    posts = [BOB.text(f"a{number:02}", f"in {number}") for number in range(40)]
    store.ingest(raws(BOB.named("bob"), BOB.join("a00"), *posts))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        def listed() -> list[str]:
            return [line.split()[0] for line in screen_lines(app)[1:] if line.strip().startswith("#a")]

        assert listed() == ["#a00"]
        await pilot.click("#channels", offset=(2, 1))
        await until(pilot, lambda: "▾ 39 other channels" in shown(app) and not app.is_busy)
        height = app.query_one("#channels").size.height
        assert listed() == [f"#a{number:02}" for number in range(height - 1)]
        await press(app, pilot, "ctrl+p")
        assert app.channel == "a39"
        assert listed()[-1] == "#a39"
        assert len(listed()) == height
        await press(app, pilot, "ctrl+n")
        assert app.channel == "a00"
        assert listed()[0] == "#a00"
        await pilot._post_mouse_events([MouseScrollDown], "#channels")
        await pilot.pause()
        assert listed()[0] == "#a02"
        await pilot.click("#channels", offset=(2, 0))
        await until(pilot, lambda: app.channel == "a02" and not app.is_busy)
        await pilot._post_mouse_events([MouseScrollUp], "#channels")
        await pilot.pause()
        assert listed()[0] == "#a00"
        assert "1 member" in shown(app)
        await press(app, pilot, "f7")
        assert listed() == ["#a00", "#a02"]
        await press(app, pilot, "ctrl+n")
        await press(app, pilot, "f2")
        assert "2 members" not in shown(app)
        await press(app, pilot, "f2")
        at = line_with(app, " bob") if "2 members" in shown(app) else -1
        assert at > 0
        await pilot.click("#members", offset=(2, 1))
        await pilot.pause()
        assert app.typing.text.startswith("@")

    drive(run, store)
