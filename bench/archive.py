"""Creation and import of the archives of a year, on the disk. `archive.py [POSTS]`, 200,000 by default."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common import chat, print_result, seconds, size, size_given

from cablestore import CableStore, Identity
from cablestore.archive.create import create_archives
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.period import WEEK_MS
from cablestore.archive.format.profile import PROFILES
from cablestore.archive.importer import ArchiveImportReport, import_archives
from cablestore.archive.writer import ArchivePlan

CONTROL = Identity.derive("bench", "control")
KEY = bytes(range(32))
REPEATS = size(3, tiny=1)
LATE_MS = 2_000_000_000_000


def creating(store: CableStore, scratch: Path, profile: str, key: bytes | None) -> tuple[ArchivePlan, ArchiveFolder]:
    """Measure the creation of all archives, from the opened store to the index on the disk: the median of three runs."""
    plan = ArchivePlan(PROFILES[profile], CONTROL, store.dialect, key)
    runs = []
    for number in range(REPEATS):
        folder = ArchiveFolder(scratch / f"{profile} {'sealed' if key else 'public'} {number}")
        started = time.perf_counter()
        made = create_archives(store, folder, plan, LATE_MS)
        runs.append((made.posts / (time.perf_counter() - started), folder))
    rate, folder = sorted(runs, key=lambda run: run[0])[REPEATS // 2]
    name = f"create, {profile}, {'sealed' if key else 'public'}"
    print_result(name, f"{rate:,.0f} posts/s", "at least 100,000", rate >= 100_000)
    return plan, folder


def creating_again(store: CableStore, plan: ArchivePlan, folder: ArchiveFolder, posts: int) -> None:
    """Measure a run without new posts."""
    elapsed = seconds(lambda: create_archives(store, folder, plan, LATE_MS))
    print_result("  again, when nothing is new", f"{posts / elapsed:,.0f} posts/s", "")


def ingesting(posts: list[bytes], path: Path) -> float:
    """Ingest the same posts as if from peers, in batches of 1,000, for comparison."""
    with CableStore.open(path) as store:
        elapsed = seconds(lambda: store.ingest(posts, batch_posts=1000, sync=True))
    rate = len(posts) / elapsed
    print_result("ingest of the same posts, verified, for comparison", f"{rate:,.0f} posts/s", "")
    return rate


def importing(plan: ArchivePlan, folder: ArchiveFolder, path: Path, compared_rate: float) -> str:
    """Import all archives, newest first, like members. Return the digest of the store's dump."""
    verified = plan.verified(folder)
    assert verified
    total = ArchiveImportReport()
    with CableStore.open(path) as store:

        def run() -> None:
            nonlocal total
            archives = ((entry, folder.stored(entry)) for entry in reversed(verified.index.entries))
            for _, found in import_archives(store, verified, archives, key=plan.key):
                total += found

        elapsed = seconds(run)
        rate = total.posts / elapsed
        print_result("import, everything verified", f"{rate:,.0f} posts/s", "at least 12,000", rate >= 12_000)
        print_result("  against ingest", f"{rate / compared_rate:.2f}", "")
        return store.dump_digest()


def spread(number: int) -> Iterator[bytes]:
    """Return a year of posts."""
    return chat(number, every_ms=52 * WEEK_MS // number)


def main() -> None:
    """Measure both profiles, encrypted and public."""
    number = size_given(200_000, tiny=400)
    print(f"# archives: {number:,} posts in a year, texts of 224 bytes")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        posts = list(spread(number))
        with CableStore.open(scratch / "source", identity=CONTROL) as store:
            store.ingest(posts, batch_posts=1000, verify=False)
            for profile in PROFILES:
                creating(store, scratch, profile, None)
            plan, folder = creating(store, scratch, "rfc61", KEY)
            creating_again(store, plan, folder, number)
            expected = store.dump_digest()
        rate = ingesting(posts, scratch / "ingested")
        assert importing(plan, folder, scratch / "imported", rate) == expected
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print_result("peak resident memory, the posts and mapped files included", f"{peak_mb:.0f} MB", "")


if __name__ == "__main__":
    main()
