"""A folder that one process of a test run makes and all of them read: builds that take many seconds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `name` of this run. The first process makes it, and others wait. They must not change it."""
    run = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent  # each worker has a folder in the folder of the run
    folder, complete = run / name, run / f"{name}.complete"
    with (run / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            make(folder)
            complete.touch()
    return folder
