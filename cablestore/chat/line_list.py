"""Scrollable list of short lines, for channels and members. One line can be current, and lines can be clicked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.message import Message as UiMessage
from textual.strip import Strip
from textual.widget import Widget

from cablestore.chat.held_text import held_text
from cablestore.chat.safe_text import fit

_WHEEL_ROWS = 3


class Line(NamedTuple):
    """Line with its key, its text, a badge at its right end, and its style."""

    key: Hashable
    text: str
    badge: str = ""
    look: str = "plain"


class LineList(Widget):
    """Scrollable lines. When the current line changes, it is scrolled into view."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"lines--{look}" for look in ("plain", "quiet", "title", "strong", "call", "current")
    }

    class Chosen(UiMessage):
        """A line was clicked."""

        def __init__(self, key: Hashable) -> None:
            super().__init__()
            self.key = key

    def __init__(self, widget_id: str) -> None:
        super().__init__(id=widget_id)
        self._lines: Sequence[Line] = ()
        self._current: Hashable = None
        self._top = 0

    def show(self, lines: Sequence[Line], current: Hashable = None) -> None:
        """Show lines. The line with the key `current` is the current line."""
        if (lines, current) == (self._lines, self._current):
            return
        has_moved = current != self._current
        self._lines, self._current = lines, current
        if has_moved:
            self._reveal()
        self._move(0)

    def _reveal(self) -> None:
        at = next((at for at, line in enumerate(self._lines) if line.key == self._current), None)
        if at is not None and self.size.height:
            self._top = max(at - self.size.height + 1, min(self._top, at))

    def _move(self, by: int) -> None:
        self._top = max(0, min(self._top + by, len(self._lines) - self.size.height))
        self.refresh()

    def on_resize(self, _: events.Resize) -> None:
        """Keep the current line in view."""
        self._reveal()
        self._move(0)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll with the wheel."""
        event.stop()
        self._move(-_WHEEL_ROWS)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll with the wheel."""
        event.stop()
        self._move(_WHEEL_ROWS)

    def on_click(self, event: events.Click) -> None:
        """Report the line under the mouse."""
        at = self._top + event.y
        if at < len(self._lines) and self._lines[at].key is not None:
            self.post_message(self.Chosen(self._lines[at].key))

    def render_line(self, y: int) -> Strip:
        """Return a line of the view."""
        width, style = self.size.width, self.rich_style
        at = self._top + y
        if at >= len(self._lines):
            return Strip.blank(width, style)
        line = self._lines[at]
        style += self.get_component_rich_style(f"lines--{line.look}", partial=True)
        if line.key is not None and line.key == self._current:
            style += self.get_component_rich_style("lines--current", partial=True)
        badge = f" {line.badge}" if line.badge else ""
        text = fit(line.text, max(width - cell_len(badge), 1))
        room = max(width - cell_len(badge), 0)
        held = held_text([Segment(text, style)], style, room, self.content_region.x)
        return Strip(Segment.simplify([*held, Segment(badge, style)])).adjust_cell_length(width, style)
