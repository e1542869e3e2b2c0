"""Load on the servers of `week.py`, each kind in processes of its own: clients, visitors and hostile peers.

A process writes a line of JSON for each request into its log, at once, so that a kill loses no acknowledgement.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from common import sentence

TESTS = Path(__file__).resolve().parent.parent / "tests" / "support"
sys.path.insert(0, str(TESTS))

from by_hand import ALL, ByHand  # noqa: E402 - a peer of the tests

import cablestore  # noqa: E402 - after those that need the path
from cablestore.errors import CableStoreError  # noqa: E402 - the same
from cablestore.peers import Address  # noqa: E402 - the same

CHANNELS = [f"channel-{number}" for number in range(10)]
RETRY_S = 0.2
KEY, WRONG_KEY = "ab" * 32, "cd" * 32
DELETED_SHARE = 0.05
"""How many of its own messages a client deletes."""


class Log:
    """Requests of one process and their results, as lines of JSON."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def note(self, kind: str, **fields: Any) -> None:
        """Write a line."""
        print(json.dumps({"at_s": time.time(), "kind": kind, **fields}), file=self._file)

    def timed(self, kind: str, request: Callable[[], Any]) -> Any:
        """Call a function, and write how long it took. Return its result."""
        began_s = time.perf_counter()
        found = request()
        self.note(kind, took_ms=1000 * (time.perf_counter() - began_s))
        return found


# --- clients --------------------------------------------------------------------------------------


class Client(NamedTuple):
    """Program that connects to the store of a server, writes, and reads."""

    store: Path
    other_store: Path
    """Store of the other server."""
    log: Path
    seed: int
    lifetime_s: float
    every_s: float
    """Mean pause between two messages."""

    def run(self) -> None:
        """Write and read until the lifetime ends. Connect again if the server ends or rejects a write."""
        log, rng = Log(self.log), random.Random(self.seed)
        end_s = time.monotonic() + self.lifetime_s
        own: list[bytes] = []
        while time.monotonic() < end_s:
            try:
                with cablestore.connect(self.store) as store:
                    while time.monotonic() < end_s:
                        self._step(store, log, rng, own)
                        time.sleep(rng.expovariate(1 / self.every_s))
            except CableStoreError as error:
                log.note("failed", error=type(error).__name__, reason=str(error))
                time.sleep(RETRY_S)

    def _step(self, store: cablestore.CableStore, log: Log, rng: random.Random, own: list[bytes]) -> None:
        """Write a message, read what a screen of a client shows, and delete some messages."""
        channel = rng.choice(CHANNELS)
        post = log.timed("post", lambda: store.post(channel, sentence(rng, 100)))
        log.note("acknowledged", hash=post.hash.hex())
        own.append(post.hash)
        log.timed("page", lambda: store.messages(channel))
        log.timed("channels", store.channels)
        if log.timed("get", lambda: store.get(own[-1])) is None:
            log.note("missing", hash=own[-1].hex())
        target = rng.choice(own)
        if rng.random() < DELETED_SHARE and self._has_arrived(target):
            own.remove(target)
            log.note("deleting", hash=target.hex())
            log.timed("delete", lambda: store.delete(target))
            log.note("deleted", hash=target.hex())

    def _has_arrived(self, digest: bytes) -> bool:
        """Return True if the other server has a post.

        A store that never had a deleted post knows less about it. So the dumps would differ.
        """
        try:
            with cablestore.connect(self.other_store) as other:
                return other.get(digest) is not None
        except CableStoreError:
            return False


# --- visitors -------------------------------------------------------------------------------------


class Visitor(NamedTuple):
    """Peers that sync a new store with a server, one after the other. Some are killed during it."""

    address: Address
    folder: Path
    log: Path
    seed: int
    lifetime_s: float

    def run(self) -> None:
        """Sync until the lifetime ends."""
        log, rng = Log(self.log), random.Random(self.seed)
        end_s = time.monotonic() + self.lifetime_s
        for number in self._numbers(end_s):
            store = self.folder / f"visitor-{self.seed}-{number}"
            timeout_s = rng.uniform(0.5, 5) if rng.random() < 0.3 else None
            status = sync(store, self.address, KEY, "--create", "--window", "1w", timeout_s=timeout_s)
            log.note("visit", status="killed" if status is None else status)
            shutil.rmtree(store, ignore_errors=True)
            time.sleep(rng.expovariate(1))

    @staticmethod
    def _numbers(end_s: float) -> Iterator[int]:
        number = 0
        while time.monotonic() < end_s:
            yield number
            number += 1


