"""Recognition of a log's format: the format that parses most of the first lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from cablestore.irc.formats import FORMATS, UBUNTU, UBUNTU_BY_DAY, WEECHAT, WEECHAT_ACTIONS, WEECHAT_EVENTS, weechat
from cablestore.irc.lines import LineKind, LogFormat, NotALogError, shortened

SAMPLE_LINES: Final = 200
"""Number of lines that are read to recognize a file's format."""
FEW_LINES: Final = 40
"""Number of lines after which formats that parse clearly fewer lines than the best format are excluded."""
_CLEARLY_FEWER: Final = 0.8
LONG_SAMPLE_LINES: Final = 20_000
"""Maximum number of lines that are read if two formats are equal on the first lines, and for learning marks."""
_EVENT: Final = re.compile(
    r"\S+ .*has joined [#&]\S+$|\S+ .*has left [#&]\S+|\S+ .*has quit\b|\S+ has kicked \S+|\S+ is now known as \S+$"
    r"|\S+ has (?:changed|unset) topic for |Topic (?:for|set by) |Mode [#&]|Channel [#&]|Channel created|Nicks [#&]"
)
_CERTAIN_EVENT: Final = re.compile(r"\S+ (?:.* )?\(\S+@\S+\) has (?:joined [#&]\S+$|left [#&]|quit\b)")


def recognise(lines: Iterable[str], where: str, *, is_named_by_day: bool = False) -> LogFormat:
    """Return the format that parses most of the first lines. Raises NotALogError if it parses fewer than half of them.

    If several formats parse the same number of lines, the format that parses the fewest of them as actions wins,
    because an action may have any form. Then further lines decide, then the order of FORMATS. Empty lines do not count.
    Further lines do not decide for logs with a day such as 2022-01-31 in their name, for compatibility with earlier
    imports. Errors name the log `where`.
    """
    rest = (line for line in lines if line.strip())
    sample = list(islice(rest, SAMPLE_LINES))
    candidates = [known for known in FORMATS if known is not (UBUNTU_BY_DAY if is_named_by_day else UBUNTU)]
    few = {known.name: _score(known, sample[:FEW_LINES])[0] for known in candidates}
    candidates = [known for known in candidates if few[known.name] >= _CLEARLY_FEWER * max(few.values())]
    scores = {known.name: _score(known, sample) for known in candidates}
    best = max(scores.values())
    if 2 * best[0] < len(sample):
        raise NotALogError(_unknown(sample, best[0], where))
    equals = [known for known in candidates if scores[known.name] == best]
    if len(equals) > 1 and not is_named_by_day:
        more = list(islice(rest, LONG_SAMPLE_LINES - SAMPLE_LINES))
        equals.sort(key=lambda known: _score(known, more), reverse=True)
    return equals[0]


def _score(known: LogFormat, lines: Iterable[str]) -> tuple[int, int]:
    """Return the number of lines that a format parses, and how many of them are not actions."""
    read = [line.kind for line in map(known.parse, lines) if line is not None]
    return len(read), len(read) - read.count(LineKind.ACTION)


def _unknown(sample: list[str], readable: int, where: str) -> str:
    strange = next(_unread(sample), "")
    return (
        f"{where} is not a chat log of a known format: {readable} of the first {len(sample)} lines can be parsed. "
        f'An unparsed line: "{shortened(strange)}". Known formats: {", ".join(known.name for known in FORMATS)}'
    )


def _unread(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in lines if all(known.parse(line) is None for known in FORMATS))


def with_marks_of(known: LogFormat, lines: Iterable[str]) -> LogFormat:
    """Return the format of WeeChat with the user's marks, learned from lines. Return other formats unchanged."""
    if known is not WEECHAT:
        return known
    rests: dict[str, list[str]] = {}
    for line in islice(lines, LONG_SAMPLE_LINES):
        stamped = known.stamp.match(line)
        mark, tab, rest = line[stamped.end() if stamped else 0 :].partition("\t")
        if tab:
            rests.setdefault(mark, []).append(rest)
    events = {mark for mark, found in rests.items() if _is_of_events(mark, found)}
    nicks = {mark.strip().lstrip("~&@%+!") for mark in rests.keys() - events if _names_somebody(mark)}
    nicks |= {rest.partition(" ")[0] for mark in events for rest in rests[mark]}
    actions = {
        mark
        for mark, found in rests.items()
        if mark not in events and not _names_somebody(mark) and all(rest.partition(" ")[0] in nicks for rest in found)
    }
    return weechat(_either(WEECHAT_EVENTS, events), _either(WEECHAT_ACTIONS, actions))


def _is_of_events(mark: str, rests: list[str]) -> bool:
    """Return True if WeeChat writes `mark` before events. If it may be a nick, all texts after it must be events."""
    if _names_somebody(mark):
        return all(map(_EVENT.match, rests)) and (len(rests) > 1 or any(map(_CERTAIN_EVENT.match, rests)))
    return any(map(_EVENT.match, rests))


def _names_somebody(mark: str) -> bool:
    return any(map(str.isalnum, mark))


def _either(usual: str, learned: Iterable[str]) -> str:
    return "|".join([usual, *sorted(map(re.escape, learned))])
