"""Content ids: hashing, the store on the disk, and transfers over loopback. `content.py [MIB]`, 50 MiB by default."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from common import median, print_result, size, size_given

from cablestore.archive.content.client import ContentClient
from cablestore.archive.content.server import ContentServer
from cablestore.archive.content.store import ContentStore
from cablestore.archive.format.cid import Cid, DatasetHasher, manifest_cid

T = TypeVar("T")
REPEATS = size(5, tiny=1)
TARGET_MB_PER_S = 30
"""Minimum rate of a fetch of 50 MB over loopback."""


def serve(folder: Path) -> None:
    """Run the server in its own process until standard input ends."""

    async def work() -> None:
        with ContentStore.open(folder) as store:
            async with ContentServer(store) as server:
                print(server.url, flush=True)
                await asyncio.to_thread(sys.stdin.read)

    asyncio.run(work())


def cid_of(data: bytes) -> Cid:
    """Return the tree's content id of bytes, passed in parts of 1 MiB."""
    hasher = DatasetHasher()
    for at in range(0, len(data), 1 << 20):
        hasher.update(memoryview(data)[at : at + (1 << 20)])
    return hasher.finish()[0]


def rate(name: str, size_bytes: int, elapsed_s: float, target: int | None = None) -> None:
    """Print MB per second."""
    found = size_bytes / elapsed_s / 1e6
    said = f"at least {target}" if target else ""
    print_result(name, f"{found:,.0f} MB/s", said, found >= target if target else None)


def measure_store(folder: Path, data: bytes) -> None:
    """Measure put and get in this process. `put` returns when the data is on the disk (fsync)."""
    with ContentStore.open(folder) as store:
        parts = [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
        rate("put in the store, with fsync", len(data), median(lambda: store.put(parts), REPEATS))
        cid = manifest_cid(store.put(parts))
        rate(
            "get from the store, each block verified", len(data), median(lambda: sum(map(len, store.get(cid))), REPEATS)
        )


def asked(url: str, work: Callable[[ContentClient], Awaitable[T]]) -> T:
    """Return the result of a client's request to a server."""

    async def run() -> T:
        async with ContentClient(url) as client:
            return await work(client)

    return asyncio.run(run())


def measure_loopback(scratch: Path, data: bytes) -> None:
    """Upload to and download from a server in another process."""
    path = scratch / "data"
    path.write_bytes(data)
    command = [sys.executable, __file__, "--serve", str(scratch / "served")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        uploaded = asked(url, lambda client: client.upload_file(path))
        rate(
            "upload over loopback",
            len(data),
            median(lambda: asked(url, lambda client: client.upload_file(path)), REPEATS),
        )
        elapsed_s = median(lambda: asked(url, lambda client: client.download(uploaded.cid, scratch / "copy")), REPEATS)
        rate("download over loopback, each block verified", len(data), elapsed_s, TARGET_MB_PER_S)
        assert (scratch / "copy").read_bytes() == data
        server.stdin.close()


def main() -> None:
    """Measure everything with random bytes."""
    size_mib = size_given(50, tiny=1)
    data = os.urandom(size_mib << 20)
    print(f"# content ids: {size_mib} MiB of random bytes, medians of {REPEATS}")
    rate("content id (SHA-256 of each block, tree)", len(data), median(lambda: cid_of(data), REPEATS))
    with tempfile.TemporaryDirectory() as folder:
        measure_store(Path(folder) / "store", data)
        measure_loopback(Path(folder), data)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]))
    else:
        main()
