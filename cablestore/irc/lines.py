"""Lines of chat logs: the definition of a format, and how it parses a line. Pure.

A format is a table of rules, tried in order. The patterns of rules have named groups: `nick`, `mask`, `channel`, and
`text` for a message, a new nick, or a topic; rules for lines with a day have `date`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from cablestore.errors import ArgumentError
from cablestore.irc.dates import STAMP, Stamp, stamp_of
from cablestore.irc.days import stamp_of_words

_SHOWN_CHARACTERS: Final = 100


class NotALogError(ArgumentError):
    """A file is not a log, or lacks information that an import needs. Other files can still be imported."""


class LineKind(Enum):
    """Kind of a line: the action of its nick."""

    SAY = "message"
    ACTION = "action"
    JOIN = "join"
    LEAVE = "leave"
    QUIT = "quit"
    RENAME = "nick change"
    TOPIC = "topic"
    MODE = "mode change"
    NOTICE = "notice"
    UNSIGNED_TOPIC = "topic without its author"
    CLIENT = "remark of the client"
    QUERY = "begin of a private conversation"
    DAY = "date"
    UNREADABLE_DAY = "unreadable date"


class LogLine(NamedTuple):
    """Parsed line. `channel` is without `#`, and is "" if the line does not name it. `mask` is `user@host`."""

    kind: LineKind
    nick: str
    text: str
    time: Stamp | None
    channel: str = ""
    mask: str = ""


Rules = tuple[tuple[LineKind, re.Pattern[str]], ...]


@dataclass(frozen=True, slots=True)
class LogFormat:
    """Format of logs: `stamp` matches the beginning of a line, `rules` the text after it, `bare` lines without a time."""

    name: str
    rules: Rules
    bare: Rules = ()
    stamp: re.Pattern[str] = STAMP
    names_channel: bool = True
    face_hours: int = 24
    """Hours after which the clock of lines without a date restarts."""
    has_dates_in_words: bool = False
    """True if lines begin with a date in words in brackets, before the time."""
    marks_channels: bool = True
    """True if the client with this format writes the mark of a channel, such as `#`, into file names."""

    def parse(self, line: str) -> LogLine | None:
        """Parse a line. Return None if no rule matches, or if its time is invalid."""
        start, time, day = 0, None, None
        if self.has_dates_in_words:
            start = line.find("] ") + 2
            day = stamp_of_words(line[1 : start - 2]) if line.startswith("[") else None
        is_dated = day is not None or not self.has_dates_in_words
        stamped = self.stamp.match(line, start) if is_dated else None
        if stamped is not None:
            time = stamp_of(stamped[0])
            if time is None:
                return None
            start = stamped.end()
            if day is not None:
                time = replace(time, year=day.year, month=day.month, day=day.day)
        for kind, pattern in self.bare if stamped is None else self.rules:
            match = pattern.match(line, 0 if stamped is None else start)
            if match is not None:
                return _line(kind, match, time)
        return None


def rules(*of: tuple[LineKind, str]) -> Rules:
    """Return rules with compiled patterns."""
    return tuple((kind, re.compile(pattern)) for kind, pattern in of)


def shortened(line: str) -> str:
    """Return a line for an error message: its first characters, with control characters replaced."""
    text = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _line(kind: LineKind, match: re.Match[str], time: Stamp | None) -> LogLine:
    said = match.groupdict()
    if kind is LineKind.DAY:
        day = stamp_of_words(said["date"])
        if day is None:
            return LogLine(LineKind.UNREADABLE_DAY, "", said["date"], time)
        return LogLine(kind, "", "", day if time is None or day.ms else replace(day, ms=time.ms))
    text = (said.get("text") or "").rstrip()
    channel = (said.get("channel") or "").removeprefix("#").lower()
    return LogLine(kind, (said.get("nick") or "").strip(), text, time, channel, said.get("mask") or "")
