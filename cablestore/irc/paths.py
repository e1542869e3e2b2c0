"""Date and channel in the path of a chat log. Pure."""

from __future__ import annotations

import re
from datetime import date
from pathlib import PurePath
from typing import Final

from cablestore.irc.dates import MONTH_NAME, YEAR, month_number, real_date
from cablestore.irc.lines import NotALogError

_ISO_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_MONTH: Final = "0[1-9]|1[0-2]"
_DAY: Final = "0[1-9]|[12][0-9]|3[01]"
_DATE: Final = re.compile(
    rf"(?<![0-9])(?:(?P<year>{YEAR})[-_./]?(?P<month>{_MONTH})[-_./]?(?P<day>{_DAY})"
    rf"|(?P<day_>{_DAY})[-_. ]?(?P<month_name>{MONTH_NAME})[a-z]*[-_. ]?(?P<year_>{YEAR}))(?![0-9])",
    re.IGNORECASE,
)
"""Dates such as `2013/01/07`, `2013-01-07`, `20130107`, `2013/01-07`, `07Jan2013`."""
_PART_OF_DATE: Final = re.compile(rf"[0-9][-_.0-9]*|(?:{MONTH_NAME})[a-z]*", re.IGNORECASE)
_EXTENSION: Final = re.compile(r"(?:\.(?:log|txt|irclog|weechatlog|znclog|raw|gz|bz2|xz|zip))+$", re.IGNORECASE)
_SEPARATORS: Final = "-_. "


def date_in_path(path: PurePath) -> date | None:
    """Return the date in a log's name, else the last date in its path, else None.

    Raises NotALogError for a name with an invalid date like 2022-02-31.
    """
    iso = _ISO_DATE.search(path.name)
    if iso is not None:
        year, month, day = (int(part) for part in iso[0].split("-"))
        found = real_date(year, month, day)
        if found is None:
            raise NotALogError(f"invalid date in the name of {path}: {iso[0]}. Use --date")
        return found
    days = [found for match in _DATE.finditer("/".join(path.parts)) if (found := _date_of(match)) is not None]
    return days[-1] if days else None


def is_named_by_day(path: PurePath) -> bool:
    """Return True if the name of a log contains a day such as 2022-01-31."""
    return _ISO_DATE.search(path.name) is not None


def _date_of(match: re.Match[str]) -> date | None:
    if match["year"]:
        return real_date(int(match["year"]), int(match["month"]), int(match["day"]))
    return real_date(int(match["year_"]), month_number(match["month_name"]), int(match["day_"]))


def year_in_path(path: PurePath) -> int | None:
    """Return the year in the name of the innermost folder that is named after a year.

    Return None without such a folder.
    """
    return next((int(part) for part in reversed(path.parts[:-1]) if re.fullmatch(YEAR, part)), None)


def marked_part(path: PurePath) -> tuple[int, str, str] | None:
    """Return the part of a path that marks a channel: its index, the text before the mark, and the channel.

    Return None without such a part.
    """
    for index, part in reversed(list(enumerate(path.parts))):
        before, mark, name = part.partition("#")
        if not mark and part.startswith("&"):
            before, mark, name = "", "&", part
        if mark and (channel := without_date(name)):
            return index, without_date(before) if before else "", channel.lower()
    return None


def is_part_of_date(part: str) -> bool:
    """Return True for the name of a folder like `2013`, `01-07` or `Jan`."""
    return _PART_OF_DATE.fullmatch(part) is not None


def plain_channel(path: PurePath) -> str:
    """Return the channel of a path without a `#`: the file's name, or the folder's name if the file's name is a date.

    A file with a date such as 2022-01-31 in its name is one file of many, so the folder is the channel.
    """
    name = without_date(path.name)
    if name and not is_named_by_day(path) and not _PART_OF_DATE.fullmatch(name):
        return name.lower()
    folders = (part for part in reversed(path.parts[:-1]) if not _PART_OF_DATE.fullmatch(part))
    return next(folders, "").lower().lstrip("#").strip("/")


def without_date(name: str) -> str:
    """Return a file's name without its extensions, and without a date and its separators."""
    name = _EXTENSION.sub("", name)
    match = _DATE.search(name)
    if match is None:
        return name
    return _EXTENSION.sub("", name[: match.start()].rstrip(_SEPARATORS)) or name[match.end() :].lstrip(_SEPARATORS)
