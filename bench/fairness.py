"""Slowdown of an honest peer by a greedy one: `fairness.py`. The node and the greedy peer run in separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from common import print_result, size

TESTS = Path(__file__).resolve().parent.parent / "tests" / "support"
sys.path.insert(0, str(TESTS))

from by_hand import ByHand  # noqa: E402 - a peer of the tests
from peering import run  # noqa: E402 - the same

from cablestore.peers import Address  # noqa: E402 - after those that need the path

KINDS = ["history", "posts", "unknown posts", "moderation", "names", "taken back", "nonsense"][:: size(1, tiny=5)]
POSTS = size(4_000, tiny=200)
ROUNDS = size(3, tiny=1)
MEASURED_S = size(400, tiny=20) / 1_000
USED_UP_S = size(700, tiny=20) / 1_000
"""Time after which the greedy peer has used up its rows in advance."""


def of_tests(script: str, *arguments: str) -> list[str]:
    """Return the command of a process that tests use too."""
    return [sys.executable, str(TESTS / script), *arguments]


@contextlib.contextmanager
def served() -> Iterator[Address]:
    """Run a node in a separate process during the body."""
    command = of_tests("node_child.py", str(POSTS), json.dumps({"rows_in_advance": 100_000}))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Address.parse(process.stdout.readline().strip())
        process.communicate()


@contextlib.asynccontextmanager
async def abused(address: Address, kind: str) -> AsyncIterator[None]:
    """Run a peer that sends requests without pause during the body."""
    process = await asyncio.create_subprocess_exec(
        *of_tests("abuse_child.py", str(address), kind), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"
    await asyncio.sleep(USED_UP_S)
    try:
        yield
        assert process.returncode is None, "the node ended it, so nothing was measured"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def rate(peer: ByHand) -> float:
    """Return requests per second of an honest peer that sends one after the other."""
    began_s, count = time.perf_counter(), 0
    while time.perf_counter() < began_s + MEASURED_S:
        assert len(await peer.hashes(limit=50)) == 50
        count += 1
    return count / (time.perf_counter() - began_s)


async def ratio(address: Address, kind: str) -> float:
    """Return the fraction of its rate that an honest peer keeps beside a greedy one, the median of several rounds."""
    honest = await ByHand.connect(address)
    found = []
    for _ in range(ROUNDS):
        alone = await rate(honest)
        async with abused(address, kind):
            found.append(await rate(honest) / alone)
    await honest.close()
    return statistics.median(found)


def main() -> None:
    """Measure each kind of greedy peer."""
    print(f"# fairness: one peer beside a greedy one, {os.cpu_count()} cores")
    for kind in KINDS:
        with served() as address:
            left = run(ratio(address, kind))
        print_result(f"rate beside one that asks for {kind}", f"{left:.0%}", "at least half", left >= 0.5)


if __name__ == "__main__":
    main()
