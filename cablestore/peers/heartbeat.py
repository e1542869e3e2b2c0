"""The lag of an event loop: how late it runs a task that is due every second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_BEAT_S: Final = 1.0


class Heartbeat:
    """Meter of the lag of an event loop. Usable in any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._is_over = False
        self._late_s = 0.0
        self._due_s = clock()
        loop.call_soon_threadsafe(self._beat)

    @property
    def lag_s(self) -> float:
        """The lateness of the last beat, or of the next beat if that is already later."""
        return max(self._late_s, self._clock() - self._due_s, 0.0)

    def end(self) -> None:
        """Stop measuring."""
        self._is_over = True

    def _beat(self) -> None:
        if not self._is_over:
            now_s = self._clock()
            self._late_s = now_s - self._due_s
            self._due_s = now_s + _BEAT_S
            self._loop.call_later(_BEAT_S, self._beat)
