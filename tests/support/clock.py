"""Clocks of a store or a loop that only the test moves, so that results do not depend on the machine's time."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final

from waiting import LIMIT_S

_BEGINS_AT_S: Final = 1_000.0
_TURNS: Final = 5
"""Rounds of the loop in which all due callbacks run."""


class SetClock:
    """Clock of a store that the test sets."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class BlockingClock:
    """Clock of a store that blocks the writing thread of a node while `passes` is not set."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.passes, self.is_reached = threading.Event(), threading.Event()

    def __call__(self) -> int:
        if threading.current_thread().name == "cablestore-write":
            self.is_reached.set()
            self.passes.wait(LIMIT_S)
        return self.now_ms


class StandingLoop(asyncio.SelectorEventLoop):
    """Event loop whose time the test sets. Sockets and threads work normally; `peering.until` waits for them."""

    def __init__(self) -> None:
        self.now_s = _BEGINS_AT_S
        self._released_s: float | None = None
        super().__init__()

    def time(self) -> float:
        """Return the time that the test has set."""
        return self.now_s + (0.0 if self._released_s is None else time.monotonic() - self._released_s)

    def release(self) -> None:
        """Let time pass from now on. Otherwise, a failed test would never end if it waits for a timeout."""
        self._released_s = time.monotonic()


async def pass_time(seconds: float, step_s: float = 0.05) -> None:
    """Move the clock of the running loop in small steps, and run all due callbacks at each."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StandingLoop), "use `on_standing_loop`"
    end_s = loop.now_s + seconds
    while loop.now_s < end_s:
        loop.now_s = min(loop.now_s + step_s, end_s)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
