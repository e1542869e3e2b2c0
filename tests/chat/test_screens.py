"""Text of each screen of the client, compared with a reviewed one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from chatting import PICTURES, app_on, assert_like, cabals_on, new_store, shown

from cablestore import Text
from cablestore.chat.app import ChatApp
from cablestore.chat.hosting import Hosting
from cablestore.peers import Address, NodeSettings

Pilot = Any
INVITING = Hosting(NodeSettings(cabal_key=bytes(range(32))), connect=(Address("127.0.0.1", 1),))
"""Cabal with a peer address at which no process listens."""
HOSTILE = (
    "\x1b[2J\x1b]0;title\x07[bold red]markup[/] [link=x]y[/link] \u202eevil \u200b\u0301\u0301\u0301\u0301 \x9b31m end"
)


def on_garden(
    name: str,
    keys: str = "",
    text: str = "",
    size: tuple[int, int] = (80, 24),
    *,
    hosting: Hosting | None = None,
) -> None:
    async def run() -> None:
        with PICTURES.garden(hosting) as open_cabal:
            app = app_on([open_cabal], channel="garden")
            async with PICTURES.running(app, *size) as pilot:
                app.typing.insert(text)
                await pilot.press(*keys.split())
                await PICTURES.until(pilot, lambda: not app.is_busy and (hosting is None or "no peer at" in shown(app)))
                assert_like(app, name)

    asyncio.run(run())


def on_stores(run: Callable[[ChatApp, Pilot], Awaitable[None]], *stores: Any, size: tuple[int, int] = (80, 24)) -> None:
    async def work() -> None:
        with cabals_on(*stores) as open_cabals:
            app = app_on(open_cabals)
            async with PICTURES.running(app, *size) as pilot:
                await run(app, pilot)

    asyncio.run(work())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("narrow", {}),
        ("tiny", {"size": (40, 10)}),
        ("huge", {"size": (180, 50)}),
        ("members", {"keys": "f2"}),
        ("help", {"keys": "f1"}),
        ("scrolled", {"keys": "ctrl+home"}),
        ("chosen", {"keys": "escape up up"}),
        ("menu", {"keys": "escape enter"}),
        ("question", {"keys": "escape enter down enter"}),
        ("unknown-command", {"text": "/dance all night", "keys": "enter"}),
        ("several-lines", {"text": "first", "keys": "ctrl+j s e c o n d"}),
        ("other-channel", {"keys": "ctrl+n"}),
        ("narrow", {"keys": "f2 f2 f3 f3"}),
        ("muted", {"text": "/mute kitchen", "keys": "enter"}),
        ("invitation", {"keys": "f4", "hosting": INVITING}),
    ],
)
def test_a_screen_matches_its_reviewed_text(name: str, more: dict[str, Any]) -> None:
    on_garden(name, **more)


@pytest.mark.thorough
def test_the_results_of_a_search_match_their_reviewed_text() -> None:
    pytest.importorskip("apsw")
    on_garden("found", text="/search table", keys="enter")


def test_the_pictures_of_the_documents_match_the_client() -> None:
    """Only their text, because the drawing depends on the version of Textual."""
    for name, screen in PICTURES.SCREENS.items():
        drawn = asyncio.run(PICTURES.draw(**screen))
        assert words_in(drawn) == words_in((PICTURES.HERE / name).read_text("utf-8")), "run `make pictures`"


def words_in(picture: str) -> list[str]:
    return re.sub(r"<[^>]+>", " ", picture[picture.rindex("</style>") :]).replace("&#160;", " ").split()


@pytest.mark.thorough
def test_an_empty_store_matches_its_reviewed_text() -> None:
    async def run(app: ChatApp, _: Pilot) -> None:
        assert_like(app, "empty")

    on_stores(run, new_store())


@pytest.mark.thorough
def test_several_cabals_match_their_reviewed_text() -> None:
    async def run(app: ChatApp, pilot: Pilot) -> None:
        await pilot.press("ctrl+n", "ctrl+n")
        assert "in the second" in shown(app)
        assert_like(app, "several-cabals")

    first, second = new_store(clock=lambda: PICTURES.NOW_MS), new_store("bob", clock=lambda: PICTURES.NOW_MS)
    first.post("default", "in the first")
    first.post("other", "elsewhere")
    second.post("default", "in the second")
    on_stores(run, first, second)


@pytest.mark.thorough
def test_texts_of_others_do_not_control_the_terminal() -> None:
    """Names, topics, channels and messages with control characters, markup and many marks."""

    async def run(app: ChatApp, pilot: Pilot) -> None:
        await pilot.press("ctrl+n")
        await PICTURES.until(pilot, lambda: not app.is_busy)
        text = shown(app)
        assert "[bold red]markup[/]" in text
        assert not any(character in text for character in "\x1b\x07\x9b\u202e")
        assert_like(app, "hostile")

    store = new_store(clock=lambda: PICTURES.NOW_MS)
    store.set_name("\x1b[31m[red]e")
    store.post("\x1b]x[b]", HOSTILE)
    store.set_topic("\x1b]x[b]", HOSTILE)
    store.write(Text("\x1b]x[b]", "zalgo h\u0300\u0301\u0302\u0303\u0304\u0305 end"))
    on_stores(run, store)
