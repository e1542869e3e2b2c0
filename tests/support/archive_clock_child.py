"""`cablestore ARGUMENTS` in a process whose clock is ahead: `archive_clock_child.py MILLISECONDS ARGUMENTS...`."""

from __future__ import annotations

import sys
import time

_AHEAD_NS = int(sys.argv[1]) * 1_000_000
_true_time_ns = time.time_ns
time.time_ns = lambda: _true_time_ns() + _AHEAD_NS

from cablestore.cli import main  # noqa: E402 - its imports must find that clock

main(sys.argv[2:])
