"""Words of any script, emoji, and invisible characters: searches find their equivalents and no others."""

from __future__ import annotations

import unicodedata
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, raws

from cablestore import CableStore
from cablestore.scripts import emoji_or_cluster
from cablestore.search.query import matches, terms_of
from cablestore.search.table import IndexTable
from cablestore.search.words import prepared, words_of

TABLE = IndexTable(None)
EMOJI = [
    "❤", "⚠", "☔", "👍", "👋", "\U0001fae8", "ℹ", "©", "™", "㊗", "➡", "♀",
    "🇩🇪", "🇪🇩", "🇫🇷", "1\u20e3", "2\u20e3", "#\u20e3", "*\u20e3",
    "👩", "🚀", "👩\u200d🚀", "👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧\u200d👦", "🤷", "🤷\u200d♀", "🤷\u200d♂", "🏳\u200d🌈", "🏳",
    "🏴", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "❤\u200d🔥", "🔥",
]  # fmt: skip
"""Emoji that are different words, without variation selectors and skin tones."""


def forms(emoji: str) -> list[str]:
    """Return an emoji as keyboards type it: with a selector, and with a skin tone if possible."""
    if emoji[-1] == "\u20e3":
        return [emoji, f"{emoji[0]}\ufe0f\u20e3"]
    parts = emoji.split("\u200d")
    found = [
        emoji,
        *("\u200d".join([f"{parts[0]}{sign}", *parts[1:]]) for sign in "\ufe0e\ufe0f" if len(parts[0]) == 1),
    ]
    if parts[0] in {"👍", "👋", "👩", "🤷", "👨"}:
        found += ["\u200d".join([f"{parts[0]}{chr(skin)}", *parts[1:]]) for skin in range(0x1F3FB, 0x1F400)]
    return [*found, *(f"{form}\ufe0f" for form in found if len(parts) > 1)]


def finds(query: str, text: str) -> bool:
    return bool(list(matches(terms_of(query, TABLE.tokenize), words_of(text, TABLE.tokenize))))


@pytest.mark.parametrize("emoji", EMOJI, ids=ascii)
def test_an_emoji_finds_only_its_own_forms(emoji: str) -> None:
    for entered, written in product(forms(emoji), forms(emoji)):
        for text in (
            written,
            f"a {written} b",
            f"word{written}word",
            f"京{written}京",
            f"🐈{written}🐈",
            f"1 {written}1",
        ):
            assert finds(entered, text), (ascii(entered), ascii(text))
    for other in {*EMOJI} - {emoji}:
        assert not any(finds(emoji, form) for form in forms(other)), ascii(other)


@pytest.mark.parametrize("emoji", [form for emoji in EMOJI for form in forms(emoji)], ids=ascii)
def test_words_beside_an_emoji_are_found(emoji: str) -> None:
    for word in ("warning", "straße", "привет", "葛城", "안녕", "สวัสดี"):
        assert finds(word, f"{emoji}{word}")
        assert finds(word, f"{word}{emoji}")
    if emoji[0].isdigit():
        assert finds(emoji[0], f"{emoji} first")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("สวัสดีครับวันนี้อากาศดีมาก", ["สวัสดี", "ครับ", "อากาศ", "ดีมาก", "วันนี้"]),
        ("ສະບາຍດີຕອນເຊົ້າ", ["ສະບາຍດີ", "ຕອນ", "ເຊົ້າ"]),
        ("សួស្តីពិភពលោក", ["សួស្តី", "ពិភពលោក", "លោក"]),
        ("មនុស្ស\u200bដែល\u200bឃើញ", ["ដែល", "មនុស្សដែល", "ឃើញ"]),
        ("မင်္ဂလာပါကမ္ဘာ", ["မင်္ဂလာပါ", "ပါ", "ကမ္ဘာ"]),
        ("བཀྲ་ཤིས་བདེ་ལེགས།", ["བཀྲ", "ཤིས", "བདེ་ལེགས", "བདེ ལེགས"]),
        ("ᬳᬮᬳᬭᬤᬗ᭄", ["ᬭᬤ"]),
        ("꧋ꦱꦸꦒꦼꦁꦫꦮꦸꦃ", ["ꦫꦮꦸꦃ"]),
        ("ㅋㅋㅠㅠ 재밌다", ["ㅋ", "ㅋㅋ", "ㅠㅠ", "ㅠ", "재밌", "다"]),
        ("민수ㅄ", ["민수", "ㅄ"]),
        ("ㅇㅏ", ["ㅇ", "ㅏ"]),
        ("葛\U000e0100城さん", ["葛城", "葛", "さん"]),
    ],
)
def test_words_of_scripts_without_spaces_and_korean_letters_are_found(text: str, words: list[str]) -> None:
    for word, form in product(words, ("NFC", "NFD")):
        assert finds(unicodedata.normalize(form, word), text), word  # type: ignore[arg-type] # it is one of the forms
        assert finds(word, unicodedata.normalize(form, text)), word  # type: ignore[arg-type] # the same
    assert not finds(text[::-1], text)


