"""A store in another process compared with one in this process: `remote.py [POSTS]`, 10,000 by default."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from common import chat, print_result, size, size_given

import cablestore
from cablestore import CableStore

OWNER = """
import sys, cablestore
with cablestore.CableStore.open(sys.argv[1]) as store, cablestore.offer(store):
    print("open", flush=True)
    sys.stdin.read()
"""


def mean_us(call: Callable[[], object], times: int) -> float:
    """Return the mean duration of a call in microseconds."""
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times * 1e6


def measure(store: CableStore, posts: list[bytes], times: int) -> dict[str, float]:
    """Return the duration of each operation on a store."""
    started = time.perf_counter()
    store.ingest(posts)
    ingest_s = time.perf_counter() - started
    started = time.perf_counter()
    rows = sum(1 for _ in store.users()) + sum(1 for _ in store.dump())
    return {
        "posts a second by `ingest`": len(posts) / ingest_s,
        "us an item of an iterator": (time.perf_counter() - started) / rows * 1e6,
        "us a small call": mean_us(lambda: store.public_key, times),
        "us a page of 50": mean_us(partial(store.messages, "channel-0"), max(times // 10, 1)),
        "us a text written": mean_us(partial(store.post, "bench", "text", sync=False), max(times // 10, 1)),
    }


def main() -> None:
    """Measure both in turn."""
    number, times = size_given(10_000, tiny=100), size(5_000, tiny=20)
    posts = list(chat(number))
    print(f"# a store of another process: {number:,} posts")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        with CableStore.open(Path(folder) / "here") as store:
            here = measure(store, posts, times)
        command = [sys.executable, "-c", OWNER, str(Path(folder) / "there")]
        owner = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert owner.stdout is not None
        owner.stdout.readline()
        with cablestore.connect(Path(folder) / "there") as remote:
            there = measure(remote, posts, times)
    for what, value in here.items():
        print_result(f"{what}: here, in another process", f"{value:,.1f}, {there[what]:,.1f}", "")


if __name__ == "__main__":
    main()
