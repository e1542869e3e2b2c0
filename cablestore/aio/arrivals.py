"""Waiting for writes to a store. Waiting tasks do not occupy threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from cablestore.aio.threads import on_loop
from cablestore.store.store import CableStore


class Arrivals:
    """Waiting for the next write or the closing of a store, in tasks of any event loop.

    The writing thread wakes each event loop with waiting tasks once.
    """

    def __init__(self, store: CableStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._awaited: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}
        self.end: Callable[[], None] = store.watch(self._wake, local=True)
        """Function that unregisters this object from the store."""

    async def wait(self, after: int, timeout_s: float | None = None) -> bool:
        """Wait for an entry after number `after`. Return False after the timeout or if the store closes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    # Created before the store is checked, so that neither a write nor its closing is missed.
                    written = self._next()
                    if self._is_past(after) or self._store.is_closed:
                        break
                    await written.wait()
        return self._is_past(after) and not self._store.is_closed

    def _is_past(self, after: int) -> bool:
        return self._store.last_sequence > after

    def _next(self) -> asyncio.Event:
        """Return the asyncio.Event of the running loop that the next write sets."""
        with self._lock:
            return self._awaited.setdefault(asyncio.get_running_loop(), asyncio.Event())

    def _wake(self) -> None:
        """Wake all waiting tasks. Called in the writing thread."""
        if not self._awaited:
            return
        with self._lock:
            awaited, self._awaited = self._awaited, {}
        for loop, written in awaited.items():
            on_loop(loop, written.set)
