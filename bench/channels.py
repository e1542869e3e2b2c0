"""The list of channels: `channels.py [MEMBERSHIPS]`, a million in 500 channels by default."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import START_MS, authors, median, print_result, seconds, signed, size_given

from cablestore import CableStore, Join, Topic

CHANNELS = 500
KEY_SIZE_BYTES = 32


def joins(number: int) -> Iterator[bytes]:
    """Return this many joins, each by another user, in few large channels and many small ones. Signatures are invalid."""
    rng = random.Random(1)
    who = authors(1)[0]
    like = [signed(Join(f"channel-{channel}"), who, START_MS)[0] for channel in range(CHANNELS)]
    for number_made in range(number):
        channel = number_made if number_made < CHANNELS else min(int(rng.paretovariate(0.3)) - 1, CHANNELS - 1)
        yield rng.randbytes(KEY_SIZE_BYTES) + like[channel][KEY_SIZE_BYTES:]


def topics() -> list[bytes]:
    """Return a topic for every channel."""
    return [signed(Topic(f"channel-{n}", f"topic {n}"), authors(1)[0], START_MS + 1)[0] for n in range(CHANNELS)]


def main() -> None:
    """Build a store and measure."""
    number = size_given(1_000_000, tiny=1_000)
    print(f"# the list of channels: {number:,} memberships in {CHANNELS} channels")
    with tempfile.TemporaryDirectory() as folder:
        with CableStore.open(Path(folder)) as store:
            store.ingest(topics())
            stored = 0

            def fill() -> None:
                nonlocal stored
                for outcomes in store.parts.writer.ingest(joins(number), sync=False, batch_posts=500, verify=False):
                    stored += len(outcomes)

            print_result(f"{number:,} joins stored, not verified", f"{number / seconds(fill):,.0f}/s", "")
            assert stored == number
        with CableStore.open(Path(folder)) as store:
            first_ms = 1000 * seconds(lambda: list(store.channels()))
            again_ms = 1000 * median(lambda: list(store.channels()), 15)
            members = sum(channel.members for channel in store.channels())
            assert members == number + CHANNELS
            print_result("channels, the first time after opening", f"{first_ms:.1f} ms", "")
            print_result("channels", f"{again_ms:.1f} ms", "at most 20 ms", again_ms <= 20)


if __name__ == "__main__":
    main()
