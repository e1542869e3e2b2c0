"""Dates in words, as clients write them when the day changes: in any language and word order. Pure.

`days.txt` contains the names of weekdays and months of all locales of the GNU C library, which `strftime` and Qt write.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from datetime import date
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final, NamedTuple

from cablestore.irc.dates import YEAR, Stamp, real_date, time_of_day

_TIME: Final = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?: ?[AaPp]\.?[Mm]\b\.?)?")
_NUMBERED: Final = re.compile(rf"(?P<year>{YEAR})([-/.])(?P<month>[0-9]{{1,2}})\2(?P<day>[0-9]{{1,2}})(?![0-9])")
_DOTTED: Final = re.compile(rf"(?<![0-9])(?P<day>[0-9]{{1,2}})\.(?P<month>[0-9]{{1,2}})\.(?P<year>{YEAR})")
_YEAR: Final = re.compile(rf"(?<![0-9])(?P<year>{YEAR})(?![0-9])")
_NUMBERED_MONTH: Final = re.compile(
    r"(?<![0-9])(?P<month>1[0-2]|0?[1-9])(?:月|월|-\u0440 \u0441\u0430\u0440|g\b|goe̍h)|(?:Thg|Tháng) (?P<month_>1[0-2]|[1-9])\b"
)
"""Month numbers such as `1月` in Japanese, and in other languages that number their months."""
_DAY: Final = re.compile(r"(?<![0-9:])(?P<day>[0-3]?[0-9])(?![0-9:])")
_WORD: Final = re.compile(r"[^\W0-9_](?:[^\s,;\[\](){}]*)")
_MOST_CHARACTERS: Final = 120
_WEEK: Final = 7


class _Language(NamedTuple):
    """Names of one language: weekdays from 0 for Sunday, months from 1."""

    days: dict[str, int]
    months: dict[str, int]


@lru_cache(maxsize=1_024)
def stamp_of_words(text: str) -> Stamp | None:
    """Return the date in a text like `Mon Jan 07 12:34:56 2013` or `Montag, 7. Januar 2013`, and its time, if any.

    Returns None if the date is missing or invalid.
    """
    if len(text) > _MOST_CHARACTERS:
        return None
    timed = _TIME.search(text)
    time_ms = time_of_day(timed[0]) if timed else 0
    found = _date_in(text.replace(timed[0], " ", 1) if timed else text)
    if found is None or time_ms is None:
        return None
    return Stamp(time_ms, found.year, found.month, found.day)


def _date_in(text: str) -> date | None:
    numbered = _NUMBERED.search(text) or _DOTTED.search(text)
    if numbered is not None:
        return real_date(*(int(numbered[part]) for part in ("year", "month", "day")))
    year = _YEAR.search(text)
    if year is None:
        return None
    rest = text[: year.start()] + " " + text[year.end() :]
    month = _NUMBERED_MONTH.search(rest)
    if month is not None:
        rest = rest[: month.start()] + " " + rest[month.end() :]
    day = _DAY.search(rest)
    if day is None:
        return None
    if month is not None:
        return real_date(int(year["year"]), int(month["month"] or month["month_"]), int(day["day"]))
    return _likeliest(int(year["year"]), int(day["day"]), rest)


def _likeliest(year: int, day: int, text: str) -> date | None:
    """Return the date of `year`, the month named in `text`, and `day`, or None if it is invalid or ambiguous.

    Languages in which a word is the weekday of the date come first, then those in which a word is another weekday, then
    those that know only the month. Among equal languages, more than half must agree.
    """
    words = [_plain(word) for word in _WORD.findall(text)]
    ranked: dict[int, Counter[date | None]] = {}
    for names in _languages():
        for name, month in _months(names, words, _plain(text)):
            found = real_date(year, month, day)
            weekdays = {names.days[word] for word in words if word != name and word in names.days}
            is_weekday = found is not None and found.isoweekday() % _WEEK in weekdays
            ranked.setdefault(bool(weekdays) + is_weekday, Counter())[found] += 1
    votes = ranked[max(ranked)].most_common(2) if ranked else []
    return votes[0][0] if votes and votes[0][1] > sum(number for _, number in votes[1:]) else None


def _months(names: _Language, words: list[str], whole: str) -> Iterator[tuple[str, int]]:
    yield from ((word, names.months[word]) for word in words if word in names.months)
    yield from ((name, month) for name, month in names.months.items() if " " in name and name in whole)


@cache
def _languages() -> tuple[_Language, ...]:
    found = []
    for line in files("cablestore.irc").joinpath("days.txt").read_text("utf-8").splitlines():
        days, _, months = line.partition("|")
        found.append(
            _Language(
                {_plain(name): number for number, name in enumerate(days.split("\t"))},
                {_plain(name): number for number, name in enumerate(months.split("\t"), 1)},
            )
        )
    return tuple(found)


def _plain(words: str) -> str:
    """Return words without dots, case and accents, which differ between programs and locale versions."""
    parts = unicodedata.normalize("NFKD", words).casefold()
    return "".join(part for part in parts if not unicodedata.combining(part) and part not in ".,\u2019'").strip()
