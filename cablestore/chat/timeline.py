"""Part of a channel's history near the view, limited in size.

Pure: it converts pages to rows for a screen of some width. A row is one line on the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from cablestore.chat.display_limits import MAX_HELD
from cablestore.chat.links import Link, links_of_lines
from cablestore.chat.safe_text import clean, fit, wrap
from cablestore.store.display import Message
from cablestore.store.naming import KEY_DIGITS

_SAME_SPEECH_MS: Final = 300_000
"""Maximum time between two messages of an author for which the name is shown once."""
LINES_SHOWN: Final = 12
"""Lines of a collapsed message. The line after them shows the number of further lines."""
_TIME_WIDTH: Final = 6
"""Columns of the time, including the space after it."""
_GAP: Final = 1
"""Columns between name and text."""


class Row(NamedTuple):
    """Line on the screen. If `message` is None, it is the line of a day or of unread messages."""

    message: Message | None
    text: str
    time: str = ""
    name: str = ""
    is_unread_line: bool = False
    is_fold: bool = False
    """True for the line that shows the number of further lines, or that collapses the message."""
    links: tuple[Link, ...] = ()


class _MessageRows(NamedTuple):
    """Rows of a message, and its day. The first row contains the name of the author."""

    message: Message
    day: date
    rows: list[Row]


class Timeline:
    """Consecutive messages of one channel, in order, without gaps. Older and newer messages may be missing."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self.messages: list[Message] = []
        self.has_older = False
        self.has_newer = False
        self.is_read = False
        """True after a page was read, so that an empty list means an empty channel."""
        self._zone = zone
        self._rows: dict[bytes, _MessageRows] = {}
        """Cached rows of messages, by the hashes of the messages."""
        self._expanded: set[bytes] = set()
        """Hashes of the expanded messages."""
        self._width = self._name_width = 0
        self._same_named: frozenset[bytes] = frozenset()

    # --- pages ---------------------------------------------------------------------------------

    def set_newest(self, page: Sequence[Message], *, has_older: bool, keeps_older: bool = False) -> None:
        """Replace all messages by the newest page, given newest first. `keeps_older` keeps older adjacent messages."""
        found = list(reversed(page))
        kept: list[Message] = []
        if keeps_older and has_older and found and not self.has_newer:
            held = [message.hash for message in self.messages]
            kept = self.messages[: held.index(found[0].hash)] if found[0].hash in held else []
        has_older_before = self.has_older
        self.messages = [*kept, *found]
        self.has_older = has_older_before if kept else has_older
        self.has_newer = False
        self.is_read = True
        self._drop_oldest()

    def set_window(self, page: Sequence[Message], *, has_newer: bool) -> None:
        """Replace all loaded messages by a page, given oldest first."""
        self.messages = list(page)
        self.is_read = True
        self.has_newer = has_newer

    def add_older(self, page: Sequence[Message], *, has_older: bool) -> None:
        """Add a page, given newest first, before the first message. Remove the newest messages above MAX_HELD."""
        self.messages = [*reversed(page), *self.messages]
        self.has_older = has_older
        if len(self.messages) > MAX_HELD:
            del self.messages[MAX_HELD:]
            self.has_newer = True

    def add_newer(self, page: Sequence[Message], *, has_newer: bool) -> None:
        """Add a page, given oldest first, after the last message. Remove the oldest messages above MAX_HELD."""
        self.messages = [*self.messages, *page]
        self.has_newer = has_newer
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        surplus = len(self.messages) - MAX_HELD
        if surplus > 0:
            del self.messages[:surplus]
            self.has_older = True

    @property
    def same_named(self) -> frozenset[bytes]:
        """Authors whose name equals or resembles another user's name."""
        return self._same_named

    @same_named.setter
    def same_named(self, users: frozenset[bytes]) -> None:
        self._same_named = users
        self._rows = {}

    # --- rows ----------------------------------------------------------------------------------

    def rows(self, width: int, name_width: int, unread_from: str = "") -> list[Row]:
        """Return the rows of all held messages for a width in cells, with a line before the cursor `unread_from`."""
        text_width = max(width - _TIME_WIDTH - name_width - _GAP, 8)
        if (text_width, name_width) != (self._width, self._name_width):
            self._width, self._name_width = text_width, name_width
            self._rows = {}
        found: list[Row] = []
        kept: dict[bytes, _MessageRows] = {}
        before: Message | None = None
        day: date | None = None
        line_before = self._first_from(unread_from)
        for message in self.messages:
            drawn = self._rows.get(message.hash)
            if drawn is None or drawn.message != message:
                drawn = self._draw(message)
            kept[message.hash] = drawn
            if day is None or drawn.day > day:  # an answer from a slow clock does not begin a day
                day, before = drawn.day, None
                found.append(Row(None, f"{day:%A} {day.day} {day:%B %Y}"))
            if message is line_before:
                before = None
                found.append(Row(None, "unread messages", is_unread_line=True))
            first, *others = drawn.rows
            found.append(first if before is None or _starts(before, message) else first._replace(name=""))
            found += others
            before = message
        self._rows = kept
        return found

    def _draw(self, message: Message) -> _MessageRows:
        moment = local(message.timestamp_ms, self._zone)
        all_lines = self._lines(message)
        lines, fold = self._shown_lines(message, all_lines)
        has_links = not message.is_hidden and "://" in message.text
        links = links_of_lines(self._clean_text(message), all_lines) if has_links else [()] * len(lines)
        rows = [Row(message, line, links=each) for line, each in zip(lines, links, strict=False)]
        rows[0] = rows[0]._replace(time=f"{moment:%H:%M}", name=self.name_of(message, self._name_width))
        if fold:
            rows.append(Row(message, fold, is_fold=True))
        return _MessageRows(message, moment.date(), rows)

    def _first_from(self, cursor: str) -> Message | None:
        """Return the message at a cursor, or the next message if it is gone.

        Return None if `cursor` is "", or if the message may be outside the loaded part.
        """
        later = [message for message in self.messages if message.cursor >= cursor] if cursor else []
        is_held = len(later) < len(self.messages) or not self.has_older
        found = min(later, key=lambda message: message.cursor, default=None)
        return found if found is not None and (is_held or found.cursor == cursor) else None

    def name_of(self, message: Message, width: int) -> str:
        """Return the name of an author for a width in cells, or `*` for an emote, whose text contains the name."""
        return "*" if message.emote is not None else self._author_of(message, width)

    def _author_of(self, message: Message, width: int = 0) -> str:
        name = short_name(message.name)
        if message.author in self.same_named:
            return with_key_digits(name, message.author, width)
        return fit(name, width) if width else name

    def time_of(self, message: Message) -> str:
        """Return the time of a message as hours and minutes."""
        return f"{local(message.timestamp_ms, self._zone):%H:%M}"

    # --- long messages -------------------------------------------------------------------------

    def expand(self, message: Message, *, is_expanded: bool) -> bool:
        """Expand or collapse a long message. Return False if the message is not long."""
        if len(self._lines(message)) <= LINES_SHOWN + 1:
            return False
        (self._expanded.add if is_expanded else self._expanded.discard)(message.hash)
        self._rows.pop(message.hash, None)
        return True

    def is_expanded(self, message: Message) -> bool:
        """Return True if a message is expanded."""
        return message.hash in self._expanded

    def _shown_lines(self, message: Message, lines: list[str]) -> tuple[list[str], str]:
        """Return the visible lines of a message, and the fold line, which is "" for a short message."""
        more = len(lines) - LINES_SHOWN
        if more <= 1:  # the fold line takes as much space as one further line
            return lines, ""
        if message.hash in self._expanded:
            return lines, fit("… Left collapses", self._width)
        return lines[:LINES_SHOWN], fit(f"… {more:,} more lines", self._width)

    def _lines(self, message: Message) -> list[str]:
        return wrap("hidden" if message.is_hidden else self._clean_text(message), self._width)

    def _clean_text(self, message: Message) -> str:
        text = message.text if message.emote is None else f"{self._author_of(message)} {message.emote}"
        return clean(text, lines=True)


def _starts(before: Message, message: Message) -> bool:
    """Return True if `message` must show its author's name although it follows `before`."""
    return (
        before.author != message.author
        or abs(message.timestamp_ms - before.timestamp_ms) > _SAME_SPEECH_MS
        or message.emote is not None
        or before.emote is not None
    )


def local(timestamp_ms: int, zone: tzinfo | None) -> datetime:
    """Return a time in a zone, by default the zone of the machine. Times outside the calendar become 1970."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return datetime(1970, 1, 1, tzinfo=UTC)


def short_name(name: str) -> str:
    """Return a name on one line. A public key is shortened to its first 8 digits."""
    is_key = len(name) == 64 and not name.strip("0123456789abcdef")
    return name[:KEY_DIGITS] if is_key else clean(name).strip() or "?"


def with_key_digits(name: str, public_key: bytes, width: int = 0) -> str:
    """Return a name with the first digits of its user's key. In a limited width, only the name is truncated."""
    digits = public_key.hex()
    if name == digits[:KEY_DIGITS]:
        return digits[: 2 * KEY_DIGITS]
    cut = fit(name, max(width - KEY_DIGITS - 1, 1)) if width else name
    return f"{cut} {digits[:KEY_DIGITS]}"
