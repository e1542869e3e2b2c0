"""Formats of chat logs: how a line is parsed. Pure.

A format is a table of rules, tried in order; a new format is a new table in FORMATS. The patterns of rules have named
groups: `nick`, `channel`, and `text` for a message, a new nick, or a topic; rules for day lines have those of a date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from cablestore.errors import LogFormatError
from cablestore.irc.dates import LONG_DATE, SHORT_STAMP, STAMP, Stamp, read_stamp, stamp_of

SAMPLE_LINES: Final = 200
"""Lines by which a file's format is recognised."""
LONG_SAMPLE_LINES: Final = 20_000
"""Lines by which it is recognised if those fit two formats."""


class LineKind(Enum):
    """Kind of a line: what its nick did."""

    SAY = "message"
    ACTION = "action"
    JOIN = "join"
    LEAVE = "leave"
    RENAME = "nick change"
    TOPIC = "topic"
    MODE = "mode change"
    NOTICE = "notice"
    UNSIGNED_TOPIC = "topic without its author"
    CLIENT = "remark of the client"
    DAY = "date"


class LogLine(NamedTuple):
    """One parsed line. `channel` is without its `#`, and "" if the line names none."""

    kind: LineKind
    nick: str
    text: str
    time: Stamp | None
    channel: str = ""