def sync(store: Path, address: Address, key: str, *more: str, timeout_s: float | None = None) -> int | None:
    """Run `cablestore sync`. Returns its status, None if it was killed after the timeout."""
    command = [sys.executable, "-m", "cablestore", "sync", str(address), "-s", str(store), *more]
    with suppress(subprocess.TimeoutExpired):
        environment = os.environ | {"CABLESTORE_SYNC_CABAL_KEY": key}
        return subprocess.run(command, capture_output=True, check=False, env=environment, timeout=timeout_s).returncode
    return None


# --- hostile peers --------------------------------------------------------------------------------


class Hostile(NamedTuple):
    """Peer that tries a wrong key, garbage before and after the handshake, and requests without end."""

    address: Address
    folder: Path
    log: Path
    seed: int
    lifetime_s: float

    def run(self) -> None:
        """Attack until the lifetime ends."""
        os.nice(10)  # keep the servers busy instead of the machine
        log, rng = Log(self.log), random.Random(self.seed)
        end_s = time.monotonic() + self.lifetime_s
        while time.monotonic() < end_s:
            attack = rng.choice([self._wrong_key, self._garbage, self._garbage_of_member, self._requests])
            try:
                attack(rng)
                log.note("attack", name=attack.__name__.strip("_"))
            except (OSError, TimeoutError, CableStoreError):  # the server is down, or has ended the connection
                time.sleep(RETRY_S)
            time.sleep(rng.expovariate(1))

    def _wrong_key(self, _: random.Random) -> None:
        store = self.folder / f"hostile-{self.seed}"
        if sync(store, self.address, WRONG_KEY, "--create") == 0:
            raise AssertionError("a peer with another cabal key was accepted")

    def _garbage(self, rng: random.Random) -> None:
        with socket.create_connection((self.address.host, self.address.port), timeout=5) as connection:
            for _ in range(rng.randrange(1, 20)):
                connection.sendall(rng.randbytes(rng.randrange(1, 4_000)))

    def _garbage_of_member(self, rng: random.Random) -> None:
        asyncio.run(self._send(lambda peer: peer.raw(rng.randbytes(1_000)), rng.uniform(0.5, 2)))

    def _requests(self, rng: random.Random) -> None:
        asyncio.run(self._send(lambda peer: peer.send(*[ALL._replace(channel=rng.choice(CHANNELS))] * 20), 5))

    async def _send(self, send: Callable[[ByHand], None], for_s: float) -> None:
        """Connect with the cabal key, and send repeatedly while reading the answers."""
        peer = await asyncio.wait_for(ByHand.connect(self.address, cabal_key=bytes.fromhex(KEY)), 5)
        try:
            async with asyncio.timeout(2 * for_s):  # the server may stop reading
                reading = asyncio.ensure_future(peer.is_ended(for_s))
                while not reading.done():
                    send(peer)
                    await peer.writer.drain()
                    await asyncio.sleep(0.01)
        finally:
            await peer.close()


Load = Client | Visitor | Hostile

# --- processes ------------------------------------------------------------------------------------


class Crowd:
    """Processes of the load. `tend` replaces those that have ended."""

    def __init__(self, seed: int) -> None:
        self._spawn = multiprocessing.get_context("spawn")
        self._numbers = count(seed)
        self._places: list[Callable[[int], Load]] = []
        self._processes: list[BaseProcess | None] = []

    def add(self, make: Callable[[int], Load]) -> None:
        """Keep a load running. `make` returns the next one for a number, its seed."""
        self._places.append(make)
        self._processes.append(None)

    def tend(self) -> None:
        """Start a load in each place without a running one."""
        for place, process in enumerate(self._processes):
            if process is None or not process.is_alive():
                self._processes[place] = started = self._spawn.Process(
                    target=_run, args=(self._places[place](next(self._numbers)),)
                )
                started.start()

    def end(self) -> None:
        """Kill all processes and those that they started."""
        for process in self._processes:
            if process is not None and process.pid is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.join()
        self._processes = []


def _run(load: Load) -> None:
    os.setsid()
    load.run()
