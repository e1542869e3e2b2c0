"""Answers of `serve` while maintenance commands run: `maintenance.py [POSTS] [--only NAME]`, 100,000 posts by default.

A client requests pages and writes posts, and a peer requests hashes, all at steady rates. A request is due at a fixed
time, and its duration counts from then, so that a stall delays every request that was due meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from common import print_result, refusing, sentence, size
from export import build, unsigned

TESTS = Path(__file__).resolve().parent.parent / "tests" / "support"
sys.path.insert(0, str(TESTS))

from by_hand import ByHand  # noqa: E402 - a peer of the tests

import cablestore  # noqa: E402 - after those that need the path
from cablestore.peers import Address  # noqa: E402 - the same

MEASURED_S = size(5_000, tiny=100) / 1_000
"""Least duration of each measurement: a short command is repeated."""
EVERY_S = {"page": 0.02, "hashes": 0.02, "post": 0.2}
"""Interval between the requests of each kind."""
TARGET = 3.0


class Command(NamedTuple):
    """A maintenance command beside `serve`. `words` may contain {n}, the number of the run."""

    name: str
    words: tuple[str, ...]


def commands(folder: Path) -> list[Command]:
    """Return the commands in the order in which they are measured."""
    return [
        Command("nothing", ()),
        Command("backup, full", ("backup", f"{folder}/full-{{n}}")),
        Command("backup, incremental", ("backup", f"{folder}/full-0")),
        Command("export", ("export", f"{folder}/export-{{n}}")),
        Command("check", ("check",)),
        Command("archive create", ("archive", "create", f"{folder}/archives-{{n}}")),
        Command("import-irc", ("import-irc", f"{folder}/irc-{{n}}.log", "--channel", "irc-{n}")),
        Command("compact", ("compact",)),
        Command("prune --dry-run", ("prune", "--keep", "100", "--dry-run")),
        Command("prune", ("prune", "--keep", "{left}")),
    ]


# --- load -----------------------------------------------------------------------------------------


class Load:
    """Requests at steady rates, each kind in a separate thread, and their durations."""

    def __init__(self, path: Path, address: Address) -> None:
        self._path = path
        self._address = address
        self._durations_s: dict[str, list[float]] = {kind: [] for kind in EVERY_S}
        self._stopped = threading.Event()
        self._ready = threading.Barrier(len(EVERY_S) + 1)
        self._threads = [threading.Thread(target=target) for target in (self._pages, self._posts, self._peer)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send requests during the body."""
        for thread in self._threads:
            thread.start()
        self._ready.wait()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join()

    def taken(self) -> dict[str, list[float]]:
        """Return the durations in seconds since the last call."""
        found, self._durations_s = self._durations_s, {kind: [] for kind in EVERY_S}
        return found

    def _due(self, kind: str) -> Iterator[float]:
        """Yield the times at which requests are due, when they are due."""
        due_s = time.perf_counter()
        while not self._stopped.wait(max(0.0, due_s - time.perf_counter())):
            yield due_s
            due_s += EVERY_S[kind]

    def _note(self, kind: str, due_s: float) -> None:
        self._durations_s[kind].append(time.perf_counter() - due_s)

    def _repeat(self, kind: str, request: Callable[[cablestore.CableStore, int], object]) -> None:
        with cablestore.connect(self._path) as store:
            request(store, 0)
            self._ready.wait()
            for number, due_s in enumerate(self._due(kind), 1):
                request(store, number)
                self._note(kind, due_s)

    def _pages(self) -> None:
        self._repeat("page", lambda store, number: store.messages(f"channel-{number % 10}"))

    def _posts(self) -> None:
        self._repeat("post", lambda store, number: store.post("bench", f"text {number}", sync=False))

    def _peer(self) -> None:
        asyncio.run(self._ask())

    async def _ask(self) -> None:
        peer = await ByHand.connect(self._address)
        self._ready.wait()
        due_s = time.perf_counter()
        while not self._stopped.is_set():
            await peer.hashes("channel-1", limit=50)
            self._note("hashes", due_s)
            due_s += EVERY_S["hashes"]
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        await peer.close()


