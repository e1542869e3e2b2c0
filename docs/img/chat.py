"""Draws the pictures of the chat client for `make pictures`. The conversation and the clock are always the same.

Tests compare the pictures with the screen of the client. They also use the conversation.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

from textual.pilot import Pilot

from cablestore import LEGACY, CableStore, Identity, Info, Join, StoreOptions, Text, Topic, encode_post
from cablestore.chat.app import ChatApp
from cablestore.chat.cabal import Cabal
from cablestore.chat.hosting import HostedNode, Hosting
from cablestore.chat.open_cabal import OpenCabal
from cablestore.chat.settings import ChatSettings
from cablestore.moderation import UserRole

HERE: Final = Path(__file__).parent
START_MS: Final = int(datetime(2026, 3, 7, 18, 40, tzinfo=UTC).timestamp() * 1000)
NOW_MS: Final = START_MS + 26 * 3_600_000
PEOPLE: Final = {name: Identity.derive("chat pictures", name) for name in ("ann", "bob", "cyd", "田中", "dora")}
LIMIT_S: Final = 120
"""Time limit of a wait. Only a wait for a client that hangs exceeds it."""
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_TALK: Final = (
    (0, "bob", "The seedlings are up! Two of the tomato trays and all of the peas."),
    (2, "cyd", "Lovely. Is there room on the south bench, or shall I bring the folding table?"),
    (3, "bob", "Bring it, please."),
    (4, "bob", "And the long hose, mine leaks at every joint that I have mended."),
    (9, "田中", "おはようございます。今朝は霜でした。The frost cloth is in the shed, second shelf."),
    (11, "ann", "Thank you, I had looked for it everywhere."),
    (12, "dora", "Who has the key of the shed on Sunday?"),
    (1441, "bob", "Good evening. The hose works; the table is too short by a hand."),
    (1443, "ann", "I have boards. How long must they be?"),
    (1444, "bob", "180 cm, and a little more would do no harm:\n  2 x 180\n  1 x 60"),
    (1449, "cyd", "@ann the hardware shop closes at eight"),
    (1450, "ann", "Then I go now."),
)


def fill(store: CableStore) -> None:
    """Write the conversation to ann's store."""
    times = count(START_MS - _DAY_MS, _MINUTE_MS)

    def post(name: str, body: Any, at: int | None = None) -> bytes:
        timestamp_ms = next(times) if at is None else at
        return encode_post(body, links=(), timestamp_ms=timestamp_ms, identity=PEOPLE[name], dialect=LEGACY).raw

    posts = [post(name, Info.of(name=name)) for name in PEOPLE]
    posts += [post(name, Join("garden")) for name in PEOPLE]
    posts += [post("bob", Topic("garden", "What grows, what is eaten by snails, and who waters on Sunday"))]
    posts += [post("cyd", Text(name, f"This is #{name}.")) for name in ("kitchen", "repairs", "default", "読書")]
    posts += [post("ann", Join(name)) for name in ("kitchen", "repairs", "default")]
    posts += [post(name, Text("garden", text), START_MS + at * _MINUTE_MS) for at, name, text in _TALK]
    store.ingest(posts)
    store.moderation.set_role(PEOPLE["bob"].public_key, UserRole.MOD)


@contextmanager
def garden(hosting: Hosting | None = None) -> Iterator[Cabal]:
    """Yield a cabal with the conversation, as ann sees it. With `hosting`, the cabal has a node and peers."""
    store = CableStore.in_memory(identity=PEOPLE["ann"], options=StoreOptions(clock=lambda: NOW_MS))
    fill(store)
    open_cabal = OpenCabal(store, "garden club", None if hosting is None else HostedNode(store, hosting))
    try:
        yield open_cabal
    finally:
        open_cabal.close()


@asynccontextmanager
async def running(app: ChatApp, width: int, height: int) -> AsyncIterator[Pilot[None]]:
    """Run a client without a terminal. The cursor of the client does not blink."""
    async with app.run_test(size=(width, height)) as pilot:
        app.typing.cursor_blink = False
        await until(pilot, lambda: not app.is_busy)
        yield pilot


async def until(pilot: Pilot[Any], is_so: Callable[[], object]) -> None:
    """Wait until `is_so` returns true. Raise TimeoutError with a screenshot after LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(pilot.app.export_screenshot())
        await pilot.pause(0.01)
    await pilot.pause()


def picture(app: ChatApp) -> str:
    """Return the screen as SVG, with fonts of the machine that displays it."""
    drawn = app.export_screenshot(title="cablestore chat")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")


async def draw(width: int, height: int, *, light: bool = False, keys: str = "", text: str = "") -> str:
    """Return a picture of the client after it received `keys` (names separated by spaces) and a typed text."""
    with garden() as open_cabal:
        app = ChatApp(
            [open_cabal], channel="garden", zone=UTC, settings=ChatSettings(theme="light" if light else "dark")
        )
        async with running(app, width, height) as pilot:
            await pilot.press(*keys.split())
            app.typing.insert(text)
            await until(pilot, lambda: not app.is_busy)
            return picture(app)


SCREENS: Final[dict[str, dict[str, Any]]] = {
    "chat.svg": {"width": 100, "height": 28, "text": "On my way, "},
    "chat-light.svg": {"width": 100, "height": 28, "light": True, "text": "On my way, "},
}
"""The pictures of the documents."""


def main() -> None:
    """Draw all pictures."""
    for name, screen in SCREENS.items():
        (HERE / name).write_text(asyncio.run(draw(**screen)), encoding="utf-8")


if __name__ == "__main__":
    main()
