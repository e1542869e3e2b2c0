"""Text of messages selected with the mouse, as it is copied: without times, names and screen line breaks. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from cablestore.chat.safe_text import clean
from cablestore.chat.timeline import Row
from cablestore.chat.typed_text import as_typed
from cablestore.store.display import Message


class MarkedPart(NamedTuple):
    """Selected part of the rows: from a character of the row `top` to a character of the row `bottom`."""

    top: int
    left: int
    bottom: int
    right: int

    def part_of(self, at: int, size: int) -> slice:
        """Return the selected characters of a row of `size` characters."""
        start = self.left if at == self.top else 0 if self.top < at <= self.bottom else size
        end = self.right if at == self.bottom else size
        return slice(max(0, min(start, size)), max(0, min(end, size)))


def copied(message: Message) -> str:
    """Return the text of a message for the clipboard, without control characters, which would act in other programs."""
    return "" if message.is_hidden else as_typed(message.text)


def word_at(text: str, at: int) -> slice | None:
    """Return the word around a character of a row, or None at a space."""
    words = (match.span() for match in re.finditer(r"\S+", text))
    return next((slice(start, end) for start, end in words if start <= at < end), None)


def marked_text(rows: Sequence[Row], mark: MarkedPart) -> str:
    """Return the selected text. A fully selected message is copied as it was written."""
    texts: list[str] = []
    at = max(mark.top, 0)
    while at <= min(mark.bottom, len(rows) - 1):
        message = rows[at].message
        if message is None:
            at += 1
            continue
        first, end = _rows_of(rows, at)
        texts.append(
            _text_of(message, rows[first:end], mark._replace(top=mark.top - first, bottom=mark.bottom - first))
        )
        at = end
    return "\n".join(text for text in texts if text)


def _rows_of(rows: Sequence[Row], at: int) -> tuple[int, int]:
    """Return the index of the first row of the message to which row `at` belongs, and the index after its last row."""
    first, end = at, at + 1
    while first and rows[first - 1].message is rows[at].message:
        first -= 1
    while end < len(rows) and rows[end].message is rows[at].message:
        end += 1
    return first, end


def _text_of(message: Message, rows: Sequence[Row], mark: MarkedPart) -> str:
    if message.is_hidden:
        return ""
    parts = [mark.part_of(at, len(row.text)) for at, row in enumerate(rows)]
    if all(part == slice(0, len(row.text)) for part, row in zip(parts, rows, strict=True)):
        return copied(message)
    shown, found, place = clean(message.text, lines=True), "", 0
    for row, part in zip(rows, parts, strict=True):
        if row.is_fold:
            continue
        start = shown.find(row.text, place)
        between = shown[place:start] if start >= 0 else "\n"
        if found and part.start == 0 and part.stop:
            found += between
        found += row.text[part]
        place = max(start, place) + len(row.text)
    return as_typed(found)
