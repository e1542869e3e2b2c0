"""Query: search text entered by a user, parsed without syntax errors.

    rust lifetimes      texts with both words, in any order
    "borrow checker"    the words next to each other, in this order
    borrow*             words with this prefix; "borrow ch"* is a phrase with a prefix as its last word

All other characters separate words: `don't` is the phrase `don t`. Unclosed quotes end with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.search.words import Tokenize, Word, words_of

_TERM: Final = re.compile(r'"([^"]*)(?:"(\*?)|$)|([^\s"]+)')
_MIN_PREFIX_CHARACTERS: Final = 3
_UNENCODABLE: Final = re.compile("[\x00\ud800-\udfff]")


class Term(NamedTuple):
    """Consecutive words. With `is_prefix`, the last word is only a prefix."""

    words: tuple[str, ...]
    is_prefix: bool

    @property
    def expression(self) -> str:
        """The term in FTS5's language. Words contain only letters, marks and digits, so escaping is unnecessary."""
        return f'"{" ".join(self.words)}"' + "*" * self.is_prefix


def terms_of(text: str, tokenize: Tokenize) -> list[Term]:
    """Return the distinct terms of a query. Raises ArgumentError if it contains no words, or exceeds a limit."""
    if len(text) > limits.MAX_SEARCH_CHARACTERS:
        raise ArgumentError(
            f"search too long: {len(text):,} characters, the maximum is {limits.MAX_SEARCH_CHARACTERS:,}. Use fewer words"
        )
    found: dict[Term, None] = {}
    for quoted, after, plain in _TERM.findall(_UNENCODABLE.sub(" ", text)):
        words = tuple(word.word for word in words_of(quoted or plain, tokenize))
        if words:
            found[Term(words, after == "*" or plain.endswith("*"))] = None
    if not found:
        raise ArgumentError(f"no words to search for in {text!r}. Words consist of letters and digits")
    if len(found) > limits.MAX_SEARCH_TERMS:
        raise ArgumentError(
            f"too many search terms: {len(found)}, the maximum is {limits.MAX_SEARCH_TERMS}. Use fewer words"
        )
    return list(found)


def with_prefixes(text: str) -> str:
    """Return a query with prefixes instead of words: `tomato` finds `tomatoes`. Quoted and short words are not changed.

    Prefixes of one or two characters would find most texts, and make the search slow.
    """

    def widened(term: re.Match[str]) -> str:
        plain = term[3] or ""
        return f"{plain}*" if len(plain) >= _MIN_PREFIX_CHARACTERS and plain[-1].isalnum() else term[0]

    return _TERM.sub(widened, text)


def matches(terms: list[Term], words: list[Word]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each match of a term in a text, given by its words."""
    plain = [word.word for word in words]
    for term in terms:
        size, first = len(term.words), term.words[0]
        for at in range(len(words) - size + 1):
            last = plain[at + size - 1]
            if (size > 1 and plain[at] != first) or tuple(plain[at : at + size - 1]) != term.words[:-1]:
                continue
            if last.startswith(term.words[-1]) if term.is_prefix else last == term.words[-1]:
                yield words[at].start, words[at + size - 1].end
