"""Parsing of search text into terms, and their matches: any text is valid."""

from __future__ import annotations

import unicodedata

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.search.excerpt import EXCERPT_CHARACTERS, excerpt_of, merged
from cablestore.search.query import Term, matches, terms_of
from cablestore.search.table import IndexTable
from cablestore.search.words import words_of

TABLE = IndexTable(None)
ALPHABET = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from('aA bé"*-():^{}+~ßİ京東ッﾀﾞ한ᄒ\u0301\u200d\u3099नम\x00\n'),
)


def read(text: str) -> list[tuple[str, bool]]:
    return [(" ".join(term.words), term.is_prefix) for term in terms_of(text, TABLE.tokenize)]


def matched(query: str, text: str) -> list[str]:
    places = merged(matches(terms_of(query, TABLE.tokenize), words_of(text, TABLE.tokenize)))
    return [text[start:end] for start, end in places]


def test_words_phrases_and_prefixes_are_parsed() -> None:
    assert read("rust  Lifetimes") == [("rust", False), ("lifetimes", False)]
    assert read('"Borrow Checker" is') == [("borrow checker", False), ("is", False)]
    assert read('rust* "borrow ch"*') == [("rust", True), ("borrow ch", True)]
    assert read("don't c++ a.b*") == [("don t", False), ("c", False), ("a b", True)]
    assert read("rust rust RUST") == [("rust", False)]
    assert read('x"open quotes') == [("x", False), ("open quotes", False)]
    assert read("NOT a OR b AND c NEAR(d e)") == [
        ("not", False), ("a", False), ("or", False), ("b", False), ("and", False), ("c", False), ("near d", False),
        ("e", False),
    ]  # fmt: skip
    assert read("東京 タワー") == [("東 京", False), ("タ ワ ー", False)]


@pytest.mark.parametrize("text", ["", "  ", "!!!", '""', '"', "*", "- + *", "\x00", "\u200d\u3164\u0640", "\ud800"])
def test_a_search_without_a_word_is_rejected(text: str) -> None:
    with pytest.raises(ArgumentError, match="no words to search for"):
        read(text)


def test_the_terms_and_characters_of_a_search_are_limited() -> None:
    assert len(read(" ".join(f"w{i}" for i in range(limits.MAX_SEARCH_TERMS)))) == limits.MAX_SEARCH_TERMS
    with pytest.raises(ArgumentError, match="too many search terms: 33, the maximum is 32"):
        read(" ".join(f"w{i}" for i in range(limits.MAX_SEARCH_TERMS + 1)))
    assert read("a" * limits.MAX_SEARCH_CHARACTERS)
    with pytest.raises(ArgumentError, match="1,001 characters, the maximum is 1,000"):
        read("a" * (limits.MAX_SEARCH_CHARACTERS + 1))


@given(st.text(ALPHABET, max_size=40))
def test_any_input_results_in_a_valid_fts5_query(text: str) -> None:
    try:
        terms = terms_of(text, TABLE.tokenize)
    except ArgumentError:
        return
    expression = " AND ".join(term.expression for term in terms)
    assert TABLE.newest("{text} : (" + expression + ")", 0, 2**62, None, 5) == []
    again = terms_of(" ".join(term.expression for term in terms), TABLE.tokenize)
    assert again == terms  # words stay the same when they are split again


@given(st.text(ALPHABET, max_size=60), st.integers(0, 10), st.integers(1, 4), st.booleans())
def test_matches_of_fts5_are_marked(text: str, first: int, size: int, is_prefix: bool) -> None:
    """Words and their positions are those of FTS5, and a phrase of them is marked."""
    words = words_of(text, TABLE.tokenize)
    assert all(0 <= word.start < word.end <= len(text) for word in words)
    chosen = words[first : first + size]
    if chosen:
        term = Term(tuple(word.word for word in chosen), is_prefix)
        assert (chosen[0].start, chosen[-1].end) in set(matches([term], words))


