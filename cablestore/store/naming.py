"""Naming: whether a text names a user, by `@name`, by the name as a word, or by the first digits of the key.

Before a name, and after one without `@`, a word must end: letters of the same word make another one of it. Where the
script has no spaces between words (Thai, Chinese), it may begin and end anywhere, and Korean particles follow a name.
After an `@` only Latin letters, digits and `_` make another name of it: in many languages endings follow a name without
a sign between. Addresses and paths name nobody.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from cablestore.errors import ArgumentError
from cablestore.scripts import (
    emoji_or_cluster,
    has_attached_words,
    is_invisible,
    is_latin,
    is_spaceless,
    korean_letters_apart,
    pattern,
)

KEY_DIGITS: Final = 8
"""Hex digits of a public key that name its user: clients show this many for a user without a name. By chance a word of
eight hex digits names a given user once in 4,000 million."""
_TURKISH_I: Final = re.compile("i\u0307|\u0131")
_SELECTORS: Final = r"\p{Variation_Selector}"
_ADDRESS: Final = re.compile(r"""(?:[a-z][a-z0-9+.-]*://|www\.|mailto:|xmpp:)[^\s<>"「」。、]+""")
_PATH_SIGNS: Final = frozenset("/\\")
_NAME_SIGNS: Final = frozenset(".-\u2010")
"""Signs inside of names, hosts and files: `ann-marie`, `ann.example.org`, `ann.py`. At the end of a word they are none."""
_ADDRESS_SIGNS: Final = frozenset("@:")
_EMOJI_JOINERS: Final = frozenset({"\u200d", *map(chr, range(0x1F3FB, 0x1F400))})
"""Characters that make another emoji of the one before them."""
_APOSTROPHES: Final = frozenset("\u02bb\u02bc\u02b9")
"""Apostrophes that Unicode has among the letters."""


def folded(text: str) -> str:
    """Return a text in the form in which names are compared.

    Without case, where both Turkish i are one letter, composed (NFKC), with one space for each space between words, and
    without the selectors of emoji. Zero-width characters stay: bridges break names with them, so that nobody is called.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKD", korean_letters_apart(text)).casefold())
        text = pattern(_SELECTORS).sub("", _TURKISH_I.sub("i", text))
    else:
        text = text.lower()
    return " ".join(text.split())


def folded_name(name: str) -> str:
    """Return a name in the form in which it is compared: without the spaces and the `@` around it, "" if invisible."""
    return "" if is_invisible(name) else folded(name).lstrip("@ ")


def shown_name(name: str | None, public_key: bytes) -> str:
    """Return the name of a user as others see it: its public key in hex if it has none, or one that nobody sees."""
    return public_key.hex() if name is None or is_invisible(name) else name


def require_visible(what: str, name: str | None) -> None:
    """Raise ArgumentError for the name of a user or a channel that nobody sees."""
    if name and is_invisible(name):
        raise ArgumentError(f"the {what} name {name!a} has only invisible characters: choose one that others can see")


def is_named(folded_text: str, folded_name: str) -> bool:
    """Tell whether a text has a name as a word, or after an `@`. Both are folded.

    A name of one character counts after an `@` alone: otherwise "I" or "a" would be named all the time.
    """
    at = folded_text.find(folded_name) if folded_name else -1
    while at >= 0:
        if _names_at(folded_text, at, at + len(folded_name)):
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
        if _names_at(folded_text, at, end):
            return True
        at = folded_text.find(key_hex[:KEY_DIGITS], at + 1)
    return False


def _names_at(text: str, start: int, end: int) -> bool:
    """Tell whether what a folded text has at a place names a user."""
    has_sign = text[start - 1 : start] == "@"
    if not has_sign and _is_one_character(text[start:end]):
        return False
    if _ends_with_word(text[: start - has_sign], text[start - has_sign]):
        return False
    if _is_continued(text[end:], _last_letter(text[:end]), has_sign=has_sign):
        return False
    return all(not match.start() <= start < match.end() for match in _ADDRESS.finditer(text))


@lru_cache(maxsize=1024)
def _is_one_character(text: str) -> bool:
    return len(text) == 1 or (not text.isascii() and emoji_or_cluster().fullmatch(text) is not None)


def _ends_with_word(before: str, first: str) -> bool:
    """Tell whether what is before a name, or its `@`, is the begin of a longer word, of an address or of a path."""
    sign = before[-1:]
    if sign in _PATH_SIGNS:
        return first != "@" or not before.rsplit(" ", 1)[-1].startswith("@")
    if sign in _NAME_SIGNS and first != "@":
        return _is_word(before[-2:-1]) and not has_attached_words(before[-2:-1])
    last = _last_letter(before)
    if not _is_word(last) or is_spaceless(last) or is_spaceless(first):
        return False
    return has_attached_words(last) == has_attached_words(first)


def _is_continued(after: str, last: str, *, has_sign: bool) -> bool:
    """Tell whether what follows a name makes a longer word, an address or a path of it. `last` is its last letter."""
    first, second = after[:1], after[1:2]
    if first in _PATH_SIGNS:
        return not has_sign or _is_word(second)
    if first in _NAME_SIGNS:
        return _is_word(second) and not has_attached_words(second)
    if first in _ADDRESS_SIGNS:
        return (has_sign and _is_host(after[1:])) or (not has_sign and first == "@" and _is_word(second))
    if _is_mark(first):
        return not has_sign or is_latin(last) or is_spaceless(last)
    if first in _EMOJI_JOINERS or first == "_" or first.isdecimal():
        return True
    is_apart = not _is_word(first) or has_attached_words(first) or has_attached_words(last)
    return not is_apart and (not has_sign or (is_latin(first) and is_latin(last)))


def _last_letter(text: str) -> str:
    """Return the last character that is not a mark, "" if there is none."""
    return next((character for character in reversed(text) if not _is_mark(character)), "")


def _is_host(text: str) -> bool:
    """Tell whether a text begins with a host that has a dot, as in `@ann@example.org` and `@ann:example.org`."""
    return pattern(r"[\w-]+(?:\.[\w-]+)+").match(text) is not None


@lru_cache(maxsize=4096)
def _is_mark(character: str) -> bool:
    return character != "" and not character.isascii() and unicodedata.category(character)[0] == "M"


@lru_cache(maxsize=4096)
def _is_word(character: str) -> bool:
    """Tell whether a character is a part of words, "" is not."""
    if not character or character in _APOSTROPHES:
        return False
    return character == "_" or unicodedata.category(character)[0] in "LMN"
