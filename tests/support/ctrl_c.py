"""Ctrl-C for a command at a chosen moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from waiting import LIMIT_S

INTERRUPTED: Final = ("interrupted: stored data is kept", 130)
"""The message of an interrupted command, and its status."""


def interrupted(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program that sends itself Ctrl-C, with these arguments."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def interrupt_often(work: Callable[[], object], times: int) -> None:
    """Repeat `work` in the main thread, and interrupt it N times at random instants."""
    begun: SimpleQueue[None] = SimpleQueue()
    main = threading.get_ident()

    def interrupt() -> None:
        for _ in range(times):
            begun.get()
            time.sleep(random.random() / 5_000)
            signal.pthread_kill(main, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interval_s = sys.getswitchinterval()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.setswitchinterval(1e-5)  # otherwise it is interrupted at few instants
        interrupting.start()
        for _ in range(times):
            with suppress(KeyboardInterrupt):
                begun.put(None)
                while True:
                    work()
        interrupting.join()
    finally:
        sys.setswitchinterval(interval_s)
        signal.signal(signal.SIGINT, handler)
