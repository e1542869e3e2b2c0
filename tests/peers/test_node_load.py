"""Many peers on one node, slow ones and short-lived ones: all are served, and nothing is left.

The node runs in a separate process, on uvloop, as in production.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from by_hand import ByHand
from folders import SUPPORT
from peering import run, until
from waiting import LIMIT_S

from cablestore import LEGACY, limits
from cablestore.peers import Address
from cablestore.protocol.message import StateRequest, TimeRangeRequest, encode_message

POSTS = 4_000
MANY_PEERS = {"max_peers_per_address": 2_000}
LIVE = TimeRangeRequest(b"", "default", 0, 0, 0)
ALL = TimeRangeRequest(b"", "default", 0, 2**50, 0)
MEGABYTE = 1_000_000


class Child:
    """A node in a separate process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.address = Address.parse(process.stdout.readline().strip())

    @property
    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _state(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert not found["errors"], found["errors"]
        return found

    async def state(self) -> dict[str, Any]:
        return await asyncio.to_thread(self._state)

    async def is_rid_of_all(self, tasks: int) -> None:
        """Wait until all state of peers is removed."""

        async def is_rid() -> bool:
            state = await self.state()
            traces = ("connections", "tables", "live", "queued", "waiting")
            return not any(state[name] for name in traces) and state["tasks"] <= tasks

        await until(is_rid)


@contextlib.contextmanager
def node_child(posts: int = POSTS, **settings: Any) -> Iterator[Child]:
    command = [sys.executable, str(SUPPORT / "node_child.py"), str(posts), json.dumps(settings)]
    path = os.pathsep.join((str(SUPPORT), os.environ.get("PYTHONPATH", "")))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    ) as process:
        try:
            yield Child(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)) if hard > 0 else 8192, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def connected(address: Address, number: int) -> list[socket.socket]:
    """Open N connections that send nothing."""
    found = []
    for _ in range(number):
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, tuple(address))
        found.append(sock)
    return found


async def send_many_requests(address: Address, requests: int) -> None:
    """Simulate a busy peer: all its requests are answered, and it gets no changes."""
    peer = await ByHand.connect(address)
    peer.send(LIVE, StateRequest(b"", "default", 1))
    for number in range(requests):
        assert len(await peer.hashes(limit=50 + number)) == 50 + number
    await peer.close()


@pytest.mark.thorough
def test_a_node_serves_a_thousand_idle_and_two_hundred_busy_peers(capsys: pytest.CaptureFixture[str]) -> None:
    """The node also fetches. From a silent peer it requests only names."""

    async def scenario(child: Child) -> int:
        (await asyncio.gather(*(send_many_requests(child.address, 5) for _ in range(200))))
        tasks = 5
        await child.is_rid_of_all(tasks)
        before, peaks = child.rss_bytes, []
        for _ in range(2):
            idle = await connected(child.address, 1000)

            async def are_connected() -> bool:
                return bool((await child.state())["connections"] == 1000)

            await until(are_connected)
            with_idle = child.rss_bytes
            await asyncio.gather(*(send_many_requests(child.address, 5) for _ in range(200)))
            peaks.append(child.rss_bytes)
            for sock in idle:
                sock.close()
            await child.is_rid_of_all(tasks)
        assert child.rss_bytes < before + (peaks[0] - before) * 0.8 + 10 * MEGABYTE
        assert peaks[1] < peaks[0] + 15 * MEGABYTE  # the second thousand reuses the memory of the first
        return (with_idle - before) // 1000

    with node_child(follows=True, **MANY_PEERS) as child:
        idle_size_bytes = run(scenario(child))
    with capsys.disabled():
        print(f" {idle_size_bytes:,} bytes an idle peer ", end="")
    assert idle_size_bytes < 100_000


@pytest.mark.thorough
@pytest.mark.parametrize("times", [2_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_peers_that_connect_and_disconnect_leave_no_memory(times: int) -> None:
    """Some are silent, some leave during an answer, some with live requests, some close one direction."""
    says = [
        b"",
        encode_message(ALL._replace(request_id=b"abcd"), LEGACY) * 3,
        encode_message(LIVE._replace(request_id=b"abcd"), LEGACY),
        b"\xff" * 20,
        encode_message(ALL._replace(request_id=b"abcd", ttl=5), LEGACY)[:10],
    ]

    async def come_and_go(child: Child, number: int) -> None:
        loop = asyncio.get_running_loop()
        for index in range(number):
            sock = socket.socket()
            sock.setblocking(False)
            await loop.sock_connect(sock, tuple(child.address))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(sock, says[index % len(says)])
                if index % 3 == 0:
                    sock.shutdown(socket.SHUT_WR)
                if index % 7 == 0:
                    await asyncio.sleep(0)
            sock.close()

    async def scenario(child: Child) -> None:
        await asyncio.gather(*(come_and_go(child, 50) for _ in range(10)))
        await child.is_rid_of_all(5)
        before = child.rss_bytes
        await asyncio.gather(*(come_and_go(child, times // 10) for _ in range(10)))
        await child.is_rid_of_all(5)
        assert child.rss_bytes - before < 20 * MEGABYTE
        await send_many_requests(child.address, 3)

    with node_child(follows=True, **MANY_PEERS) as child:
        run(scenario(child))


@pytest.mark.thorough
def test_slow_readers_do_not_increase_memory() -> None:
    """The slow peers request everything repeatedly and live, and read nothing."""

    async def scenario(child: Child) -> None:
        await send_many_requests(child.address, 3)
        before = child.rss_bytes
        slow = [await ByHand.connect(child.address, receive_size_bytes=4096) for _ in range(30)]
        for _ in range(10):
            for peer in slow:
                peer.send(*[ALL] * 30, LIVE)
            await send_many_requests(child.address, 3)
            assert (await child.state())["queued"] < 30 * 2 * limits.SLOW_READER_SIZE_BYTES

        async def are_slow() -> bool:
            """Return True if each transport buffers more than asyncio's low-water mark."""
            return bool((await child.state())["queued"] > 30 * limits.SLOW_READER_SIZE_BYTES // 4)

        await until(are_slow)
        state = await child.state()
        assert state["connections"] == 30
        assert state["queued"] < 30 * 2 * limits.SLOW_READER_SIZE_BYTES
        assert child.rss_bytes - before < 60 * MEGABYTE
        for peer in slow:
            await peer.close()
        await child.is_rid_of_all(5)

    with node_child(**MANY_PEERS) as child:
        run(scenario(child))
