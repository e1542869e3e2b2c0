"""What a thread spends on a piece of work."""

from __future__ import annotations

import time
from typing import Final

_SHORT_S: Final = 0.0005


class Stopwatch:
    """Tells how much of its time a thread spent. Made in that thread, and used there alone.

    To ask the system what the thread spent costs ten times as much as to look at the clock. Of what is over soon the time
    that passed says enough; of what took longer, maybe because another thread ran meanwhile, the system is asked.
    """

    def __init__(self) -> None:
        self._spent_before_s = time.thread_time()

    @staticmethod
    def begin() -> float:
        """Return what to give to `spent_s`."""
        return time.perf_counter()

    def spent_s(self, began_s: float) -> float:
        """Return the seconds spent since `begin`, if anything too many."""
        passed_s = time.perf_counter() - began_s
        if passed_s < _SHORT_S:
            return passed_s
        spent_s = time.thread_time()
        before_s, self._spent_before_s = self._spent_before_s, spent_s
        return min(passed_s, spent_s - before_s)
