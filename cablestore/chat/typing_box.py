"""Typing box: Enter sends, Tab completes, and the arrow keys recall sent text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textual import events
from textual.message import Message as UiMessage
from textual.widgets import TextArea
from textual.widgets.text_area import Document, DocumentNavigator, Edit, EditResult, Location, WrappedDocument

from cablestore.chat.commands import SentTexts
from cablestore.chat.display_limits import MAX_TYPED
from cablestore.chat.message_list import MessageList
from cablestore.chat.typed_text import as_typed

_LINE_BREAKS: Final = frozenset({"ctrl+j", "shift+enter", "alt+enter"})


class TextTooLong(UiMessage):
    """A text was rejected because the box would contain more than MAX_TYPED characters."""


class TypingBox(TextArea):
    """Box that grows with the lines of a message. It receives all keys that do not belong to another widget."""

    def __init__(
        self,
        complete: Callable[[str], list[str]],
        send: Callable[[str], object],
        messages: MessageList,
        widget_id: str,
    ) -> None:
        """Pass sent text to `send` immediately, because the shown channel may change before a Textual message arrives.

        `messages` receives each key first, and handles the keys for the chosen message in the order of the presses.
        """
        super().__init__(compact=True, highlight_cursor_line=False, placeholder="Write a message", id=widget_id)
        self._complete = complete
        self._give = send
        self._messages = messages
        self._history = SentTexts()
        self._candidates: list[str] = []
        self._candidate = 0
        self._rest = ""
        self._begun = ""

    def restore(self, text: str) -> None:
        """Show a text that could not be sent. If the box contains another text, only the up arrow recalls it."""
        if not self.text:
            self.text = text
            self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        key, typed = event.key, typed_by(event)
        if key != "tab":
            self._candidates = []
        if self._messages.handle_message_key(key, is_typing=bool(self.text.strip())):
            pass
        elif key == "enter":
            self._send()
        elif key in _LINE_BREAKS:
            self.type("\n")
        elif key == "tab":
            self._complete_word()
        elif typed and not event.is_printable:  # a joiner, a no-break or ideographic space: Textual ignores them
            self.type(typed)
        elif not ((key == "up" and self._recall(-1)) or (key == "down" and self._recall(1))):
            return  # Textual calls TextArea's handler next
        event.stop()
        event.prevent_default()

    def type(self, text: str) -> None:
        """Insert a text at the cursor, and replace the selection."""
        if len(text) + len(self.text) > MAX_TYPED:
            self.post_message(TextTooLong())
        else:
            self.move_cursor(self.replace(text, *self.selection).end_location)

    def edit(self, edit: Edit) -> EditResult:
        """Change the text, and clear the choice of a message."""
        self._messages.choose_none()
        return super().edit(edit)

    def show(self, text: str) -> None:
        """Show a draft."""
        self.text = self._begun = text
        self.move_cursor(self.document.end)

    def take_draft(self) -> str | None:
        """Return the text if it was changed since it was shown or taken, otherwise None."""
        is_changed, self._begun = self.text != self._begun, self.text
        return self.text if is_changed else None

    def _send(self) -> None:
        text = self.text
        if text.strip():
            self._history.add(text)
            self.clear()
            self._give(text)

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.type(as_typed(event.text))

    def action_paste(self) -> None:
        """Insert text that was copied in the client."""
        self.type(as_typed(self.app.clipboard))

    def _set_document(self, text: str, language: str | None) -> None:
        super()._set_document("", language)
        self.document = _Lines(text)
        self.wrapped_document = WrappedDocument(self.document, tab_width=self.indent_width)
        self.navigator = DocumentNavigator(self.wrapped_document)
        self.move_cursor((0, 0))
        self._rewrap_and_refresh_virtual_size()

    def _recall(self, by: int) -> bool:
        """Recall the previous sent text if `by` is -1, or the next if `by` is 1.

        Return False if the cursor must move instead: inside a text, or without a previous sent text.
        """
        row = self.cursor_location[0]
        if row != (0 if by < 0 else self.document.line_count - 1):
            return False
        found = self._history.step(by, self.text)
        if found is not None:
            self.text = found
            self.move_cursor(self.document.end)
        return found is not None or by > 0

    def _complete_word(self) -> None:
        """Complete the word at the cursor. Repeated presses show further completions."""
        if not self._candidates:
            end = self.cursor_location
            self._rest = self.get_text_range(end, self.document.end)
            self._candidates = self._complete(self.get_text_range((0, 0), end))
            self._candidate = -1
        if self._candidates:
            self._candidate = (self._candidate + 1) % len(self._candidates)
            found = self._candidates[self._candidate]
            self.text = found + self._rest
            lines = found.split("\n")
            self.move_cursor((len(lines) - 1, len(lines[-1])))


class _Lines(Document):
    """Text of the box. Only line feeds end lines; U+2028 and similar characters are sent as they are."""

    def __init__(self, text: str) -> None:
        super().__init__("")
        self._lines = text.split("\n")

    def replace_range(self, start: Location, end: Location, text: str) -> EditResult:
        """Replace the text between two locations."""
        (top, left), (bottom, right) = sorted((start, end))
        replaced = self.get_text_range(start, end)
        lines = (self._lines[top][:left] + text).split("\n")
        end_location = (top + len(lines) - 1, len(lines[-1]))
        lines[-1] += self._lines[bottom][right:]
        self._lines[top : bottom + 1] = lines
        return EditResult(end_location, replaced)


def types(event: events.Event) -> bool:
    """Return True for a key or a paste that is part of a text."""
    return isinstance(event, events.Paste) or (isinstance(event, events.Key) and bool(typed_by(event)))


def typed_by(event: events.Key) -> str:
    """Return the text that a key types, or "" for other keys."""
    return as_typed(event.character or "").strip("\r\n\t")
