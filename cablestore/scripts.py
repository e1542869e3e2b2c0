"""Scripts: what Unicode says of a character where search, mentions and names need it. `regex` has the tables."""

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
"""Letters of scripts without spaces between words: the line breaking of Unicode needs a dictionary for the first four."""
_PICTURE: Final = r"\p{Extended_Pictographic}(?:[\uFE0E\uFE0F\p{EMod}]|[\U000E0020-\U000E007F])*"
_EMOJI: Final = rf"[0-9#*]\uFE0F?\u20E3|\p{{RI}}{{2}}|{_PICTURE}(?:\u200D{_PICTURE})*|[\p{{RI}}\p{{EMod}}]"
"""Keycap, flag, or pictures in a sequence (UTS #51); halves of flags and colours of skin that are alone."""
_KOREAN_LETTER: Final = re.compile("[\u3131-\u3163\u3165-\u318e\uffa1-\uffdc]")

_FILLERS: Final = "\u115f\u1160\u3164\uffa0"
"""Korean letters that are invisible."""


@cache
def pattern(source: str) -> regex.Pattern[str]:
    """Return a compiled pattern. `regex` is imported with the first one: that takes 30 ms, and many texts need none."""
    import regex  # noqa: PLC0415 - see above

    return regex.compile(source, regex.VERSION1)


def emoji() -> regex.Pattern[str]:
    """Return a pattern that matches one emoji, whole."""
    return pattern(_EMOJI)


def emoji_or_cluster() -> regex.Pattern[str]:
    """Return a pattern that cuts a text into emoji and grapheme clusters."""
    return pattern(rf"{_EMOJI}|\X")


def korean_letters_apart(text: str) -> str:
    """Return a text with spaces around single Korean letters: NFKC would combine them to syllables."""
    return _KOREAN_LETTER.sub(r" \g<0> ", text)


@lru_cache(maxsize=4096)
def is_spaceless(character: str) -> bool:
    """Tell whether a character is a letter of a script without spaces between words."""
    return not character.isascii() and pattern(_SPACELESS).match(character) is not None


@lru_cache(maxsize=4096)
def has_attached_words(character: str) -> bool:
    """Tell whether words of the script of a letter, such as particles, follow another word without a space."""
    return not character.isascii() and pattern(rf"[{_SPACELESS}[\p{{scx=Hang}}&&\p{{L}}]]").match(character) is not None


@lru_cache(maxsize=4096)
def is_latin(character: str) -> bool:
    """Tell whether a character is a Latin letter, or a mark that any letter may have."""
    if character.isascii():
        return character.isalpha()
    return pattern(r"\p{Script=Latin}|[\p{M}&&\p{Script=Inherited}]").match(character) is not None


def is_invisible(text: str) -> bool:
    """Tell whether nothing of a text is seen: it has only spaces, control and format characters, fillers and marks."""
    if any(character.isalnum() and character not in _FILLERS for character in text):
        return False  # most names, without `regex`
    return pattern(r"[\p{Z}\p{Cc}\p{Cf}\p{M}\p{DI}\u2800]*").fullmatch(text) is not None
