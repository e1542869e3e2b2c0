"""A node among peers: answered requests per second, and a sync of two nodes, each in its own process.

`peers.py [POSTS]`, 100,000 by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvloop
from common import chat, print_result, size, size_given

from cablestore import LEGACY, CableStore
from cablestore.peers import Address, Node, NodeSettings, SyncReport
from cablestore.protocol.message import FrameReader, HashResponse, TimeRangeRequest, decode_message, encode_message

HOST = "127.0.0.1"
REQUESTS = size(100_000, tiny=200)
CONNECTIONS = 50
HASHES = 50
REQUEST_ID = b"load"
SILENT = NodeSettings(channels=frozenset())
"""Settings of a node that follows no channels and only answers."""


@contextlib.contextmanager
def served(path: Path) -> Iterator[tuple[Address, subprocess.Popen[str]]]:
    """Run a node in a separate process during the body."""
    command = [sys.executable, __file__, "--serve", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Address.parse(process.stdout.readline().strip()), process


async def serve(path: Path) -> None:
    """Run the node until standard input ends."""
    with CableStore.open(path, create=False) as store:
        async with Node(store, SILENT) as node:
            print(await node.listen(Address(HOST, 0)), flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class Client(asyncio.Protocol):
    """A client that repeats one request whenever the last answer is complete."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._frames = FrameReader()
        self._hashes = 0
        self._probed_s = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        self._hashes = 0
        self._probed_s = time.perf_counter()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        """Count the hashes of the answer. The node also sends requests: its greeting, and requests for posts."""
        for frame in self._frames.feed(data):
            message = decode_message(frame, LEGACY)
            if isinstance(message, HashResponse) and message.request_id == REQUEST_ID:
                self._hashes += len(message.hashes)
                if not message.hashes:
                    self._answered()

    def _answered(self) -> None:
        assert self._hashes == HASHES
        self._load.took_s.append(time.perf_counter() - self._probed_s)
        if len(self._load.took_s) < REQUESTS:
            self._ask()
        elif not self._load.done.done():
            self._load.done.set_result(None)


class Load:
    """Shared state of all clients."""

    def __init__(self, channel: str) -> None:
        self.request = encode_message(TimeRangeRequest(REQUEST_ID, channel, 0, 2**50, HASHES), LEGACY)
        self.took_s: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


async def send_requests(address: Address, channel: str) -> tuple[float, list[float]]:
    """Return requests per second, and the duration of each."""
    load = Load(channel)
    began_s = time.perf_counter()
    for _ in range(CONNECTIONS):
        await asyncio.get_running_loop().create_connection(lambda: Client(load), *address)
    await load.done
    return len(load.took_s) / (time.perf_counter() - began_s), sorted(load.took_s)


def bench_requests(path: Path, channel: str) -> None:
    """Measure time ranges of 50 hashes over 50 connections, answered on one core and requested from another."""
    cores = sorted(os.sched_getaffinity(0))
    with served(path) as (address, process):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores[:1])
        os.sched_setaffinity(0, cores[1:] or cores)
        rate, took_s = uvloop.run(send_requests(address, channel))
        os.sched_setaffinity(0, cores)
        cpu_s = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().split()[13:15])) / 100
    print_result(
        f"time ranges of {HASHES}, {CONNECTIONS} connections, one core", f"{rate:,.0f}/s", "10,000/s", rate >= 10_000
    )
    p50_ms, p99_ms = 1000 * took_s[len(took_s) // 2], 1000 * took_s[len(took_s) * 99 // 100]
    print_result(
        "  half of them within; 99 of 100", f"{p50_ms:.1f}; {p99_ms:.1f} ms", "99 of 100 in 20 ms", p99_ms < 20
    )
    print_result("  the node's own time for one", f"{1e6 * cpu_s / REQUESTS:.0f} us", "")


async def sync(address: Address, path: Path) -> SyncReport:
    """Fetch everything."""
    with CableStore.open(path) as store:
        async with Node(store) as node:
            return await node.sync_once(address)


def bench_sync(source: Path, target: Path) -> None:
    """Measure two syncs, one after the other."""
    with served(source) as (address, _):
        first = uvloop.run(sync(address, target))
        second = uvloop.run(sync(address, target))
    rate = first.posts / first.seconds
    print_result(f"sync of {first.posts:,} posts", f"{rate:,.0f} posts/s", "6,000 posts/s", rate >= 6000)
    bytes_1, bytes_2 = (each.received_size_bytes + each.sent_size_bytes for each in (first, second))
    print_result("  bytes; bytes a post", f"{bytes_1:,}; {bytes_1 / first.posts:.0f}", "")
    share = bytes_2 / bytes_1
    print_result("  bytes of a second sync", f"{bytes_2:,} ({share:.3%})", "under 1%", share < 0.01)


def main() -> None:
    """Generate a history, then measure."""
    if sys.argv[1:2] == ["--serve"]:
        uvloop.run(serve(Path(sys.argv[2])))
        return
    posts = size_given(100_000, tiny=400)
    print(f"# peers: {posts:,} posts")
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch) / "source", Path(scratch) / "target"
        with CableStore.open(source) as store:
            store.ingest(chat(posts), verify=False)
            channel = max(store.channels(), key=lambda known: known.posts.get("text", 0)).name
        bench_requests(source, channel)
        bench_sync(source, target)


if __name__ == "__main__":
    main()
