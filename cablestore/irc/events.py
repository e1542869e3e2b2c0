"""Events of a channel's log, line by line, with times: one event for each possible post. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, tzinfo
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.irc.dates import MINUTE_MS, SECOND_MS, Clock
from cablestore.irc.lines import LineKind, LogLine, shortened

LONG_CHARACTERS: Final = 1_000
"""Maximum number of characters of a line that recognition reads. Longer unparsed lines do not count against a file."""
EXAMPLES_KEPT: Final = 3
"""Number of reported examples of unparsed lines."""
WITHOUT_SECONDS_MS: Final = 500
"""Offset that is added to times without seconds. A later import thereby detects the precision of an imported post's
time."""
_SKIPPED: Final = frozenset({LineKind.MODE, LineKind.NOTICE, LineKind.UNSIGNED_TOPIC, LineKind.CLIENT, LineKind.QUERY})


def unit_of(timestamp_ms: int) -> int:
    """Return the precision of an imported post's time, in milliseconds."""
    return MINUTE_MS if timestamp_ms % SECOND_MS >= WITHOUT_SECONDS_MS else SECOND_MS


class LogEvent(NamedTuple):
    """Action of a nick. `text` is the text of the post, or the new nick.

    `unit_ms` is the precision of the time. `line` is the whole line if the line is an action only when its nick is in
    the channel. Otherwise, it is empty.
    """

    kind: LineKind
    nick: str
    text: str
    mask: str
    at_ms: int
    unit_ms: int
    line: str = ""


@dataclass(slots=True)
class Skips:
    """Counts of skipped lines by reason, and of texts that were split or truncated at the protocol's limit."""

    reasons: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    examples: list[str] = field(default_factory=list)
    """First unparsed lines, shortened."""
    unknown_lines: int = 0
    """Number of unparsed lines shorter than LONG_CHARACTERS."""

    def not_understood(self, text: str) -> None:
        """Count an unparsed line."""
        self.reasons["not understood"] += 1
        self.unknown_lines += len(text) < LONG_CHARACTERS
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(shortened(text))


@dataclass(slots=True)
class EventReader:
    """Reader of one file: call `events` for each line, in order."""

    skips: Skips
    day: date
    face_hours: int
    zone: tzinfo
    _clock: Clock = field(default_factory=Clock)
    _unit_ms: int = SECOND_MS

    def __post_init__(self) -> None:
        self._clock.begin(self.day, self.face_hours, self.zone)

    def events(self, line: LogLine | None, text: str) -> Iterator[LogEvent]:
        """Yield the events of a line. `text` is the whole line, which is reported if `line` is None: not parsed."""
        if line is None:
            self.skips.not_understood(text)
        elif line.kind in _SKIPPED:
            self.skips.reasons[line.kind.value] += 1
        elif line.kind is LineKind.SAY and not line.text:
            self.skips.reasons["empty message"] += 1
        else:
            at_ms = self._clock.tick(line.time)
            if line.time is not None and line.kind is not LineKind.DAY:
                self._unit_ms = line.time.unit_ms
            if self._unit_ms == MINUTE_MS:
                at_ms += WITHOUT_SECONDS_MS
            if line.kind is LineKind.SAY and len(line.text) * 4 <= limits.MAX_TEXT_SIZE_BYTES:
                yield LogEvent(line.kind, line.nick, line.text, "", at_ms, self._unit_ms)
            else:
                yield from self._of(line, text, at_ms)

    def _of(self, line: LogLine, text: str, at_ms: int) -> Iterator[LogEvent]:
        kind = line.kind
        if kind is LineKind.SAY:
            for piece in self._pieces(line.text):
                yield LogEvent(kind, line.nick, piece, "", at_ms, self._unit_ms)
        elif kind is LineKind.ACTION:
            unstamped = text if line.time is None else ""
            for piece in self._pieces(f"/me {line.text}"):
                yield LogEvent(kind, line.nick, piece, "", at_ms, self._unit_ms, unstamped)
        elif kind is LineKind.TOPIC:
            self.skips.cut += len(line.text) > limits.MAX_TOPIC_CODEPOINTS
            topic = line.text[: limits.MAX_TOPIC_CODEPOINTS]
            yield LogEvent(kind, line.nick, topic, "", at_ms, self._unit_ms)
        elif kind is LineKind.RENAME:
            yield LogEvent(kind, line.nick, line.text, "", at_ms, self._unit_ms)
        elif kind is not LineKind.DAY:
            yield LogEvent(kind, line.nick, "", line.mask, at_ms, self._unit_ms)

    def _pieces(self, text: str) -> Iterator[str]:
        """Split a text at the protocol's limit, between code points."""
        data = text.encode()
        self.skips.cut += len(data) > limits.MAX_TEXT_SIZE_BYTES
        while len(data) > limits.MAX_TEXT_SIZE_BYTES:
            piece = data[: limits.MAX_TEXT_SIZE_BYTES].decode(errors="ignore")
            yield piece
            data = data[len(piece.encode()) :]
        yield data.decode()
