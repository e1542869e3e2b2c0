"""Full disk with `serve`: health, metrics and log report it immediately, reads continue, and writes resume later."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from people import ANN, raws
from serving import HERE, cablestore, environment, fetch
from waiting import LIMIT_S, wait_until

from cablestore import CableStore

FAILS, SUCCEEDS = "writes to the store fail", "writes to the store succeed again"


class Limited:
    """`serve` with an adjustable limit of file sizes, which the kernel reports like a full disk."""

    def __init__(self, store: Path, *arguments: str, listen: str = HERE) -> None:
        command = [sys.executable, "-m", "cablestore", "serve", "--json", "--metrics", HERE, "--listen", listen]
        self.store = store
        self.process = subprocess.Popen(
            [*command, *arguments, "-s", str(store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # a pipe has no limit
            text=True,
            env=environment(),
        )
        self.lines: list[dict[str, Any]] = []
        assert self.process.stdout is not None
        addresses: dict[str, str] = {}
        while "listening" not in addresses:
            addresses |= json.loads(self.process.stdout.readline())
        self.address, self.url = addresses["listening"], f"http://{addresses['metrics']}"
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(map(json.loads, self.process.stderr))

    def limit(self, size_bytes: int = resource.RLIM_INFINITY) -> None:
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    def run(self, *arguments: object) -> tuple[int, str]:
        done = cablestore(*arguments, store=self.store)
        return done.returncode, done.stdout + done.stderr

    def health(self) -> tuple[int, str]:
        assert fetch(f"{self.url}/healthz")[0] == 200  # a restart does not help
        status, text = fetch(f"{self.url}/readyz")
        return status, json.loads(text).get("reason", "")

    def metric(self, name: str) -> float:
        lines = fetch(f"{self.url}/metrics")[1].splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(name)), 0.0)

    def texts(self) -> float:
        return self.metric('cablestore_store_posts{type="text"}')

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines if line["event"] in (FAILS, SUCCEEDS)]

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(LIMIT_S) == 0
        self._reader.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Limited]:
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*(ANN.text("default", f"before {i}") for i in range(20))))
    served = Limited(tmp_path / "store")
    yield served
    served.limit()
    served.stop()


def test_every_kind_of_failed_write_is_reported_until_writes_succeed(served: Limited) -> None:
    events: list[str] = []
    failed = 0.0
    for write in (("post", "default", "own"), ("name", "Ann"), ("drop", "--channel", "other")):
        assert served.health()[0] == 200
        served.limit(1)
        status, said = served.run(*write)
        assert (status, said.count("\n")) == (3, 1), said
        assert "writing failed" in said
        status, reason = served.health()
        assert status == 503
        assert "writing failed" in reason
        before, failed = failed, served.metric("cablestore_failed_writes_total")
        assert failed > before
        events.append(FAILS)
        wait_until(lambda: served.events() == events, lambda: served.lines)
        served.limit()
        wait_until(lambda: served.health()[0] == 200)  # without another write
        events.append(SUCCEEDS)
        wait_until(lambda: served.events() == events, lambda: served.lines)
        assert served.run(*write)[0] == 0
    served.limit(1)
    assert served.run("post", "default", "own")[0] == 3
    status, said = served.run("log", "default", "-n", "100")
    assert status == 0
    assert said.count("before") == 20


@pytest.mark.thorough
def test_posts_offered_during_a_full_disk_are_fetched_afterwards(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "a") as store:
        store.ingest(raws(*(ANN.text("default", f"{i} " + "x" * 1000) for i in range(300))))
    CableStore.open(tmp_path / "b").close()
    one = Limited(tmp_path / "a", "--no-follow")
    one.stop()
    two = Limited(tmp_path / "b", "--connect", one.address)
    two.limit(1)
    one = Limited(tmp_path / "a", "--no-follow", listen=one.address)
    wait_until(lambda: two.health()[0] == 503, lambda: two.lines)
    assert two.texts() == 0
    two.limit()
    wait_until(lambda: two.texts() == 300, lambda: two.lines)
    assert two.health()[0] == 200
    for each in (two, one):
        each.stop()
