"""Simulation of a causal log of many participants over a bad network, with assertions: `sds_simulator.py --help`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import print_result

from cablestore.index.database import Database
from cablestore.index.leveldb import LevelDB, Tuning
from cablestore.sds.settings import COMPACT_FILTER, Settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from sds_network import QUICK, Conditions, Result, Simulation


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--participants", type=int, default=50)
    parser.add_argument("--messages", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=60, help="time within which they are sent")
    parser.add_argument("--loss", type=float, default=0.3)
    parser.add_argument("--doubled", type=float, default=0.1)
    parser.add_argument("--delay-ms", type=int, nargs=2, default=(20, 2_000), metavar=("FROM", "TO"))
    parser.add_argument("--partition", type=int, nargs=2, action="append", default=[], metavar=("FROM_S", "TO_S"))
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--store", action="store_true", help="a store has all messages and is asked for missing ones")
    parser.add_argument("--settings", choices=["quick", "default", "interoperable"], default="quick")
    parser.add_argument(
        "--leveldb", action="store_true", help="one database on the disk per participant, instead of memory"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, starting at --seed")
    return parser.parse_args()


def simulated(conditions: Conditions, seed: int, *, leveldb: bool) -> Result:
    """Run one simulation."""
    if not leveldb:
        return Simulation(conditions, seed).run()
    with tempfile.TemporaryDirectory() as folder:
        opened: list[LevelDB] = []

        def database() -> Database:
            small = Tuning(write_buffer_size_bytes=2**20, block_cache_size_bytes=2**20)
            opened.append(LevelDB(Path(folder) / str(len(opened)), small, create=True))
            return opened[-1]

        try:
            return Simulation(conditions, seed, database).run()
        finally:
            for each in opened:
                each.close()


def show(result: Result, conditions: Conditions, took_s: float) -> None:
    """Print the results."""
    counts, others = result.counts, conditions.participants - 1
    sends = {reason: counts[f"send {reason}"] for reason in ("new", "resend", "repair", "sync")}
    print_result(
        "delivered",
        f"{len(result.latencies_ms):,} of {result.sent * others:,}",
        "all",
        len(result.latencies_ms) == result.sent * others,
    )
    print_result("all logs equal after the last message or partition", f"{result.converged_ms / 1000:,.0f} s", "")
    print_result(
        "from sending to delivery: mean, median",
        f"{result.mean_latency_ms / 1000:.1f}, {result.latency_ms(0.5) / 1000:.1f} s",
        "",
    )
    print_result(
        "  95%, 99%, longest",
        ", ".join(f"{result.latency_ms(share) / 1000:.1f}" for share in (0.95, 0.99, 1.0)) + " s",
        "",
    )
    print_result("broadcasts for each message", f"{sum(sends.values()) / result.sent:.1f}", "")
    for reason, number in sends.items():
        print_result(f"  {reason}", f"{number:,}", "")
    print_result("bytes broadcast for each message", f"{counts['bytes sent'] / result.sent:,.0f}", "")
    print_result("heard twice or more, ignored", f"{counts['duplicate']:,}", "")
    print_result("delivered at once, after waiting", f"{counts['delivered']:,}, {counts['waiting']:,}", "")
    print_result("missed, retrieved from the store", f"{counts['missing']:,}, {counts['retrieved']:,}", "")
    print_result("killed and started again", f"{counts['kills']:,}", "")
    print_result("took", f"{took_s:.1f} s", "")


def main() -> None:
    """Run the simulation, and print its result."""
    given = arguments()
    settings = {
        "quick": QUICK,
        "default": replace(Settings(), filter=COMPACT_FILTER, lost_after_ms=None),
        "interoperable": replace(Settings(), lost_after_ms=None),
    }[given.settings]
    conditions = Conditions(
        participants=given.participants,
        messages=given.messages,
        seconds=given.seconds,
        loss=given.loss,
        doubled=given.doubled,
        delay_ms=tuple(given.delay_ms),
        partitions=tuple((start, stop) for start, stop in given.partition),
        kills=given.kills,
        settings=settings,
        store=given.store,
    )
    for seed in range(given.seed, given.seed + given.seeds):
        print(
            f"# {given.participants} participants, {given.messages} messages in {given.seconds} s, {given.loss:.0%} lost, seed {seed}"
        )
        started = time.perf_counter()
        result = simulated(conditions, seed, leveldb=given.leveldb)
        show(result, conditions, time.perf_counter() - started)


if __name__ == "__main__":
    main()
