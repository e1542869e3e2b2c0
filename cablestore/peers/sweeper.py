"""The removal of dropped posts while a node runs: in batches, in a thread, between other writes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from logging import Logger
from typing import Final

from cablestore.errors import StoreClosedError
from cablestore.interruptible import ThreadResult, in_thread
from cablestore.store.store import CableStore


class _StopError(Exception):
    """A removal ends because the node stops. The next removal continues it."""


class Sweeper:
    """Remover of dropped posts. Use it on the loop. `_sweep` runs in a thread."""

    def __init__(self, store: CableStore, log: Logger) -> None:
        self._store = store
        self._log: Final = log
        self._work: ThreadResult[None] | None = None
        self._is_stopping = False
        self._has_failed = False

    def check(self) -> None:
        """Start to remove posts if any are dropped. After a failed write, wait until writes succeed again.

        After any other failure, nothing is retried.
        """
        is_idle = self._work is None and not (self._is_stopping or self._has_failed or self._store.write_state.failure)
        if is_idle and self._store.moderation.is_sweeping:
            self._work = in_thread(self._sweep)
            asyncio.wrap_future(self._work).add_done_callback(self._done)

    def _sweep(self) -> None:
        with suppress(_StopError):
            self._store.moderation.sweep(self._advance)

    def _advance(self, _: int) -> None:
        if self._is_stopping:
            raise _StopError

    def _done(self, work: asyncio.Future[None]) -> None:
        self._work = None
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, StoreClosedError):
            self._has_failed = not self._store.write_state.failure
            self._log.error("cannot remove dropped posts", extra={"reason": str(error)})

    def stop(self) -> None:
        """Stop removing posts after the batch in progress."""
        self._is_stopping = True

    def close(self) -> None:
        """Wait for the batch in progress. Callable in any thread."""
        work = self._work
        if work is not None:
            work.thread.join()
