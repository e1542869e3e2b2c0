"""Text of others as cells of a terminal: without characters that control it, and wrapped to a width."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from rich.cells import cell_len, chop_cells

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MAX_MARKS: Final = 2
"""Marks above and below one character: a hundred of them would paint over the lines around."""
_JOINERS: Final = frozenset("\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}\N{SOFT HYPHEN}\ufeff\ufe0e\ufe0f")
"""Terminals disagree on how wide text with these is, so they are left out."""
_HOSTILE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_TAB_WIDTH: Final = 4
_WIDE: Final = (
    "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6\U00020000-\U0003fffd"
)
_WORD: Final = re.compile(rf" *(?:[{_WIDE}]|[^ {_WIDE}]+|$) *")


def clean(text: str, *, lines: bool = False) -> str:
    """Return text that moves no cursor, turns no direction and has no markup of terminals.

    With `lines` line breaks stay, and tabs become spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    if lines:
        text = text.replace("\r\n", "\n").replace("\t", " " * _TAB_WIDTH)
    found: list[str] = []
    marks = 0
    for character in text:
        if character in _JOINERS:
            continue
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in {"Mn", "Me"} else 0
        if marks > _MAX_MARKS:
            continue
        is_break = lines and character == "\n"
        found.append(_REPLACEMENT if kind in _HOSTILE and not is_break else character)
    return "".join(found)


def fit(text: str, width: int) -> str:
    """Return one line of text cut to a width in cells, with an ellipsis where something is missing."""
    if cell_len(text) <= width:
        return text
    return (chop_cells(text, width - 1)[0] + "…") if width > 1 else "…"[:width]


def wrap(text: str, width: int) -> list[str]:
    """Return clean text as lines of at most `width` cells, broken between words where that is possible."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        if paragraph.isascii() and len(paragraph) <= width:
            lines.append(paragraph)
            continue
        lines += _wrapped(paragraph, max(width, 2))
    return lines


def _wrapped(paragraph: str, width: int) -> list[str]:
    lines: list[str] = []
    line, used = "", 0
    for word in _words(paragraph):
        size = cell_len(word)
        if used + cell_len(word.rstrip()) <= width:
            line, used = line + word, used + size
            continue
        if line:
            lines.append(line.rstrip())
        pieces = chop_cells(word, width) if cell_len(word.rstrip()) > width else [word]
        lines += pieces[:-1]
        line = pieces[-1]
        used = cell_len(line)
    return [*lines, line.rstrip()]


def _words(paragraph: str) -> list[str]:
    """Return the words with the spaces after them. Lines may break after any character that is two cells wide."""
    return _WORD.findall(paragraph)
