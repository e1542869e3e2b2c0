"""Formats of chat logs: a table of rules for each. A new format is a new table in FORMATS. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cablestore.irc.dates import SHORT_STAMP
from cablestore.irc.lines import LineKind, LogFormat, rules

_MODE = "[ ~&@%+!.]*+"
"""Marks before the nick of an operator, and blanks that align nicks."""
_SPEAKER = rf"<(?!-[>*-]){_MODE}(?P<nick>[^>]{{1,100}}?)(?::[@+%&~]*+#[^>\s]{{0,100}})? *>"
_SAY = (LineKind.SAY, rf" ?{_SPEAKER}(?:[ \t](?P<text>.*))?$")
_ACTION = (LineKind.ACTION, r" {0,2}\*[ \t]++[~&@%+!]*+(?P<nick>\S+)(?: (?P<text>.*))?$")
_NOTICE = (LineKind.NOTICE, r" ?-(?P<nick>[^\s:(-][^\s:(]*?)(?:\(\S*\)|:#\S+)?-(?:[ \t]|$)")
_CHANNEL = r"(?P<channel>#\S*[^\s.])"
_HOST = r"[(<\[](?P<mask>\S*)[)>\]]"
_NICK = r"(?P<nick>\S+)"

RAKU: Final = LogFormat(
    "raku",
    rules(
        (LineKind.SAY, rf"{_SPEAKER}(?: (?P<text>.*))?$"),
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
    marks_channels=False,
)
"""Folders are named after the channel, year and date. Times are read as 12-hour times, for compatibility with earlier
imports: see UBUNTU."""

UBUNTU: Final = LogFormat(
    "ubuntu",
    rules(
        (LineKind.SAY, rf"{_SPEAKER}(?: (?P<text>.*))?$"),
        (LineKind.ACTION, rf" ?\* {_NICK}(?: (?P<text>.*))?$"),
        (LineKind.NOTICE, r"-(?P<nick>[^:]+):#"),
    ),
    rules(
        (LineKind.JOIN, rf"=== {_NICK} \[(?P<mask>.*)\] +has joined (?P<channel>#\S+)"),
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
    marks_channels=False,
)
"""In old logs, times run from 1 to 12, twice a day."""

UBUNTU_BY_DAY: Final = replace(
    UBUNTU,
    name="ubuntu by day",
    bare=rules(
        (LineKind.QUIT, rf"=== {_NICK} \[.*\] +has quit\b"),
        (LineKind.TOPIC, rf"=== {_NICK} changed the topic of (?P<channel>#\S+) to: ?(?P<text>.*)$"),
    )
    + UBUNTU.bare,
)
"""Later logs, in folders for year, month and day. Logs with the day in their name are read as UBUNTU, which parses the
change of a topic as an action. This must not change, for compatibility with earlier imports."""

IRSSI: Final = LogFormat(
    "irssi",
    rules(
        _SAY,
        (LineKind.JOIN, rf"-!- {_NICK} \[(?P<mask>.*)\] has joined {_CHANNEL}$"),
        (LineKind.LEAVE, rf"-!- {_NICK} \[.*?\] has left (?P<channel>#\S+)"),
        (LineKind.QUIT, rf"-!- {_NICK} \[.*?\] has quit\b"),
        (LineKind.LEAVE, rf"-!- {_NICK} was kicked from (?P<channel>#\S+) by "),
        (LineKind.RENAME, rf"-!- {_NICK} is now known as (?P<text>\S+)$"),
        (LineKind.TOPIC, rf"-!- {_NICK} changed the topic of (?P<channel>#\S+) to: ?(?P<text>.*)$"),
        (LineKind.TOPIC, rf"-!- Topic unset by {_NICK} on (?P<channel>#\S+)$"),
        (LineKind.UNSIGNED_TOPIC, r"-!- (?:Topic (?:for|set by) |\S+ set the topic)"),
        (LineKind.MODE, r"-!- (?:[Ss]erver[Mm]ode|mode)/#"),
        (LineKind.QUERY, r"-!- Irssi: Starting query in "),
        (
            LineKind.CLIENT,
            r"-!- (?:Irssi: |Netsplit |You're now known as |Home page for |Channel |\[|.* (?:\[freenode-info\]|ban ))",
        ),
        _ACTION,
        _NOTICE,
    ),
    rules(
        (LineKind.DAY, r"--- (?:Day changed(?: to)?|Log opened) (?P<date>.*)$"),
        (LineKind.CLIENT, "--- Log closed "),
    ),
)

WEECHAT_EVENTS: Final = "-->|<--|--|=!="
WEECHAT_ACTIONS: Final = r" ?\*"
"""Patterns of the marks that WeeChat writes instead of nicks, with its default configuration."""


def weechat(events: str = WEECHAT_EVENTS, actions: str = WEECHAT_ACTIONS) -> LogFormat:
    """Return the format of WeeChat with these patterns of the marks that WeeChat writes instead of nicks."""
    event, action = rf"(?:{events})\t", rf"(?:{actions})\t"
    return LogFormat(
        "WeeChat",
        rules(
            (LineKind.JOIN, rf"{event}{_NICK} .*?\((?P<mask>[^\s()]*@[^\s()]*)\) has joined (?P<channel>#\S+)$"),
            (LineKind.JOIN, rf"{event}{_NICK} .*?has joined (?P<channel>#\S+)$"),
            (LineKind.LEAVE, rf"{event}{_NICK} .*?has left (?P<channel>#\S+)"),
            (LineKind.LEAVE, rf"{event}\S+ has kicked (?P<nick>\S+)"),
            (LineKind.QUIT, rf"{event}{_NICK} .*?has quit\b"),
            (LineKind.RENAME, rf"{event}{_NICK} is now known as (?P<text>\S+)$"),
            (
                LineKind.TOPIC,
                rf'{event}(?=.*"$){_NICK} has changed topic for (?P<channel>#\S+) (?:from ".*" )?to "(?P<text>.*)"$',
            ),
            (LineKind.TOPIC, rf"{event}{_NICK} has unset topic for (?P<channel>#\S+)"),
            (LineKind.UNSIGNED_TOPIC, rf"{event}Topic (?:for|set by) "),
            (LineKind.MODE, rf"{event}Mode #"),
            (LineKind.NOTICE, rf"{event}(?:Pv)?Notice\("),
            (LineKind.CLIENT, event),
            (LineKind.ACTION, rf"{action}{_NICK}(?: (?P<text>.*))?$"),
            (LineKind.SAY, r" *<?[~&@%+!]*+(?P<nick>[^\s<>*=~&@%+!-][^\s>]*)>?\t(?P<text>.*)$"),
        ),
    )


WEECHAT: Final = weechat()

ENERGYMECH: Final = LogFormat(
    "energymech and ZNC",
    rules(
        _SAY,
        (LineKind.JOIN, rf"\*\*\* Joins: {_NICK} {_HOST}"),
        (LineKind.LEAVE, rf"\*\*\* Parts: {_NICK} \("),
        (LineKind.QUIT, rf"\*\*\* Quits: {_NICK} \("),
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
    rules(
        _SAY,
        (LineKind.JOIN, rf"{_STAR}{_NICK} {_HOST} has joined(?: {_CHANNEL})?$"),
        (LineKind.LEAVE, rf"{_STAR}{_NICK} (?:{_HOST} )?has left(?: (?P<channel>#\S+)| \(|$)"),
        (LineKind.QUIT, rf"{_STAR}{_NICK} has quit(?: \(|$)"),
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
    rules(
        (LineKind.DAY, r"\*{4} BEGIN LOGGING AT (?P<date>.*)$"),
        (LineKind.CLIENT, r"\*{4} ENDING LOGGING AT "),
        (LineKind.DAY, r"\*{4} (?=.*\s[12][0-9]{3}$)(?P<date>.*)$"),
    ),
)

_MIRC_RULES = rules(
    _SAY,
    (LineKind.JOIN, rf"\*{{1,3}} {_NICK} {_HOST} has joined {_CHANNEL}$"),
    (LineKind.JOIN, rf"\*{{1,3}} Joins: {_NICK} {_HOST}$"),
    (LineKind.LEAVE, rf"\*{{1,3}} {_NICK} {_HOST} has left (?P<channel>#\S+)"),
    (LineKind.QUIT, rf"\*{{1,3}} {_NICK} {_HOST} Quit\b"),
    (LineKind.LEAVE, rf"\*{{1,3}} Parts: {_NICK} {_HOST}"),
    (LineKind.QUIT, rf"\*{{1,3}} Quits: {_NICK} {_HOST}"),
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
    _MIRC_RULES,
    (
        *rules(
            (LineKind.DAY, r"Session (?:Start|Time): (?P<date>.*)$"),
            (LineKind.CLIENT, r"Session Ident: (?P<channel>#\S+)"),
            (LineKind.QUERY, r"Session Ident: [^#&]"),
            (LineKind.CLIENT, r"Session (?:Ident|Close): "),
        ),
        *_MIRC_RULES,
    ),
)
"""mIRC writes times only if the user enables them."""

SUPYBOT: Final = LogFormat(
    "Supybot",
    rules(
        _SAY,
        (LineKind.JOIN, rf" ?\*\*\* {_NICK} (?:{_HOST} )?has joined {_CHANNEL}$"),
        (LineKind.LEAVE, rf" ?\*\*\* {_NICK} (?:{_HOST} )?has left (?P<channel>#\S+)"),
        (LineKind.QUIT, rf" ?\*\*\* {_NICK} (?:{_HOST} )?has quit IRC"),
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
    rules(
        _SAY,
        (LineKind.DAY, r"--- (?P<date>\S+ \S+ +[0-9]{1,2} [12][0-9]{3})$"),
        (LineKind.JOIN, rf"{_NICK} {_HOST} joined {_CHANNEL}\.$"),
        (LineKind.QUIT, rf"{_NICK} {_HOST} left irc\b"),
        (LineKind.LEAVE, rf"{_NICK} {_HOST} left (?P<channel>#\S*[^\s.:])"),
        (LineKind.LEAVE, rf"{_NICK} kicked from (?P<channel>#\S+) by "),
        (LineKind.RENAME, rf"Nick change: {_NICK} -> (?P<text>\S+)$"),
        (LineKind.TOPIC, r"Topic changed on (?P<channel>#\S+) by (?P<nick>[^\s!]+)(?:!\S*)?: ?(?P<text>.*)$"),
        (LineKind.MODE, r"#\S+: mode change "),
        (LineKind.ACTION, rf"Action: {_NICK}(?: (?P<text>.*))?$"),
        _NOTICE,
    ),
)

LOUNGE: Final = LogFormat(
    "The Lounge",
    rules(
        _SAY,
        (LineKind.JOIN, rf"\*\*\* {_NICK} {_HOST} joined$"),
        (LineKind.LEAVE, rf"\*\*\* {_NICK} {_HOST} left \("),
        (LineKind.QUIT, rf"\*\*\* {_NICK} {_HOST} quit \("),
        (LineKind.LEAVE, rf"\*\*\* {_NICK} was kicked by "),
        (LineKind.RENAME, rf"\*\*\* {_NICK} changed nick to (?P<text>\S+)$"),
        (LineKind.TOPIC, rf"\*\*\* {_NICK} changed topic to '(?P<text>.*)'$"),
        (LineKind.MODE, rf"\*\*\* {_NICK} set mode "),
        (LineKind.CLIENT, rf"\*\*\* {_NICK} changed host to"),
        _ACTION,
        _NOTICE,
    ),
    names_channel=False,
)

KONVERSATION: Final = LogFormat(
    "Konversation",
    rules(
        _SAY,
        (LineKind.CLIENT, r"Join\tYou have joined(?: the channel)? (?P<channel>#\S*[^\s.])"),
        (LineKind.JOIN, rf"Join\t{_NICK} {_HOST} has joined this channel\.?$"),
        (LineKind.LEAVE, rf"Part\t{_NICK} (?:{_HOST} )?has left this channel"),
        (LineKind.QUIT, rf"Quit\t{_NICK} (?:{_HOST} )?has left this server"),
        (LineKind.LEAVE, r"Kick\t(?P<nick>\S+) has been kicked "),
        (LineKind.LEAVE, r"Kick\t\S+ has kicked (?P<nick>\S+) "),
        (LineKind.RENAME, rf"Nick\t{_NICK} is now known as (?P<text>\S*[^\s.])\.?$"),
        (LineKind.TOPIC, rf'Topic\t{_NICK} sets the channel topic to "(?P<text>.*)"\.?$'),
        (LineKind.UNSIGNED_TOPIC, r"Topic\t"),
        (LineKind.MODE, r"Mode\t"),
        (LineKind.NOTICE, r"Notice\t"),
        (LineKind.CLIENT, r"(?!Action\t)[^\s<*][^\t<>]{0,30}\t"),
        (LineKind.ACTION, rf"\s*\*[ \t]++{_NICK}(?: (?P<text>.*))?$"),
        (LineKind.ACTION, rf"Action\t{_NICK}(?: (?P<text>.*))?$"),
    ),
    rules((LineKind.CLIENT, r"\*\*\* ")),
    has_dates_in_words=True,
)

QUASSEL: Final = LogFormat(
    "Quassel",
    rules(
        _SAY,
        (LineKind.JOIN, rf"--> {_NICK} {_HOST} has joined {_CHANNEL}$"),
        (LineKind.LEAVE, rf"<-- {_NICK} (?:{_HOST} )?has left (?P<channel>#\S+)"),
        (LineKind.QUIT, rf"<-- {_NICK} (?:{_HOST} )?has quit\b"),
        (LineKind.LEAVE, r"<-\* (?P<nick>\S+) has been kicked from (?P<channel>#\S+)"),
        (LineKind.LEAVE, r"<-\* \S+ has kicked (?P<nick>\S+) from (?P<channel>#\S+)"),
        (LineKind.RENAME, rf"<-> {_NICK} is now known as (?P<text>\S+)$"),
        (LineKind.TOPIC, rf'\* {_NICK} has changed topic for (?P<channel>#\S+) to: "(?P<text>.*)"$'),
        (LineKind.UNSIGNED_TOPIC, r"\* Topic "),
        (LineKind.MODE, r"\*\*\* Mode #"),
        (LineKind.ACTION, rf"-\*- {_NICK}(?: (?P<text>.*))?$"),
        _NOTICE,
    ),
    rules((LineKind.DAY, r"(?:-!- |\{)?Day changed to (?P<date>.*?)\}?$")),
)

FORMATS: Final = (
    RAKU,
    UBUNTU,
    UBUNTU_BY_DAY,
    IRSSI,
    WEECHAT,
    ENERGYMECH,
    HEXCHAT,
    MIRC,
    SUPYBOT,
    EGGDROP,
    LOUNGE,
    KONVERSATION,
    QUASSEL,
)
