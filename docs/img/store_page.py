"""Draws the pictures of the inspection page for `make pictures`. It needs Chromium.

The store is always the same: five people write in three channels for three months, sometimes at the same time.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from playwright.async_api import async_playwright

from cablestore import LEGACY, CableStore, Delete, Identity, Info, StoreOptions, Text, Topic, encode_post
from cablestore.aio import AsyncCableStore
from cablestore.inspect.server import InspectServer
from cablestore.inspect.settings import InspectSettings
from cablestore.peers import Address

HERE: Final = Path(__file__).parent
PAGES: Final = {"overview": "/", "graph": "/graph?name=garden&limit=70"}
SIZE: Final = {"width": 1180, "height": 620}
PEOPLE: Final = {name: Identity.derive("inspect pictures", name) for name in ("ann", "bob", "cyd", "dora", "emil")}
_START_MS: Final = int(datetime(2026, 1, 5, 7, tzinfo=UTC).timestamp() * 1000)
_HOUR_MS: Final = 3_600_000
_POSTS: Final = 900
_APART: Final = 0.3
"""Probability that a writer has not received the newest posts by other users."""


def posts() -> Iterator[bytes]:
    """Return the posts of all channels."""
    rng = random.Random(7)  # noqa: S311 - an invented conversation, always the same
    for name, who in PEOPLE.items():
        yield encode_post(Info.of(name=name), links=(), timestamp_ms=_START_MS, identity=who, dialect=LEGACY).raw
    heads: dict[str, list[bytes]] = {"garden": [], "kitchen": [], "harbour": []}
    at_ms = _START_MS
    for number in range(_POSTS):
        at_ms += int(rng.expovariate(1 / (2.4 * _HOUR_MS)))
        channel = rng.choice(("garden", "garden", "kitchen", "harbour"))
        who = rng.choice(list(PEOPLE.values()))
        body = Topic(channel, "seedlings, soup and boats") if number % 97 == 3 else Text(channel, f"message {number}")
        known = heads[channel]
        links = [rng.choice(known)] if known and rng.random() < _APART else known  # not all have seen all branches
        post = encode_post(body, links=tuple(links), timestamp_ms=at_ms, identity=who, dialect=LEGACY)
        is_fork = rng.random() < _APART and len(known) < 4
        heads[channel] = [digest for digest in known if is_fork or digest not in links] + [post.hash]
        yield post.raw
        if number % 41 == 5:
            at_ms += _HOUR_MS
            deletion = Delete((post.hash,))
            yield encode_post(deletion, links=(), timestamp_ms=at_ms, identity=who, dialect=LEGACY).raw


async def draw(chromium: str) -> None:
    """Write the pictures."""
    store = CableStore.in_memory(
        identity=PEOPLE["ann"], options=StoreOptions(clock=lambda: _START_MS + 10**10, verify_threads=1)
    )
    store.ingest(list(posts()))
    settings = InspectSettings(Address("127.0.0.1", 0))
    async with (
        AsyncCableStore(store) as shown,
        InspectServer(shown, settings) as server,
        async_playwright() as driver,
        await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
        await browser.new_context(viewport=SIZE, timezone_id="UTC", locale="en-GB", color_scheme="light") as context,  # type: ignore[arg-type] # two numbers
    ):
        page = await context.new_page()
        await page.goto(server.link)
        for name, path in PAGES.items():
            await page.goto(f"http://{server.address}{path}")
            await page.locator("#live:text-is('live')").wait_for()
            await page.screenshot(path=HERE / f"inspect-{name}.png")


def main() -> None:
    """Write the pictures. Exit with an error if Chromium is missing."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit(
            "Chromium not found: the pictures of the page were not drawn. Install it with apt-get install chromium"
        )
    asyncio.run(draw(chromium))


if __name__ == "__main__":
    main()
