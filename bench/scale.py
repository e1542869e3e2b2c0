"""A large store: the cost of opening, reading and every view. `scale.py [POSTS]`, a million by default."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import chat, median, print_result, resident_mb, seconds, size_given

from cablestore import CableStore
from cablestore.store import answers


def build(folder: Path, number: int) -> None:
    """Fill a store with posts of 224 bytes of text and compact it."""
    with CableStore.open(folder) as store:
        started = time.perf_counter()
        stored = 0
        for outcomes in store.parts.writer.ingest(chat(number), sync=False, batch_posts=500, verify=False):
            stored += len(outcomes)
        elapsed = time.perf_counter() - started
        print_result(f"{stored:,} posts made, signed and stored", f"{stored / elapsed:,.0f}/s", "")
        print_result("compaction", f"{seconds(store.compact):.1f} s", "")


def measure(folder: Path) -> None:
    """Run in a separate process, so that only the store's memory is measured."""
    before_mb, _ = resident_mb()
    started = time.perf_counter()
    store = CableStore.open(folder)
    opened_ms = 1000 * (time.perf_counter() - started)
    stats_ms = 1000 * median(store.stats, 5)
    channels_ms = 1000 * median(lambda: list(store.channels()), 5)
    busiest = max(store.channels(), key=lambda c: c.posts.get("text", 0))
    middle_ms = (store.messages(busiest.name, 1).messages[0].timestamp_ms + 1_600_000_000_000) // 2
    page_ms = 1000 * median(lambda: store.messages(busiest.name, 50), 31)
    deep_ms = 1000 * median(lambda: store.messages(busiest.name, 50, before_ms=middle_ms), 31)
    all_mb, own_mb = resident_mb()
    with store.snapshot() as snapshot:
        hashes = list(answers.channel_time_range(snapshot.reader, busiest.name, 0, 0))
        rng = random.Random(1)
        asked = [
            rng.sample(hashes, min(10_000, len(hashes))) for _ in range(5)
        ]  # other posts each time, to avoid cached ones
        range_ms = 1000 * median(
            lambda: list(answers.channel_time_range(snapshot.reader, busiest.name, 0, 0, 10_000)), 11
        )
        posts_ms = 1000 * median(lambda: list(answers.post_request(snapshot.reader, asked.pop())), len(asked))
    after_mb, after_own_mb = resident_mb()
    stats = store.stats()
    store.close()
    total = sum(stats.posts.values())
    print(json.dumps({
        "posts": total, "channel": busiest.posts, "opened_ms": opened_ms, "stats_ms": stats_ms, "channels_ms": channels_ms,
        "page_ms": page_ms, "deep_ms": deep_ms, "range_ms": range_ms, "posts_ms": posts_ms, "python_mb": before_mb, "all_mb": all_mb,
        "own_mb": own_mb, "after_mb": after_mb, "after_own_mb": after_own_mb,
        "views": {name: [size.rows, size.size_bytes, stats.disk_size_bytes[name]] for name, size in stats.views.items()},
    }))  # fmt: skip


def print_results(folder: Path) -> None:
    """Print the measurements of the other process."""
    found = json.loads(
        subprocess.run(
            [sys.executable, __file__, "--measure", str(folder)], check=True, capture_output=True, text=True
        ).stdout
    )
    total = found["posts"]
    print_result("open", f"{found['opened_ms']:.0f} ms", "under 1,000 ms", found["opened_ms"] < 1000)
    print_result("stats", f"{found['stats_ms']:.1f} ms", "does not scan posts", found["stats_ms"] < 100)
    print_result("channels", f"{found['channels_ms']:.1f} ms", "does not scan posts", found["channels_ms"] < 100)
    print_result("newest page of 50", f"{found['page_ms']:.2f} ms", "under 3 ms", found["page_ms"] < 3)
    print_result("page of 50 in the middle", f"{found['deep_ms']:.2f} ms", "under 3 ms", found["deep_ms"] < 3)
    print_result("time range, 10,000 newest", f"{found['range_ms']:.1f} ms", "under 15 ms", found["range_ms"] < 15)
    print_result("10,000 random posts by hash", f"{found['posts_ms']:.0f} ms", "")
    print_result("resident memory so far", f"{found['all_mb']:.0f} MB", "under 200 MB", found["all_mb"] < 200)
    print_result("  of it the process's own (without mapped files)", f"{found['own_mb']:.0f} MB", "")
    print_result(
        "  after reading random posts all over", f"{found['after_mb']:.0f}, own {found['after_own_mb']:.0f} MB", ""
    )
    size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print_result("bytes on disk for a post", f"{size_bytes / total:,.0f}", "at most 1,200", size_bytes / total <= 1200)
    for name, (rows, raw_size_bytes, disk_size_bytes) in sorted(found["views"].items(), key=lambda item: -item[1][2]):
        print_result(
            f"  {name}",
            f"{disk_size_bytes / total:.0f} ({raw_size_bytes / total:.0f} raw)",
            f"{rows / total:.2f} rows a post",
        )


def main() -> None:
    """Build, then measure."""
    number = size_given(1_000_000, tiny=400)
    print(f"# scale: {number:,} texts of 224 bytes")
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), number)
        print_results(Path(folder))
        with CableStore.open(Path(folder)) as store:
            print_result("check", f"{number / seconds(store.check):,.0f}/s", "")
            print_result("rebuild in process", f"{number / seconds(store.rebuild):,.0f}/s", "")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
    else:
        main()
