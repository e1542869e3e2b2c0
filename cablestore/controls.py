"""Removal of characters that control a terminal from other users' text. All other characters are kept.

Invisible characters that are part of words are kept: joiners, variation selectors, direction marks, zero width spaces.
These characters do not move the cursor, and do not change the direction of other lines.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Final

MAX_MARKS: Final = 30
"""Maximum number of marks on one character, as in Unicode's Stream-Safe Text Format (UAX #15)."""
_CONTROLS: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNS: Final = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""Bidirectional classes of the characters that embed, override or isolate. An unclosed character affects the text after
it."""
_MARKS: Final = frozenset({"Mn", "Me"})


def controls_replaced(text: str, replacement: Callable[[str], str]) -> str:
    """Replace each character that controls a terminal or changes the direction of a line.

    Marks after the first MAX_MARKS of a character are removed.
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
