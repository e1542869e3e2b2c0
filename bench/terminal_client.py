"""The chat client on a large store: `terminal_client.py [POSTS]`, by default 100,000.

How long its start, a screen back and a key take until they are drawn, at rest and while posts come in; and its memory.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from common import IS_TINY, START_MS, authors, resident_mb, signed, size, size_given, tell

from cablestore import CableStore, Text
from cablestore.chat.app import ChatApp
from cablestore.chat.open_cabal import OpenCabal

RATE = 5_000
SECONDS = size(20, tiny=1)
KEYS = size(100, tiny=3)
SCREENS = size(200, tiny=3)


def posts(start: int, count: int) -> list[bytes]:
    """Return texts of 20 authors in one channel, a second apart."""
    who = authors(20)
    texts = (Text("default", f"message {at} " + "word " * (at % 12)) for at in range(start, start + count))
    return [signed(text, who[at % 20], START_MS + at * 1000)[0] for at, text in enumerate(texts, start)]


class Flood(threading.Thread):
    """Posts that come in at a steady rate, each batch of 100 one write, signatures verified."""

    def __init__(self, store: CableStore, start: int) -> None:
        super().__init__()
        self._store = store
        self._posts = posts(start, RATE * SECONDS)
        self.rate = 0.0

    def run(self) -> None:
        """Store them."""
        began = time.perf_counter()
        for at in range(0, len(self._posts), 100):
            self._store.ingest(self._posts[at : at + 100])
            time.sleep(max(0.0, began + (at + 100) / RATE - time.perf_counter()))
        self.rate = len(self._posts) / (time.perf_counter() - began)


async def drawn_ms(app: ChatApp, key: str, state: Callable[[], object]) -> float:
    """Return the milliseconds from a key, as a terminal's driver hands it over, until what it changes is drawn."""
    drawn = asyncio.Event()
    before = state()
    began = time.perf_counter()
    app.simulate_key(key)
    while state() == before:  # noqa: ASYNC110 - an event would need a hook in the client
        await asyncio.sleep(0)
    app.call_after_refresh(drawn.set)
    await drawn.wait()
    return (time.perf_counter() - began) * 1000


async def keys(app: ChatApp) -> list[float]:
    """Press keys, ten a second."""
    found = []
    for number in range(KEYS):
        found.append(await drawn_ms(app, "abcdefghij"[number % 10], lambda: app.typing.text))
        await asyncio.sleep(0.1)
    return found


async def screens_back(app: ChatApp) -> list[float]:
    """Go back screen by screen, as fast as the client follows."""
    return [await drawn_ms(app, "pageup", lambda: app.messages.render_line(0).text) for _ in range(SCREENS)]


def tell_times(name: str, found: list[float], target_ms: float) -> None:
    """Print the median and the greatest."""
    tell(name, f"{statistics.median(found):.1f}, at most {max(found):.1f} ms", f"{target_ms:g} ms")


async def measure(store: CableStore, count: int) -> None:
    """Print the figures."""
    flood = Flood(store, count)
    before = resident_mb()[1]
    open_cabal = OpenCabal(store, "bench")
    app = ChatApp([open_cabal])
    began = time.perf_counter()
    async with app.run_test(size=(120, 40)):
        while not app.messages.timeline.messages:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.001)
        tell("start until messages are there", f"{(time.perf_counter() - began) * 1000:.0f} ms", "1,000 ms")
        tell_times("a key while all texts are searched for mentions", await keys(app), 50)
        while open_cabal.is_busy:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.1)
        tell_times("a key at rest", await keys(app), 50)
        tell_times("a screen back", await screens_back(app), 50)
        app.messages.action_newest()
        flood.start()
        tell_times(f"a key while {RATE:,} posts a second come in", await keys(app), 50)
        await asyncio.to_thread(flood.join)
        tell("posts that came in", f"{flood.rate:,.0f} a second", f"{RATE:,} a second")
        tell("memory of the client", f"{resident_mb()[1] - before:.0f} MB", "120 MB")
    await asyncio.to_thread(open_cabal.close)


def batches(count: int) -> Iterator[list[bytes]]:
    """Return the history in parts."""
    for start in range(0, count, 10_000):
        yield posts(start, min(10_000, count - start))


def main() -> None:
    """Fill a store and measure."""
    count = size_given(100_000, tiny=500)
    with tempfile.TemporaryDirectory() as folder, CableStore.open(Path(folder) / "store") as store:
        for part in batches(count):
            store.ingest(part, verify=False, batch_posts=1_000)
        print(f"the client on {count:,} messages{' (tiny)' if IS_TINY else ''}")
        asyncio.run(measure(store, count))


if __name__ == "__main__":
    main()
