"""Formats of chat logs: what a line of one says. Pure.

A format is a table of patterns, tried in order; a new format is a new table in FORMATS. Patterns name their groups:
`hour` and `minute` (both or neither), `nick`, and `text` for what was said, the new nick, or the topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cablestore.errors import LogFormatError


class Act(Enum):
    """What somebody did."""

    SAY = "message"
    ACTION = "action"
    JOIN = "join"
    LEAVE = "leave"
    RENAME = "nick change"
    TOPIC = "topic"
    MODE = "mode change"
    NOTICE = "notice"
    UNSIGNED_TOPIC = "topic without its author"


@dataclass(frozen=True, slots=True)
class Line:
    """What a line says. `minute` counts from midnight, None for a line without a time."""

    act: Act
    nick: str
    text: str
    minute: int | None


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One format: its rules, and where lines name the channel."""

    name: str
    rules: tuple[tuple[Act, re.Pattern[str]], ...]
    channel: re.Pattern[str] | None

    def parse(self, line: str) -> Line | None:
        """Return what a line says, None where no rule fits."""
        for act, pattern in self.rules:
            match = pattern.match(line)
            if match is not None:
                groups = match.groupdict()
                hour = groups.get("hour")
                minute = None if hour is None else 60 * int(hour) + int(groups["minute"])
                return Line(act, groups.get("nick") or "", (groups.get("text") or "").strip(), minute)
        return None

    def channel_of(self, lines: Iterable[str]) -> str | None:
        """Return the channel that lines name first, without its `#`, None where they name none."""
        if self.channel is None:
            return None
        matches = (self.channel.search(line) for line in lines)
        return next((match["channel"].lower() for match in matches if match), None)


_TIME = r"^\[(?P<hour>\d\d):(?P<minute>\d\d)\] "


def _rules(*rules: tuple[Act, str]) -> tuple[tuple[Act, re.Pattern[str]], ...]:
    return tuple((act, re.compile(pattern)) for act, pattern in rules)


RAKU: Final = LogFormat(
    "raku",
    _rules(
        (Act.SAY, _TIME + r"<(?P<nick>[^>]+)>(?: (?P<text>.*))?$"),
        (Act.JOIN, _TIME + r"\*\*\* (?P<nick>\S+) joined$"),
        (Act.LEAVE, _TIME + r"\*\*\* (?P<nick>\S+) left$"),
        (Act.LEAVE, _TIME + r"\*\*\* (?P<nick>\S+) was kicked by "),
        (Act.RENAME, _TIME + r"\*\*\* (?P<nick>\S+) is now known as (?P<text>\S+)$"),
        (Act.TOPIC, _TIME + r"\*\*\* (?P<nick>\S+) changes topic to: ?(?P<text>.*)$"),
        (Act.MODE, _TIME + r"\*\*\* (?P<nick>\S+) sets mode: "),
        (Act.ACTION, _TIME + r"\* (?P<nick>\S+)(?: (?P<text>.*))?$"),
    ),
    channel=None,
)
"""`[HH:MM] <nick> text` and `[HH:MM] *** nick joined`; the folders name channel, year and date."""

UBUNTU: Final = LogFormat(
    "ubuntu",
    _rules(
        (Act.SAY, _TIME + r"<(?P<nick>[^>]+)>(?: (?P<text>.*))?$"),
        (Act.ACTION, _TIME + r" ?\* (?P<nick>\S+)(?: (?P<text>.*))?$"),
        (Act.NOTICE, _TIME + r"-(?P<nick>[^:]+):#"),
        (Act.JOIN, r"^=== (?P<nick>\S+) \[.*\] +has joined #"),
        (Act.LEAVE, r"^=== (?P<nick>\S+) \[.*\] +has left #"),
        (Act.LEAVE, r"^=== (?P<nick>\S+) was kicked off #"),
        (Act.RENAME, r"^=== (?P<nick>\S+) is now known as (?P<text>\S+)$"),
        (Act.TOPIC, r"^=== \S*\[topic/#\S+?:(?P<nick>[^\]]+)\] : ?(?P<text>.*)$"),
        (Act.UNSIGNED_TOPIC, r"^=== Topic (?:for #|\(#)"),
        (Act.MODE, r"^=== mode/#"),
        (Act.ACTION, r"^=== (?P<nick>\S+) (?P<text>.+)$"),
    ),
    channel=re.compile(r"^=== .*(?:has joined|has left) #(?P<channel>\S+)"),
)
"""`[HH:MM] <nick> text` and `=== nick [user@host]  has joined #channel`; times run from 1 to 12, twice a day."""

FORMATS: Final = (RAKU, UBUNTU)


def recognise(lines: list[str], where: str) -> LogFormat:
    """Return the format that reads the most of these lines, or raise LogFormatError where none reads half of them."""
    readable = {candidate: sum(candidate.parse(line) is not None for line in lines) for candidate in FORMATS}
    best = max(FORMATS, key=lambda candidate: readable[candidate])
    if 2 * readable[best] < len(lines):
        raise LogFormatError(
            f"{where} is no chat log that is known here: {readable[best]} of its first {len(lines)} lines can be read. "
            f"Known formats: {', '.join(f'{known.name} ({known.rules[0][1].pattern})' for known in FORMATS)}"
        )
    return best
