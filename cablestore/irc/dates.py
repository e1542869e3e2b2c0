"""Times of the lines of a chat log, in milliseconds since 1970. Pure.

A line may contain a date, a time and a zone. `Clock` keeps the day from earlier lines or the path, and advances it.
Month names are English, as clients write them in every locale.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from cablestore import limits

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
SMALL_STEP_MS: Final = HOUR_MS
"""Maximum backward step that is a correction of the clock. After a larger step, noon or midnight has passed, or another
log begins."""

_LEAP_YEAR: Final = 2000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTH_NAME: Final = "|".join(_MONTHS)
YEAR: Final = "(?:19[7-9]|20[0-9])[0-9]"
_TIME: Final = r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})"
_SECOND: Final = r"(?::(?P<second>[0-9]{2})(?:[.,][0-9]+)?)"
_HALF: Final = r"(?: ?(?P<half>[AaPp])\.?[Mm]\b\.?)"

STAMP: Final = re.compile(
    r"[\[(]?(?:(?:"
    rf"(?P<year>{YEAR})[-/.](?P<month>[0-9]{{2}})[-/.](?P<day>[0-9]{{2}})"
    rf"|(?P<day_before>[0-9]{{1,2}})\.(?P<month_after>[0-9]{{1,2}})\.(?P<year_after>{YEAR})"
    r")(?:[T ]|,[ ]|\][ ]?\[)"
    rf"|(?P<month_name>{MONTH_NAME}) +(?P<day_>[0-9]{{1,2}}) )?"
    rf"{_TIME}{_SECOND}?{_HALF}?(?: ?(?P<zone>Z|[+-][0-9]{{2}}:?[0-9]{{2}})| [A-Z]{{2,5}}(?=\]))?"
    r"(?:[\])](?:[ \t]|(?=\S|$))|[ \t]|(?=[<*]|$))"
)
"""Beginnings of lines: `12:34`, `[12:34:56]`, `[1:05 PM]`, `2013-01-07 12:34:56`, `07.01.2013 12:34`, `Jan 07
12:34:56`."""

SHORT_STAMP: Final = re.compile(rf"\[{_TIME}{_HALF}?\](?: |(?=[<*]))")
"""Beginning of lines with only `[12:34]`."""

_TIME_OF_DAY: Final = re.compile(rf"{_TIME}{_SECOND}?{_HALF}?")
_NOON: Final = 12
_DAY_HOURS: Final = 24
_LEAP_SECOND: Final = 60


@dataclass(frozen=True, slots=True)
class Stamp:
    """Time of one line. `ms` counts from midnight. `year` and `month` are 0 if the line does not contain them.

    `zone_ms` is the offset of the zone from UTC, None without a zone. `unit_ms` is a minute for a time without seconds.
    """

    ms: int
    year: int = 0
    month: int = 0
    day: int = 0
    zone_ms: int | None = None
    unit_ms: int = SECOND_MS
    is_half: bool = False
    """True for a time with AM or PM."""

    def proves_24_hours(self) -> bool:
        """Return True if a 12-hour clock cannot show this time."""
        return self.is_half or not HOUR_MS <= self.ms < (_NOON + 1) * HOUR_MS

    def is_dated(self) -> bool:
        """Return True if the stamp contains a year, month and day."""
        return self.year > 0

    def date(self) -> date:
        """Return the date. Call this only if `is_dated`."""
        return date(self.year, self.month, self.day)


@lru_cache(maxsize=16_384)
def stamp_of(beginning: str) -> Stamp | None:
    """Return the stamp at the beginning of a line, or None if there is none or its date or time is invalid."""
    match = STAMP.match(beginning)
    return None if match is None else _read_stamp(match)


def _read_stamp(match: re.Match[str]) -> Stamp | None:
    """Return the stamp of a match, or None if its date or time is invalid."""
    said = match.groupdict()
    ms = _time_ms(match)
    if ms is None:
        return None
    unit_ms = SECOND_MS if said["second"] else MINUTE_MS
    zone_ms = _zone_ms(said["zone"]) if said["zone"] else None
    month_text = said["month"] or said["month_after"]
    if not (said["month_name"] or month_text):
        return Stamp(ms, zone_ms=zone_ms, unit_ms=unit_ms, is_half=bool(said["half"]))
    month = month_number(said["month_name"]) if said["month_name"] else int(month_text)
    year, day = int(said["year"] or said["year_after"] or 0), int(said["day"] or said["day_before"] or said["day_"])
    if real_date(year or _LEAP_YEAR, month, day) is None:
        return None
    return Stamp(ms, year, month, day, zone_ms, unit_ms)


def time_of_day(text: str) -> int | None:
    """Return the milliseconds since midnight of a time like `12:34:56` or `1:05 PM`, or None if it is invalid."""
    match = _TIME_OF_DAY.fullmatch(text)
    return None if match is None else _time_ms(match)


def _time_ms(match: re.Match[str]) -> int | None:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
    if match["half"]:
        if not 1 <= hour <= _NOON:
            return None
        hour = hour % _NOON + (_NOON if match["half"] in "Pp" else 0)
    if hour >= _DAY_HOURS or minute >= _LEAP_SECOND or second > _LEAP_SECOND:
        return None
    return hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS


def real_date(year: int, month: int, day: int) -> date | None:
    """Return the date of these numbers, or None if they are not a date."""
    try:
        return date(year, month, day)
    except ValueError:
        return None


def month_number(name: str) -> int:
    """Return the number of the month with an English name: 1 for Jan."""
    return _MONTHS.index(name[:3].capitalize()) + 1


def _zone_ms(zone: str) -> int:
    if zone == "Z":
        return 0
    size_ms = int(zone[1:3]) * HOUR_MS + int(zone[-2:]) * MINUTE_MS
    return -size_ms if zone[0] == "-" else size_ms


class Clock:
    """Time in one log, from line to line: call `begin` for each file, then `tick` for each line."""

    def __init__(self) -> None:
        self._zone: tzinfo = UTC
        self._day = _EPOCH.date()
        self._face_ms = DAY_MS
        self._passed_ms = 0
        self._is_at_begin = True
        self.now_ms = 0
        """Time of the last line, in milliseconds since 1970."""

    def begin(self, day: date, face_hours: int, zone: tzinfo) -> int:
        """Begin a file at the start of `day` in `zone`. Return that time in milliseconds since 1970.

        The clock of lines without a date restarts after `face_hours`.
        """
        self._day, self._face_ms, self._zone = day, face_hours * HOUR_MS, zone
        self._passed_ms = self.now_ms = 0
        self._is_at_begin = True
        self.now_ms = self._utc_ms(0)
        return self.now_ms

    def tick(self, stamp: Stamp | None) -> int:
        """Advance to the time of a line, if it has one. Return the current time in milliseconds since 1970.

        A time without a date never goes back: a much earlier time means that noon or midnight has passed. A time
        with a date is trusted, except for small steps back, which are corrections.
        """
        if stamp is None:
            return self.now_ms
        if stamp.month:
            self._day, self._passed_ms = self._date_of(stamp), 0
            found_ms = self._at(stamp)
            if self._is_at_begin or found_ms < self.now_ms - SMALL_STEP_MS:
                self.now_ms = found_ms
        else:
            found_ms = self._at(stamp)
            if found_ms < self.now_ms - SMALL_STEP_MS:
                self._passed_ms += self._face_ms
                found_ms = self._at(stamp)
        self._is_at_begin = False
        self.now_ms = max(self.now_ms, found_ms)
        return self.now_ms

    def _date_of(self, stamp: Stamp) -> date:
        """Return a stamp's date. Without a year, return the date closest to the last known day."""
        if stamp.is_dated():
            return stamp.date()
        years = (self._day.year + step for step in (0, 1, -1))
        days = [day for year in years if (day := real_date(year, stamp.month, stamp.day)) is not None]
        return min(days, key=lambda day: abs(day - self._day), default=self._day)

    def _at(self, stamp: Stamp) -> int:
        if stamp.zone_ms is not None:
            days = self._day.toordinal() - _EPOCH.toordinal()
            return _possible(days * DAY_MS + self._passed_ms + stamp.ms - stamp.zone_ms)
        return self._utc_ms(self._passed_ms + stamp.ms)

    def _utc_ms(self, local_ms: int) -> int:
        """Return the UTC time of a local time. The local time counts from the day's midnight in the log's zone.

        When clocks go back, an hour exists twice: the first hour counts, unless the log is already later. A time in a
        skipped hour is read with the offset before the change.
        """
        if self._zone is UTC:
            return _possible((self._day.toordinal() - _EPOCH.toordinal()) * DAY_MS + local_ms)
        try:
            local = datetime.combine(self._day, time(), self._zone) + timedelta(milliseconds=local_ms)
            first, second = ((local.replace(fold=fold) - _EPOCH) // timedelta(milliseconds=1) for fold in (0, 1))
        except OverflowError:
            return self.now_ms
        return _possible(first if first >= self.now_ms else second)


def _possible(timestamp_ms: int) -> int:
    return min(max(0, timestamp_ms), limits.MAX_TIMESTAMP_MS)
