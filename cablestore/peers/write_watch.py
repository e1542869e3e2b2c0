"""Monitor of a store's writes: logs when writes of any writer fail and succeed again, and then resumes stopped work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import Logger
from typing import Final

from cablestore.aio.threads import on_loop
from cablestore.interruptible import ThreadResult, in_thread
from cablestore.store.store import CableStore


class WriteWatch:
    """Monitor of a store's writes. Use it on the loop. `_written` runs in the writing thread."""

    def __init__(
        self, store: CableStore, loop: asyncio.AbstractEventLoop, log: Logger, recovered: Callable[[], None]
    ) -> None:
        """`recovered` is called when writes succeed again after a failure."""
        self._store = store
        self._engine = store.parts.engine
        self._loop = loop
        self._log: Final = log
        self._recovered = recovered
        self._is_failing = False
        self._retry: ThreadResult[None] | None = None
        self._unwatch = store.watch(self._written, local=True)
        self._check()

    def _written(self) -> None:
        if bool(self._engine.write_failure) is not self._is_failing:
            on_loop(self._loop, self._check)

    def _check(self) -> None:
        failure = self._engine.write_failure
        if bool(failure) is self._is_failing:
            return
        self._is_failing = bool(failure)
        if failure:
            self._log.error("writes to the store fail", extra={"reason": failure})
        else:
            self._log.warning("writes to the store succeed again")
            self._recovered()

    def retry(self) -> None:
        """Start a retry after a failure, in a thread. The system does not report that a disk has space again."""
        if self._is_failing and (self._retry is None or self._retry.done()):
            self._retry = in_thread(self._store.retry_writes)

    def close(self) -> None:
        """Stop monitoring, and wait for a retry in progress. Callable in any thread."""
        self._unwatch()
        if self._retry is not None:
            self._retry.thread.join()