@pytest.mark.parametrize(
    ("query", "text", "marked"),
    [
        ("cafe", "a CAFÉ, cafés", ["CAFÉ"]),
        ("cafe*", "a CAFE\u0301, cafés", ["CAFE\u0301", "cafés"]),
        ("strasse", "die Straße", ["Straße"]),
        ("ξεσκεπαζω", "ΞΕΣΚΕΠΆΖΩ", ["ΞΕΣΚΕΠΆΖΩ"]),
        ("istanbul", "İstanbul", ["İstanbul"]),
        ("tieng viet", "tiếng Việt", ["tiếng", "Việt"]),
        ("йод", "Йод и йод", ["Йод", "йод"]),
        ("שלום", "שָׁלוֹם", ["שָׁלוֹם"]),
        ("rust", "rust\U0001f980!", ["rust"]),
        ("\U0001f980", "rust\U0001f980!", ["\U0001f980"]),
        ("नमस्ते", "नमस्ते दुनिया", ["नमस्ते"]),
        ("ﬁne", "fine", ["fine"]),
        ("abc", "\uff21\uff22\uff23", ["\uff21\uff22\uff23"]),
        ("京", "東京都", ["京"]),
        ("東京", "東京都と東 京", ["東京", "東 京"]),
        ("タワー", "東京ﾀﾜｰ", ["ﾀﾜｰ"]),
        ("ガ", "ｶﾞ", ["ｶﾞ"]),
        ("녕하", "안녕하세요", ["녕하"]),
        ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8", ["\u1112\u1161\u11ab\u1100\u116e\u11a8"]),
        ("中文", "用中文写", ["中文"]),
        ('"a b" c', "a-b, a c b", ["a-b", "c"]),
        ("a b", "x", []),
    ],
)
def test_case_accents_and_width_do_not_matter(query: str, text: str, marked: list[str]) -> None:
    assert matched(query, text) == marked


@given(st.text(ALPHABET, max_size=500), st.data())
def test_an_excerpt_is_one_safe_line_with_the_first_match(text: str, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    marks = merged((start, end) for start, end in places if start < end)
    found = excerpt_of(text, marks)
    assert len(found.text) <= EXCERPT_CHARACTERS + 2
    assert not {unicodedata.category(c) for c in found.text} & {"Cc", "Cf", "Zl", "Zp"}
    assert "".join(part for part, _ in found.parts()) == found.text
    assert bool(found.marks) == bool(marks)
    if marks:
        begin, end = found.marks[0]
        shown = text[marks[0][0] : marks[0][1]]
        plain = "".join(" " if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp"} else c for c in shown)
        assert plain.startswith(found.text[begin:end])


def test_overlapping_and_adjacent_matches_are_merged() -> None:
    assert merged([(4, 6), (0, 2), (2, 3), (5, 9), (6, 7)]) == ((0, 3), (4, 9))
    assert merged([]) == ()


def test_an_excerpt_begins_forty_characters_before_the_match_and_fills_its_length() -> None:
    text = "".join(chr(ord("a") + number % 26) for number in range(400))
    whole = text[:EXCERPT_CHARACTERS]
    assert excerpt_of(whole, ((150, 155),)).text == whole
    for first, start in ((0, 0), (40, 0), (41, 1), (200, 160), (279, 239), (280, 240), (281, 240), (399, 240)):
        found = excerpt_of(text, ((first, first + 1),))
        shown = "…" * (start > 0) + text[start : start + EXCERPT_CHARACTERS] + "…" * (start < 240)
        assert (found.text, found.text[slice(*found.marks[0])]) == (shown, text[first])
    cut = excerpt_of(text, ((41, 42), (150, 250), (161, 162), (300, 301)))
    assert [part for part, is_match in cut.parts() if is_match] == [text[41], text[150:161]]
    assert len(cut.marks) == 2


def test_a_long_text_is_shortened_around_the_match() -> None:
    text = "lorem " * 100 + "needle" + " ipsum" * 100
    found = excerpt_of(text, ((600, 606),))
    assert found.text.startswith("…")
    assert found.text.endswith("…")
    assert [part for part, is_match in found.parts() if is_match] == ["needle"]


def test_the_tokenizer_is_that_of_the_table() -> None:
    assert isinstance(TABLE._tokenizer, apsw.FTS5Tokenizer)


@pytest.mark.parametrize("word", ["কোলকাতা", "கொடி", "ಕೋಟೆ", "കോട്ടയം", "କୋଣାର୍କ", "කෝට්ටේ"])
@pytest.mark.parametrize("written", ["NFC", "NFD"])
@pytest.mark.parametrize("entered", ["NFC", "NFD"])
def test_vowel_signs_of_several_characters_are_found(word: str, written: str, entered: str) -> None:
    text = unicodedata.normalize(written, word)  # type: ignore[arg-type] # it is one of the forms
    assert matched(unicodedata.normalize(entered, word), f"a {text} b") == [text]  # type: ignore[arg-type] # the same
