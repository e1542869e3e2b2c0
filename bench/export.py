"""Export and verification: posts per second, and memory at two sizes. `export.py [POSTS]`, 200,000 by default.

Signatures are random bytes, because signing would take longer than the measurement.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from common import START_MS, print_result, resident_mb, seconds, sentence, size, size_given

from cablestore import LEGACY, CableStore, Text
from cablestore.export import verify_export
from cablestore.protocol.body import write_body
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.fields import counted
from cablestore.protocol.varint import encode_varint


def unsigned(number: int) -> Iterator[bytes]:
    """Yield texts of 224 bytes in 50 channels by 1,000 people, each linked to the previous one."""
    rng = random.Random(1)
    people = [rng.randbytes(32) for _ in range(1000)]
    words = sentence(rng, size(1_000_000, tiny=10_000))
    last: dict[int, tuple[bytes, ...]] = {}
    for i in range(number):
        channel = min(int(rng.paretovariate(1.0)) - 1, 49)
        author = people[min(int(rng.paretovariate(0.7)) - 1, 999)]
        at = rng.randrange(len(words) - 224)
        body = write_body(Text(f"channel-{channel}", words[at : at + 224]), LEGACY)
        header = counted(last.get(channel, ())) + encode_varint(0) + encode_varint(START_MS + 1000 * i)
        raw = author + rng.randbytes(64) + header + body
        last[channel] = (post_hash(raw),)
        yield raw


def build(folder: Path, posts: Iterable[bytes]) -> None:
    """Fill a store and compact it."""
    with CableStore.open(folder) as store:
        for _ in store.parts.writer.ingest(posts, sync=False, batch_posts=1000, verify=False):
            pass
        store.compact()


def measure(folder: Path, out: Path) -> None:
    """Run in a separate process, so that only the export's memory is measured."""
    highest_mb = 0.0

    def watch(_: int) -> None:
        nonlocal highest_mb
        highest_mb = max(highest_mb, resident_mb()[1])

    with CableStore.open(folder) as store:
        store.export(out.with_name(f"{out.name} watched"), progress=watch)  # the first export also imports modules
        elapsed = seconds(lambda: store.export(out))
    print(json.dumps({"seconds": elapsed, "highest_mb": highest_mb}))


def print_results(scratch: Path, number: int) -> float:
    """Print the result of a process that measured a store of this many posts. Return its memory in MB."""
    store, out = scratch / f"store {number}", scratch / f"export {number}"
    build(store, unsigned(number))
    command = [sys.executable, __file__, "--measure", str(store), str(out)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rate = number / found["seconds"]
    print_result(f"export of {number:,} posts", f"{rate:,.0f} posts/s", "at least 150,000", rate >= 150_000)
    print_result("  highest resident memory, without mapped files", f"{found['highest_mb']:.0f} MB", "")
    size_bytes = sum(path.stat().st_size for path in out.iterdir())
    print_result("  bytes for a post", f"{size_bytes / number:.0f}", "")
    return float(found["highest_mb"])


def main() -> None:
    """Measure at a quarter of the size and at the full size, then verify the export."""
    number = size_given(200_000, tiny=400)
    print(f"# export: texts of 224 bytes, segments of 64 MB, runs of 64 MB; {number:,} posts and a quarter of them")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        small_mb, large_mb = print_results(scratch, number // 4), print_results(scratch, number)
        print_result(
            "memory of the whole against the quarter", f"{large_mb / small_mb:.2f}", "flat once two runs are full"
        )
        out = scratch / f"export {number}"
        elapsed = seconds(lambda: verify_export(out))
        print_result("verify-export without signatures", f"{number / elapsed:,.0f} posts/s", "")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
