"""Drawing of the messages in view, line by line.

Values that all lines use are computed once, because a widget searches all its parents for its size or style.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip

from cablestore.chat.held_text import held_text
from cablestore.chat.marked_text import MarkedPart
from cablestore.chat.safe_text import wrap
from cablestore.chat.timeline import Row, Timeline

AUTHOR_COLOURS: Final = 6


@dataclass(frozen=True, slots=True)
class MessageDrawing:
    """Lines of a view of messages at one moment."""

    timeline: Timeline
    rows: Sequence[Row]
    first: int
    """Index of the row in the first line of the view, negative if blank lines are above all rows."""
    size: Size
    column: int
    """Column of the terminal at which the view begins."""
    name_width: int
    base: Style
    style: Callable[[str], Style]
    """Function that returns the style of a part of a message by its name."""
    own_key: bytes
    chosen: bytes | None
    """Hash of the chosen message."""
    mentions: frozenset[bytes]
    mark: MarkedPart | None
    mark_style: Style
    note: Sequence[str]
    """Lines that are shown instead of messages."""
    position: str
    """Position of the view, shown in the last line, or "" at the end of the channel."""

    def line(self, y: int) -> Strip:
        """Return a line of the view."""
        if self.position and y == self.size.height - 1:
            return self._rule(self.position, "day")
        at = self.first + y
        row = self.rows[at] if 0 <= at < len(self.rows) else None
        if row is None:
            return self._note_line(y)
        if row.message is None:
            return self._rule(row.text, "unread" if row.is_unread_line else "day")
        name, when = row.name, row.time
        if y == 0 and not name:  # a message that begins above the view shows its author here
            name, when = self.timeline.name_of(row.message, self.name_width), self.timeline.time_of(row.message)
        base, author = self.base, row.message.author
        if row.message.hash == self.chosen:
            base += self.style("chosen")
        name_style = base + self.style("own" if author == self.own_key else f"author-{author_colour(author)}")
        text_style = base + self.style("note") if row.message.is_hidden or row.is_fold else base
        if row.message.hash in self.mentions:
            text_style = base + self.style("mention")
        return self._message_line(when, Segment(name, name_style), self._parts(row, text_style, at), base, at)

    def _note_line(self, y: int) -> Strip:
        """Return a line without a message: a blank line, or a line of the note. The note is aligned to the bottom."""
        width, height = self.size
        is_empty = self.timeline.is_read and not self.rows
        lines = wrap("\n".join(self.note), width) if is_empty and self.note else []
        at = y - max(0, height - len(lines))
        text = lines[at] if 0 <= at < len(lines) else ""
        held = held_text([Segment(text, self.base + self.style("note"))], self.base, width, self.column)
        return Strip(held).adjust_cell_length(width, self.base)

    def _message_line(self, when: str, name: Segment, text: Sequence[Segment], base: Style, at: int) -> Strip:
        """Return a line of a message: time, name aligned right, text. Segments record the row `at` for the mouse."""
        before = f"{when:<5} "
        text_column = len(before) + self.name_width + 1
        name_cells = min(name.cell_length, self.name_width)
        head = [
            Segment(before, base + self.style("time")),
            Segment(" " * (self.name_width - name_cells), base),
            *held_text([name], base, name_cells, self.column + text_column - 1 - name_cells),
            Segment(" ", base),
        ]
        body = held_text(text, base, self.size.width - text_column, self.column + text_column)
        left = -sum(len(segment.text) for segment in head if not segment.control)
        return Strip(_with_offsets([*head, *body], left, at)).adjust_cell_length(self.size.width, base)

    def _parts(self, row: Row, style: Style, at: int) -> list[Segment]:
        """Return the text of `row`, whose index is `at`, as segments with its links and with the selected part highlighted."""
        size = len(row.text)
        if self.mark is None and not row.links:
            return [Segment(row.text, style)]
        part = slice(0, 0) if self.mark is None else self.mark.part_of(at, size)
        cuts = {0, size, part.start, part.stop}.union(*((link.start, link.stop) for link in row.links))
        found: list[Segment] = []
        for start, stop in pairwise(sorted(cuts)):
            look = style
            for link in row.links:
                if link.start <= start < link.stop:
                    look += self.style("link") + Style(link=link.target)
            if part.start <= start < part.stop:
                look += self.mark_style
            found.append(Segment(row.text[start:stop], look))
        return found

    def _rule(self, text: str, look: str) -> Strip:
        style = self.base + self.style(look)
        line = f" {text} ".center(self.size.width, "─")
        return Strip([Segment(line, style)]).adjust_cell_length(self.size.width, style)


def _with_offsets(segments: Sequence[Segment], x: int, y: int) -> list[Segment]:
    """Return segments that record the row `y` and the character, from `x`, at which they begin, except control segments."""
    found: list[Segment] = []
    for text, style, control in segments:
        if control:
            found.append(Segment(text, style, control))
        else:
            found.append(Segment(text, (style or Style()) + Style.from_meta({"offset": (x, y)})))
            x += len(text)
    return found


def author_colour(public_key: bytes) -> int:
    """Return the colour number of an author. It depends only on the public key."""
    return public_key[0] % AUTHOR_COLOURS