def test_letters_with_different_vowels_or_tones_differ() -> None:
    assert not any(finds(one, other) for one, other in (("ขาว", "ข้าว"), ("ข่าว", "ข้าว"), ("ကို", "က"), ("が", "か")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("łódź", "lodz"), ("ŁÓDŹ", "łodz"), ("smørrebrød", "smorrebrod"), ("đường", "duong"), ("ılık", "ilik"), ("İSTANBUL", "ıstanbul"),
        ("weiß", "WEISS"), ("ẞ", "ss"), ("æther", "aether"), ("cœur", "COEUR"), ("þing", "thing"), ("ð", "d"), ("ħ", "h"),
        ("ŧ", "t"), ("ƀ", "b"), ("ɨ", "i"), ("ŋ", "n"), ("ǆ", "dz"), ("ﬃ", "ffi"), ("ſ", "s"), ("ᴀ", "a"), ("ὀδυσσεύς", "ΟΔΥΣΣΕΥΣ"),
        ("ᲗᲑᲘᲚᲘᲡᲘ", "თბილისი"), ("ꭰꭿ", "ᎠᎯ"), ("٢٠٢٤", "2024"), ("२०२४", "２０２４"), ("ё", "Е"), ("𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "unicode"), ("Ⅻ", "xii"),
        ("سـلـام", "سلام"), ("كِتَابٌ", "كتاب"), ("ࢫۭاـ", "ࢫا"), ("ߒߞߏߺ", "ߒߞߏ"),
        ("می\u200cخواهم", "میخواهم"), ("co\u00adoperate", "cooperate"), ("a\u200bnn", "ann"), ("a\u2060b\ufeffc\u200e", "abc"), ("x\u034fy\u180e", "xy"),
        ("क\u200d्ष", "क्ष"), ("ab\u3164", "ab"),
    ],
)  # fmt: skip
def test_equivalent_spellings_are_the_same_word(one: str, other: str) -> None:
    assert finds(one, f"a {other}.") is finds(other, f"a {one}.") is True
    assert len(words_of(one, TABLE.tokenize)) == 1


def test_signs_of_newer_unicode_versions_separate_words() -> None:
    """FTS5 knows the characters of 2012, and treats all others as letters."""
    for sign in "₿\u2e42⸺\u2066₽":
        assert finds("price", f"{sign}price{sign}"), ascii(sign)


@given(
    st.text(
        st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from([*"".join(EMOJI), *"ㅋㅠ수ᅡกิ"])), max_size=30
    )
)
def test_a_text_is_normalized_like_its_parts(text: str) -> None:
    """If the normalized forms differed, matches would be marked at the wrong position."""
    assert "".join(prepared(match[0]) for match in emoji_or_cluster().finditer(text)) == prepared(text)


def test_a_store_finds_emoji_and_adjacent_words(store: CableStore) -> None:
    texts = {emoji: f"{emoji!a}{form}Warning" for emoji in EMOJI for form in forms(emoji)[-1:]}
    store.ingest(raws(*(ANN.text("default", text) for text in texts.values())))
    for emoji, text in texts.items():
        [hit] = store.search(f"{emoji}", limit=100).hits
        assert hit.message.text == text
    assert len(store.search("warning", limit=100).hits) == len(EMOJI)
