"""Rule that selects restore points to keep: `7d4w12m` keeps the last of each of 7 days, 4 weeks and 12 months.

All periods are in UTC, and weeks begin on Monday. Only periods with restore points count. Every unit counts
independently: the last point of a month is kept even after its day and its week are no longer kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from cablestore import limits
from cablestore.errors import ArgumentError

_DAY_MS: Final = 86_400_000
_THURSDAY: Final = 3
"""Weekday of 1970-01-01, counted from Monday."""


def _month(time_ms: int) -> int:
    day = datetime.fromtimestamp(time_ms // 1000, UTC)
    return day.year * 12 + day.month


_PERIODS: Final[dict[str, Callable[[int], int]]] = {
    "h": lambda time_ms: time_ms // 3_600_000,
    "d": lambda time_ms: time_ms // _DAY_MS,
    "w": lambda time_ms: (time_ms // _DAY_MS + _THURSDAY) // 7,
    "m": _month,
    "y": lambda time_ms: datetime.fromtimestamp(time_ms // 1000, UTC).year,
}
"""For each unit, a function that returns the number of the period of a time. Later periods have greater numbers."""


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Rule for keeping restore points.

    `counts` maps a unit (h, d, w, m or y) to the number of latest periods whose last restore point is kept.
    """

    counts: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a rule such as 7d4w12m. Raises ArgumentError."""
        parts = re.findall(r"([0-9]{1,4})([hdwmy])", text)
        counts = {unit: int(number) for number, unit in parts}
        is_whole = "".join(number + unit for number, unit in parts) == text and len(counts) == len(parts)
        if not (is_whole and parts and all(0 < count <= limits.MAX_PERIODS_KEPT for count in counts.values())):
            raise ArgumentError(
                f"invalid rule {text[:80]!r}: expected a number of hours (h), days (d), weeks (w), months (m) or years "
                f"(y), such as 7d4w12m: each unit at most once, each number from 1 to {limits.MAX_PERIODS_KEPT:,}"
            )
        return cls(counts)

    def kept(self, times_ms: Iterable[int], now_ms: int) -> frozenset[int]:
        """Return the times of the restore points that are kept at `now_ms`.

        The rule is applied separately to points dated later than `now_ms`, because the clock was or is wrong. So points
        of a fast clock do not replace correct points, and a slow clock does not remove points.
        """
        times = set(times_ms)
        later = {time_ms for time_ms in times if time_ms > now_ms}
        return self._last_of_periods(times - later) | self._last_of_periods(later)

    def _last_of_periods(self, times_ms: set[int]) -> frozenset[int]:
        found: set[int] = set()
        for unit, count in self.counts.items():
            period_of = _PERIODS[unit]
            last = {period_of(time_ms): time_ms for time_ms in sorted(times_ms)}
            found.update(sorted(last.values())[-count:])
        return frozenset(found)
