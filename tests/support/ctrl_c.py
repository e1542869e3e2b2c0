"""Ctrl-C for a command at a chosen moment."""

from __future__ import annotations

import gc
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
    """Repeat `work` in the main thread, and interrupt it N times at random instants, as Ctrl-C does."""
    begun: SimpleQueue[None] = SimpleQueue()
    main, interval_s = threading.get_ident(), sys.getswitchinterval()
    is_due = False

    def interrupt() -> None:
        for _ in range(times):
            begun.get()
            time.sleep(random.random() / 5_000)
            signal.pthread_kill(main, signal.SIGINT)

    def handle(*_: object) -> None:
        nonlocal is_due
        is_due = False
        raise KeyboardInterrupt

    interrupting = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, handle)
    gc.disable()  # Python ignores exceptions in callbacks of the garbage collection
    sys.setswitchinterval(1e-5)  # otherwise it is interrupted at few instants
    try:
        interrupting.start()
        for _ in range(times):
            with suppress(KeyboardInterrupt):
                is_due = True
                begun.put(None)
                while is_due:
                    work()
        interrupting.join()
    finally:
        sys.setswitchinterval(interval_s)
        gc.enable()
        signal.signal(signal.SIGINT, before)
