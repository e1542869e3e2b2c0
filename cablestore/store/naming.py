"""Naming: a text names a user by `@name`, by the name as a word, or by the first digits of the key.

A name must begin where a word begins, and a name without `@` must end where a word ends: otherwise it is only a part of
another name.
Scripts without spaces between words (Thai, Chinese) have no such boundary, and Korean particles may follow a name. In
many languages, endings follow a name directly. After a name with `@`, therefore, only Latin letters, digits and `_`
continue the name. Parts of addresses and paths do not name users.
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
"""Number of hex digits of a public key that name its user. Clients show this number of digits for a user without a
name. A random word of eight hex digits names a given user with a probability of 1 in 4,000 million."""
_TURKISH_I: Final = re.compile("i\u0307|\u0131")
_SELECTORS: Final = r"\p{Variation_Selector}"
_ADDRESS: Final = re.compile(r"""(?:[a-z][a-z0-9+.-]*://|www\.|mailto:|xmpp:)[^\s<>"「」。、]+""")
_PATH_SIGNS: Final = frozenset("/\\")
_NAME_SIGNS: Final = frozenset(".-\u2010")
"""Signs inside names, hosts and files: `ann-marie`, `ann.example.org`, `ann.py`. They do not count at a word's end."""
_ADDRESS_SIGNS: Final = frozenset("@:")
_EMOJI_JOINERS: Final = frozenset({"\u200d", *map(chr, range(0x1F3FB, 0x1F400))})
"""Characters that change the emoji before them into another emoji."""
_APOSTROPHES: Final = frozenset("\u02bb\u02bc\u02b9")
"""Apostrophes that Unicode classifies as letters."""


def folded(text: str) -> str:
    """Return a string in the form in which names are compared.

    Case and emoji selectors are removed, and both Turkish i become one letter. Compatibility characters are composed
    (NFKC), and white space becomes one space. Zero-width characters are kept: bridges insert them into names so that a
    text does not mention the user.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKD", korean_letters_apart(text)).casefold())
        text = pattern(_SELECTORS).sub("", _TURKISH_I.sub("i", text))
    else:
        text = text.lower()
    return " ".join(text.split())


def folded_name(name: str) -> str:
    """Return a name in the form in which it is compared: `folded`, without leading `@`, or "" for an invisible name."""
    return "" if is_invisible(name) else folded(name).lstrip("@ ")


def shown_name(name: str | None, public_key: bytes) -> str:
    """Return the displayed name of a user: the public key in hex if the name is missing or invisible."""
    return public_key.hex() if name is None or is_invisible(name) else name


def require_visible(what: str, name: str | None) -> None:
    """Raise ArgumentError if the name of a user or a channel contains only invisible characters."""
    if name and is_invisible(name):
        raise ArgumentError(f"the {what} name {name!a} contains only invisible characters. Choose a visible name")


def is_named(folded_text: str, folded_name: str) -> bool:
    """Return True if a text contains a name as a word or after an `@`. Both strings are folded.

    A name of one character counts only after an `@`. Otherwise "I" or "a" would match in most texts.
    """
    at = folded_text.find(folded_name) if folded_name else -1
    while at >= 0:
        if _names_at(folded_text, at, at + len(folded_name)):
            return True
        at = folded_text.find(folded_name, at + 1)
    return False


def has_key(folded_text: str, key_hex: str) -> bool:
    """Return True if a word of a folded text is a prefix of a public key with at least KEY_DIGITS digits."""
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
    """Return True if the part from `start` to `end` of a folded text is not a part of a longer word, address or path.

    A name of one character also needs an `@` before `start`.
    """
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
    """Return True if a name continues a word, address or path at the end of `before`, the text before it.

    `first` is the first character after `before`: an `@` or the first letter of the name.
    """
    sign = before[-1:]
    if sign in _PATH_SIGNS:
        return first != "@" or not before.rpartition(" ")[2].startswith("@")
    if sign in _NAME_SIGNS and first != "@":
        return _is_word(before[-2:-1]) and not has_attached_words(before[-2:-1])
    last = _last_letter(before)
    if not _is_word(last) or is_spaceless(last) or is_spaceless(first):
        return False
    return has_attached_words(last) == has_attached_words(first)


def _is_continued(after: str, last: str, *, has_sign: bool) -> bool:
    """Return True if the string after a name continues it as a longer word, an address or a path.

    `last` is the last letter of the name. `has_sign` is True if an `@` precedes the name.
    """
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
    """Return the last character that is not a combining mark, "" without such a character."""
    return next((character for character in reversed(text) if not _is_mark(character)), "")


def _is_host(text: str) -> bool:
    """Return True if a string begins with a host name with a dot, as in `@ann@example.org` and `@ann:example.org`."""
    return pattern(r"[\w-]+(?:\.[\w-]+)+").match(text) is not None


@lru_cache(maxsize=4096)
def _is_mark(character: str) -> bool:
    return character != "" and not character.isascii() and unicodedata.category(character)[0] == "M"


@lru_cache(maxsize=4096)
def _is_word(character: str) -> bool:
    """Return True if a character is part of words. Return False for ""."""
    if not character or character in _APOSTROPHES:
        return False
    return character == "_" or unicodedata.category(character)[0] in "LMN"