# --- measuring ------------------------------------------------------------------------------------


@contextmanager
def served(path: Path) -> Iterator[Address]:
    """Run `serve` during the body."""
    command = [sys.executable, "-m", "cablestore", "serve", "-s", str(path), "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Address.parse(json.loads(process.stdout.readline())["listening"])
        finally:
            process.terminate()


def write_log(path: Path, number: int) -> None:
    """Write an IRC log."""
    words = sentence(random.Random(number), 1_000)
    lines = (
        f"2020-01-01T{n // 3600 % 24:02}:{n // 60 % 60:02}:{n % 60:02} <user{n % 20}> {words[n % 700 :][:120]} {n}\n"
        for n in range(size(5_000, tiny=50))
    )
    path.write_text("".join(lines))


def repeat(command: Command, path: Path, folder: Path, posts: int) -> tuple[int, str]:
    """Run a command again and again for the measured time. Return the number of runs, and its error."""
    end_s = time.perf_counter() + MEASURED_S
    if not command.words:
        time.sleep(MEASURED_S)
        return 0, ""
    for number in itertools.count():
        if command.name == "import-irc":
            write_log(folder / f"irc-{number}.log", number)
        left = str(max(10, posts // 4 // 2**number))
        words = [word.format(n=number, left=left) for word in command.words]
        done = subprocess.run(
            [sys.executable, "-m", "cablestore", *words, "-s", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return number, " ".join(done.stderr.split())[-70:]
        if time.perf_counter() > end_s:
            return number + 1, ""
    raise AssertionError


def percentile_ms(durations_s: list[float], percent: int) -> float:
    """Return a percentile in milliseconds."""
    return 1000 * statistics.quantiles(durations_s, n=100, method="inclusive")[percent - 1]


def report(name: str, runs: int, found: dict[str, list[float]], alone: dict[str, float]) -> None:
    """Print the durations beside a command, and their ratio to those without it."""
    for kind, durations_s in found.items():
        if len(durations_s) < 2:
            print_result(f"{name}: {kind}", "no answers", "", reached=False)
            continue
        p50_ms, p99_ms = percentile_ms(durations_s, 50), percentile_ms(durations_s, 99)
        alone.setdefault(kind, p99_ms)
        ratio = p99_ms / alone[kind]
        text = f"{p50_ms:.1f}, {p99_ms:.1f} ms, {ratio:.1f}x"
        print_result(f"{name} ({runs} runs): {kind}", text, f"{len(durations_s)} requests", ratio < TARGET)


def measure(folder: Path, number: int, only: str) -> None:
    """Measure the answers beside each command."""
    path = folder / "store"
    build(path, unsigned(number))
    alone: dict[str, float] = {}
    with served(path) as address:
        load = Load(path, address)
        with load.running():
            time.sleep(MEASURED_S / 5)  # caches are filled
            for command in commands(folder):
                if command.words and only not in command.name:
                    continue
                load.taken()
                runs, error = repeat(command, path, folder, number)
                found = load.taken()
                if error:
                    print_result(command.name, "refused", error, reached=False)
                else:
                    report(command.name, runs, found, alone)


def main() -> None:
    """Run the benchmark, and print the 50th and 99th percentile beside each command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int, nargs="?", default=size(100_000, tiny=200), help="posts in the store")
    parser.add_argument("--only", default="", metavar="NAME", help="only commands with this text in their names")
    given = parser.parse_args()
    print(f"# maintenance beside `serve`: {given.number:,} posts, {os.cpu_count()} cores; p50, p99, ratio of p99")
    with refusing(), tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), given.number, given.only)


if __name__ == "__main__":
    main()