Rules = tuple[tuple[LineKind, re.Pattern[str]], ...]


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One format: how its lines begin, the rules for the rest of a line, and those for lines without a time."""

    name: str
    example: str
    rules: Rules
    bare: Rules = ()
    stamp: re.Pattern[str] = STAMP
    names_channel: bool = True
    face_hours: int = 24
    """Hours after which the clock of lines without a date starts again."""

    def parse(self, line: str) -> LogLine | None:
        """Parse a line. Returns None if no rule fits."""
        stamped = self.stamp.match(line)
        start, time = 0, None
        if stamped is not None:
            start, time = stamped.end(), stamp_of(stamped[0])
            if time is None:
                return None
        for kind, pattern in self.bare if stamped is None else self.rules:
            match = pattern.match(line, start)
            if match is not None:
                return _line(kind, match, time)
        return None

    def channel_of(self, lines: Iterable[str]) -> str | None:
        """Return the first channel that lines name, without its `#`, None if they name none."""
        if not self.names_channel:
            return None
        found = (self.parse(line) for line in lines)
        return next((line.channel for line in found if line is not None and line.channel), None)


def _line(kind: LineKind, match: re.Match[str], time: Stamp | None) -> LogLine | None:
    said = match.groupdict()
    if kind is LineKind.DAY:
        time = read_stamp(match, time)
        if time is None:
            return None
    channel = (said.get("channel") or "").removeprefix("#").lower()
    return LogLine(kind, said.get("nick") or "", (said.get("text") or "").strip(), time, channel)


def _rules(*rules: tuple[LineKind, str]) -> Rules:
    return tuple((kind, re.compile(pattern)) for kind, pattern in rules)


_MODE = "[ ~&@%+!]?"
"""Mark that clients put before the nick of an operator, and irssi before every nick."""
_SAY = (LineKind.SAY, rf" ?<{_MODE}(?P<nick>[^>]+)>(?:[ \t](?P<text>.*))?$")
_ACTION = (LineKind.ACTION, r" {0,2}\*[ \t](?P<nick>\S+)(?: (?P<text>.*))?$")
_NOTICE = (LineKind.NOTICE, r" ?-(?P<nick>[^\s:(-][^\s:(]*?)(?:\(\S*\)|:#\S+)?-(?:[ \t]|$)")
_CHANNEL = r"(?P<channel>#\S*[^\s.])"
_HOST = r"[(<\[]\S*[)>\]]"
_NICK = r"(?P<nick>\S+)"

RAKU: Final = LogFormat(
    "raku",
    "[12:34] <nick> text, [12:34] *** nick joined",
    _rules(
        (LineKind.SAY, rf"<{_MODE}(?P<nick>[^>]+)>(?: (?P<text>.*))?$"),
        (LineKind.JOIN, rf"\*\*\* {_NICK} joined$"),
        (LineKind.LEAVE, rf"\*\*\* {_NICK} left$"),
        (LineKind.LEAVE, rf"\*\*\* {_NICK} was kicked by "),
        (LineKind.RENAME, rf"\*\*\* {_NICK} is now known as (?P<text>\S+)$"),
        (LineKind.TOPIC, rf"\*\*\* {_NICK} changes topic to: ?(?P<text>.*)$"),
        (LineKind.MODE, rf"\*\*\* {_NICK} sets mode: "),
        (LineKind.ACTION, rf"\* {_NICK}(?: (?P<text>.*))?$"),
    ),
    stamp=SHORT_STAMP,
    names_channel=False,
    face_hours=12,
)
"""Folders name channel, year and date. The clock was first read as one of 12 hours, and must stay so: see UBUNTU."""

UBUNTU: Final = LogFormat(
    "ubuntu",
    "[12:34] <nick> text, === nick [user@host] has joined #channel",
    _rules(
        (LineKind.SAY, rf"<{_MODE}(?P<nick>[^>]+)>(?: (?P<text>.*))?$"),
        (LineKind.ACTION, rf" ?\* {_NICK}(?: (?P<text>.*))?$"),
        (LineKind.NOTICE, r"-(?P<nick>[^:]+):#"),
    ),
    _rules(
        (LineKind.JOIN, rf"=== {_NICK} \[.*\] +has joined (?P<channel>#\S+)"),
        (LineKind.LEAVE, rf"=== {_NICK} \[.*\] +has left (?P<channel>#\S+)"),
        (LineKind.LEAVE, rf"=== {_NICK} was kicked off #"),
        (LineKind.RENAME, rf"=== {_NICK} is now known as (?P<text>\S+)$"),
        (LineKind.TOPIC, r"=== [^\s\[]*\[topic/#[^\s:]+:(?P<nick>[^\]]+)\] : ?(?P<text>.*)$"),
        (LineKind.UNSIGNED_TOPIC, r"=== Topic (?:for #|\(#)"),
        (LineKind.MODE, r"=== mode/#"),
        (LineKind.ACTION, rf"=== {_NICK} (?P<text>.+)$"),
    ),
    stamp=SHORT_STAMP,
    face_hours=12,
)
"""In old logs times run from 1 to 12, twice a day."""

UBUNTU_BY_DAY: Final = replace(
    UBUNTU,
    name="ubuntu by day",
    bare=_rules(
        (LineKind.LEAVE, rf"=== {_NICK} \[.*\] +has quit\b"),
        (LineKind.TOPIC, rf"=== {_NICK} changed the topic of (?P<channel>#\S+) to: ?(?P<text>.*)$"),
    )
    + UBUNTU.bare,
)
"""Later logs, in folders for year, month and day. Logs with the day in their name are read as UBUNTU, which takes the
change of a topic for an action: what was imported in this way must not change."""

IRSSI: Final = LogFormat(
    "irssi",
    "12:34 <@nick> text, 12:34 -!- nick [user@host] has joined #channel",
    _rules(
        _SAY,
        (LineKind.JOIN, rf"-!- {_NICK} \[.*\] has joined {_CHANNEL}$"),
        (LineKind.LEAVE, rf"-!- {_NICK} \[.*?\] has left (?P<channel>#\S+)"),
        (LineKind.LEAVE, rf"-!- {_NICK} \[.*?\] has quit\b"),
        (LineKind.LEAVE, rf"-!- {_NICK} was kicked from (?P<channel>#\S+) by "),
        (LineKind.RENAME, rf"-!- {_NICK} is now known as (?P<text>\S+)$"),
        (LineKind.TOPIC, rf"-!- {_NICK} changed the topic of (?P<channel>#\S+) to: ?(?P<text>.*)$"),
        (LineKind.TOPIC, rf"-!- Topic unset by {_NICK} on (?P<channel>#\S+)$"),
        (LineKind.UNSIGNED_TOPIC, r"-!- (?:Topic (?:for|set by) |\S+ set the topic)"),
        (LineKind.MODE, r"-!- (?:[Ss]erver[Mm]ode|mode)/#"),
        (
            LineKind.CLIENT,
            r"-!- (?:Irssi: |Netsplit |You're now known as |Home page for |Channel |\[|.* (?:\[freenode-info\]|ban ))",
        ),
        _ACTION,
        _NOTICE,
    ),
    _rules(
        (LineKind.DAY, rf"--- (?:Day changed|Log opened) {LONG_DATE}$"),
        (LineKind.CLIENT, "--- Log closed "),
    ),
)

WEECHAT: Final = LogFormat(
    "WeeChat",
    "2013-01-07 12:34:56 (tab) nick (tab) text",
    _rules(
        (LineKind.JOIN, rf"-->\t{_NICK} .*?has joined (?P<channel>#\S+)$"),
        (LineKind.LEAVE, rf"<--\t{_NICK} .*?has left (?P<channel>#\S+)"),
        (LineKind.LEAVE, r"<--\t\S+ has kicked (?P<nick>\S+)"),
        (LineKind.LEAVE, rf"<--\t{_NICK} .*?has quit\b"),
        (LineKind.RENAME, rf"--\t{_NICK} is now known as (?P<text>\S+)$"),
        (
            LineKind.TOPIC,
            rf'--\t(?=.*"$){_NICK} has changed topic for (?P<channel>#\S+) (?:from ".*" )?to "(?P<text>.*)"$',
        ),
        (LineKind.TOPIC, rf"--\t{_NICK} has unset topic for (?P<channel>#\S+)"),
        (LineKind.UNSIGNED_TOPIC, r"--\tTopic (?:for|set by) "),
        (LineKind.MODE, r"--\tMode #"),
        (LineKind.NOTICE, r"--\t(?:Pv)?Notice\("),
        (LineKind.CLIENT, r"(?:--|=!=|-->|<--)\t"),
        (LineKind.ACTION, rf" \*\t{_NICK}(?: (?P<text>.*))?$"),
        (LineKind.SAY, r"[~&@%+!]?(?P<nick>[^\s<>*=~&@%+!-]\S*)\t(?P<text>.*)$"),
    ),
)

ENERGYMECH: Final = LogFormat(
    "energymech and ZNC",
    "[12:34:56] <nick> text, [12:34:56] *** Joins: nick (user@host)",
    _rules(
        _SAY,
        (LineKind.JOIN, rf"\*\*\* Joins: {_NICK} \("),
        (LineKind.LEAVE, rf"\*\*\* (?:Parts|Quits): {_NICK} \("),
        (LineKind.LEAVE, rf"\*\*\* {_NICK} was kicked by "),
        (LineKind.RENAME, rf"\*\*\* {_NICK} is now known as (?P<text>\S+)$"),
        (LineKind.TOPIC, rf"\*\*\* {_NICK} changes topic to '(?P<text>.*)'$"),
        (LineKind.MODE, rf"\*\*\* {_NICK} sets mode: "),
        (LineKind.CLIENT, r"\*\*\* (?:Connected to|Disconnected from) IRC"),
        _ACTION,
        _NOTICE,
    ),
    names_channel=False,
)

_STAR = r"(?:\*|-->|<--|---)[ \t]+"
HEXCHAT: Final = LogFormat(
    "HexChat and XChat",
    "Jan 07 12:34:56 <nick> (tab) text, **** BEGIN LOGGING AT Mon Jan  7 12:34:56 2013",
    _rules(
        _SAY,
        (LineKind.JOIN, rf"{_STAR}{_NICK} {_HOST} has joined(?: {_CHANNEL})?$"),
        (LineKind.LEAVE, rf"{_STAR}{_NICK} (?:{_HOST} )?has left(?: (?P<channel>#\S+)| \(|$)"),
        (LineKind.LEAVE, rf"{_STAR}{_NICK} has quit(?: \(|$)"),
        (LineKind.LEAVE, rf"{_STAR}\S+ has kicked (?P<nick>\S+) from (?P<channel>#\S+)"),
        (LineKind.RENAME, rf"{_STAR}{_NICK} is now known as (?P<text>\S+)$"),
        (LineKind.TOPIC, rf"{_STAR}{_NICK} has changed the topic to: ?(?P<text>.*)$"),
        (LineKind.MODE, rf"{_STAR}{_NICK} (?:gives|removes|sets) (?:channel|voice|half|mode|ban|exempt|invite|quiet)"),
        (LineKind.UNSIGNED_TOPIC, rf"(?:{_STAR})?Topic for #\S+ (?:is|set by)"),
        (LineKind.CLIENT, rf"{_STAR}(?:Now talking on|You are now talking on) (?P<channel>#\S+)"),
        (LineKind.CLIENT, rf"{_STAR}(?:You (?:are|have) |Disconnected |Channel #)"),
        _ACTION,
        _NOTICE,
    ),
    _rules(
        (LineKind.DAY, rf"\*\*\*\* BEGIN LOGGING AT {LONG_DATE}$"),
        (LineKind.CLIENT, r"\*\*\*\* ENDING LOGGING AT "),
    ),
)

_MIRC_RULES = _rules(
    _SAY,
    (LineKind.JOIN, rf"\*{{1,3}} {_NICK} {_HOST} has joined {_CHANNEL}$"),
    (LineKind.JOIN, rf"\*{{1,3}} Joins: {_NICK} {_HOST}$"),
    (LineKind.LEAVE, rf"\*{{1,3}} {_NICK} {_HOST} has left (?P<channel>#\S+)"),
    (LineKind.LEAVE, rf"\*{{1,3}} {_NICK} {_HOST} Quit\b"),
    (LineKind.LEAVE, rf"\*{{1,3}} (?:Parts|Quits): {_NICK} {_HOST}"),
    (LineKind.LEAVE, rf"\*{{1,3}} {_NICK} was kicked by "),
    (LineKind.RENAME, rf"\*{{1,3}} {_NICK} is now known as (?P<text>\S+)$"),
    (LineKind.TOPIC, rf"\*{{1,3}} {_NICK} changes topic to '(?P<text>.*)'$"),
    (LineKind.MODE, rf"\*{{1,3}} {_NICK} sets mode: "),
    (LineKind.UNSIGNED_TOPIC, r"\*{1,3} (?:Topic is '|Set by \S+ on )"),
    (LineKind.CLIENT, r"\*{1,3} (?:Now talking in|Rejoined channel) (?P<channel>#\S+)"),
    (LineKind.CLIENT, r"\*{1,3} (?:Disconnected$|You were kicked |Attempting to rejoin )"),
    _ACTION,
    _NOTICE,
)
MIRC: Final = LogFormat(
    "mIRC",
    "[12:34] <nick> text, Session Start: Mon Jan 07 12:34:56 2013",
    _MIRC_RULES,
    (
        *_rules(
            (LineKind.DAY, rf"Session (?:Start|Time): {LONG_DATE}$"),
            (LineKind.CLIENT, r"Session Ident: (?P<channel>#\S+)"),
            (LineKind.CLIENT, r"Session (?:Ident|Close): "),
        ),
        *_MIRC_RULES,
    ),
)
"""mIRC writes times only if the user turns them on."""

SUPYBOT: Final = LogFormat(
    "Supybot",
    "2013-01-07T12:34:56  <nick> text, *** nick <user@host> has joined #channel",
    _rules(
        _SAY,
        (LineKind.JOIN, rf" ?\*\*\* {_NICK} {_HOST} has joined {_CHANNEL}$"),
        (LineKind.LEAVE, rf" ?\*\*\* {_NICK} {_HOST} has left (?P<channel>#\S+)"),
        (LineKind.LEAVE, rf" ?\*\*\* {_NICK} {_HOST} has quit IRC"),
        (LineKind.LEAVE, rf" ?\*\*\* {_NICK} was kicked by "),
        (LineKind.RENAME, rf" ?\*\*\* {_NICK} is now known as (?P<text>\S+)$"),
        (LineKind.TOPIC, rf' ?\*\*\* {_NICK} changes topic to "(?P<text>.*)"$'),
        (LineKind.MODE, rf" ?\*\*\* {_NICK} sets mode: "),
        _ACTION,
        _NOTICE,
    ),
)

EGGDROP: Final = LogFormat(
    "eggdrop",
    "[12:34] <nick> text, [12:34] nick (user@host) joined #channel.",
    _rules(
        _SAY,
        (LineKind.DAY, rf"--- {LONG_DATE}$"),
        (LineKind.JOIN, rf"{_NICK} {_HOST} joined {_CHANNEL}\.$"),
        (LineKind.LEAVE, rf"{_NICK} {_HOST} left (?:irc\b|(?P<channel>#\S*[^\s.:]))"),
        (LineKind.LEAVE, rf"{_NICK} kicked from (?P<channel>#\S+) by "),
        (LineKind.RENAME, rf"Nick change: {_NICK} -> (?P<text>\S+)$"),
        (LineKind.TOPIC, r"Topic changed on (?P<channel>#\S+) by (?P<nick>[^\s!]+)(?:!\S*)?: ?(?P<text>.*)$"),
        (LineKind.MODE, r"#\S+: mode change "),
        (LineKind.ACTION, rf"Action: {_NICK}(?: (?P<text>.*))?$"),
        _NOTICE,
    ),
)

FORMATS: Final = (RAKU, UBUNTU, UBUNTU_BY_DAY, IRSSI, WEECHAT, ENERGYMECH, HEXCHAT, MIRC, SUPYBOT, EGGDROP)


def recognise(lines: Iterable[str], where: str, *, is_named_by_day: bool = False) -> LogFormat:
    """Return the format that parses the most of the first lines. Raises LogFormatError if none parses half of them.

    Among equal formats, the one with fewer actions wins, because an action may look like anything; then further lines
    decide, then the order of FORMATS. Empty lines do not count. Logs with a day like 2022-01-31 in their name were
    imported when RAKU and UBUNTU were the only formats: if these two are equal, further lines do not count.
    """
    rest = (line for line in lines if line.strip())
    sample = list(islice(rest, SAMPLE_LINES))
    candidates = [known for known in FORMATS if known is not (UBUNTU_BY_DAY if is_named_by_day else UBUNTU)]
    scores = {known.name: _score(known, sample) for known in candidates}
    best = max(scores.values())
    if 2 * best[0] < len(sample):
        raise LogFormatError(_unknown(sample, best[0], where))
    equals = [known for known in candidates if scores[known.name] == best]
    if len(equals) > 1 and not is_named_by_day:
        more = list(islice(rest, LONG_SAMPLE_LINES - SAMPLE_LINES))
        equals.sort(key=lambda known: _score(known, more), reverse=True)
    return equals[0]


def _score(known: LogFormat, lines: Iterable[str]) -> tuple[int, int]:
    """Return how many lines a format parses, and how many of them are not actions."""
    read = [line.kind for line in map(known.parse, lines) if line is not None]
    return len(read), len(read) - read.count(LineKind.ACTION)


def _unknown(sample: list[str], readable: int, where: str) -> str:
    strange = next(_unread(sample), "")
    return (
        f"{where} is not a chat log of a known format: {readable} of its first {len(sample)} lines can be read, "
        f'but not for example "{shortened(strange)}". Lines of known formats look like this: '
        + "; ".join(f"{known.example} ({known.name})" for known in FORMATS)
    )


def _unread(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in lines if all(known.parse(line) is None for known in FORMATS))


def shortened(line: str) -> str:
    """Return a line as an error shows it: its beginning, without control characters."""
    text = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


_SHOWN_CHARACTERS: Final = 100
