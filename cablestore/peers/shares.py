"""A peer's shares of the node's time: for reading the store, and on the loop."""

from __future__ import annotations

from collections.abc import Callable

from cablestore import limits


class ReadShare:
    """Rows of the store that may be read for one peer. They accrue at a steady rate, up to a maximum."""

    def __init__(self, clock: Callable[[], float], rows_per_s: float, max_rows: float) -> None:
        """`clock` returns the time in seconds."""
        self._clock = clock
        self._rows_per_s = rows_per_s
        self._max_rows = max_rows
        self._rows = float(max_rows)
        self._at_s = clock()

    def charge(self, rows: float) -> None:
        """Deduct rows from the share."""
        self._rows -= rows

    def is_left(self) -> bool:
        """Return True if more rows may be read now."""
        if self._rows <= 0:
            now_s = self._clock()
            self._rows = min(self._rows + (now_s - self._at_s) * self._rows_per_s, self._max_rows)
            self._at_s = now_s
        return self._rows > 0

    @property
    def wait_s(self) -> float:
        """Seconds until more rows may be read."""
        return 0.01 - self._rows / self._rows_per_s


class LoopShare:
    """Loop time that the bytes of one peer used in excess of its share."""

    def __init__(self, now_s: float) -> None:
        self._debt_s = 0.0
        self._at_s = now_s

    def charge(self, seconds: float, now_s: float) -> float:
        """Count `seconds` of used time. Return how long the peer must pause, 0 while it is within its share."""
        paid_s = (now_s - self._at_s) * limits.LOOP_SHARE
        self._debt_s = max(0.0, self._debt_s - paid_s) + seconds
        self._at_s = now_s
        return self._debt_s / limits.LOOP_SHARE if self._debt_s > limits.LOOP_SHARE_IN_ADVANCE_S else 0.0
