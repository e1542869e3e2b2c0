"""Regular backups of a store that this process serves.

The command `backup` runs in a separate process on a checkpoint of the store, so this process continues to answer. The
time of the last backup is read from the backup. So restarts do not change the schedule, and backups by other processes
count. After several missed backups, only one backup follows.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from cablestore import limits
from cablestore.backup import read_backup
from cablestore.backup.manifest import MANIFEST
from cablestore.errors import BackupError
from cablestore.files import folder_of
from cablestore.index.header import peek
from cablestore.index.last_backup import note_backup
from cablestore.remote.checkpoint import checkpoint
from cablestore.store.options import system_clock_ms
from cablestore.store.store import CableStore
from cablestore.thread_contexts import entered_in_thread

_LOG: Final = logging.getLogger("cablestore.node")
_NICENESS: Final = 10
"""Niceness of a backup process: it has a lower priority than this process."""
_MAX_REASON: Final = 1_000


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """Where to back up, and how often. `keep` is the rule for restore points, None for the rule of the last backup."""

    to: str
    every_ms: int = 86_400_000
    keep: str | None = None
    requires_mount: bool = False
    """True to reject a folder on the root disk."""


@dataclass(frozen=True, slots=True)
class BackupState:
    """State of the regular backups of a store."""

    to: str = ""
    """The path or URI of the backups, "" without regular backups."""
    last_ms: int | None = None
    """The time of the last complete backup, None without a backup or if the time cannot be read."""
    failure: str = ""
    """Why the last attempt failed, "" if it succeeded."""
    failures: int = 0
    """Failed attempts since the start."""
    is_running: bool = False


def wait_ms(last_ms: int | None, now_ms: int, every_ms: int) -> int:
    """Return the time until a regular task is due. `last_ms` is when it last ran, None if it never ran.

    The task is due at once if it never ran, or if the clock was set back.
    """
    if last_ms is None or last_ms > now_ms:
        return 0
    return max(0, last_ms + every_ms - now_ms)


class BackupSchedule:
    """Regular backups of an open store."""

    def __init__(self, store: CableStore, *, clock: Callable[[], int] = system_clock_ms) -> None:
        self._store = store
        self._clock = clock
        self._plan: BackupPlan | None = None
        self._changed = asyncio.Event()
        self._failed_at_ms: int | None = None
        self._kind: str = ""
        """The kind of the last logged failure."""
        self.state: BackupState = BackupState()
        """The present state. It may be read in any thread."""

    def change(self, plan: BackupPlan | None) -> None:
        """Replace the plan. None ends regular backups."""
        if plan != self._plan:
            self._plan = plan
            self._failed_at_ms = None
            to, is_running = "" if plan is None else plan.to, self.state.is_running
            self.state = BackupState(to, failures=self.state.failures, is_running=is_running)
            self._changed.set()

    async def run(self) -> None:
        """Back up when a backup is due, until this is cancelled."""
        while True:
            self._changed.clear()
            pause_ms = limits.MAINTENANCE_CHECK_MS if self._plan is None else await self._step(self._plan)
            # The clock may be set at any time, so it is read again soon.
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause_ms, limits.MAINTENANCE_CHECK_MS) / 1000):
                    await self._changed.wait()

    async def _step(self, plan: BackupPlan) -> int:
        """Back up if that is due. Return the milliseconds until the next backup, or the next attempt after a failure."""
        retry_ms = min(plan.every_ms, limits.BACKUP_RETRY_MS)
        now_ms = self._clock()
        if self._failed_at_ms is not None and (pause_ms := wait_ms(self._failed_at_ms, now_ms, retry_ms)):
            return pause_ms
        if self.state.last_ms is not None and (pause_ms := wait_ms(self.state.last_ms, now_ms, plan.every_ms)):
            return pause_ms
        try:
            last_ms = await asyncio.to_thread(self._last_ms, plan)
            if pause_ms := wait_ms(last_ms, now_ms, plan.every_ms):
                self.state = replace(self.state, last_ms=last_ms)
                return pause_ms
            self.state = replace(self.state, last_ms=last_ms, is_running=True)
            await self._back_up(plan)
            last_ms = await asyncio.to_thread(self._noted_ms, plan)
        except Exception as error:  # noqa: BLE001 - of any kind: the next attempt may succeed
            self._failed(error, plan)
            return retry_ms
        finally:
            self.state = replace(self.state, is_running=False)
        self._succeeded(last_ms, plan)
        return wait_ms(last_ms, self._clock(), plan.every_ms)

    def _last_ms(self, plan: BackupPlan) -> int | None:
        """Return the time of the last backup of this store, None without one. Raises CableStoreError."""
        folder = folder_of(plan.to)
        if not folder.exists(MANIFEST):
            return None
        manifest = read_backup(folder)
        header = None if self._store.path is None else peek(self._store.path)
        is_own = header is not None and manifest.store == header.store_id
        return (manifest.made_ms or None) if is_own else None  # older formats have no time

    def _noted_ms(self, plan: BackupPlan) -> int | None:
        """Record the last backup in the store's folder, and return its time. Return None without a backup."""
        last_ms = self._last_ms(plan)
        if self._store.path is not None and last_ms is not None:
            note_backup(self._store.path, last_ms, folder_of(plan.to))
        return last_ms

    async def _back_up(self, plan: BackupPlan) -> None:
        """Run `cablestore backup` in a separate process. Raises BackupError with the error of the command."""
        options = [] if plan.keep is None else ["--keep", plan.keep]
        if plan.requires_mount:
            options.append("--require-mount")
        async with entered_in_thread(lambda: checkpoint(self._store)) as copy:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cablestore", "backup", plan.to, "-s", str(copy), "--json", *options),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the command
            )
            try:
                with suppress(OSError):  # it has ended
                    os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
                _, errors = await process.communicate()
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()  # the last backup is complete, and the next one resumes this one
                    await process.wait()
        if process.returncode:
            reason = " ".join(errors.decode(errors="replace").split()).replace(str(copy), str(self._store.path))
            raise BackupError(reason[:_MAX_REASON] or f"the command exited with status {process.returncode}")

    # --- results -------------------------------------------------------------------------------

    def _succeeded(self, last_ms: int | None, plan: BackupPlan) -> None:
        if plan != self._plan:
            return
        self._failed_at_ms, self._kind = None, ""
        if self.state.failure:
            _LOG.warning("backups succeed again", extra={"to": plan.to})
        self.state = replace(self.state, last_ms=last_ms, failure="")
        _LOG.info("backed up", extra={"to": plan.to, "made_ms": last_ms})

    def _failed(self, error: Exception, plan: BackupPlan) -> None:
        """Record a failure. Each kind is logged once, until a backup succeeds."""
        if plan != self._plan:
            return
        self._failed_at_ms = self._clock()
        reason = str(error)
        self.state = replace(self.state, failure=reason, failures=self.state.failures + 1)
        kind = f"{type(error).__name__} {_kind_of(reason)}"
        if kind != self._kind:
            self._kind = kind
            _LOG.error("cannot back up", extra={"to": plan.to, "reason": reason})


def _kind_of(reason: str) -> str:
    """Return a reason without its numbers and random names, such as those of temporary files."""
    return " ".join(word for word in reason.split() if word.isalpha())
