"""Naming: whether a text names a user, by `@name`, by the name as a word, or by the first digits of the key."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

KEY_DIGITS: Final = 8
"""Hex digits of a public key that name its user: clients show this many for a user without a name. By chance a word of
eight hex digits names a given user once in 4,000 million."""
_SPACELESS: Final = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
"""Scripts that are written without spaces: a name in a text of these has letters next to it."""


def folded(text: str) -> str:
    """Return a text in the form in which names are compared: without case, and composed (NFKC)."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def folded_name(name: str) -> str:
    """Return a name in the form in which it is compared: without the spaces and the `@` around it."""
    return folded(name).strip().lstrip("@")


def is_named(folded_text: str, folded_name: str) -> bool:
    """Tell whether a text has a name as a word, or after an `@`. Both are folded.

    A name of one character counts after an `@` alone: otherwise "I" or "a" would be named all the time.
    """
    at = folded_text.find(folded_name) if folded_name else -1
    while at >= 0:
        end = at + len(folded_name)
        has_sign = folded_text[at - 1 : at] == "@"
        before = folded_text[at - 2 : at - 1] if has_sign and at > 1 else folded_text[at - 1 : at] if at else ""
        if (has_sign or len(folded_name) > 1) and not _joins(before) and not _joins(folded_text[end : end + 1]):
            return True
        at = folded_text.find(folded_name, at + 1)
    return False


def has_key(folded_text: str, key_hex: str) -> bool:
    """Tell whether a word of a folded text is the beginning of a public key, of KEY_DIGITS hex digits or more."""
    at = folded_text.find(key_hex[:KEY_DIGITS])
    while at >= 0:
        end = at + KEY_DIGITS
        while end < at + len(key_hex) and folded_text[end : end + 1] == key_hex[end - at : end - at + 1]:
            end += 1
        if not _joins(folded_text[at - 1 : at] if at else "") and not _joins(folded_text[end : end + 1]):
            return True
        at = folded_text.find(key_hex[:KEY_DIGITS], at + 1)
    return False


@lru_cache(maxsize=4096)
def _joins(character: str) -> bool:
    """Tell whether a character next to a name makes it a part of a longer word."""
    if not character:
        return False
    is_word = character == "_" or unicodedata.category(character)[0] in "LMN"
    return is_word and not any(first <= ord(character) <= last for first, last in _SPACELESS)
