"""Answers to peers and pages for a client from a small store. bench/scale.py measures them on a large one."""

from __future__ import annotations

import random
import tempfile
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from common import chain10k, median, print_result, size, state1k

from cablestore import CableStore
from cablestore.store import answers

REPEATS = size(31, tiny=1)


def exhaust(items: Iterable[object]) -> None:
    """Consume all items."""
    deque(items, maxlen=0)


def main() -> None:
    """Measure each answer from a freshly opened store."""
    with tempfile.TemporaryDirectory() as folder:
        with CableStore.open(Path(folder)) as store:
            store.ingest(chain10k(), verify=False)
            store.ingest(state1k(), verify=False)
        with CableStore.open(Path(folder)) as store, store.snapshot() as snapshot:
            reader = snapshot.reader
            busiest = max(snapshot.channels(), key=lambda c: c.posts.get("text", 0)).name
            crowded = max(snapshot.channels(), key=lambda c: c.members).name
            hashes = list(answers.channel_time_range(reader, busiest, 0, 0))
            random.Random(1).shuffle(hashes)
            members = len(list(answers.channel_state(reader, crowded)))
            asked = {
                f"time range of {len(hashes):,} hashes": (
                    lambda: exhaust(answers.channel_time_range(reader, busiest, 0, 0)),
                    15,
                ),
                f"channel state of {members:,} hashes": (lambda: exhaust(answers.channel_state(reader, crowded)), 30),
                f"{len(hashes):,} posts by hash, in random order": (
                    lambda: exhaust(answers.post_request(reader, hashes)),
                    100,
                ),
                f"which of {len(hashes):,} known hashes to request": (
                    lambda: exhaust(answers.worth_requesting(reader, hashes)),
                    None,
                ),
                "a page of 50 resolved messages": (lambda: store.messages(busiest, 50), 3),
            }
            print(f"# answers: medians of {REPEATS}")
            for name, (work, target_ms) in asked.items():
                found_ms = 1000 * median(work, REPEATS)
                goal = "" if target_ms is None else f"under {target_ms} ms"
                print_result(name, f"{found_ms:.2f} ms", goal, None if target_ms is None else found_ms < target_ms)


if __name__ == "__main__":
    main()
