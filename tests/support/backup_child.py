"""A process that backs up or restores and kills itself: `backup_child.py WORK STORE BACKUP WHEN NUMBER [TIME_MS KEEP]`.

WORK is backup or restore. WHEN is the moment of the kill: "before" or "after" a file gets its name, "done" after this
many posts, "removing" or "removed" before or after this many files are removed. With NUMBER 0 the process ends
normally. KEEP is the rule for restore points.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from history import AUTHORS

from cablestore import limits
from cablestore.backup import backup, restore
from cablestore.store.options import system_clock_ms

work, store, folder, when, number, *more = sys.argv[1:]
time_ms = int(more[0]) if more else system_clock_ms()
keep = more[1] if more else None
limits.BACKUP_POSTS_SIZE_BYTES = 2_000  # type: ignore[misc] # for many files
limits.BACKUP_ROWS_SIZE_BYTES = 1_000  # type: ignore[misc] # small, so that there are several
seen = 0


def step(kind: str) -> None:
    global seen  # noqa: PLW0603 - one count per process
    seen += kind == when
    if kind == when and seen == int(number):
        os.kill(os.getpid(), signal.SIGKILL)


def around(function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        step(before)
        result = function(*arguments, **options)
        step(after)
        return result

    return call


Path.replace = around(Path.replace, "before", "after")  # type: ignore[method-assign] # stops before and after it
Path.unlink = around(Path.unlink, "removing", "removed")  # type: ignore[method-assign] # stops before and after it
print("begun", flush=True)
if work == "backup":
    backup(
        Path(store),
        Path(folder),
        keep=keep,
        identity=AUTHORS[0],
        clock=lambda: time_ms,
        progress=lambda _: step("done"),
    )
else:
    restore(Path(folder), Path(store), identity=AUTHORS[0], progress=lambda _: step("done"))
