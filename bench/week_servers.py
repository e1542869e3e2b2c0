"""Servers of `week.py`: `cablestore serve` in processes, on disks that can be full, and a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from common import resident_mb
from week_load import KEY

import cablestore
from cablestore.errors import CableStoreError
from cablestore.peers import Address

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_S: Final = 120.0
"""Longest start or end of a process."""
UPGRADED: Final = "1000.0.0"
"""Version of the copied package."""


class Server:
    """`cablestore serve` in a separate process, with its store, settings and log."""

    def __init__(self, name: str, folder: Path, host: str, disk: Path) -> None:
        self.name = name
        self.store = disk / f"store-{name}"
        self.address = Address(host, 13333)
        self.peer: Address | None = None
        self.backup = folder / f"backup-{name}"
        self.code = ROOT
        self.starts_s: list[float] = []
        self._ready_s = 0.0
        """Durations of the starts."""
        self._metrics = Address(host, 9464)
        self._settings = folder / f"{name}.toml"
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[str] | None = None

    def write_settings(self, keep_days: int, backup_every_s: float) -> None:
        """Write the settings file."""
        settings: dict[str, Any] = {
            "store": str(self.store),
            "listen": [str(self.address)],
            "connect": [str(self.peer)],
            "metrics": str(self._metrics),
            "keep": f"{keep_days}d",
            "backup-to": str(self.backup),
            "backup-every": f"{backup_every_s:.0f}s",
            "backup-keep": "7d4w12m",
            "log-format": "json",
        }
        text = "[serve]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        assert tomllib.loads(text)["serve"] == settings
        self._settings.write_text(text)

    def start(self) -> None:
        """Start the process, and wait until it is ready."""
        began_s = time.monotonic()
        command = [sys.executable, "-m", "cablestore", "serve", "--json", "--config", str(self._settings)]
        environment = os.environ | {"PYTHONPATH": str(self.code), "CABLESTORE_SERVE_CABAL_KEY": KEY}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, cwd=self.code, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        while "listening" not in (line := self._process.stdout.readline()):
            if not line:
                raise CableStoreError(f"server {self.name} does not start: {self._log.read_text()[-500:]}")
        self._ready_s = time.monotonic()
        self.starts_s.append(self._ready_s - began_s)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process by a signal. Returns its status."""
        if self._process is None:
            return 0
        self.send(number)
        status = self._process.wait(TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return status

    def version(self) -> str:
        """Return the version in the log of the last start."""
        return str(re.findall(r'"event": "started".*"version": "([^"]+)"', self._log.read_text())[-1])

    def has_traceback(self) -> bool:
        """Return True if the log contains a traceback."""
        return "Traceback" in self._log.read_text()

    def sample(self) -> dict[str, float]:
        """Return memory and disk in MB, the number of posts, and seconds since the start.

        Raises CableStoreError if the process has ended.
        """
        if self._process is None or self._process.poll() is not None:
            raise CableStoreError("the process has ended")
        total_mb, private_mb = resident_mb(self._process.pid)
        up_s = time.monotonic() - self._ready_s
        sizes = {"memory_mb": total_mb, "private_mb": private_mb, "disk_mb": disk_mb(self.store)}
        return {**sizes, "posts": self._posts(), "up_s": up_s}

    def _posts(self) -> int:
        with cablestore.connect(self.store) as store:
            return sum(store.stats().posts.values())


def disk_mb(folder: Path) -> float:
    """Return the size of all files below a folder, those with several links once. Files may be removed meanwhile."""
    sizes_bytes: dict[int, int] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            state = path.stat()
            sizes_bytes[state.st_ino] = state.st_size
    return sum(sizes_bytes.values()) / 1e6


# --- disks ----------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[Path | None]:
    """Yield a separate disk in memory, None without the right to mount one."""
    folder.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if mount is None or unmount is None or os.geteuid() != 0:
        yield None
        return
    mounting = [mount, "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:  # a container may forbid it
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run([unmount, "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill the free space of a disk with a file, and return it."""
    path = disk / "ballast"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(65_536))
    return path


# --- the package ---------------------------------------------------------------------------------


def copied_package(folder: Path) -> Path:
    """Copy the package as another version. Returns the folder to import it from."""
    for name in ("cablestore", "views", "reindex"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    init = folder / "cablestore" / "__init__.py"
    text, count = re.subn(r'__version__: Final = "[^"]+"', f'__version__: Final = "{UPGRADED}"', init.read_text())
    assert count == 1
    init.write_text(text)
    return folder
