"""Pauses of the garbage collector: during work that creates many objects, and during the start of a command."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Pauses:
    """Pauses of the garbage collector in this process."""

    changing = threading.Lock()
    running = 0
    was_enabled = True
    is_starting = False


def _reset_lock() -> None:
    _Pauses.changing = threading.Lock()  # a child lacks the thread that held the lock


os.register_at_fork(after_in_child=_reset_lock)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector while the body runs. It can take a third of the time if many objects are created.

    The objects must not form reference cycles. Keep the body short in a process that also does other work. Several
    threads may pause the collector at once: it runs again when any of these pauses ends, until the next pause begins.
    """
    with _Pauses.changing:
        if not _Pauses.running:
            _Pauses.was_enabled = gc.isenabled()
        _Pauses.running += 1
        gc.disable()
    try:
        yield
    finally:
        with _Pauses.changing:
            _Pauses.running -= 1
            if _Pauses.was_enabled:
                gc.enable()


def pause_for_start() -> None:
    """Disable the garbage collector while the modules of a command are imported, until `end_start`."""
    _Pauses.is_starting = True
    gc.disable()


def end_start() -> None:
    """Enable the garbage collector if `pause_for_start` disabled it, and exclude the imported modules from it.

    The modules stay in memory until the process ends. If the collector visited them, also at exit, this would take a
    seventh of the CPU time of a short command.
    """
    if _Pauses.is_starting:
        _Pauses.is_starting = False
        gc.freeze()
        gc.enable()
