"""Nodes on realistic networks: reconnects, links that break, slow links, vanished peers, partitions, crowds.

`networks.py [--posts POSTS] [--json FILE]`, 100,000 by default. All nodes run in this process, so CPU is that of both
sides. The time to detect a vanished peer needs root and `ip`, because it uses network namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from common import IS_TINY, chat, print_result, refusing, size

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from rough_line import RoughLine  # of the tests

from cablestore import CableStore
from cablestore.peers import Address, Node, NodeSettings

HOST = "127.0.0.1"
TEXT_SIZE_BYTES = 40
LOOK_S = 0.02
RECONNECTS = size(20, tiny=2)
BREAKING = {"bytes_per_s": size(100_000, tiny=30_000), "cut_s": 5.0 if not IS_TINY else 1.0}
SLOW = {"bytes_per_s": size(5_000, tiny=50_000), "delay_s": 0.6 if not IS_TINY else 0.05}
SLOW_POSTS = size(500, tiny=40)
APART = size(2_000, tiny=20)
"""Posts that each node of a partition gets."""
CROWD = size(100, tiny=3)
LACKING = 10
"""Posts that each node of a crowd lacks."""
VANISH_LIMIT_S = 1_200
IP = shutil.which("ip") or ""
Figures = dict[str, dict[str, Any]]


def stored(path: Path, posts: Iterable[bytes]) -> CableStore:
    """Return a new store with posts."""
    store = CableStore.open(path)
    store.ingest(list(posts), verify=False)
    return store


def history(number: int, seed: int = 1) -> list[bytes]:
    """Return short posts, like those of people."""
    return list(chat(number, text_size_bytes=TEXT_SIZE_BYTES, channels=8, people=50, seed=seed))


async def until(is_so: Callable[[], bool]) -> float:
    """Wait for a condition. Return the duration in seconds."""
    began_s = time.perf_counter()
    while not is_so():  # noqa: ASYNC110 - other threads change it
        await asyncio.sleep(LOOK_S)
    return time.perf_counter() - began_s


def count(node: Node) -> int:
    """Return the number of entries in the arrival log of a node's store, which changes with each post."""
    return node.store.last_sequence


def are_alike(*nodes: Node) -> bool:
    """Return True if all stores have the same rows."""
    return len({count(node) for node in nodes}) == 1 and len({node.store.dump_digest() for node in nodes}) == 1


@contextlib.asynccontextmanager
async def running(*stores: CableStore) -> AsyncIterator[list[Node]]:
    """Run nodes with these stores during the body, and close the stores."""
    async with contextlib.AsyncExitStack() as stack:
        for store in stores:
            stack.callback(store.close)
        yield [await stack.enter_async_context(Node(store, NodeSettings())) for store in stores]


@contextlib.asynccontextmanager
async def linked(one: Node, other: Node, **line: Any) -> AsyncIterator[RoughLine]:
    """Keep one node connected to the other over a line during the body."""
    rough = RoughLine(await other.listen(Address(HOST, 0)), **line)
    async with rough as through:
        one.keep_connected(through)
        try:
            yield rough
        finally:
            one.disconnect(through)


def size_of(*lines: RoughLine) -> int:
    """Return the number of bytes that passed in both directions."""
    return sum(line.total("up") + line.total("down") for line in lines)


async def reconnect(scratch: Path, posts: list[bytes]) -> dict[str, Any]:
    """Connect two equal stores that were in step repeatedly, and return the run with the least CPU time.

    LevelDB compacts for a while after a store was filled or opened, in the same process.
    """
    async with running(*(stored(scratch / name, posts) for name in "ab")) as (one, other):
        times: list[dict[str, Any]] = []
        for _ in range(RECONNECTS):
            cpu_s = time.process_time()
            async with linked(one, other) as line:
                await until(lambda: any(peer.is_in_step for peer in one.peers()))
                times.append({"size_bytes": size_of(line), "cpu_ms": 1000 * (time.process_time() - cpu_s)})
            await until(lambda: not one.peers() and not other.peers())
        found = min(times, key=lambda each: float(each["cpu_ms"]))
    print_result(
        "reconnect with nothing new", f"{found['size_bytes']:,} bytes", "under 5 kB", found["size_bytes"] < 5_000
    )
    print_result("  CPU of both sides", f"{found['cpu_ms']:.0f} ms", "under 20 ms", found["cpu_ms"] < 20)
    return found


