"""The messages of a channel on the screen: only rows in view are drawn, and pages are asked for ahead."""

from __future__ import annotations

from datetime import tzinfo
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message as UiMessage
from textual.strip import Strip
from textual.widget import Widget

from cablestore.chat.timeline import Row, Timeline, local
from cablestore.store.display import Message

_WHEEL_ROWS: Final = 3
AUTHOR_COLOURS: Final = 6
_WIDE: Final = 60
"""From this width on, names have more room."""


class MessageList(Widget, can_focus=True):
    """A view of a `Timeline`. With the focus, the arrow keys choose a message."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "messages--time",
        "messages--day",
        "messages--note",
        "messages--mention",
        "messages--chosen",
        "messages--own",
        *(f"messages--author-{number}" for number in range(AUTHOR_COLOURS)),
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", "Message above", show=False),
        Binding("down", "choose(1)", "Message below", show=False),
        Binding("home", "oldest", "Oldest", show=False),
        Binding("end", "newest", "Newest", show=False),
    ]

    class PageWanted(UiMessage):
        """The view comes near an end of what is held."""

        def __init__(self, *, older: bool) -> None:
            super().__init__()
            self.older = older

    class EndWanted(UiMessage):
        """The view shall go to an end of the channel that is not held."""

        def __init__(self, *, oldest: bool) -> None:
            super().__init__()
            self.oldest = oldest

    def __init__(self, zone: tzinfo | None, widget_id: str) -> None:
        super().__init__(id=widget_id)
        self.timeline = Timeline(zone)
        self._zone = zone
        self._rows: list[Row] = []
        self._top = 0
        """The row at the top of the view, while it is not at the end."""
        self.is_at_end = True
        """Whether the view follows new messages."""
        self.chosen: Message | None = None
        self.mentions: frozenset[bytes] = frozenset()
        """The hashes of messages that name the user."""
        self.own_key = b""
        """The key of the user, whose messages have no colour."""
        self.is_loading = False
        """Whether a page is on its way."""
        self.note = ""
        """What is shown in place of messages, if there is none."""

    # --- what is shown -------------------------------------------------------------------------

    def clear(self) -> None:
        """Show another channel, from its end."""
        self.timeline = Timeline(self._zone)
        self.chosen, self.is_at_end, self._top, self.is_loading = None, True, 0, False
        self.update_rows()

    def update_rows(self) -> None:
        """Draw what the timeline holds now. The first message in view stays where it is."""
        anchor = self._anchor()
        self._lay_out()
        if not self.is_at_end and anchor is not None:
            self._top = self._row_of(anchor[0]) + anchor[1]
        self._keep_in_bounds()
        if self.chosen is not None and not self.is_at_end:
            self.chosen = next((m for m in self.timeline.messages if m.hash == self.chosen.hash), None)
        self.refresh()

    def _lay_out(self) -> None:
        self._rows = self.timeline.rows(self.size.width, self._name_width) if self.size.width else []

    @property
    def _name_width(self) -> int:
        return 12 if self.size.width >= _WIDE else 9

    @property
    def _last_top(self) -> int:
        return max(0, len(self._rows) - self.size.height)

    @property
    def top(self) -> int:
        """The row at the top of the view."""
        return self._last_top if self.is_at_end else self._top

    def _anchor(self) -> tuple[str, int] | None:
        """Return the place of the first message in view, and how far below its first row the view begins."""
        for at in range(self.top, len(self._rows)):
            message = self._rows[at].message
            if message is not None:
                return message.cursor, self.top - self._row_of(message.cursor)
        return None

    def _row_of(self, cursor: str) -> int:
        """Return the first row of the message at a place, or of the next one if it is gone."""
        for at, row in enumerate(self._rows):
            if row.message is not None and row.message.cursor >= cursor:
                return at
        return len(self._rows)

    def _keep_in_bounds(self) -> None:
        self._top = max(0, min(self._top, self._last_top))
        if self._top == self._last_top and not self.timeline.has_newer:
            self.is_at_end = True

    def on_resize(self, _: events.Resize) -> None:
        """Wrap again for the new width."""
        self.update_rows()

    # --- moving --------------------------------------------------------------------------------

    def scroll_rows(self, by: int) -> None:
        """Move the view by rows, down with a positive number."""
        self._top = self.top + by
        self.is_at_end = False
        self._keep_in_bounds()
        self.refresh()
        self._ask_for_pages()

    def _ask_for_pages(self) -> None:
        if self.is_loading:
            return
        ahead = 3 * max(self.size.height, 1)
        if self.top < ahead and self.timeline.has_older and not (self.is_at_end and self._last_top >= ahead):
            self.is_loading = True
            self.post_message(self.PageWanted(older=True))
        elif self.top + self.size.height > len(self._rows) - ahead and self.timeline.has_newer:
            self.is_loading = True
            self.post_message(self.PageWanted(older=False))

    def page_came(self) -> None:
        """Draw a page that was asked for, and ask for the next one if the view is still near the end."""
        self.is_loading = False
        self.update_rows()
        self._ask_for_pages()

    def action_scroll_pages(self, by: int) -> None:
        """Move the view by screens."""
        self.scroll_rows(by * max(1, self.size.height - 2))

    def action_oldest(self) -> None:
        """Go to the beginning of the channel."""
        if self.timeline.has_older:
            self.post_message(self.EndWanted(oldest=True))
        else:
            self.show_start()

    def action_newest(self) -> None:
        """Go to the end of the channel, and follow it."""
        self.chosen = None
        if self.timeline.has_newer:
            self.post_message(self.EndWanted(oldest=False))
        else:
            self.is_at_end = True
            self.refresh()

    def show_start(self) -> None:
        """Show the first row that is held."""
        self.is_at_end, self._top = False, 0
        self._lay_out()
        self._keep_in_bounds()
        self.refresh()

    def show_message(self, message: Message) -> None:
        """Choose a message that is held, and show it in the middle."""
        self.is_at_end = False
        self._lay_out()
        self._top = self._row_of(message.cursor) - self.size.height // 2
        self._keep_in_bounds()
        self.focus()
        self._choose(message)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move the view by the wheel."""
        event.stop()
        self.scroll_rows(-_WHEEL_ROWS)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move the view by the wheel."""
        event.stop()
        self.scroll_rows(_WHEEL_ROWS)

    # --- choosing ------------------------------------------------------------------------------

    def action_choose(self, by: int) -> None:
        """Choose the message above or below."""
        held = self.timeline.messages
        if not held:
            return
        places = {message.hash: at for at, message in enumerate(held)}
        at = places.get(self.chosen.hash) if self.chosen is not None else None
        self._choose(held[self._last_in_view(places) if at is None else max(0, min(at + by, len(held) - 1))])

    def _last_in_view(self, places: dict[bytes, int]) -> int:
        shown = self._rows[self.top : self.top + self.size.height]
        found = [places[row.message.hash] for row in shown if row.message is not None]
        return found[-1] if found else len(places) - 1

    def _choose(self, message: Message | None) -> None:
        self.chosen = message
        if message is not None:
            first = self._row_of(message.cursor)
            last = first
            while last + 1 < len(self._rows) and self._rows[last + 1].message is message:
                last += 1
            if first < self.top:
                self.scroll_rows(first - self.top)
            elif last >= self.top + self.size.height:
                self.scroll_rows(last - self.top - self.size.height + 1)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Choose the message under the mouse."""
        row = self._row_at(event.y)
        self._choose(None if row is None else row.message)

    def on_blur(self) -> None:
        """Choose nothing."""
        self.chosen = None
        self.refresh()

    # --- drawing -------------------------------------------------------------------------------

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Take all the room."""
        del viewport, width
        return container.height

    def _row_at(self, y: int) -> Row | None:
        at = self.top + y - max(0, self.size.height - len(self._rows))
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def render_line(self, y: int) -> Strip:
        """Return a line of the view. Few messages are at its bottom, next to where one types."""
        width, base = self.size.width, self.rich_style
        if not self.is_at_end and y == self.size.height - 1:
            return self._position(width)
        row = self._row_at(y)
        if row is None:
            text = self.note if y == self.size.height - 1 and not self._rows else ""
            return Strip([Segment(text, base + self._style("note"))]).adjust_cell_length(width, base)
        if row.message is None:
            return self._day_line(row.text, width)
        name, when = row.name, row.time
        if y == 0 and not name:  # the author of what goes on from above
            name, when = self.timeline.name_of(row.message, self._name_width), self.timeline.time_of(row.message)
        is_chosen = self.chosen is not None and row.message.hash == self.chosen.hash
        if is_chosen:
            base += self._style("chosen")
        author = row.message.author
        name_style = base + self._style("own" if author == self.own_key else f"author-{author_colour(author)}")
        text_style = base + self._style("note") if row.message.is_hidden else base
        if row.message.hash in self.mentions:
            text_style = base + self._style("mention")
        strip = Strip(
            [
                Segment(f"{when:<5} ", base + self._style("time")),
                *_padded(name, self._name_width, name_style, base),
                Segment(" ", base),
                Segment(row.text, text_style),
            ]
        )
        return strip.adjust_cell_length(width, base)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"messages--{name}", partial=True)

    def _day_line(self, text: str, width: int) -> Strip:
        style = self.rich_style + self._style("day")
        line = f" {text} ".center(width, "─")
        return Strip([Segment(line, style)]).adjust_cell_length(width, style)

    def _position(self, width: int) -> Strip:
        """Return the last line while the view is not at the end: where it is, and how to get back."""
        style = self.rich_style + self._style("day")
        row = next((row for row in self._rows[self.top :] if row.message is not None), None)
        when = ""
        if row is not None and row.message is not None:
            moment = local(row.message.timestamp_ms, self._zone)
            when = f"{moment.day} {moment:%B %Y, %H:%M}, "
        return Strip([Segment(f" {when}End for the newest ".center(width, "─"), style)]).adjust_cell_length(
            width, style
        )


def _padded(name: str, width: int, style: Style, base: Style) -> list[Segment]:
    """Return a name aligned right, as cells."""
    segment = Segment(name, style)
    return [Segment(" " * max(0, width - segment.cell_length), base), segment]


def author_colour(public_key: bytes) -> int:
    """Return the number of the colour of an author. It depends on the public key alone."""
    return public_key[0] % AUTHOR_COLOURS
