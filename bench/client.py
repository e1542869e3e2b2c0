"""Reads of a chat client: a page, the list of channels with 20,000 unread texts, mentions, changes, search.

`client.py [TEXTS]`. It also compares writes with and without read marks. `terminal_client.py` measures the memory of an
open client, and how fast it draws.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import START_MS, authors, median, print_result, seconds, sentence, signed, size, size_given

from cablestore import CableStore, Moderation, StoreOptions, Text
from cablestore.moderation import Action
from cablestore.store.cursor import MessageCursor
from cablestore.store.searching import Order

CHANNELS = size(200, tiny=5)
UNREAD = size(20_000, tiny=100)
PEOPLE = 200
HIDDEN = size(10, tiny=1)
NAME = "zoe"
MENTIONED = 200
"""One text in this many mentions the user."""
ROUNDS = size(15, tiny=1)


def texts(number: int, first: int) -> list[bytes]:
    """Return texts that alternate between the channels, one second apart."""
    rng, who = random.Random(first), authors(PEOPLE)
    return [
        signed(
            Text(f"channel-{at % CHANNELS}", f"{NAME}: hello" if at % MENTIONED == 0 else sentence(rng, 90)),
            who[rng.randrange(PEOPLE)],
            START_MS + 1000 * at,
        )[0]
        for at in range(first, first + number)
    ]


def opened(folder: Path) -> CableStore:
    """Open a store whose clock is far after the texts."""
    return CableStore.open(folder, options=StoreOptions(clock=lambda: START_MS + 10**12))


def fill(store: CableStore, posts: list[bytes]) -> None:
    """Store posts in batches."""
    for _ in store.parts.writer.ingest(posts, sync=False, batch_posts=500, verify=False):
        pass


def read_all(store: CableStore) -> None:
    """Mark every channel as read."""
    for channel in list(store.channels()):
        store.mark_read(channel.name)


def print_lists(store: CableStore, unread: int, what: str) -> None:
    """Measure the list of channels. `unread` is the expected number of unread texts."""
    assert sum(channel.unread for channel in store.channels()) == unread
    list_ms = 1000 * median(lambda: list(store.channels()), ROUNDS)
    print_result(f"channels, {unread:,} unread in {CHANNELS}{what}", f"{list_ms:.1f} ms", "under 30 ms", list_ms < 30)


def measure_reads(folder: Path, number: int) -> None:
    """Measure a client's reads on a store with `number` texts that are read, and then UNREAD more."""
    with opened(folder) as store:
        store.set_info(name=NAME)
        fill(store, texts(number, 0))
        read_all(store)
        print_result("mentions, the first time: all texts are searched", f"{seconds(store.find_mentions):.2f} s", "")
        fill(store, texts(UNREAD, number))
    with opened(folder) as store:
        first_ms = 1000 * seconds(lambda: list(store.channels()))
        print_result("channels, the first time after opening", f"{first_ms:.1f} ms", "")
        print_lists(store, UNREAD, "")
        by_activity_ms = 1000 * median(lambda: list(store.channels(order="activity")), ROUNDS)
        print_result("channels, latest message first", f"{by_activity_ms:.1f} ms", "")
        with store.snapshot() as snapshot:
            hidden = authors(PEOPLE)[:HIDDEN]
            found = (message for channel in snapshot.channels() for message in snapshot.messages(channel.name, 1000)[0])
            keys = {each.public_key for each in hidden}
            shown = sum(
                message.author not in keys for message in found if message.timestamp_ms >= START_MS + 1000 * number
            )
        print_result("a page of 50", f"{1000 * median(lambda: store.messages('channel-0'), 9 * ROUNDS):.2f} ms", "")
        print_result("a page of 50 mentions", f"{1000 * median(store.mentions, ROUNDS):.2f} ms", "")
        names = iter([channel.name for channel in store.channels()] * ROUNDS)
        mark_ms = 1000 * median(lambda: store.mark_read(next(names), MessageCursor("0" * 16 + "." + "0" * 32)), ROUNDS)
        print_result("a mark", f"{mark_ms:.2f} ms", "")
        for channel in range(CHANNELS):
            newest_read = next(
                message
                for message in store.messages(f"channel-{channel}", 1000, hidden="show")[0]
                if message.timestamp_ms < START_MS + 1000 * number
            )
            store.mark_read(f"channel-{channel}", newest_read.cursor)
        print_lists(store, UNREAD, ", again")
        if shown != UNREAD:
            store.write(Moderation("", 0, "", tuple(each.public_key for each in hidden), Action.HIDE_USER))
            print_lists(store, shown, f", {HIDDEN} users hidden")
        print_search(store, number + UNREAD)


def print_search(store: CableStore, number: int) -> None:
    """Measure the first search, which creates the index, and later ones."""
    made_s = seconds(lambda: store.search("lorem", limit=20))
    print_result(f"the first search: {number:,} texts are indexed", f"{made_s:.2f} s", "")
    targets: tuple[tuple[Order, int], ...] = (("newest", 30), ("ranked", 100))
    for order, target_ms in targets:
        found_ms = 1000 * median(partial(store.search, "lorem", order=order, limit=20), ROUNDS)
        print_result(f"a search, {order}", f"{found_ms:.1f} ms", f"under {target_ms} ms", found_ms < target_ms)


def measure_changes(posts: list[bytes]) -> None:
    """Measure how fast a client gets changes, including the reads of the posts."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as store:
        cursor, told = store.cursor, 0
        fill(store, posts)
        began = time.perf_counter()
        while (found := store.next_changes(cursor, timeout_s=0)).changes:
            told, cursor = told + len(found.changes), found.cursor
        print_result("changes of texts that arrived", f"{told / (time.perf_counter() - began):,.0f} a second", "")


def measure_storing(posts: list[bytes]) -> None:
    """Compare the processor time of single writes with and without marks and mentions, alternating."""

    def run(prepare: Callable[[CableStore], None]) -> float:
        with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as store:
            store.set_info(name=NAME)
            prepare(store)
            began = time.process_time()
            for post in posts:
                store.ingest([post], verify=False)
            return (time.process_time() - began) / len(posts) * 1e6

    def marked(store: CableStore) -> None:
        for channel in range(CHANNELS):
            store.mark_read(f"channel-{channel}")

    plain: list[float] = []
    with_marks: list[float] = []
    for _ in range(size(5, tiny=1)):
        plain.append(run(lambda _: None))
        with_marks.append(run(marked))
    before_us, after_us = statistics.median(plain), statistics.median(with_marks)
    print_result("one post, without marks", f"{before_us:.1f} us", "")
    print_result("one post, with marks and mentions", f"{after_us:.1f} us ({after_us / before_us:.3f})", "")


def main() -> None:
    """Build a store and measure."""
    number = size_given(20_000, tiny=200)
    print(f"# a client: {number:,} texts read and {UNREAD:,} unread in {CHANNELS} channels")
    with tempfile.TemporaryDirectory() as folder:
        measure_reads(Path(folder), number)
    measure_changes(texts(size(20_000, tiny=200), 0))
    measure_storing(texts(size(5_000, tiny=50), 0))


if __name__ == "__main__":
    main()
