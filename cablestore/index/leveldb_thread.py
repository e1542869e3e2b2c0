"""The thread in which LevelDB writes tables. A child process lacks it if it was forked after the thread started."""

from __future__ import annotations

import tempfile
from concurrent.futures import wait
from typing import Final

from cablestore import forks
from cablestore.errors import CableStoreError
from cablestore.index.leveldb_binding import plyvel
from cablestore.interruptible import in_thread

TRIAL_TIMEOUT_S: Final = 2.0
"""Timeout of a forked child process for LevelDB's thread to write an empty table, which takes milliseconds."""


class _BackgroundThread:
    """State of LevelDB's thread, which all databases of a process share.

    If it was started before a fork, the child lacks it and cannot start it. LevelDB does not report whether it was
    started.
    """

    used_at: int | None = None
    """`forks.ancestors` when the process or its ancestor first opened a database."""
    runs_at: int | None = None
    """`forks.ancestors` when the thread was first seen to run."""

    def ran(self) -> None:
        """Record that the thread runs in this process."""
        if self.runs_at is None:
            self.runs_at = forks.ancestors

    def is_missing(self) -> bool:
        """Return True in a forked child without the thread. The first call in a child may write a trial database."""
        if self.used_at is None:
            self.used_at = forks.ancestors
        if self.runs_at is None and self.used_at != forks.ancestors:
            trial = in_thread(_write_trial)
            self.runs_at = forks.ancestors if trial in wait([trial], TRIAL_TIMEOUT_S).done else self.used_at
        return self.runs_at not in {None, forks.ancestors}


THREAD: Final = _BackgroundThread()


def _write_trial() -> None:
    with tempfile.TemporaryDirectory(prefix="cablestore-") as folder:
        database = plyvel.DB(folder + "/trial", create_if_missing=True)
        database.compact_range(start=b"\x00", stop=b"\x00")
        database.close()


def no_thread() -> CableStoreError:
    """Return the error for operations that need the thread in a process that lacks it."""
    return CableStoreError(
        "large writes are not possible: LevelDB has no background thread in this process, because it was used before "
        "the fork. Start processes with `spawn` or `forkserver`, or fork before the first store is opened"
    )
