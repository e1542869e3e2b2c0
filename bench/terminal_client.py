"""The chat client on a large store: `terminal_client.py [POSTS]`, by default 100,000.

It measures the time until its start, a screen back and a key are drawn, at rest and while posts arrive, and its memory.
Then it measures the time from a message of a peer, in a separate process, until it is drawn: in a client with a node,
and in one beside `serve`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from common import IS_TINY, START_MS, authors, print_result, resident_mb, signed, size, size_given

from cablestore import CableStore, Text
from cablestore.chat.app import ChatApp
from cablestore.chat.cabal import Cabal
from cablestore.chat.hosting import HostedNode, Hosting
from cablestore.chat.open_cabal import OpenCabal
from cablestore.cli.client_store import CabalChoice, open_cabal
from cablestore.peers import Address, Node, NodeSettings

RATE = 5_000
SECONDS = size(20, tiny=1)
KEYS = size(100, tiny=3)
SCREENS = size(200, tiny=3)
MESSAGES = size(100, tiny=3)
CHANNEL = "default"
LOCAL = Address("127.0.0.1", 0)


def posts(start: int, count: int) -> list[bytes]:
    """Return texts of 20 authors in one channel, a second apart."""
    who = authors(20)
    texts = (Text(CHANNEL, f"message {at} " + "word " * (at % 12)) for at in range(start, start + count))
    return [signed(text, who[at % 20], START_MS + at * 1000)[0] for at, text in enumerate(texts, start)]


class Flood(threading.Thread):
    """Posts that arrive at a steady rate, in batches of 100 per write, with verified signatures."""

    def __init__(self, store: CableStore, start: int) -> None:
        super().__init__()
        self._store = store
        self._posts = posts(start, RATE * SECONDS)
        self.rate = 0.0

    def run(self) -> None:
        """Store the posts."""
        began = time.perf_counter()
        for at in range(0, len(self._posts), 100):
            self._store.ingest(self._posts[at : at + 100])
            time.sleep(max(0.0, began + (at + 100) / RATE - time.perf_counter()))
        self.rate = len(self._posts) / (time.perf_counter() - began)


async def drawn_ms(app: ChatApp, key: str, state: Callable[[], object]) -> float:
    """Return the milliseconds from a key, as passed by a terminal's driver, until its effect is drawn."""
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
    """Press keys, ten per second."""
    found = []
    for number in range(KEYS):
        found.append(await drawn_ms(app, "abcdefghij"[number % 10], lambda: app.typing.text))
        await asyncio.sleep(0.1)
    return found


async def screens_back(app: ChatApp) -> list[float]:
    """Scroll back screen by screen, as fast as the client follows, to the beginning of the channel."""
    found: list[float] = []
    messages = app.messages
    while len(found) < SCREENS and (messages.top or messages.timeline.has_older):
        if messages.top:
            found.append(await drawn_ms(app, "pageup", lambda: messages.render_line(0).text))
        else:
            await asyncio.sleep(0.001)  # until the next page is there
    return found


def print_times(name: str, found: list[float], target_ms: float) -> None:
    """Print the median and the maximum."""
    print_result(name, f"{statistics.median(found):.1f}, at most {max(found):.1f} ms", f"{target_ms:g} ms")


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
        print_result("start until messages are there", f"{(time.perf_counter() - began) * 1000:.0f} ms", "1,000 ms")
        print_times("a key while all texts are searched for mentions", await keys(app), 50)
        while open_cabal.is_busy:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.1)
        print_times("a key at rest", await keys(app), 50)
        print_times("a screen back", await screens_back(app), 50)
        app.messages.action_newest()
        flood.start()
        print_times(f"a key while {RATE:,} posts a second come in", await keys(app), 50)
        await asyncio.to_thread(flood.join)
        print_result("posts that came in", f"{flood.rate:,.0f} a second", f"{RATE:,} a second")
        print_result("memory of the client", f"{resident_mb()[1] - before:.0f} MB", "120 MB")
    await asyncio.to_thread(open_cabal.close)


# --- messages of a peer ---------------------------------------------------------------------------


def speak(address: Address, orders: Connection) -> None:
    """Act as a peer: post a text for each order, and return the clock's time just before."""

    async def main() -> None:
        with CableStore.in_memory() as store:
            async with Node(store, NodeSettings(channels=frozenset(), reconciles=False)) as node:
                node.keep_connected(address)
                while (text := await asyncio.to_thread(orders.recv)) is not None:
                    began = time.perf_counter()
                    await asyncio.to_thread(store.post, CHANNEL, text)
                    orders.send(began)

    asyncio.run(main())


@contextmanager
def peer_of(address: Address) -> Iterator[Connection]:
    """Run a peer in a separate process."""
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    process = processes.Process(target=speak, args=(address, theirs), daemon=True)
    process.start()
    yield ours
    ours.send(None)
    process.join()


async def messages_ms(cabal: Cabal, peer: Connection) -> list[float]:
    """Return the milliseconds from the write of a text at a peer until the client has drawn it, several per second."""
    found = []
    app = ChatApp([cabal])
    async with app.run_test(size=(120, 40)):
        while cabal.is_busy or not app.messages.timeline.messages:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.1)
        for number in range(-3, MESSAGES):  # the first ones arrive while the peer connects
            text = f"from a peer {number}"
            peer.send(text)
            while text not in {message.text for message in app.messages.timeline.messages[-3:]}:  # noqa: ASYNC110 - the same
                await asyncio.sleep(0.0005)
            drawn = asyncio.Event()
            app.call_after_refresh(drawn.set)
            await drawn.wait()
            ended = time.perf_counter()
            found.append((ended - await asyncio.to_thread(peer.recv)) * 1000)
            await asyncio.sleep(random.uniform(0.1, 0.3))  # to be independent of the client's timing
    return found[3:]


def measure_messages(path: Path) -> None:
    """Print the time of a peer's messages in a client with a node, and in one beside `serve`."""
    store = CableStore.open(path)
    own = OpenCabal(store, "bench", HostedNode(store, Hosting(NodeSettings(), listen=(LOCAL,))))
    print_messages("a peer's message, in a client with a node", own, 30)
    own.close()
    serve = [sys.executable, "-m", "cablestore", "serve", "--quiet", "--listen", str(LOCAL), "-s", str(path)]
    with ExitStack() as stack:
        process = subprocess.Popen(serve, stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        while process.poll() is None and not (path / "control.sock").is_socket():
            time.sleep(0.01)
        cabal = open_cabal(stack, CabalChoice(path, None, None, ()))
        print_messages("a peer's message, in a client beside `serve`", cabal, 40)


def print_messages(name: str, cabal: Cabal, target_ms: float) -> None:
    """Run a peer and a client, and print the figures."""
    while not cabal.listening:
        time.sleep(0.01)
    with peer_of(Address.parse(cabal.listening[0])) as peer:
        print_times(name, asyncio.run(messages_ms(cabal, peer)), target_ms)


def batches(count: int) -> Iterator[list[bytes]]:
    """Yield the history in parts."""
    for start in range(0, count, 10_000):
        yield posts(start, min(10_000, count - start))


def main() -> None:
    """Fill a store and measure."""
    count = size_given(100_000, tiny=60)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with CableStore.open(path) as store:
            for part in batches(count):
                store.ingest(part, verify=False, batch_posts=1_000)
            print(f"the client on {count:,} messages{' (tiny)' if IS_TINY else ''}")
            asyncio.run(measure(store, count))
        measure_messages(path)


if __name__ == "__main__":
    main()
