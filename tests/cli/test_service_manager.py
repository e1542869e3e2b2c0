"""Messages to the service manager: readiness, the end, and pings of the watchdog by the event loop."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from by_hand import on_standing_loop
from clock import pass_time
from serving import HERE, environment
from waiting import LIMIT_S

from cablestore.cli.service_manager import ServiceManager


@pytest.fixture
def notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yield the socket of a service manager."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind("n")
        receiving.settimeout(LIMIT_S)
        yield receiving


def pings(notified: socket.socket) -> int:
    """Return the number of pings that have arrived."""
    found = 0
    notified.settimeout(0.0)
    while True:
        try:
            found += notified.recv(100) == b"WATCHDOG=1"
        except BlockingIOError:
            return found


def test_serve_reports_readiness_and_pings_the_watchdog_until_it_stops(tmp_path: Path, notified: socket.socket) -> None:
    command = [sys.executable, "-m", "cablestore", "serve", "--create", "--listen", HERE, "-s", str(tmp_path / "a")]
    more = {"NOTIFY_SOCKET": "n", "WATCHDOG_USEC": "300000"}
    with subprocess.Popen(
        command, env=environment(**more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        found: list[bytes] = []
        while found.count(b"WATCHDOG=1") < 5 or b"READY=1\nSTATUS=" not in found:
            found.append(notified.recv(100))
        process.terminate()
        while found[-1] != b"STOPPING=1":
            found.append(notified.recv(100))
        assert process.wait(LIMIT_S) == 0


def test_an_aborted_process_prints_where_it_hangs(tmp_path: Path) -> None:
    """WatchdogSec= of systemd sends SIGABRT."""
    command = [sys.executable, "-m", "cablestore", "serve", "--create", "--listen", HERE, "-s", str(tmp_path / "a")]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGABRT)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in errors
    assert re.search(r'File ".*/cablestore/cli/serve.py", line \d+ in ', errors)


@on_standing_loop
async def test_only_a_running_loop_pings_the_watchdog() -> None:
    """Three pings are sent within the limit, so that one may be late. Only the test advances the clock of the loop."""
    with TemporaryDirectory(prefix="n") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(f"{folder}/n")
        task = asyncio.create_task(ServiceManager(f"{folder}/n", 60.0).send_signs_of_life())
        await pass_time(0.1)
        assert pings(receiving) == 1
        assert pings(receiving) == 0  # the clock stands
        await pass_time(60)
        assert pings(receiving) == 3
        task.cancel()


@pytest.mark.parametrize(
    "variables",
    [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "-1"}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}],
    ids=["no limit", "no number", "negative", "the limit of another process"],
)
def test_the_watchdog_is_not_pinged_without_a_limit(variables: dict[str, str]) -> None:
    manager = ServiceManager.of_environment(variables)
    asyncio.run(asyncio.wait_for(manager.send_signs_of_life(), LIMIT_S))
    for notify in (manager.ready, manager.stopping):
        notify()  # without an address
    ServiceManager("/nowhere/at/all").ready()
