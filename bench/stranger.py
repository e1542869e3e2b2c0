"""What a stranger who sends without end costs: `stranger.py [--json]`.

`serve` connects to an honest peer, and a stranger on another address signs posts with new keys and sends them as fast
as `serve` takes them. The honest user writes posts at a steady rate. Their latency is the time until `serve` has stored
them. Each round has one protection; the first one has none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from common import print_result, refusing, size

TESTS = Path(__file__).resolve().parent.parent / "tests" / "support"
sys.path.insert(0, str(TESTS))

from serving import HERE, Served, environment, own_host  # noqa: E402 - processes of the tests

import cablestore  # noqa: E402 - after those that need the path
from cablestore.files import disk_usage  # noqa: E402 - the same

MEASURED_S = size(30_000, tiny=1_000) / 1_000
EVERY_S = size(250, tiny=200) / 1_000
"""Interval between the posts of the honest user."""
STORE_SIZE_MB = size(50, tiny=4)
RATE = size(600, tiny=120)
"""Posts per minute of one address."""
FIRST_POSTS = 10
"""Posts after whose arrival the measurement begins."""
LIMIT_S = 60.0
"""Time within which the last honest posts must arrive."""


class Round(NamedTuple):
    """One measurement."""

    protection: str
    honest_posts: int
    honest_stored: int
    latency_ms: float
    """Median time until a post of the honest user is stored."""
    latency_p99_ms: float
    stranger_posts_per_s: float
    """Posts of the stranger that `serve` stored."""
    rejected_posts_per_s: float
    memory_mb: float
    """Greatest resident memory of `serve`."""
    disk_mb: float
    """Size of the store's folder at the end."""


@contextlib.contextmanager
def served(path: Path, *arguments: object) -> Iterator[Served]:
    """Run `serve` during the body."""
    process = Served(path, *arguments)
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def stranger(address: str | None) -> Iterator[None]:
    """Run the stranger during the body, unless the address is None."""
    if address is None:
        yield
        return
    command = [sys.executable, str(TESTS / "stranger_child.py"), address, "127.0.0.9"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment()) as process:
        try:
            yield
            assert process.poll() is None, "the stranger ended, so nothing was measured"
        finally:
            process.kill()


def peak_memory_mb(served: Served) -> float:
    """Return the greatest resident memory of a process since its start."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


def write_honestly(writer: cablestore.CableStore, reader: cablestore.CableStore) -> tuple[int, list[float]]:
    """Write posts at a steady rate. Return their number, and the seconds until each was stored by the other side."""
    waiting: dict[bytes, float] = {}
    taken_s: list[float] = []
    count, began_s = 0, time.perf_counter()
    while time.perf_counter() < began_s + MEASURED_S + LIMIT_S:
        now_s = time.perf_counter()
        if now_s >= began_s + MEASURED_S and not waiting:
            break
        if began_s + count * EVERY_S <= now_s < began_s + MEASURED_S:
            waiting[writer.post("default", f"honest post {count}").hash] = now_s
            count += 1
        found = [digest for digest in waiting if reader.get(digest) is not None]
        now_s = time.perf_counter()
        taken_s += [now_s - waiting.pop(digest) for digest in found]
        time.sleep(0.005)
    return count, taken_s


def measured(protection: str, folder: Path, options: tuple[object, ...], *, is_attacked: bool = True) -> Round:
    """Measure one round in a folder."""
    with (
        served(folder / "honest", "--create", "--listen", own_host()) as honest,
        served(
            folder / "node",
            "--create",
            *("--listen", HERE, "--connect", honest.address, "--metrics", HERE),
            *options,
        ) as node,
    ):
        address = node.address
        with cablestore.connect(honest.store) as writer, cablestore.connect(node.store) as reader:
            reader.join("default")
            first = writer.post("default", "the first post")
            while reader.get(first.hash) is None:
                time.sleep(0.05)
            with stranger(address if is_attacked else None):
                while is_attacked and node.metric("cablestore_store_posts", type="text") < FIRST_POSTS:
                    time.sleep(0.05)
                began_s = time.perf_counter()
                before = node.metric("cablestore_store_posts", type="text")
                count, taken_s = write_honestly(writer, reader)
                passed_s = time.perf_counter() - began_s
                stored = node.metric("cablestore_store_posts", type="text") - before - len(taken_s)
                rejected = node.metric("cablestore_rejected_posts_total")
                usage = disk_usage(node.store)
                assert usage is not None
                ordered = sorted(taken_s) or [float("nan")]
                return Round(
                    protection,
                    count,
                    len(taken_s),
                    statistics.median(ordered) * 1000,
                    ordered[int(0.99 * (len(ordered) - 1))] * 1000,
                    stored / passed_s,
                    rejected / passed_s,
                    peak_memory_mb(node),
                    usage.store_size_bytes / 1e6,
                )


def rounds(folder: Path) -> Iterator[Round]:
    """Yield the measurements."""
    policy = folder / "policy.toml"
    policy.write_text(f"[peers]\nposts-per-minute = {RATE}\nburst = {RATE}\n")
    protections: list[tuple[str, tuple[object, ...]]] = [
        ("no stranger", ()),
        ("none", ()),
        ("posts-per-minute", ("--policy", policy)),
        ("max-store-size", ("--max-store-size", f"{STORE_SIZE_MB}MB")),
        ("both", ("--policy", policy, "--max-store-size", f"{STORE_SIZE_MB}MB")),
    ]
    for name, options in protections[:: size(1, tiny=4)]:
        place = folder / name.replace(" ", "-")
        place.mkdir()
        yield measured(name, place, options, is_attacked=name != "no stranger")


def main() -> None:
    """Measure all rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="print a JSON object for each round")
    as_json = parser.parse_args().json
    if not as_json:
        print(f"# stranger: {MEASURED_S:g} s each, quota {STORE_SIZE_MB} MB, {RATE} posts/min, {os.cpu_count()} cores")
    with refusing(), tempfile.TemporaryDirectory() as name:
        for found in rounds(Path(name)):
            if as_json:
                print(json.dumps(found._asdict()), flush=True)
                continue
            title = found.protection
            got = f"{found.honest_stored} of {found.honest_posts}"
            print_result(f"{title}: honest posts stored", got, "all", found.honest_stored == found.honest_posts)
            print_result(f"{title}: their latency, median", f"{found.latency_ms:.0f} ms", "")
            print_result(f"{title}: their latency, 99 %", f"{found.latency_p99_ms:.0f} ms", "")
            print_result(f"{title}: stranger's posts stored", f"{found.stranger_posts_per_s:.1f}/s", "")
            print_result(f"{title}: posts rejected", f"{found.rejected_posts_per_s:.1f}/s", "")
            print_result(f"{title}: memory of serve", f"{found.memory_mb:.0f} MB", "")
            print_result(f"{title}: size of the store", f"{found.disk_mb:.1f} MB", "")


if __name__ == "__main__":
    main()
