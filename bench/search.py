"""Full-text search: creating the index, searches in both orders, catching up: `search.py [MESSAGES]`.

Real logs are used if `CABLESTORE_DATA` is a folder with them.
"""

from __future__ import annotations

import os
import random
import tarfile
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from common import IS_TINY, START_MS, authors, median, print_result, seconds, sentence, signed, size_given

from cablestore import CableStore, Text
from cablestore.index.folder import SEARCH_FILES
from cablestore.store.searching import Order

PEOPLE, CHANNELS, PAGE = 300, 50, 20


def real_texts() -> Iterator[str]:
    """Yield texts from real logs. Yields nothing if there are no logs."""
    packed = Path(os.environ.get("CABLESTORE_DATA", "data")) / "irc" / "raku.tar.xz"
    if IS_TINY or not packed.exists():
        return
    with tarfile.open(packed) as logs:
        for member in logs:
            file = logs.extractfile(member) if member.isfile() else None
            for line in [] if file is None else file.read().decode(errors="replace").splitlines():
                _, mark, text = line.partition("> ")
                if mark and text and len(text.encode()) <= 4096:
                    yield text


def posts(number: int) -> Iterator[bytes]:
    """Yield messages of a few busy and many quiet people and channels."""
    rng, who = random.Random(1), authors(PEOPLE)
    texts: list[str] = list(islice(real_texts(), number)) or [sentence(rng, 90) for _ in range(min(number, 50_000))]
    for i in range(number):
        author = who[min(int(rng.paretovariate(0.7)) - 1, PEOPLE - 1)]
        channel = f"channel-{min(int(rng.paretovariate(1.0)) - 1, CHANNELS - 1)}"
        yield signed(Text(channel, texts[i % len(texts)]), author, START_MS + 1000 * i)[0]


def measure(store: CableStore, number: int) -> None:
    """Create the index, and search for words of every frequency."""
    assert store.path is not None
    cpu_s = time.process_time()
    made_s = seconds(store.update_search_index)
    cpu_s = time.process_time() - cpu_s
    rate = number / made_s
    print_result("index made", f"{rate:,.0f} messages/s", "at least 50,000", rate >= 50_000)
    print_result("the same by CPU time", f"{number / cpu_s:,.0f} messages/s", "")
    taken = sum((store.path / name).stat().st_size for name in SEARCH_FILES if (store.path / name).exists())
    print_result("file", f"{taken / number:.0f} bytes a message", "")
    words = (
        ("the", "in", "perl", '"in the"', "pe*", "t*")
        if next(real_texts(), None)
        else ("lorem", "ut", '"ut enim"', "do*", "d*")
    )
    orders: tuple[tuple[Order, int], ...] = (("newest", 30), ("ranked", 100))
    for order, target_ms in orders:
        for word in words:
            found_ms = 1000 * median(partial(store.search, word, order=order, limit=PAGE), 9)
            print_result(f"{order}, {word}", f"{found_ms:.1f} ms", f"at most {target_ms} ms", found_ms <= target_ms)
        found_ms = 1000 * median(partial(store.search, words[0], order=order, limit=PAGE, channel="channel-40"), 9)
        print_result(f"{order}, {words[0]} in a quiet channel", f"{found_ms:.1f} ms", "")
    [hit] = store.search(words[0], limit=1).hits
    store.discard([hit.message.hash])
    found_ms = 1000 * seconds(partial(store.search, words[0], limit=PAGE))
    print_result("newest, after one message was removed", f"{found_ms:.0f} ms", "at most 500 ms", found_ms <= 500)
    removed_s = seconds(store.update_search_index)
    print_result("its words overwritten, after that", f"{removed_s:.2f} s", "")
    assert hit.message.hash not in {hit.message.hash for hit in store.search(words[0]).hits}


def main() -> None:
    """Build a store and measure."""
    number = size_given(1_000_000, tiny=300)
    print(f"# search: {number:,} messages")
    with tempfile.TemporaryDirectory() as name, CableStore.open(Path(name) / "store") as store:
        for _ in store.parts.writer.ingest(posts(number), sync=False, batch_posts=500, verify=False):
            pass
        measure(store, number)


if __name__ == "__main__":
    main()
