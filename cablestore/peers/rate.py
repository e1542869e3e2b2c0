"""Bytes per second of a connection, averaged over about the last ten seconds."""

from __future__ import annotations

import math
from typing import Final

_WINDOW_S: Final = 10.0


class Rate:
    """Average rate of a growing number of bytes. Later seconds weigh more."""

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._size_bytes = 0
        self.bytes_per_s = 0.0

    def update(self, now_s: float, size_bytes: int) -> None:
        """Update the rate with the present total number of bytes."""
        passed_s = now_s - self._at_s
        if passed_s > 0:
            weight = 1 - math.exp(-passed_s / _WINDOW_S)
            self.bytes_per_s += weight * ((size_bytes - self._size_bytes) / passed_s - self.bytes_per_s)
            self._at_s, self._size_bytes = now_s, size_bytes
