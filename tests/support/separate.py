"""Tests that run in a separate process, because other tests of the same process would change what they observe."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable
from functools import wraps

from waiting import LIMIT_S


def in_separate_process(test: Callable[[], None]) -> Callable[[], None]:
    """Run a test in a new process. Its numbers of open files have no gaps, and its limits apply to it only."""

    @wraps(test)
    def started() -> None:
        process = multiprocessing.get_context("spawn").Process(target=_run, args=(test.__module__, test.__name__))
        process.start()
        try:
            process.join(LIMIT_S)
            assert process.exitcode == 0
        finally:
            process.kill()
            process.join()

    return started


def _run(module: str, name: str) -> None:
    getattr(importlib.import_module(module), name).__wrapped__()
