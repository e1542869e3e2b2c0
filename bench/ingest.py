"""Ingest: posts per second, compared with verification alone in the same run. `ingest.py [POSTS]`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from common import chain10k, known_posts, print_result, seconds, size, size_given

from cablestore import CableStore
from cablestore.index.signatures import SignatureVerifier

ROUNDS = size(7, tiny=1)


def main() -> None:
    """Run every way of ingest in turn, several rounds, and compare medians."""
    posts = chain10k()[: size_given(10_000, tiny=200)]
    source = "text10k_chain.bin" if known_posts("text10k_chain.bin") else "generated"
    verifier = SignatureVerifier(2)

    def verify() -> None:
        verifier.start(posts)()

    def stored(work: Callable[[CableStore], object]) -> Callable[[], float]:
        def run() -> float:
            with tempfile.TemporaryDirectory() as folder, CableStore.open(Path(folder)) as store:
                elapsed = seconds(lambda: work(store))
                assert store.stats().posts == {"text": len(posts)}
                return elapsed

        return run

    ways: dict[str, Callable[[], float]] = {
        "verifying alone on two threads": lambda: seconds(verify),
        "durable batches of 100, one stream": stored(lambda s: s.ingest(posts, sync=True, batch_posts=100)),
        "durable batches of 100, one call each": stored(
            lambda s: [s.ingest(posts[at : at + 100], sync=True) for at in range(0, len(posts), 100)]
        ),
        "durable batches of 500, one stream": stored(lambda s: s.ingest(posts, sync=True, batch_posts=500)),
        "one by one, no sync, verified": stored(lambda s: [s.ingest([post]) for post in posts]),
        "batches of 100 without verification": stored(lambda s: s.ingest(posts, verify=False)),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, run in ways.items():
            rates[name].append(len(posts) / run())
    found = {name: statistics.median(values) for name, values in rates.items()}
    alone = found["verifying alone on two threads"]
    targets = {
        "durable batches of 100, one stream": ("at least 10,000 and half of verifying", max(10_000, alone / 2)),
        "one by one, no sync, verified": ("at least 6,000", 6_000),
    }
    print(f"# ingest: {len(posts):,} posts ({source}), medians of {ROUNDS} rounds")
    for name, rate in found.items():
        text, least = targets.get(name, ("", 0))
        print_result(name, f"{rate:,.0f}/s ({rate / alone:.2f})", text, rate >= least if text else None)


if __name__ == "__main__":
    main()
