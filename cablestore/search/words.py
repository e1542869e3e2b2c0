"""Words: how a text is prepared before FTS5 cuts it into words, and where each word is in the text as it was written.

Texts and queries are prepared in the same way. Forms of a character that mean the same become one (NFKC), case is
folded, and accents and points are removed: FTS5's tokenizer removes those of Latin letters alone. Chinese, Japanese and
Korean have no spaces that help, so each of their characters is a word, and what a person enters is found as a phrase of
such words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final, NamedTuple

TOKENIZER: Final = ("unicode61", "remove_diacritics", "2", "categories", "L* M* N* Co")
"""FTS5's tokenizer and its arguments. Without marks (M*) it would cut the words of Indic scripts."""

_ALONE: Final = (
    "["
    "\u1100-\u11ff"  # Hangul Jamo
    "\u2e80-\u2fdf"  # radicals
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c"  # iteration marks, numbers
    "\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff"  # Hiragana, Katakana
    "\u3105-\u312f\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff"  # Bopomofo, Jamo, further Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\ua960-\ua97f\uac00-\ud7ff"  # Hangul
    "\U0001f000-\U0001faff"  # emoji: FTS5 takes those that it does not know for letters
    "\U0001aff0-\U0001b16f"  # further Kana
    "\U00020000-\U0003ffff"  # further Han
    "]"
)
"""Characters that are words of their own. Compiling the pattern takes as long as importing ten modules."""
_ACCENTS: Final = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670]"  # also Hebrew, Arabic
)
_FOREIGN: Final = re.compile("[^\x00-\x7f]+")
"""Characters that are changed. The tokenizer folds the case of all others, which make no new form with those after them
but with accents."""
_REMEMBERED_CHARACTERS: Final = 16
_SINGLE: Final = re.compile("(?s:.)[\u1160-\u11ff\uff9e\uff9f]*")
"""A character, and those after it that NFKC joins to it although they are no marks."""


class Word(NamedTuple):
    """Word of a text, as it is compared, and its place in the text: characters from `start` to before `end`."""

    word: str
    start: int
    end: int


Tokenize = Callable[[bytes], list[tuple[int, int, str]]]
"""FTS5's tokenizer: UTF-8 in; offset, end and word of each word out."""


def prepared(text: str) -> str:
    """Return a text as FTS5's tokenizer gets it."""
    return text if text.isascii() else _FOREIGN.sub(_fold, text)


def _fold(match: re.Match[str]) -> str:
    characters = match[0]
    return _folded(characters) if len(characters) < _REMEMBERED_CHARACTERS else _folded.__wrapped__(characters)


@cache
def _alone() -> re.Pattern[str]:
    return re.compile(_ALONE)


@lru_cache(maxsize=4096)
def _folded(characters: str) -> str:
    folded = unicodedata.normalize("NFKD", characters).casefold()
    return _alone().sub(r" \g<0> ", unicodedata.normalize("NFKC", _ACCENTS.sub("", folded)))


def words_of(text: str, tokenize: Tokenize) -> list[Word]:
    """Return the words of a text with their places in it."""
    if text.isascii():
        return [Word(word, start, end) for start, end, word in tokenize(text.encode())]
    data = bytearray()
    places: list[tuple[int, int]] = []
    """For each prepared byte, where the characters from which it was made begin and end."""
    for start, end in _clusters(text):
        piece = prepared(text[start:end]).encode()
        data += piece
        places += [(start, end)] * len(piece)
    return [Word(word, places[start][0], places[end - 1][1]) for start, end, word in tokenize(bytes(data))]


def _clusters(text: str) -> list[tuple[int, int]]:
    """Return begin and end of each character with its marks: normal forms never reach beyond."""
    found: list[tuple[int, int]] = []
    for match in _SINGLE.finditer(text):
        if found and unicodedata.category(match[0][0])[0] == "M":  # vowel signs that join have the combining class 0
            found[-1] = found[-1][0], match.end()
        else:
            found.append(match.span())
    return found
