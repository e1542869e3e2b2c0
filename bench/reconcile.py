"""Benchmark of the reconciliation of two large sets in memory: bytes, payloads, CPU of both sides.

`reconcile.py [IDS]`, 1 million by default.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from typing import NamedTuple

from common import print_result, resident_mb, size_given

from cablestore.reconcile.dialects import NWAKU_037, SPEC, SyncDialect
from cablestore.reconcile.ids import EVERYTHING, SyncID, of_times
from cablestore.reconcile.session import ReconcileSession
from cablestore.reconcile.sets import MemorySet
from cablestore.reconcile.splitting import Splitting

NOW_NS = 1_700_000_000_000_000_000
HOUR_NS = 3_600_000_000_000
TARGETS = {1: (2_500, 0.020), 100: (150_000, 0.250), 10_000: (7_500_000, 8.0)}
"""Targets in bytes and seconds, by number of differences among a million."""


class Cost(NamedTuple):
    """Cost of one session."""

    size_bytes: int
    payloads: int
    cpu_s: float


def drawn(rng: random.Random, over_ns: int = HOUR_NS) -> SyncID:
    """Return an id of this hour."""
    return SyncID(NOW_NS + rng.randrange(over_ns), rng.randbytes(32))


def reconcile(here: MemorySet, there: MemorySet, dialect: SyncDialect, differences: int) -> Cost:
    """Run a session, and assert that both sides find all differences."""
    splitting = Splitting(skip_equal_sets=True)
    our_state, their_state = here.snapshot(), there.snapshot()
    ours = ReconcileSession(lambda _: our_state, dialect, splitting=splitting)
    theirs = ReconcileSession(lambda _: their_state, dialect, splitting=splitting)
    found = dict.fromkeys(("have", "need"), 0)
    gc.collect()
    gc.freeze()  # excludes the time to build the sets and of repeated garbage collection
    started = time.process_time()
    message: bytes | None = ours.initiate(EVERYTHING, at_s=0.0)
    sides, payloads = [theirs, ours], 1
    while message is not None:
        step = sides[0].receive(message, at_s=0.0)
        found["have"] += len(step.have)
        found["need"] += len(step.need)
        message = step.reply
        payloads += message is not None
        sides.reverse()
    cpu_s = time.process_time() - started
    gc.unfreeze()
    assert found == {"have": differences, "need": differences}  # each side needs what the other has
    return Cost(ours.sent_size_bytes + theirs.sent_size_bytes, payloads, cpu_s)


def differences_among(
    number: int, differences: int, dialect: SyncDialect, repeats: int, *, newest: bool = False
) -> Cost:
    """Return the median of several newly created sets. Half of the differences are on each side."""
    costs = []
    for seed in range(repeats):
        rng = random.Random(seed)
        both = [drawn(rng) for _ in range(number - differences)]
        only = (
            [drawn(rng, HOUR_NS // 100) for _ in range(differences)]
            if newest
            else [drawn(rng) for _ in range(differences)]
        )
        late_ns = HOUR_NS if newest else 0
        only = [SyncID(sync_id.timestamp_ns + late_ns, sync_id.hash) for sync_id in only]
        here, there = MemorySet([*both, *only[::2]]), MemorySet([*both, *only[1::2]])
        del both
        costs.append(reconcile(here, there, dialect, differences))
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))


def sessions(number: int) -> None:
    """Compare sessions with the targets, which are for a million; also in the dialect of a deployed peer."""
    for dialect in (SPEC, NWAKU_037):
        for differences, (size_bytes, cpu_s) in TARGETS.items():
            if 2 * differences > number:
                continue
            cost = differences_among(number, differences, dialect, 3 if differences < 10_000 else 1)
            what = f"{dialect.name}, {differences:,} of {number:,} differ"
            bounded = dialect is SPEC and number <= 1_000_000
            told = (f"at most {size_bytes / 1000:g} kB", f"at most {cpu_s * 1000:g} ms") if bounded else ("", "")
            print_result(
                what, f"{cost.size_bytes / 1000:,.1f} kB", told[0], cost.size_bytes <= size_bytes if bounded else None
            )
            print_result(
                "  CPU of both sides", f"{cost.cpu_s * 1000:,.1f} ms", told[1], cost.cpu_s <= cpu_s if bounded else None
            )
            print_result("  payloads", f"{cost.payloads:g}", "")
    cost = differences_among(number, min(100, number // 2), SPEC, 1, newest=True)
    print_result("spec, the 100 newest differ", f"{cost.size_bytes / 1000:,.1f} kB", "")


def questions(number: int) -> None:
    """Measure each operation of the set in memory."""
    rng = random.Random(7)
    before_mb = resident_mb()[0]
    started = time.process_time()
    changing = MemorySet(drawn(rng) for _ in range(number))
    print_result(f"a set of {number:,}: making it", f"{time.process_time() - started:.2f} s", "")
    print_result("  memory", f"{resident_mb()[0] - before_mb:,.0f} MB", "")
    started = time.process_time()
    state = changing.snapshot()
    print_result("  a snapshot", f"{(time.process_time() - started) * 1000:.1f} ms", "")
    ranges = []
    for _ in range(5_000):
        low, high = sorted(rng.sample(range(HOUR_NS), 2))
        within = of_times(NOW_NS + low, NOW_NS + high)
        if state.count(within):  # an empty one has no first id
            ranges.append(within)
    for name, ask in (
        ("fingerprint", state.fingerprint),
        ("count", state.count),
        ("first id", lambda r: state.select(r, 0)),
    ):
        started = time.process_time()
        for within in ranges:
            ask(within)
        print_result(f"  {name} of a range", f"{(time.process_time() - started) / len(ranges) * 1e6:.1f} us", "")
    new = [drawn(rng) for _ in range(5_000)]
    started = time.process_time()
    for sync_id in new:
        changing.add(sync_id)
    print_result("  adding an id", f"{(time.process_time() - started) / len(new) * 1e6:.1f} us", "")


def main() -> None:
    """Run the benchmark, and print its results beside the targets."""
    number = size_given(1_000_000, tiny=3_000)
    print(
        f"# reconciliation of sets in memory, {number:,} ids over an hour; sums of both sides, without building the sets"
    )
    questions(number)
    sessions(number)


if __name__ == "__main__":
    main()
