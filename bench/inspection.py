"""The page that shows a store: `inspection.py [POSTS] [--json FILE]`, 100,000 posts in one channel by default.

This process has the store open. `cablestore inspect` shows it in another process, whose memory is measured.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from common import START_MS, authors, print_result, refusing, seconds, sentence, signed, size

from cablestore import CableStore, Text, offer

TOKEN = "a-token-of-the-benchmark"  # noqa: S105 - the page is only shown to this process
FORK_EVERY = 50
LIVE_POSTS = 20


def history(number: int) -> Iterator[bytes]:
    """Return texts of 20 authors in one channel. Now and then two link to the same post, and the next links to both."""
    rng, who = random.Random(1), authors(20)
    links: tuple[bytes, ...] = ()
    before: tuple[bytes, ...] = ()
    for i in range(number):
        is_fork = i % FORK_EVERY == 0
        raw, digest = signed(
            Text("bench", sentence(rng, 90)), who[i % 20], START_MS + 30_000 * i, before if is_fork else links
        )
        before, links = links, (*links, digest) if is_fork else (digest,)
        yield raw


class Shown:
    """The command `inspect` beside this process."""

    def __init__(self, store: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "cablestore",
            "inspect",
            str(store),
            "--listen",
            "127.0.0.1:0",
            "--token",
            TOKEN,
        ]
        self.process = subprocess.Popen([*command, "--no-open", "--json"], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = urlsplit(json.loads(self.process.stdout.readline())["inspect"])
        assert address.hostname is not None
        self.connection = http.client.HTTPConnection(address.hostname, address.port)

    def get(self, path: str) -> bytes:
        """Return a page."""
        self.connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body

    def memory_mb(self) -> float:
        """Return the memory of the process that is not mapped files, in MB."""
        fields = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            if ":" in line
        )
        return int(fields["RssAnon"].split()[0]) / 1000

    def live_ms(self, store: CableStore) -> float:
        """Return the longest time from a write until the page shows it, in milliseconds."""
        self.connection.request("GET", "/events", headers={"Authorization": f"Bearer {TOKEN}"})
        events = self.connection.getresponse()
        assert events.readline() == b": open\n"
        longest = 0.0
        reader = http.client.HTTPConnection(self.connection.host, self.connection.port)
        for number in range(LIVE_POSTS):
            started = time.perf_counter()
            store.post("bench", f"live {number}", sync=False)
            while not events.readline().startswith(b"data: "):
                pass
            reader.request("GET", "/channel?name=bench", headers={"Authorization": f"Bearer {TOKEN}"})
            assert f"live {number}".encode() in reader.getresponse().read()
            longest = max(longest, time.perf_counter() - started)
        reader.close()
        events.close()
        return longest * 1000

    def close(self) -> None:
        """End the command."""
        self.connection.close()
        self.process.terminate()
        self.process.wait()


def measure(number: int) -> dict[str, float]:
    """Return the figures."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, CableStore.open(Path(folder) / "store") as store:
        for _ in store.parts.writer.ingest(history(number), sync=False, batch_posts=500, verify=False):
            pass
        with offer(store):
            shown = Shown(Path(folder) / "store")
            try:
                figures["first page, ms"] = 1000 * seconds(lambda: shown.get("/"))
                figures["overview, ms"] = 1000 * seconds(lambda: shown.get("/"))
                figures["channel, ms"] = 1000 * seconds(lambda: shown.get("/channel?name=bench"))
                figures["graph, ms"] = 1000 * seconds(lambda: shown.get("/graph?name=bench"))
                figures["graph of a day, ms"] = 1000 * seconds(
                    lambda: shown.get(f"/graph?name=bench&after={START_MS}&before={START_MS + 86_400_000}")
                )
                figures["rows, ms"] = 1000 * seconds(lambda: shown.get("/keys?prefix=!chat!"))
                figures["log, ms"] = 1000 * seconds(lambda: shown.get("/log"))
                figures["a live post on the page, at most, ms"] = shown.live_ms(store)
                figures["memory, MB"] = shown.memory_mb()
            finally:
                shown.close()
    return figures


TARGETS = {"first page, ms": 100, "graph, ms": 1000, "a live post on the page, at most, ms": 100, "memory, MB": 60}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("posts", type=int, nargs="?", default=size(100_000, tiny=300), help="posts in the channel")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    with refusing():
        if given.json is not None:
            given.json.touch()
    print(f"# the page of a store: {given.posts:,} posts in one channel")
    figures = measure(given.posts)
    for name, value in figures.items():
        target = TARGETS.get(name)
        is_reached = None if target is None else value <= target
        print_result(name, f"{value:.1f}", "" if target is None else f"at most {target}", is_reached)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
