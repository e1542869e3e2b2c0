"""List of channels in the client, its keys, muted channels, and the invitation to a cabal."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from chatting import PICTURES, app_on, cabals_on, new_store, shown
from people import BOB, raws
from waiting import LIMIT_S

from cablestore import CableStore, Identity
from cablestore.chat.app import ChatApp
from cablestore.chat.hosting import Hosting
from cablestore.peers import Address, Invitation, NodeSettings

Pilot = Any
until = PICTURES.until
Run = Callable[[ChatApp, Pilot], Awaitable[None]]


def drive(run: Run, *stores: CableStore, hosting: Hosting | None = None) -> None:
    async def work() -> None:
        with cabals_on(*stores, hosting=hosting) as open_cabals:
            app = app_on(open_cabals)
            async with PICTURES.running(app, 100, 24) as pilot:
                await run(app, pilot)

    asyncio.run(work())


async def enter(app: ChatApp, pilot: Pilot, text: str) -> None:
    app.typing.insert(text)
    await pilot.press("enter")
    await until(pilot, lambda: not app.is_busy)


def opened(folder: Path) -> CableStore:
    return CableStore.open(folder / "store", identity=Identity.derive("chat", "ann"))


@pytest.mark.thorough
def test_keys_switch_channels_and_change_the_display() -> None:
    first, second = new_store(), new_store("bob")
    for channel in ("apples", "default"):
        first.post(channel, "here")
        second.post(channel, "there")
    second.local.mute("apples")
    places = [(0, "apples"), (0, "default"), (1, "apples"), (1, "default")]

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async def switches(key: str, place: tuple[int, str]) -> None:
            await pilot.press(key)
            await until(pilot, lambda: app._place == place and not app.is_busy)

        assert app._place == places[1]
        for key in ("ctrl+n", "alt+down"):
            for place in (places[2], places[3], places[0], places[1]):
                await switches(key, place)
        for key in ("ctrl+p", "alt+up"):
            for place in (places[0], places[3], places[2], places[1]):
                await switches(key, place)
        members, is_shown = app.query_one("#members"), app.query_one("#members").display
        for _ in range(2):
            await pilot.press("f2")
            is_shown = not is_shown
            assert bool(members.display) is is_shown
        for theme in ("cablestore-light", "cablestore-dark"):
            await pilot.press("f3")
            assert app.theme == theme

    drive(run, first, second)


@pytest.mark.thorough
def test_a_muted_channel_has_no_unread_number_and_is_skipped() -> None:
    store = new_store()
    for channel in ("apples", "bees", "default"):
        store.post(channel, "here")
    own_key = store.identity.public_key

    async def run(app: ChatApp, pilot: Pilot) -> None:
        async def switches(key: str, channel: str) -> None:
            await pilot.press(key)
            await until(pilot, lambda: app.channel == channel and not app.is_busy)

        await enter(app, pilot, "/mute apples")
        assert store.local.is_muted("apples")
        store.ingest(raws(*(BOB.text(channel, f"@{own_key.hex()} look") for channel in ("apples", "bees"))))
        await until(pilot, lambda: re.search(r"#bees +@1 ", shown(app)))
        assert not re.search(r"#apples {1,16}\S*1 ", shown(app))
        await switches("f5", "bees")
        await pilot.press("f5")
        assert "No other channel has unread messages" in shown(app)
        assert app.channel == "bees"
        await enter(app, pilot, "/unmute #apples")
        assert not store.local.is_muted("apples")
        await until(pilot, lambda: re.search(r"#apples +@1 ", shown(app)))
        await switches("f5", "apples")
        await enter(app, pilot, "/mute")
        assert list(store.local.muted()) == ["apples"]
        await until(pilot, lambda: shown(app).startswith(" #apples  muted"))
        await enter(app, pilot, "/mute nowhere")
        assert "Channel not found: #nowhere" in shown(app)
        assert app.typing.text == ""

    drive(run, store)


@pytest.mark.thorough
def test_a_muted_channel_is_muted_after_a_restart(tmp_path: Path) -> None:
    async def mute(app: ChatApp, pilot: Pilot) -> None:
        await enter(app, pilot, "/mute apples")

    async def look(app: ChatApp, pilot: Pilot) -> None:
        await pilot.press("ctrl+p")
        await until(pilot, lambda: shown(app).startswith(" #apples  muted"))

    with opened(tmp_path) as store:
        store.post("apples", "here")
        store.post("default", "there")
        drive(mute, store)
    with opened(tmp_path) as store:
        drive(look, store)


@pytest.mark.thorough
def test_sent_text_is_stored_before_the_client_exits(tmp_path: Path) -> None:
    """Ctrl+Q is pressed immediately after Enter, while the writing thread is busy."""

    async def run(app: ChatApp, pilot: Pilot) -> None:
        held = threading.Event()
        busy = asyncio.create_task(app.open_cabal.write(lambda _: held.wait(LIMIT_S)))
        await pilot.press(*"bye", "enter")
        threading.Timer(0.3, held.set).start()
        await pilot.press("ctrl+q")
        await busy

    with opened(tmp_path) as store:
        drive(run, store)
    with opened(tmp_path) as store:
        assert [message.text for message in store.messages("default").messages] == ["bye"]
        assert store.local.draft("default") == ""


@pytest.mark.thorough
@pytest.mark.parametrize("opening", [("f4",), (*"/invite", "enter")], ids=["F4", "command"])
def test_the_invitation_is_shown_and_copied(opening: tuple[str, ...]) -> None:
    key = bytes(range(32))
    hosting = Hosting(NodeSettings(cabal_key=key), listen=(Address("127.0.0.1", 0),))

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await pilot.press(*opening)
        await until(pilot, lambda: "Invitation to this cabal" in shown(app))
        text = re.sub(r"[^!-~]", "", shown(app))  # the line is wrapped, between borders
        expected = Invitation(key, tuple(map(Address.parse, app.open_cabal.listening)))
        assert len(expected.peers) == 1
        assert str(expected) in text
        assert app.clipboard == ""
        await pilot.press("ctrl+c")
        assert app.clipboard == str(expected)
        assert "Copied" in shown(app)
        await pilot.press("escape")
        await until(pilot, lambda: "Invitation to this cabal" not in shown(app))
        assert app.typing.has_focus

    drive(run, new_store(), hosting=hosting)


@pytest.mark.thorough
def test_an_offline_client_explains_why_it_has_no_invitation() -> None:
    async def run(app: ChatApp, pilot: Pilot) -> None:
        await pilot.press("f4")
        await until(pilot, lambda: "This client is offline. Start the client with --listen" in shown(app))
        assert "Invitation to this cabal" not in shown(app)

    drive(run, new_store())
