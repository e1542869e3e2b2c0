"""A node whose writes fail stores posts again as soon as the disk has space, without a write of its user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import asyncio, resource, sys
from cablestore import CableStore
from cablestore.errors import StorageError
from cablestore.peers import Node

def limit(size_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

async def main():
    with CableStore.open(sys.argv[1]) as store:
        async with Node(store) as node:
            limit(200_000)
            while not store.write_state.failure:
                try:
                    store.post("default", 3000 * "x")
                except StorageError:
                    pass
            limit(resource.RLIM_INFINITY)
            while store.write_state.failure:
                await asyncio.sleep(0.05)
            print(len(list(store.posts_by(store.public_key))) > 1)

asyncio.run(main())
"""


def test_a_node_resumes_writing_when_the_disk_has_space(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", _PROGRAM, str(tmp_path / "store")],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
