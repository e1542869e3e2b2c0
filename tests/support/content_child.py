"""Work on a content store in a separate process.

* `content_child.py serve FOLDER [UPSTREAM...]` serves it until SIGTERM and prints the URL.
* `content_child.py kill FOLDER COPIES` does the same work on copies of a store, each killed one step later. It prints
  how each ended: `POINT ENDED ACKNOWLEDGED...`.
* `content_child.py put FOLDER` puts datasets until it is killed and prints the id of each stored one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cablestore.archive.content.store import ContentStore
from cablestore.archive.format.cid import manifest_cid

BLOCK = 65_536
OWN_NAME = "127.0.0.1"
"""The name of the server at any port, for the wires that tests put before it."""
OWN_HOST = "archives.example.org"


def bytes_of(seed: int, size_bytes: int) -> bytes:
    """Return bytes that differ from block to block and from seed to seed."""
    return b"".join(b"%d %07d;" % (seed, i) for i in range(size_bytes // 8 + 1))[:size_bytes]


async def serve(folder: Path, upstream: list[str]) -> None:
    from cablestore.archive.content.server import ContentServer

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    with ContentStore.open(folder) as store:
        async with ContentServer(store, upstream=upstream, names=[OWN_NAME, f"{OWN_HOST}:81"]) as server:
            print(server.url, flush=True)
            await ended.wait()
        print("ended", flush=True)


class Killer:
    """Counter of steps that change the disk. It kills the process before the n-th."""

    def __init__(self, point: int) -> None:
        self.left = point

    def step(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def before(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def killed_or_done(*args: Any, **named: Any) -> Any:
            self.step()
            return work(*args, **named)

        return killed_or_done

    def chunks(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), 100_000):
            self.step()
            yield data[at : at + 100_000]


def work_until_killed(folder: Path, point: int, said: Path) -> None:
    """Put, put the same under another name, delete, and put again. Print each finished step."""
    killer = Killer(point)
    for name in ("fsync", "replace", "unlink", "mkdir"):
        setattr(os, name, killer.before(getattr(os, name)))
    with said.open("w", buffering=1) as acknowledged, ContentStore.open(folder) as store:
        first = manifest_cid(store.put(killer.chunks(bytes_of(1, 3 * BLOCK + 5)), filename="a"))
        acknowledged.write(f"+{first}\n")
        second = manifest_cid(store.put(killer.chunks(bytes_of(1, 3 * BLOCK + 5)), filename="b"))
        acknowledged.write(f"+{second}\n")
        other = manifest_cid(store.put(killer.chunks(bytes_of(2, 100)), mimetype="text/plain"))
        acknowledged.write(f"+{other}\n")
        for cid in (first, second):
            acknowledged.write(f"-{cid}\n")
            store.delete(cid)
            acknowledged.write(f"={cid}\n")
        again = manifest_cid(store.put(killer.chunks(bytes_of(1, 3 * BLOCK + 5)), filename="a"))
        acknowledged.write(f"+{again}\n")


def kill_at_each_point(folder: Path, copies: Path) -> None:
    for point in range(1_000):
        copy = copies / f"{point}"
        shutil.copytree(folder, copy)
        child = os.fork()
        if child == 0:
            work_until_killed(copy, point, copies / f"{point}.said")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(point, os.waitstatus_to_exitcode(status), flush=True)
        if status == 0:
            return


def put_until_killed(folder: Path) -> None:
    with ContentStore.open(folder) as store:
        for seed in range(1_000_000):
            data = bytes_of(seed, 2_000_000)
            manifest = store.put([data[:1_000_000], data[1_000_000:]], filename=f"{seed}")
            print(manifest_cid(manifest), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", folder, *upstream]:
            asyncio.run(serve(Path(folder), upstream))
        case ["kill", folder, copies]:
            kill_at_each_point(Path(folder), Path(copies))
        case ["put", folder]:
            put_until_killed(Path(folder))
