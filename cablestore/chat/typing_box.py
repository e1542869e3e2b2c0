"""The box that one types into: Enter sends, Tab completes, the arrow keys bring back what was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textual import events
from textual.message import Message as UiMessage
from textual.widgets import TextArea
from textual.widgets.text_area import Document, DocumentNavigator, Edit, EditResult, Location, WrappedDocument

from cablestore.chat.amounts import MAX_TYPED
from cablestore.chat.commands import SentTexts
from cablestore.chat.message_list import MessageList
from cablestore.chat.typed_text import as_typed

_LINE_BREAKS: Final = frozenset({"ctrl+j", "shift+enter", "alt+enter"})


class TextTooLong(UiMessage):
    """A text was not inserted because the box would hold too much."""


class TypingBox(TextArea):
    """One line that grows while a message has several. It gets all keys that are not for another part of the screen."""

    def __init__(
        self,
        complete: Callable[[str], list[str]],
        send: Callable[[str], object],
        messages: MessageList,
        widget_id: str,
    ) -> None:
        """Give what is sent to `send`, at once: what is shown may have changed when a message of Textual comes.

        Keys for the chosen message go to `messages` first, in the order in which they were pressed.
        `restore` brings back a text that could not be sent.
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
        """Show a text again that could not be sent. If another one is being typed, the up arrow brings it back."""
        if not self.text:
            self.text = text
            self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        key, typed = event.key, typed_by(event)
        if key != "tab":
            self._candidates = []
        if self._messages.take_key(key, is_typing=bool(self.text.strip())):
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
            return  # Textual calls TextArea's own handler next
        event.stop()
        event.prevent_default()

    def type(self, text: str) -> None:
        """Insert a text at the cursor, in place of what is selected."""
        if len(text) + len(self.text) > MAX_TYPED:
            self.post_message(TextTooLong())
        else:
            self.move_cursor(self.replace(text, *self.selection).end_location)

    def edit(self, edit: Edit) -> EditResult:
        """Change the text. One that types acts on no chosen message any more."""
        self._messages.choose_none()
        return super().edit(edit)

    def show(self, text: str) -> None:
        """Show a text that was begun earlier."""
        self.text = self._begun = text
        self.move_cursor(self.document.end)

    def take_draft(self) -> str | None:
        """Return the text if it was changed since it was shown or taken."""
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
        """Insert what was copied in the client."""
        self.type(as_typed(self.app.clipboard))

    def _set_document(self, text: str, language: str | None) -> None:
        super()._set_document("", language)
        self.document = _Lines(text)
        self.wrapped_document = WrappedDocument(self.document, tab_width=self.indent_width)
        self.navigator = DocumentNavigator(self.wrapped_document)
        self.move_cursor((0, 0))
        self._rewrap_and_refresh_virtual_size()

    def _recall(self, by: int) -> bool:
        """Show the text that was sent before or after. False in the middle of a text, where the cursor moves."""
        row = self.cursor_location[0]
        if row != (0 if by < 0 else self.document.line_count - 1):
            return False
        found = self._history.step(by, self.text)
        if found is not None:
            self.text = found
            self.move_cursor(self.document.end)
        return found is not None or by > 0

    def _complete_word(self) -> None:
        """Complete the word at the cursor; pressed again, show the next possibility."""
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
    """Text of the box. Lines end at line feeds alone: U+2028 and others like it are characters that are sent."""

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
    """Return the text that a key types, "" if it types none."""
    return as_typed(event.character or "").strip("\r\n\t")
