"""View of a channel's messages: it draws only visible rows, and requests pages in advance."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import tzinfo
from typing import ClassVar, Final

from rich.style import Style
from textual import events
from textual.geometry import Offset, Region, Size
from textual.message import Message as UiMessage
from textual.reactive import var
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from cablestore.chat.marked_text import MarkedPart, marked_text, word_at
from cablestore.chat.message_drawing import AUTHOR_COLOURS, MessageDrawing
from cablestore.chat.timeline import Row, Timeline, local
from cablestore.store.display import Message

_WHEEL_ROWS: Final = 3
_STEPS: Final = {"up": -1, "down": 1}
_FOLDS: Final = {"right": True, "left": False}
_OF_A_TEXT: Final = frozenset({"enter", *_FOLDS})
_WIDE: Final = 60
"""Minimum width of the view, in columns, for longer names."""
_DIGITS_WIDTH: Final = 5
"""Additional columns for names while a name is shown with digits of its user's key."""


class MessageList(Widget):
    """View of a `Timeline`. It never has the focus: the typing box first passes each key to `handle_message_key`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "messages--time",
        "messages--day",
        "messages--unread",
        "messages--note",
        "messages--mention",
        "messages--link",
        "messages--chosen",
        "messages--own",
        *(f"messages--author-{number}" for number in range(AUTHOR_COLOURS)),
    }

    class PageRequested(UiMessage):
        """The view is near an end of the loaded messages."""

        def __init__(self, *, older: bool) -> None:
            super().__init__()
            self.older = older

    class EndRequested(UiMessage):
        """The view must move to an end of the channel that is not loaded."""

        def __init__(self, *, oldest: bool) -> None:
            super().__init__()
            self.oldest = oldest

    class MenuRequested(UiMessage):
        """The menu of a message was requested."""

        def __init__(self, message: Message) -> None:
            super().__init__()
            self.message = message

    class Scrolled(UiMessage):
        """The view was scrolled."""

    chosen: var[Message | None] = var(None)
    """Message that keys act on."""

    def __init__(self, zone: tzinfo | None, newest_key: str, widget_id: str) -> None:
        """Show times in `zone`. `newest_key` is the key that scrolls to the newest message."""
        super().__init__(id=widget_id)
        self.timeline = Timeline(zone)
        self._zone = zone
        self._newest_key = newest_key
        self._rows: list[Row] = []
        self._top = 0
        """Index of the row at the top of the view, unless the view is at the end."""
        self.is_at_end = True
        """True if the view follows new messages."""
        self._is_clicked = False
        """True if the message was chosen with the mouse."""
        self.line = ""
        """Cursor of the message below the line of unread messages, or "" if the list does not show this line."""
        self._mentions: frozenset[bytes] = frozenset()
        """Hashes of messages that mention the user."""
        self._same_named: frozenset[bytes] = frozenset()
        self.own_key = b""
        """Public key of the user, whose name is drawn without a colour."""
        self.is_loading = False
        """True while a page is being read."""
        self._note: Sequence[str] = ()
        self._drawing: MessageDrawing | None = None
        """Drawing that is currently rendered."""

    # --- what is shown -------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove all messages, and follow the end of the channel that is loaded next."""
        self.timeline = Timeline(self._zone)
        self.timeline.same_named = self._same_named
        self._note = ()
        self.chosen, self.is_at_end, self._top, self.is_loading = None, True, 0, False
        self.update_rows()

    def show_note(self, lines: Sequence[str]) -> None:
        """Show lines instead of messages while the channel has no messages."""
        if lines != self._note:
            self._note = lines
            self.refresh()

    def show_names(self, mentions: frozenset[bytes], same_named: frozenset[bytes]) -> None:
        """Set the hashes of messages that mention the user, and the authors whose names need digits of their keys."""
        if same_named != self._same_named:
            self._same_named = self.timeline.same_named = same_named
            self.update_rows()
        elif mentions == self._mentions:
            return
        self._mentions = mentions
        self.refresh()

    def update_rows(self) -> None:
        """Redraw if the timeline has changed. The first message in view keeps its position."""
        before, anchor = (self._first, self._rows_in_view(), self.chosen), self._anchor()
        self._lay_out()
        if not self.is_at_end and anchor is not None:
            self._top = self._row_of(anchor[0]) + anchor[1]
        self._keep_in_bounds()
        if self.chosen is not None:
            self.chosen = next((m for m in self.timeline.messages if m.hash == self.chosen.hash), None)
        if before != (self._first, self._rows_in_view(), self.chosen) or not self._rows:
            self.refresh()

    def _lay_out(self) -> None:
        mark, before, width = self._mark, self._rows, self.size.width
        self._rows = self.timeline.rows(width, self._name_width, self.line) if width else []
        if mark is not None and before[: mark.bottom + 1] != self._rows[: mark.bottom + 1]:
            self.screen.clear_selection()  # the selected text has moved

    @property
    def _name_width(self) -> int:
        width = 12 if self.size.width >= _WIDE else 9
        return width + _DIGITS_WIDTH if self._same_named else width

    @property
    def _last_top(self) -> int:
        return max(0, len(self._rows) - self.size.height)

    @property
    def top(self) -> int:
        """Index of the row at the top of the view."""
        return self._last_top if self.is_at_end else self._top

    def _rows_in_view(self) -> list[Row]:
        """Return the visible rows. Unless the view is at the end, its last line shows the position instead of a row."""
        return self._rows[self.top : self.top + self.size.height - (not self.is_at_end)]

    def in_view(self) -> list[Message]:
        """Return the messages of which at least one line is visible."""
        found = [row.message for row in self._rows_in_view() if row.message is not None]
        return list({message.hash: message for message in found}.values())

    @property
    def has_line_in_view(self) -> bool:
        """True if the line of unread messages is visible."""
        return any(row.is_unread_line for row in self._rows_in_view())

    def _anchor(self) -> tuple[Message, int] | None:
        """Return the first message in view and the offset of the view from its first row, or None without messages."""
        for at in range(self.top, len(self._rows)):
            message = self._rows[at].message
            if message is not None:
                return message, self.top - self._row_of(message)
        return None

    def _row_of(self, message: Message) -> int:
        """Return the index of a message's first row. If the message was removed, use the next message by cursor."""
        after = len(self._rows)
        for at, row in enumerate(self._rows):
            if row.message is not None and row.message.hash == message.hash:
                return at
            if row.message is not None and after == len(self._rows) and row.message.cursor > message.cursor:
                after = at
        return after

    def _keep_in_bounds(self) -> None:
        self._top = max(0, min(self._top, self._last_top))
        if self._top == self._last_top and not self.timeline.has_newer:
            self.is_at_end = True

    def on_resize(self, _: events.Resize) -> None:
        """Wrap the text for the new width."""
        self.update_rows()
        self.refresh()

    # --- moving --------------------------------------------------------------------------------

    def scroll_rows(self, by: int) -> None:
        """Scroll by `by` rows, down for a positive number."""
        self._top = self.top + by
        self.is_at_end = False
        self._keep_in_bounds()
        self.refresh()
        self._request_pages()
        self.post_message(self.Scrolled())

    def _request_pages(self) -> None:
        if self.is_loading:
            return
        ahead = 3 * max(self.size.height, 1)
        if self.top < ahead and self.timeline.has_older and not (self.is_at_end and self._last_top >= ahead):
            self.is_loading = True
            self.post_message(self.PageRequested(older=True))
        elif self.top + self.size.height > len(self._rows) - ahead and self.timeline.has_newer:
            self.is_loading = True
            self.post_message(self.PageRequested(older=False))

    def page_loaded(self) -> None:
        """Draw a requested page, and request the next page if the view is still near an end of the loaded messages."""
        self.is_loading = False
        self.update_rows()
        self._request_pages()

    def action_scroll_pages(self, by: int) -> None:
        """Scroll by `by` screens, down for a positive number."""
        self.scroll_rows(by * max(1, self.size.height - 2))

    def action_oldest(self) -> None:
        """Scroll to the beginning of the channel."""
        if self.timeline.has_older:
            self.post_message(self.EndRequested(oldest=True))
        else:
            self.show_start()

    def action_newest(self) -> None:
        """Scroll to the end of the channel, and follow it."""
        self.chosen = None
        if self.timeline.has_newer:
            self.post_message(self.EndRequested(oldest=False))
        else:
            self.is_at_end = True
            self.refresh()

    def show_start(self) -> None:
        """Scroll to the first loaded row."""
        self.is_at_end, self._top = False, 0
        self._lay_out()
        self._keep_in_bounds()
        self.refresh()

    def show_line(self) -> None:
        """Scroll to the line of unread messages, with some messages before it."""
        self.is_at_end = False
        self._lay_out()
        at = next((at for at, row in enumerate(self._rows) if row.is_unread_line), 0)
        self._top = at - self.size.height // 3
        self._keep_in_bounds()
        self.refresh()

    def show_message(self, message: Message) -> None:
        """Choose a loaded message, and scroll it to the middle."""
        self.is_at_end = False
        self._lay_out()
        self._top = self._row_of(message) - self.size.height // 2
        self._keep_in_bounds()
        self._choose(message)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll with the wheel."""
        event.stop()
        self.scroll_rows(-_WHEEL_ROWS)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll with the wheel."""
        event.stop()
        self.scroll_rows(_WHEEL_ROWS)

    # --- choosing ------------------------------------------------------------------------------

    def handle_message_key(self, key: str, *, is_typing: bool) -> bool:
        """Handle a key that acts on the chosen message. Return False for other keys, such as those that type text.

        After a click on a message, the typing box gets Enter, Right and Left while it contains text, because the click
        may only have raised the window. The box also gets Right and Left if the chosen message is not long.
        """
        if key == "escape":
            self._choose_next(0) if self.chosen is None else self.choose_none()
        elif self.chosen is None or (key in _OF_A_TEXT and is_typing and self._is_clicked):
            return False
        elif key in _FOLDS:
            return self._expand(self.chosen, is_expanded=_FOLDS[key])
        elif key == "enter":
            self.post_message(self.MenuRequested(self.chosen))
        elif key in _STEPS:
            self._choose_next(_STEPS[key])
        elif key == "home":
            self.action_oldest()
        elif key == "end":
            self.action_newest()
        else:
            return False
        return True

    def choose_none(self) -> None:
        """Clear the choice, and return to typing."""
        if self.chosen is not None:
            self._choose(None)

    def _choose_next(self, by: int) -> None:
        """Choose the message `by` messages below the chosen message, or if none is chosen, the last message in view."""
        held = self.timeline.messages
        if not held:
            return
        places = {message.hash: at for at, message in enumerate(held)}
        at = places.get(self.chosen.hash) if self.chosen is not None else None
        self._choose(held[self._last_in_view(places) if at is None else max(0, min(at + by, len(held) - 1))])

    def _last_in_view(self, places: dict[bytes, int]) -> int:
        shown = self.in_view()
        return places[shown[-1].hash] if shown else len(places) - 1

    def _choose(self, message: Message | None, *, by_mouse: bool = False) -> None:
        self.chosen, self._is_clicked = message, by_mouse
        if message is not None:
            first = self._row_of(message)
            last = first
            while last + 1 < len(self._rows) and self._rows[last + 1].message is message:
                last += 1
            if first < self.top:
                self.scroll_rows(first - self.top)
            elif last >= self.top + self.size.height:
                self.scroll_rows(last - self.top - self.size.height + 1)
        self.refresh()

    def _expand(self, message: Message, *, is_expanded: bool) -> bool:
        """Expand or collapse a long message. Return False if the message is not long."""
        was_expanded, top = self.timeline.is_expanded(message), self.top
        if not self.timeline.expand(message, is_expanded=is_expanded):
            return False
        if was_expanded != is_expanded:
            self._lay_out()
            self.is_at_end, self._top = False, top if is_expanded else min(top, self._row_of(message))
            self._keep_in_bounds()
            self.refresh()
        return True

    def on_click(self, event: events.Click) -> None:
        """Choose the message under the mouse, unless the mouse selected text. A double click selects a word.

        A click on the fold line expands or collapses the message.
        """
        # Otherwise Textual selects all messages at a double click, and at a second drag to the same position.
        event.prevent_default()
        if self.text_selection is not None:
            return
        row = self._row_at(event.y)
        if event.chain == 2 and row is not None and not row.is_fold:
            self._mark_word(row, event)
            return
        self._choose(None if row is None else row.message, by_mouse=True)
        if row is not None and row.message is not None and row.is_fold:
            self._expand(row.message, is_expanded=not self.timeline.is_expanded(row.message))

    # --- drawing -------------------------------------------------------------------------------

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Use the full height."""
        del viewport, width
        return container.height

    @property
    def _first(self) -> int:
        """Index of the row in the first line of the view, negative if blank lines are above all rows."""
        return self.top - max(0, self.size.height - len(self._rows))

    def _row_at(self, y: int) -> Row | None:
        at = self._first + y
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines of a region of the view."""
        self._drawing = self._new_drawing()
        strips = super().render_lines(crop)
        self._drawing = None
        return strips

    def render_line(self, y: int) -> Strip:
        """Return a line of the view."""
        return (self._drawing or self._new_drawing()).line(y)

    def _new_drawing(self) -> MessageDrawing:
        return MessageDrawing(
            timeline=self.timeline,
            rows=self._rows,
            first=self._first,
            size=self.size,
            column=self.content_region.x,
            name_width=self._name_width,
            base=self.rich_style,
            style=self._style,
            own_key=self.own_key,
            chosen=None if self.chosen is None else self.chosen.hash,
            mentions=self._mentions,
            mark=self._mark,
            mark_style=self.screen.get_component_rich_style("screen--selection"),
            note=self._note,
            position="" if self.is_at_end else self._position,
        )

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"messages--{name}", partial=True)

    @property
    def _position(self) -> str:
        """Text of the last line while the view is not at the end: its position, and the key that scrolls to the end."""
        row = next((row for row in self._rows[self.top :] if row.message is not None), None)
        when = ""
        if row is not None and row.message is not None:
            moment = local(row.message.timestamp_ms, self._zone)
            when = f"{moment.day} {moment:%B %Y, %H:%M}, "
        return f"{when}{self._newest_key} shows the newest"

    # --- selecting with the mouse --------------------------------------------------------------

    @property
    def _mark(self) -> MarkedPart | None:
        """Selected part, limited to the view if the mouse went beyond it, or None without a selection."""
        if (selection := self.text_selection) is None:
            return None
        start = selection.start or Offset(0, self.top)
        end = selection.end or Offset(sys.maxsize, self.top + self.size.height - 1)
        return MarkedPart(start.y, start.x, end.y, end.x)

    def _mark_word(self, row: Row, event: events.Click) -> None:
        _, at = self.screen.get_widget_and_offset_at(event.screen_x, event.screen_y)
        word = None if at is None else word_at(row.text, at.x)
        if at is not None and word is not None:
            self.screen.selections = {self: Selection(Offset(word.start, at.y), Offset(word.stop, at.y))}

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text and the text that follows it, or None without a selection."""
        del selection  # Textual's value
        return None if (mark := self._mark) is None else (marked_text(self._rows, mark), "\n")
