"""The number of cores for parallel work."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the number of cores that this process may use. `taskset` or a container may limit it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
