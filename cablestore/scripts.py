"""Unicode properties of characters for search, mentions and names, from the tables of `regex`."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import regex

_SPACELESS: Final = (
    r"[\p{Line_Break=SA}\p{Line_Break=AK}\p{Line_Break=AP}\p{Line_Break=AS}"  # Thai, Khmer, Balinese and others
    r"\p{Script=Tibetan}\p{scx=Hani}\p{scx=Hira}\p{scx=Kana}\p{Script=Bopomofo}&&[\p{L}\p{N}]--\p{Nd}]"
)
"""Letters of scripts without spaces between words. For the first four, Unicode line breaking needs a dictionary."""
_PICTURE: Final = r"\p{Extended_Pictographic}(?:[\uFE0E\uFE0F\p{EMod}]|[\U000E0020-\U000E007F])*"
_EMOJI: Final = rf"[0-9#*]\uFE0F?\u20E3|\p{{RI}}{{2}}|{_PICTURE}(?:\u200D{_PICTURE})*|[\p{{RI}}\p{{EMod}}]"
"""Keycap, flag, or sequence of pictures (UTS #51); also halves of flags and skin tones on their own."""
_KOREAN_LETTER: Final = re.compile("[\u3131-\u3163\u3165-\u318e\uffa1-\uffdc]")

_FILLERS: Final = "\u115f\u1160\u3164\uffa0"
"""Invisible Korean letters."""


@cache
def pattern(source: str) -> regex.Pattern[str]:
    """Return a compiled pattern. The first call imports `regex`, which takes 30 ms and is often not needed."""
    import regex  # noqa: PLC0415 - see above

    return regex.compile(source, regex.VERSION1)


def emoji() -> regex.Pattern[str]:
    """Return a pattern that matches one whole emoji."""
    return pattern(_EMOJI)


def emoji_or_cluster() -> regex.Pattern[str]:
    """Return a pattern that splits a text into emoji and grapheme clusters."""
    return pattern(rf"{_EMOJI}|\X")


def korean_letters_apart(text: str) -> str:
    """Return a text with spaces around single Korean letters, which NFKC would otherwise combine into syllables."""
    return _KOREAN_LETTER.sub(r" \g<0> ", text)


@lru_cache(maxsize=4096)
def is_spaceless(character: str) -> bool:
    """Return True for a letter of a script without spaces between words."""
    return not character.isascii() and pattern(_SPACELESS).match(character) is not None


@lru_cache(maxsize=4096)
def has_attached_words(character: str) -> bool:
    """Return True for a letter of a script whose words, such as particles, may follow a word without a space."""
    return not character.isascii() and pattern(rf"[{_SPACELESS}[\p{{scx=Hang}}&&\p{{L}}]]").match(character) is not None


@lru_cache(maxsize=4096)
def is_latin(character: str) -> bool:
    """Return True for a Latin letter, or a mark that may follow a letter of any script."""
    if character.isascii():
        return character.isalpha()
    return pattern(r"\p{Script=Latin}|[\p{M}&&\p{Script=Inherited}]").match(character) is not None


def is_invisible(text: str) -> bool:
    """Return True if a text contains only spaces, control and format characters, fillers and marks."""
    if any(character.isalnum() and character not in _FILLERS for character in text):
        return False  # fast path without `regex` for most names
    return pattern(r"[\p{Z}\p{Cc}\p{Cf}\p{M}\p{DI}\u2800]*").fullmatch(text) is not None
