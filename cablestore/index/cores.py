"""Number of cores among which work is shared out: those that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return on how many cores this process may run. `taskset`, or a container with a CPU set, leaves it some of all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