async def fetch(scratch: Path, posts: list[bytes], name: str, **line: Any) -> dict[str, Any]:
    """Fetch all posts over a line."""
    stores = stored(scratch / "full", posts), CableStore.open(scratch / "empty")
    async with running(*stores) as (full, empty), linked(empty, full, is_tapped=True, **line) as rough:
        seconds = await until(lambda: count(empty) >= count(full))
    long_ones = [each for each in rough.passed if each.ended_s - each.began_s > (2 if not IS_TINY else 0)]
    shares = [each.posts_size_bytes / max(1, sum(each.sizes_bytes.values())) for each in long_ones]
    ideal_s = sum(map(len, posts)) / line["bytes_per_s"]
    found = {
        "seconds": seconds,
        "ideal_s": ideal_s,
        "connections": len(rough.passed),
        "size_bytes": size_of(rough),
        "mean_share": sum(shares) / max(1, len(shares)),
        "least_share": min(shares, default=0.0),
        "delivered_twice": sum(times - 1 for times in rough.delivered().values()),
        "requested_twice": sum(times - 1 for times in rough.asked().values()),
    }
    print_result(
        f"{name}: {len(posts):,} posts", f"{seconds:.1f} s", f"{1.3 * ideal_s:.1f} s", seconds <= 1.3 * ideal_s
    )
    share = found["mean_share"]
    print_result(
        f"  share of missing posts, {len(rough.passed)} connections", f"{share:.0%}", "at least 70%", share >= 0.7
    )
    print_result("  least share of a connection", f"{found['least_share']:.0%}", "")
    print_result("  delivered, requested twice", f"{found['delivered_twice']}, {found['requested_twice']}", "none")
    return found


async def partition(scratch: Path, name: str, pairs: list[tuple[int, int]]) -> dict[str, Any]:
    """Connect three nodes that got posts while they were partitioned."""
    stores = [stored(scratch / f"{number}", history(APART, seed=number)) for number in range(3)]
    posts = sum(len(raw) for number in range(3) for raw in history(APART, seed=number))
    async with running(*stores) as nodes, contextlib.AsyncExitStack() as stack:
        cpu_s = time.process_time()
        lines = [await stack.enter_async_context(linked(nodes[one], nodes[other])) for one, other in pairs]
        seconds = await until(lambda: are_alike(*nodes))
        found = {"seconds": seconds, "cpu_s": time.process_time() - cpu_s, "size_bytes": size_of(*lines)}
    least = 2 * posts
    found["excess"] = found["size_bytes"] / least
    print_result(f"{name} of three after a partition, {APART:,} posts each", f"{seconds:.1f} s", "")
    print_result("  bytes, against each post sent twice", f"{found['size_bytes']:,} ({found['excess']:.2f})", "")
    return found


async def crowd(scratch: Path, posts: list[bytes]) -> dict[str, Any]:
    """Reconnect many peers at once; each lacks some posts."""
    stores = [stored(scratch / "full", posts)]
    stores += [stored(scratch / f"{number}", posts[:-LACKING]) for number in range(CROWD)]
    async with running(*stores) as (full, *others), contextlib.AsyncExitStack() as stack:
        cpu_s = time.process_time()
        lines = [await stack.enter_async_context(linked(other, full)) for other in others]
        seconds = await until(lambda: all(count(other) >= count(full) for other in others))
        found = {"seconds": seconds, "cpu_s": time.process_time() - cpu_s, "size_bytes": size_of(*lines)}
    print_result(f"{CROWD} peers reconnect at once, {LACKING} posts new to each", f"{seconds:.1f} s", "")
    print_result("  CPU of all; bytes a peer", f"{found['cpu_s']:.1f} s; {found['size_bytes'] / CROWD:,.0f}", "")
    return found


