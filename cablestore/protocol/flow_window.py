"""Flow window: the number of bytes in transit that arrive within about a second, for any bandwidth.

Each batch is a measurement: the bytes received since its request, divided by the time. The next batches fill the link
for its round-trip time and a little more. So a fast link is always busy, and a slow link that breaks loses little data.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from cablestore import limits

_LEAST_S: Final = 0.001
"""Minimum duration of a batch, because clocks are coarse."""
_RATES: Final = 8
"""Number of recent measurements that determine the window."""


class BatchStart(NamedTuple):
    """State of a window when a batch was requested or sent."""

    at_s: float
    arrived_size_bytes: int
    filled_size_bytes: float
    """The window that the batch filled, or 0 if the batch left room and thus measures the demand, not the link."""


class FlowWindow:
    """The window of one direction of one link, in bytes. It at most doubles with each batch."""

    def __init__(self, most_size_bytes: int, first_size_bytes: int = limits.FLOW_FIRST_SIZE_BYTES) -> None:
        self._most_size_bytes = most_size_bytes
        self.window_size_bytes: float = min(first_size_bytes, most_size_bytes)
        self._arrived_size_bytes = 0
        self._on_way_size_bytes = 0.0
        self._quickest_s = float("inf")
        self._rates: deque[float] = deque(maxlen=_RATES)

    @property
    def room_size_bytes(self) -> float:
        """The size that may still be requested or sent."""
        return self.window_size_bytes - self._on_way_size_bytes

    def began(self, size_bytes: float, now_s: float) -> BatchStart:
        """Record that a batch of about this size was requested or sent."""
        self._on_way_size_bytes += size_bytes
        filled_size_bytes = self.window_size_bytes if self.room_size_bytes < size_bytes else 0.0
        return BatchStart(now_s, self._arrived_size_bytes, filled_size_bytes)

    def arrived(self, size_bytes: int) -> None:
        """Record that bytes of any batch arrived."""
        self._arrived_size_bytes += size_bytes

    def ended(self, start: BatchStart, size_bytes: float, now_s: float) -> None:
        """Record the end of a batch. `start` is the result of its `began`, `size_bytes` the size passed to `began`."""
        self._on_way_size_bytes -= size_bytes
        carried = self._arrived_size_bytes - start.arrived_size_bytes
        if not carried:
            return
        took_s = max(now_s - start.at_s, _LEAST_S)
        self._quickest_s = min(self._quickest_s, took_s)
        self._rates.append(carried / took_s)  # the maximum is used, because a batch may have waited for others
        fitting = max(self._rates) * (self._quickest_s + limits.FLOW_AHEAD_S)
        if start.filled_size_bytes and took_s < self._quickest_s + limits.FLOW_AHEAD_S / 2:
            fitting = max(fitting, self.window_size_bytes + size_bytes)  # no data waits, so the link can transfer more
        if fitting > self.window_size_bytes or start.filled_size_bytes >= self.window_size_bytes:
            most = min(2 * self.window_size_bytes, self._most_size_bytes)
            self.window_size_bytes = min(max(fitting, limits.FLOW_LEAST_SIZE_BYTES), most)
