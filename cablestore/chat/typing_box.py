"""The box that one types into: Enter sends, Tab completes, the arrow keys bring back what was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textual import events
from textual.widgets import TextArea

from cablestore.chat.commands import SentTexts
from cablestore.chat.safe_text import clean

_LINE_BREAKS: Final = frozenset({"ctrl+j", "shift+enter", "alt+enter"})


class TypingBox(TextArea):
    """One line that grows while a message has several."""

    def __init__(self, complete: Callable[[str], list[str]], send: Callable[[str], object], widget_id: str) -> None:
        """Give what is sent to `send`, at once: what is shown may have changed when a message of Textual comes.

        `restore` brings back a text that could not be sent.
        """
        super().__init__(compact=True, highlight_cursor_line=False, placeholder="Write a message", id=widget_id)
        self._complete = complete
        self._give = send
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
        key = event.key
        if key != "tab":
            self._candidates = []
        if key == "enter":
            self._send()
        elif key in _LINE_BREAKS:
            self.insert("\n")
        elif key == "tab":
            self._complete_word()
        elif not ((key == "up" and self._recall(-1)) or (key == "down" and self._recall(1))):
            return  # Textual calls TextArea's own handler next
        event.stop()
        event.prevent_default()

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
        self.insert(clean(event.text, lines=True))

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
