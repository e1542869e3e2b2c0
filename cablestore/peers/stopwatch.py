"""What a thread spends on a piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_SHORT_S: Final = 0.0005


class Stopwatch:
    """Tells how much of its time a thread spent. Made in that thread, and used there alone.

    To ask the system what the thread spent costs ten times as much as to look at the clock. Of what is over soon the time
    that passed says enough; of what took longer, maybe because another thread ran meanwhile, the system is asked.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, spent: Callable[[], float] = time.thread_time
    ) -> None:
        """Begin to count. `clock` tells the time, `spent` what the thread spent so far, both in seconds."""
        self._clock = clock
        self._spent = spent
        self._spent_before_s = spent()

    def begin(self) -> float:
        """Return what to give to `spent_s`."""
        return self._clock()

    def spent_s(self, began_s: float) -> float:
        """Return the seconds spent since `begin`, if anything too many."""
        passed_s = self._clock() - began_s
        if passed_s < _SHORT_S:
            return passed_s
        spent_s = self._spent()
        before_s, self._spent_before_s = self._spent_before_s, spent_s
        return min(passed_s, spent_s - before_s)