# --- a network that vanishes ------------------------------------------------------------------------


def ip(*arguments: str) -> None:
    """Run `ip`. Raises CalledProcessError."""
    subprocess.run([IP, *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    """Create two namespaces with a cable between them: 10.77.0.1 and 10.77.0.2."""
    names = f"cb{os.getpid()}a", f"cb{os.getpid()}b"
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", name)
        yield names
    finally:
        for name in names:
            subprocess.run([IP, "netns", "del", name], check=False, capture_output=True)


@contextlib.contextmanager
def serving(name: str, path: Path, *options: str) -> Iterator[Path]:
    """Run `cablestore serve` in a namespace during the body. Yields its log."""
    log = path.with_suffix(".log")
    command = [sys.executable, "-m", "cablestore", "serve", "-s", str(path), "--log-format", "json", *options]
    with log.open("w") as output:
        process = subprocess.Popen([IP, "netns", "exec", name, *command], stdout=output, stderr=output)
        try:
            yield log
        finally:
            process.terminate()
            process.wait()


def has_event(log: Path, event: str) -> bool:
    """Return True if a log contains an event."""
    return any(f'"event": "{event}"' in line for line in log.read_text().splitlines())


async def vanish(scratch: Path) -> dict[str, Any]:
    """Disconnect the network of a peer, and wait until the other one detects it."""
    if IS_TINY or os.geteuid() != 0 or not IP:
        print_result("time to notice a vanished network", "skipped", "needs root and ip")
        return {}
    for name in "ab":
        CableStore.open(scratch / name).close()
    with (
        namespaces() as (here, there),
        serving(here, scratch / "a", "--listen", "10.77.0.1:13333"),
        serving(there, scratch / "b", "--connect", "10.77.0.1:13333") as log,
    ):
        await until(lambda: has_event(log, "connected"))
        ip("-n", here, "link", "set", here, "down")
        async with asyncio.timeout(VANISH_LIMIT_S):
            seconds = await until(lambda: has_event(log, "disconnected"))
    print_result("time to notice a vanished network", f"{seconds:.0f} s", "within 60 s", seconds <= 60)
    return {"seconds": seconds}


async def measure(scratch: Path, posts: list[bytes]) -> Figures:
    """Measure everything, one after the other."""
    for name in ("reconnect", "breaking", "slow", "line", "ring", "crowd", "vanish"):
        (scratch / name).mkdir()
    return {
        "reconnect": await reconnect(scratch / "reconnect", posts),
        "breaking links": await fetch(scratch / "breaking", posts, "links that break", **BREAKING),
        "slow link": await fetch(scratch / "slow", posts[:SLOW_POSTS], "slow link", **SLOW),
        "line": await partition(scratch / "line", "line", [(0, 1), (1, 2)]),
        "ring": await partition(scratch / "ring", "ring", [(0, 1), (1, 2), (2, 0)]),
        "crowd": await crowd(scratch / "crowd", posts[: 2 * SLOW_POSTS]),
        "vanished network": await vanish(scratch / "vanish"),
    }


def main() -> None:
    """Generate a history, then measure."""
    parser = argparse.ArgumentParser(description="Measure nodes on networks that people have.")
    parser.add_argument("--posts", type=int, default=size(100_000, tiny=150), help="how many are fetched")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    with refusing():
        if given.posts < LACKING + 1:
            raise ValueError(f"{given.posts} posts are too few: at least {LACKING + 1} are needed")
        if given.json is not None:
            given.json.touch()
    print(f"# networks: {given.posts:,} posts, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as scratch:
        figures = asyncio.run(measure(Path(scratch), history(given.posts)))
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
