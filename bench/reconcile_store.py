"""Reconciliation over the view of stores, and its cost for ingest: `reconcile_store.py [IDS]`, 1 million by default."""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
import time
from pathlib import Path

from common import START_MS, chain10k, print_result, seconds, size, size_given

from cablestore import LEGACY, CableStore, StoreOptions
from cablestore.index.batches import batches
from cablestore.index.database import Row
from cablestore.index.leveldb import LevelDB
from cablestore.index.reader import Reader
from cablestore.index.tree import Move, changed, tree_rows
from cablestore.index.view import Catalog
from cablestore.protocol.keys import sort_time
from cablestore.reconcile.dialects import SPEC
from cablestore.reconcile.ids import EVERYTHING, of_times
from cablestore.reconcile.session import ReconcileSession
from cablestore.reconcile.splitting import Splitting
from cablestore.reconcile.stored_set import stored_set
from cablestore.views import CATALOG
from cablestore.views.sync import ID_PREFIX, TREE

TARGETS = {1: (2_500, 0.020), 100: (150_000, 0.250), 10_000: (7_500_000, 8.0)}
"""Targets in bytes and CPU seconds of both sides, by number of differences among a million."""
YEAR_MS = 365 * 86_400_000
ROUNDS = size(9, tiny=1)


def drawn(rng: random.Random) -> Row:
    """Return an item of the set of all posts, at a random time of a year."""
    digest = rng.randbytes(32)
    return b"!" + sort_time(START_MS + rng.randrange(YEAR_MS), digest.hex().encode()), digest


def filled(path: Path, items: list[Row]) -> LevelDB:
    """Create a database with these items and their tree."""
    database = LevelDB(path, create=True)
    with database.bulk_writer() as writer:
        for batch in batches(items, lambda row: len(row[0])):
            writer.put([(ID_PREFIX + key, digest) for key, digest in batch])
        for batch in batches(tree_rows(TREE, items), lambda row: len(row[1])):
            writer.put(batch)
    database.flush()
    return database


def add(database: LevelDB, items: list[Row]) -> None:
    """Add items like a batch of posts."""
    moves: list[Move] = [(key, digest, 1) for key, digest in items]
    rows: dict[bytes, bytes | None] = {ID_PREFIX + key: digest for key, digest in items}
    with database.snapshot() as state:
        rows |= {key: after for key, _, after in changed(Reader(state, LEGACY), TREE, moves)}
    database.write(rows, sync=False)


def side_of(reader: Reader) -> ReconcileSession:
    """Return one side of a session, over a database."""
    return ReconcileSession(lambda _: stored_set(reader), SPEC, splitting=Splitting(skip_equal_sets=True))


def session(ours: LevelDB, theirs: LevelDB, differences: int) -> tuple[int, int, float]:
    """Return bytes, payloads and CPU time of both sides. All differences must be found."""
    with ours.snapshot() as our_state, theirs.snapshot() as their_state:
        gc.collect()
        started = time.process_time()
        sides = [side_of(Reader(state, LEGACY)) for state in (our_state, their_state)]
        message: bytes | None = sides[0].initiate(EVERYTHING, at_s=0.0)
        payloads, found = 1, 0
        while message is not None:
            sides.reverse()
            step = sides[0].receive(message, at_s=0.0)
            found += len(step.have) + len(step.need)
            message = step.reply
            payloads += message is not None
        cpu_s = time.process_time() - started
    assert found == 2 * differences
    return sum(side.sent_size_bytes for side in sides), payloads, cpu_s


def sessions(number: int) -> None:
    """Find differences between two databases, half of them on each side."""
    rng = random.Random(1)
    items = sorted(drawn(rng) for _ in range(number))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        ours, theirs = filled(Path(folder) / "ours", items), filled(Path(folder) / "theirs", items)
        print_result(f"two databases of {number:,} ids with their sums", f"{time.perf_counter() - started:.1f} s", "")
        del items
        with ours.snapshot() as state:
            questions(Reader(state, LEGACY))
        known = 0
        for differences, (size_bytes, cpu_s) in TARGETS.items():
            more = [drawn(rng) for _ in range(differences - known)]
            add(ours, more[::2])
            add(theirs, more[1::2])
            known = differences
            runs = [session(ours, theirs, differences) for _ in range(ROUNDS if differences < 10_000 else 1)]
            size, payloads = runs[0][:2]
            spent_s = statistics.median(run[2] for run in runs)
            is_whole = number <= 1_000_000
            print_result(
                f"{differences:,} differ: bytes",
                f"{size / 1000:,.1f} kB",
                f"at most {size_bytes / 1000:g} kB",
                size <= size_bytes if is_whole else None,
            )
            print_result(
                "  CPU of both sides",
                f"{spent_s * 1000:,.1f} ms",
                f"at most {cpu_s * 1000:g} ms",
                spent_s <= cpu_s if is_whole else None,
            )
            print_result("  payloads", f"{payloads}", "")
        ours.close()
        theirs.close()


def questions(reader: Reader) -> None:
    """Measure operations without cached results."""
    rng = random.Random(7)
    ranges = []
    for _ in range(300):
        low, high = sorted(rng.sample(range(START_MS, START_MS + YEAR_MS), 2))
        ranges.append(of_times(low * 1_000_000, high * 1_000_000))
    for name in ("fingerprint", "select"):
        spent = []
        for within in ranges:
            found = stored_set(reader)
            started = time.perf_counter()
            if name == "fingerprint":
                found.fingerprint(within)
            else:
                found.select(within, 10)
            spent.append(time.perf_counter() - started)
        print_result(f"  {name} of a range, nothing remembered", f"{statistics.median(spent) * 1e6:.0f} us", "")


def ingest() -> None:
    """Measure ingest with and without the view, in turn."""
    posts = chain10k()
    without = Catalog(tuple(view for view in CATALOG.views if view.tree is None))

    def stored(catalog: Catalog) -> float:
        with (
            tempfile.TemporaryDirectory() as folder,
            CableStore.open(Path(folder), options=StoreOptions(catalog=catalog)) as store,
        ):
            return seconds(lambda: store.ingest(posts, sync=True, batch_posts=100))

    ratios = sorted(stored(CATALOG) / stored(without) for _ in range(2 * ROUNDS))
    cost = statistics.median(ratios) - 1
    print_result(
        "what the view costs ingest of durable batches of 100", f"{100 * cost:.1f}%", "at most 15%", cost <= 0.15
    )


def main() -> None:
    """Run the benchmark, and print its results beside the targets."""
    number = size_given(1_000_000, tiny=20_000)
    print(f"# reconciliation over stores, {number:,} ids over a year; both sides together")
    ingest()
    sessions(number)


if __name__ == "__main__":
    main()
