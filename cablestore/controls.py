"""Text of others without the characters that control a terminal. All other characters stay as their authors wrote them.

Invisible characters that words are made of stay: joiners, variation selectors, direction marks, zero width spaces. They
move no cursor, and none of them changes the direction of another line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Final

MAX_MARKS: Final = 30
"""Marks on one character. Unicode's Stream-Safe Text Format (UAX #15) has the same limit: no language needs more."""
_CONTROLS: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNS: Final = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""Bidirectional classes of the characters that embed, override or isolate. One that is not closed turns the rest."""
_MARKS: Final = frozenset({"Mn", "Me"})


def controls_replaced(text: str, replacement: Callable[[str], str]) -> str:
    """Return text with a replacement for each character that controls a terminal or turns the direction of a line.

    Marks after the first MAX_MARKS of a character are left out.
    """
    if text.isascii() and text.isprintable():
        return text
    found: list[str] = []
    marks = 0
    for character in text:
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in _MARKS else 0
        if marks <= MAX_MARKS:
            is_control = kind in _CONTROLS or unicodedata.bidirectional(character) in _TURNS
            found.append(replacement(character) if is_control else character)
    return "".join(found)
