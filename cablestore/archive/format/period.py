"""Periods of archives: calendar weeks, from Monday 00:00 UTC to the next Monday. Pure.

status-go counts weeks from a community's oldest message. Two control nodes that know different first messages therefore
never create equal archives. Calendar weeks are the same for all control nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cablestore.errors import ArchiveError
from cablestore.limits import MAX_ARCHIVED_TIMESTAMP_MS

WEEK_MS: Final = 604_800_000
_FIRST_MONDAY_MS: Final = 345_600_000
"""1970-01-05. The four days before it are a separate period, because documents cannot have negative times."""


class Period(NamedTuple):
    """Period of time, from_ms <= timestamp_ms < to_ms, in milliseconds since 1970."""

    from_ms: int
    to_ms: int

    def holds(self, timestamp_ms: int) -> bool:
        """Return True if a time is in the period."""
        return self.from_ms <= timestamp_ms < self.to_ms

    @property
    def first_day(self) -> str:
        """First day in UTC, such as 2023-11-13."""
        return datetime.fromtimestamp(self.from_ms / 1000, UTC).strftime("%Y-%m-%d")


def week_of(timestamp_ms: int) -> Period:
    """Return the week of a time in milliseconds since 1970.

    Raises ArchiveError for a time that 14/WAKU2 cannot represent: before 1970, or after
    `limits.MAX_ARCHIVED_TIMESTAMP_MS`.
    """
    if not 0 <= timestamp_ms <= MAX_ARCHIVED_TIMESTAMP_MS:
        raise ArchiveError(
            f"invalid timestamp {timestamp_ms} ms: archives store 0 to {MAX_ARCHIVED_TIMESTAMP_MS}. Leave the post out"
        )
    monday_ms = timestamp_ms - (timestamp_ms - _FIRST_MONDAY_MS) % WEEK_MS
    return Period(max(monday_ms, 0), monday_ms + WEEK_MS)


def weeks(first_ms: int, end_ms: int) -> Iterator[Period]:
    """Yield the weeks from the week of `first_ms` to the last week that ends at or before `end_ms`, oldest first."""
    week = week_of(first_ms)
    while week.to_ms <= end_ms:
        yield week
        week = Period(week.to_ms, week.to_ms + WEEK_MS)


def due_after(now_ms: int, settle_ms: int) -> int:
    """Return the first time after `now_ms` that is `settle_ms` after the end of a week, in milliseconds since 1970."""
    return week_of(max(now_ms - settle_ms, 0)).to_ms + settle_ms
