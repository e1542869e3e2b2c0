"""The part of a channel's history that is near the view: as many messages as a window holds, whatever there is.

Pure: pages go in, rows for a screen of some width come out. A row is one line on the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from cablestore.chat.amounts import MAX_HELD
from cablestore.chat.safe_text import clean, fit, wrap
from cablestore.store.display import Message

_SAME_SPEECH_MS: Final = 300_000
"""An author's messages that are no farther apart have the name once."""
_TIME_WIDTH: Final = 6
"""Columns of the time and the space after it."""
_GAP: Final = 1
"""Columns between name and text."""


class Row(NamedTuple):
    """One line on the screen: a line of a message, or a day line if `message` is None."""

    message: Message | None
    text: str
    time: str = ""
    name: str = ""


class Timeline:
    """Messages of one channel in order, without gaps. It may begin after the first one and end before the last."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self.messages: list[Message] = []
        self.has_older = False
        self.has_newer = False
        self._zone = zone
        self._wrapped: dict[bytes, list[str]] = {}
        self._width = 0

    # --- pages ---------------------------------------------------------------------------------

    def set_newest(self, page: Sequence[Message], *, has_older: bool, keeps_older: bool = False) -> None:
        """Take the newest page, newest first. With `keeps_older`, older messages stay if they join it without a gap."""
        found = list(reversed(page))
        kept: list[Message] = []
        joins = bool(found and self.messages) and self.messages[-1].cursor >= found[0].cursor and not self.has_newer
        if keeps_older and has_older and joins:
            kept = [message for message in self.messages if message.cursor < found[0].cursor]
        has_older_before = self.has_older
        self.messages = [*kept, *found]
        self.has_older = has_older_before if kept else has_older
        self.has_newer = False
        self._drop_oldest()

    def set_window(self, page: Sequence[Message], *, has_newer: bool) -> None:
        """Take what was read again from the first held message on, oldest first."""
        self.messages = list(page)
        self.has_newer = has_newer

    def add_older(self, page: Sequence[Message], *, has_older: bool) -> None:
        """Add a page before the first message, newest first. The newest messages may be dropped for it."""
        self.messages = [*reversed(page), *self.messages]
        self.has_older = has_older
        if len(self.messages) > MAX_HELD:
            del self.messages[MAX_HELD:]
            self.has_newer = True
        self._forget_wraps()

    def add_newer(self, page: Sequence[Message], *, has_newer: bool) -> None:
        """Add a page after the last message, oldest first. The oldest messages may be dropped for it."""
        self.messages = [*self.messages, *page]
        self.has_newer = has_newer
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        surplus = len(self.messages) - MAX_HELD
        if surplus > 0:
            del self.messages[:surplus]
            self.has_older = True
        self._forget_wraps()

    def _forget_wraps(self) -> None:
        if len(self._wrapped) > 2 * MAX_HELD:
            held = {message.hash for message in self.messages}
            self._wrapped = {digest: lines for digest, lines in self._wrapped.items() if digest in held}

    # --- rows ----------------------------------------------------------------------------------

    def rows(self, width: int, name_width: int) -> list[Row]:
        """Return the rows of all held messages for a width in cells."""
        text_width = max(width - _TIME_WIDTH - name_width - _GAP, 8)
        if text_width != self._width:
            self._width = text_width
            self._wrapped = {}
        found: list[Row] = []
        before: Message | None = None
        day: date | None = None
        for message in self.messages:
            moment = local(message.timestamp_ms, self._zone)
            if moment.date() != day:
                day, before = moment.date(), None
                found.append(Row(None, f"{moment:%A} {moment.day} {moment:%B %Y}"))
            starts = (
                before is None
                or before.author != message.author
                or message.timestamp_ms - before.timestamp_ms > _SAME_SPEECH_MS
            )
            lines = self._lines(message)
            name = self.name_of(message, name_width) if starts else ""
            found.append(Row(message, lines[0], f"{moment:%H:%M}", name))
            found += [Row(message, line) for line in lines[1:]]
            before = message
        return found

    def name_of(self, message: Message, width: int) -> str:
        """Return the name of an author for a width in cells."""
        return fit(short_name(message.name), width)

    def time_of(self, message: Message) -> str:
        """Return the time of a message."""
        return f"{local(message.timestamp_ms, self._zone):%H:%M}"

    def _lines(self, message: Message) -> list[str]:
        lines = self._wrapped.get(message.hash)
        if lines is None or message.is_hidden:
            text = "hidden" if message.is_hidden else clean(message.text, lines=True)
            lines = wrap(text, self._width)
            if not message.is_hidden:
                self._wrapped[message.hash] = lines
        return lines


def local(timestamp_ms: int, zone: tzinfo | None) -> datetime:
    """Return a time in a zone, by default the machine's. Authors may claim any time: one that no calendar has is 1970."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return datetime(1970, 1, 1, tzinfo=UTC)


def short_name(name: str) -> str:
    """Return a name on one line. One that is a public key has its first 8 digits."""
    is_key = len(name) == 64 and not name.strip("0123456789abcdef")
    return name[:8] if is_key else clean(name).strip() or "?"
