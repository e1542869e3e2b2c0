"""Backups: a full one, incremental ones, and a restore, in posts per second: `backup.py [POSTS]`, 200,000 by default."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from common import chat, print_result, seconds, size_given
from export import build

from cablestore import CableStore
from cablestore.backup import BackupReport, backup, restore, verify_backup
from cablestore.protocol.crypto import post_hash

_NEW = 100
"""One in this many posts is added after the full backup."""


def print_backup(name: str, posts: int, store: CableStore | Path, out: Path) -> BackupReport:
    """Back up, and print the rate in posts per second."""
    started = time.perf_counter()
    report = backup(store, out)
    elapsed = time.perf_counter() - started
    rate = f"{posts / elapsed:,.0f} posts/s" if posts else ""
    print_result(name, rate, f"{elapsed:.2f} s, {report.written_size_bytes / 1e6:,.1f} MB written")
    return report


def measure(folder: Path, number: int) -> None:
    """Back up a store, add and remove posts, and restore it."""
    path, out, restored = folder / "store", folder / "backup", folder / "restored"
    late = max(number // _NEW, 2)
    raws = list(chat(number + late))
    build(path, raws[:number])
    report = print_backup("full", number, path, out)
    assert (report.is_full, report.posts) == (True, number)
    with CableStore.open(path) as store:
        for _ in store.parts.writer.ingest(raws[number:], sync=False, batch_posts=100, verify=False):
            pass
        report = print_backup(f"incremental, {late:,} new posts, the store is open", late, store, out)
        assert (report.is_full, report.posts) == (False, number + late)
        removed = [post_hash(raw) for raw in random.Random(1).sample(raws, late)]
        store.discard(removed)
        report = print_backup(f"incremental, {late:,} posts anywhere are gone", late, store, out)
        assert (report.is_full, report.posts) == (False, number)
        print_backup("incremental, nothing is new", 0, store, out)
        print_result("a post in the backup", f"{report.size_bytes / number:.0f} bytes", "")
    elapsed = seconds(lambda: verify_backup(out))
    print_result("verified without restoring", f"{number / elapsed:,.0f} posts/s", "")
    elapsed = seconds(lambda: restore(out, restored))
    print_result("restored", f"{number / elapsed:,.0f} posts/s", f"{elapsed:.2f} s")
    with CableStore.open(restored, create=False) as store:
        assert store.stats().posts["text"] == number


def main() -> None:
    """Run the benchmark, and print its results beside the targets."""
    number = size_given(200_000, tiny=400)
    print(f"# backup: texts of 224 bytes; {number:,} posts")
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), number)


if __name__ == "__main__":
    main()
