"""Words: preparation of a text before FTS5 splits it into words, and the position of each word in the original text.

Texts and queries are prepared in the same way. Equivalent forms of a character are unified (NFKC), case is folded,
digits of all scripts become ASCII, and accents and points are removed. Latin letters that Unicode does not decompose
(`ł`, `ø`) become their base letters. Invisible characters and the tatweel are removed.

In scripts without spaces between words, a pattern cannot find words. Therefore each of their letters, with its marks,
is a word, and a query becomes a phrase of such words. Korean is split in this way too, because particles follow its
words without a space.

An emoji is a word: the code points of its sequence in hex, without variation selectors and skin tones. A keycap is two
words, its digit and the keycap.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from cablestore.scripts import emoji, emoji_or_cluster, has_attached_words, korean_letters_apart, pattern

if TYPE_CHECKING:
    import regex

TOKENIZER: Final = ("unicode61", "remove_diacritics", "2", "categories", "L* M* N* Co")
"""FTS5's tokenizer and its arguments. Without marks (M*), it would split words of Indic scripts. Co contains `EMOJI`."""
EMOJI: Final = "\uedff"
"""Prefix of the word of an emoji: a private-use character."""

_FOREIGN: Final = re.compile("[0-9#*]?[^\x00-\x7f]+")
"""Characters that `prepared` changes, and the possible ASCII part of a keycap. The tokenizer folds the case of all other
characters, which combine only with accents."""
_REMEMBERED_CHARACTERS: Final = 16
_FIRST_SPACELESS: Final = "\u0e00"
_LETTER_AND_MARKS: Final = r"[^\p{M}\s]\p{M}*"
_LEFT_OUT: Final = (
    # Accents have a higher combining class than viramas, and so do the vowels and tones of Southeast Asian scripts.
    r"[[\p{Mn}--[\p{ccc=0}\p{ccc=7}\p{ccc=8}\p{ccc=9}]]--[\p{Line_Break=SA}\p{Script=Tibetan}]]"
    r"|[\p{Me}\p{Default_Ignorable_Code_Point}\p{Joining_Type=Join_Causing}]"
)
_BETWEEN_WORDS: Final = r"[[\p{P}\p{S}\p{Z}\p{C}]--[\p{Co}\p{Cn}]]"
_NAMED_AFTER: Final = re.compile(
    r"LATIN (?:SMALL LETTER|SMALL LIGATURE|LETTER SMALL CAPITAL) (?:DOTLESS |OPEN )?([A-Z]{1,2})(?: DIGRAPH)?(?: WITH .*)?"
)
_OTHER_LATIN: Final = {"ð": "d", "þ": "th", "ŋ": "n"}
"""Letters whose Unicode names do not contain a base letter, with their usual replacements in ASCII."""


class Word(NamedTuple):
    """Word of a text in its compared form, and its position in the text: characters from `start` to before `end`."""

    word: str
    start: int
    end: int


Tokenize = Callable[[bytes], list[tuple[int, int, str]]]
"""FTS5's tokenizer: it converts UTF-8 to offset, end and word of each word."""


def prepared(text: str) -> str:
    """Return a text in the form for FTS5's tokenizer."""
    return text if text.isascii() else _FOREIGN.sub(_fold, text)


def _fold(match: re.Match[str]) -> str:
    characters = match[0]
    return _folded(characters) if len(characters) < _REMEMBERED_CHARACTERS else _folded.__wrapped__(characters)


@lru_cache(maxsize=4096)
def _folded(characters: str) -> str:
    apart = korean_letters_apart(emoji().sub(_emoji_word, characters))
    folded = unicodedata.normalize("NFKD", apart).casefold().translate(_FOLDS)
    composed = unicodedata.normalize("NFKC", folded)
    if composed and max(composed) >= _FIRST_SPACELESS:
        return pattern(_LETTER_AND_MARKS).sub(_alone, composed)
    return composed


def _emoji_word(match: regex.Match[str]) -> str:
    kept = pattern(r"[\uFE0E\uFE0F\p{EMod}]").sub("", match[0]) or match[0]
    digit = f"{kept[0]} " if kept[0].isdigit() else ""
    return f" {digit}{EMOJI}{''.join(f'{ord(character):05x}' for character in kept)} "


def _alone(match: regex.Match[str]) -> str:
    return f" {match[0]} " if has_attached_words(match[0][0]) else match[0]


class _Folds(dict[int, str]):
    """Table for `str.translate` that computes the entry of a code point on first use."""

    def __missing__(self, codepoint: int) -> str:
        character = chr(codepoint)
        found = self[codepoint] = character if character.isascii() else _folded_character(character)
        return found


_FOLDS: Final = _Folds()


def _folded_character(character: str) -> str:
    """Return the folded form of a decomposed, case-folded character, "" if it is removed."""
    if pattern(_LEFT_OUT).match(character):
        return ""
    if character.isdecimal():
        return str(unicodedata.digit(character))
    if pattern(_BETWEEN_WORDS).match(character):
        return " "
    latin = _NAMED_AFTER.fullmatch(unicodedata.name(character, ""))
    return latin[1].lower() if latin else _OTHER_LATIN.get(character, character)


def words_of(text: str, tokenize: Tokenize) -> list[Word]:
    """Return the words of a text with their positions in it."""
    if text.isascii():
        return [Word(word, start, end) for start, end, word in tokenize(text.encode())]
    data = bytearray()
    places: list[tuple[int, int]] = []
    """For each prepared byte, the range of the characters from which it was made."""
    for match in emoji_or_cluster().finditer(text):  # normal forms never extend beyond a cluster
        start, end = match.span()
        piece = prepared(text[start:end]).encode()
        data += piece
        places += [(start, end)] * len(piece)
    return [Word(word, places[start][0], places[end - 1][1]) for start, end, word in tokenize(bytes(data))]
