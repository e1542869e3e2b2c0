"""`cablestore serve` and other commands in separate processes, for tests."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from commands import run_command
from prometheus_client.parser import text_string_to_metric_families
from waiting import LIMIT_S

KEY, OTHER_KEY = "ab" * 32, "cd" * 32
HERE = "127.0.0.1:0"


def own_host() -> str:
    """Return a listening address whose host no other process uses, so that a released port stays free."""
    a, b, c = random.randbytes(3)
    return f"127.{a}.{b}.{c or 1}:0"


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CABLESTORE_")}
    return clean | {"PYTHONUNBUFFERED": "1"} | more


def cablestore(
    *arguments: object, store: Path, given: str | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command. `given` is its standard input."""
    return run_command([*map(str, arguments), "-s", str(store)], environment(**more), given)


def hang(process: subprocess.Popen[str]) -> None:
    """Stop a child process with SIGSTOP and wait until it has stopped. Until then its threads may still run."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def fetch(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=LIMIT_S) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Served:
    """Process that runs `cablestore serve`. `given` is its standard input, `prefix` is before the command."""

    def __init__(
        self, store: Path, *arguments: object, given: str | None = None, prefix: str = "", **more: str
    ) -> None:
        self.store = store
        self._log = store.with_suffix(f".{time.monotonic_ns()}.log")
        command = [
            *prefix.split(),
            sys.executable,
            "-m",
            "cablestore",
            "serve",
            "-s",
            str(store),
            "--json",
            *map(str, arguments),
        ]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=None if given is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(**more),
            )
        if given is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(given)
            self.process.stdin.close()
        self.reported: dict[str, str] = {}

    def hear(self, what: str) -> str:
        """Return a value of the JSON lines on its standard output, such as its listening address."""
        assert self.process.stdout is not None
        while what not in self.reported:
            line = self.process.stdout.readline()
            assert line, self._log.read_text()
            self.reported |= json.loads(line)
        return self.reported[what]

    @property
    def address(self) -> str:
        return self.hear("listening")

    def logged(self, event: str = "", **fields: Any) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        wanted = {"event": event, **fields} if event else fields
        return [line for line in found if wanted.items() <= line.items()]

    def metric(self, name: str, **labels: str) -> float:
        status, text = fetch(f"http://{self.hear('metrics')}/metrics")
        assert status == 200, text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)
