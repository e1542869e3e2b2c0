"""Processor time and memory of short commands, from the start of their process to its end: `starting.py [REPEATS]`."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from common import print_result, refusing, size_given

from cablestore import CableStore

COMMANDS = (["--version"], ["channels"], ["log", "bench"], ["serve", "--help"], ["chat", "--help"])


class Usage(NamedTuple):
    """What one process used."""

    cpu_ms: float
    peak_mb: float


def run(words: list[str], store: Path) -> Usage:
    """Run a command. Its output is discarded."""
    discard = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    program = [sys.executable, "-m", "cablestore", *words]
    environment = os.environ | {"CABLESTORE_STORE": str(store)}
    _, status, usage = os.wait4(os.posix_spawn(sys.executable, program, environment, file_actions=discard), 0)
    if status:
        raise OSError(f"the command {' '.join(words)} failed")
    return Usage(1000 * (usage.ru_utime + usage.ru_stime), usage.ru_maxrss / 1000)


def main() -> None:
    """Measure and print. The commands take turns."""
    repeats = size_given(11, tiny=1)
    found: list[list[Usage]] = [[] for _ in COMMANDS]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        with CableStore.open(store) as written:
            written.post("bench", "hello")
        for _ in range(repeats):
            for words, usages in zip(COMMANDS, found, strict=True):
                usages.append(run(words, store))
    for words, usages in zip(COMMANDS, found, strict=True):
        cpu_ms = statistics.median(usage.cpu_ms for usage in usages)
        peak_mb = statistics.median(usage.peak_mb for usage in usages)
        print_result(" ".join(words), f"{cpu_ms:.0f} ms, {peak_mb:.0f} MB", "")


if __name__ == "__main__":
    with refusing():
        main()
