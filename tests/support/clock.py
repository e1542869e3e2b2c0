"""A loop whose clock stands still until the test moves it: what depends on time then depends on nothing else."""

from __future__ import annotations

import asyncio
from typing import Final

_BEGINS_AT_S: Final = 1_000.0
_TURNS: Final = 5
"""Rounds of the loop in which what is due has been done."""


class StandingLoop(asyncio.SelectorEventLoop):
    """As any other, but for its time. Sockets and threads work as ever; `peering.until` waits for them."""

    def __init__(self) -> None:
        self.now_s = _BEGINS_AT_S
        super().__init__()

    def time(self) -> float:
        """Return what the test says that it is."""
        return self.now_s


async def pass_time(seconds: float, step_s: float = 0.05) -> None:
    """Move the clock of the running loop in small steps, and let all that is due happen at each."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StandingLoop), "use `on_standing_loop`"
    end_s = loop.now_s + seconds
    while loop.now_s < end_s:
        loop.now_s = min(loop.now_s + step_s, end_s)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
