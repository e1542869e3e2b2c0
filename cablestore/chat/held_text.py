"""Drawing of text whose width differs between terminals, without moving the adjacent text.

Textual cuts and colours lines before it writes them. Cursor movements are therefore encoded as zero-width characters
that clean text never contains. The terminal driver replaces them with escape sequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import wcwidth
from rich.cells import cell_len
from rich.segment import ControlType, Segment
from rich.style import Style

from cablestore.chat.safe_text import most_cells

_BLANKS: Final = "\x8a"
_COLUMN: Final = "\x8b"
_DIGITS: Final = "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89"
_TO_SIGNS: Final = str.maketrans("0123456789", _DIGITS)
_TO_DIGITS: Final = str.maketrans(_DIGITS, "0123456789")
_SIGNS: Final = re.compile(f"([{_BLANKS}{_COLUMN}])([{_DIGITS}]+)")


def is_sure(text: str) -> bool:
    """Return True if all terminals draw clean text in the same number of cells."""
    return text.isascii() or cell_len(text) == wcwidth.width(text) == most_cells(text)


def held_text(parts: Sequence[Segment], base: Style, width: int, column: int) -> list[Segment]:
    """Return the parts of a clean text as segments of exactly `width` cells, with blanks in the style `base`.

    The text begins at `column` of the terminal, counted from 0. If the width of the text is uncertain, the cells are
    first filled with blanks. Then the cursor is moved to the first cell, and after the text behind the last cell. A
    terminal that draws more or fewer cells than counted therefore does not move other text.
    """
    text = "".join(part.text for part in parts)
    rest = width - cell_len(text)
    if is_sure(text) or rest < 0:
        return [*parts, Segment(" " * rest, base)] if rest > 0 else [*parts]
    return [
        Segment(" " * rest, base),
        Segment(_sign(_BLANKS, width - rest) + _sign(_COLUMN, column + 1), base, _CONTROL),
        *parts,
        Segment(_sign(_COLUMN, column + width + 1), base, _CONTROL),
    ]


def with_sequences(output: str) -> str:
    """Return the output with blanks and cursor movements in place of their encodings."""
    return _SIGNS.sub(_sequence, output)


def _sign(kind: str, number: int) -> str:
    return kind + str(number).translate(_TO_SIGNS)


def _sequence(match: re.Match[str]) -> str:
    number = int(match[2].translate(_TO_DIGITS))
    return " " * number if match[1] == _BLANKS else f"\x1b[{number}G"


_CONTROL: Final = ((ControlType.CURSOR_MOVE_TO_COLUMN, 0),)
"""Control codes that Rich and Textual measure as zero-width cursor movements."""
