"""Waiting of tasks for what is written to a store. It takes no thread, however many tasks wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from cablestore.aio.threads import on_loop
from cablestore.store.store import CableStore


class Arrivals:
    """Waiting of tasks of any event loops for the next write of a store, or for its end.

    The thread that writes wakes each loop on which a task waits, once for all of its tasks.
    """

    def __init__(self, store: CableStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._awaited: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}
        self.end: Callable[[], None] = store.watch(self._wake, local=True)
        """Function that ends the waking."""

    async def wait(self, after: int, timeout_s: float | None = None) -> bool:
        """Wait until the arrival log is longer than `after`. Returns False when time is up or the store is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    # Before the store is checked, so that neither a write nor its end is missed.
                    written = self._next()
                    if self._is_past(after) or self._store.is_closed:
                        break
                    await written.wait()
        return self._is_past(after) and not self._store.is_closed

    def _is_past(self, after: int) -> bool:
        return self._store.last_sequence > after

    def _next(self) -> asyncio.Event:
        """Return the event of this loop's next wake."""
        with self._lock:
            return self._awaited.setdefault(asyncio.get_running_loop(), asyncio.Event())

    def _wake(self) -> None:
        """Wake all that wait. In the thread that wrote."""
        if not self._awaited:
            return
        with self._lock:
            awaited, self._awaited = self._awaited, {}
        for loop, written in awaited.items():
            on_loop(loop, written.set)
