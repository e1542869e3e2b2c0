"""A text names a user as people expect: by words, in any case, in scripts with and without spaces."""

from __future__ import annotations

import pytest

from cablestore.store.naming import folded, folded_name, has_key, is_named

KEY = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bob", "bob"),
        ("hi @bob!", "bob"),
        ("BOB: hello", "Bob"),
        ("(bob)", "bob"),
        ("bob's", "bob"),
        ("bobby, bob", "bob"),
        ("josé!", "JOSÉ"),
        ("jose\u0301!", "josé"),
        ("Straße", "strasse"),
        ("hello Ann Lee.", "ann lee"),
        ("田中さん、おはよう", "田中"),
        ("日本bobさん", "bob"),
        ("\uff42\uff4f\uff42", "bob"),
        ("@i", "I"),
        ("c++ rocks", "c++"),
        ("bob", " @bob "),
        ("-bob-", "bob"),
    ],
)
def test_a_text_contains_a_name(text: str, name: str) -> None:
    assert is_named(folded(text), folded_name(name))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bobby", "bob"),
        ("kabob", "bob"),
        ("bob_", "bob"),
        ("bob2", "bob"),
        ("ann@bob", "bob"),
        ("@bobby", "bob"),
        ("i am", "I"),
        ("anything", ""),
        ("@", "@"),
        ("bob\u0301", "bob"),
        ("रामा", "राम"),
    ],
)
def test_a_part_of_a_word_is_not_a_name(text: str, name: str) -> None:
    assert not is_named(folded(text), folded_name(name))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (KEY, True),
        (KEY[:8], True),
        (f"@{KEY[:12].upper()}, hi", True),
        (KEY[:7], False),
        (KEY[:8] + "0", False),
        ("a" + KEY[:8], False),
        (KEY + "0", False),
        (f"{KEY[:8]}x {KEY[:9]}", True),
        (f"{KEY[:8]}x {KEY[:8]}", True),
        (f"{KEY[:8]}x {KEY[:7]}x", False),
    ],
)
def test_a_text_contains_the_first_digits_of_a_key(text: str, names: bool) -> None:
    assert has_key(folded(text), KEY) is names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        # Korean
        ("민수야 안녕", "민수"), ("@김철수, 민수야", "민수"), ("어제 민수가 왔다", "민수"), ("안녕@ann", "ann"),
        ("ann이 왔다", "ann"), ("@민수ㅄ", "민수"),
        # scripts without spaces
        ("hello花子san", "花子"), ("昨日花子が来た", "花子"), ("คุณสมชายมา", "สมชาย"), ("สวัสดีannครับ", "ann"),
        ("@ສົມໃຈສະບາຍດີ", "ສົມໃຈ"), ("@သန္တာကို", "သန္တာ"), ("@សុខាសួស្តី", "សុខា"), ("བཀྲ་ཤིས་ལགས", "བཀྲ་ཤིས"),
        # endings after an @
        ("@ивану привет", "Иван"), ("@ნინოს", "ნინო"), ("@রহিমের", "রহিম"), ("@ரவிக்கு", "ரவி"), ("@דנהלה", "דנה"),
        ("@Ali’nin", "Ali"), ("İbrahimʼin evi", "İbrahim"), ("@دانا\u200cجان", "دانا"),
        # case
        ("ibrahim", "İbrahim"), ("IBRAHIM", "İbrahim"), ("İBRAHİM", "ibrahim"), ("IŞIL gel", "Işıl"), ("ışıl", "IŞIL"),
        ("STRAUSS", "Strauß"), ("οδυσσεύς", "ΟΔΥΣΣΕΎΣ"), ("ꭰꭿ", "ᎠᎯ"),
        # spaces and emoji
        ("ann\n \n lee", "Ann Lee"), ("Ann\u3000Lee", "Ann  Lee"), ("@ann\u2764 hi", "ann\u2764\ufe0f"), ("@🦊 hi", "🦊"),
        # signs that are not part of addresses and paths
        ("@ann/@bob", "bob"), ("@ann@bob hi", "ann"), ("https://example.org/, ann", "ann"), ("ann...", "ann"), ("Thanks.@ann", "ann"),
        ("@bob.smith", "bob.smith"), ("ann—what", "ann"), ("@ann，你好", "ann"),
    ],
)  # fmt: skip
def test_a_text_contains_a_name_in_any_script(text: str, name: str) -> None:
    assert is_named(folded(text), folded_name(name))
    assert is_named(folded(f"hi {text}"), folded_name(name))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ann@example.org", "ann"), ("bob@ann.org", "ann"), ("mailto:ann", "ann"), ("@ann@example.org", "ann"),
        ("@ann:example.org", "ann"), ("https://example.org/ann/x", "ann"), ("https://example.org/@ann/10", "ann"),
        ("https://example.org/?user=ann", "ann"), ("example.org/@ann", "ann"), ("ann.example.org", "ann"),
        ("https://zh.example.org/wiki/花子", "花子"), ("src/ann.py", "ann"), ("/usr/ann/x", "ann"), ("~ann/x", "ann"),
        ("C:\\Users\\ann", "ann"), ("@ann/tools", "ann"), ("josé@example.org", "josé"),
        ("ann-marie", "ann"), ("mary-ann", "ann"), ("@ann2", "ann"), ("@ann_bot", "ann"), ("@ann-marie", "ann"),
        ("국민수준", "민수"), ("@กิ", "ก"), ("@👩\u200d🚀", "👩"), ("👩\u200d🚀 hi", "👩\u200d🚀"), ("花子", "花"),
        ("<a\u200bnn> hi", "ann"), ("a\u2060nn", "ann"), ("\u200b\u200b", "\u200b\u200b"), ("@\u3164", "\u3164"),
    ],
)  # fmt: skip
def test_parts_of_words_addresses_and_paths_are_not_names(text: str, name: str) -> None:
    assert not is_named(folded(text), folded_name(name))


def test_an_emoji_with_a_skin_tone_is_another_name() -> None:
    tones = [chr(code) for code in range(0x1F3FB, 0x1F400)]
    assert not any(is_named(folded(f"@\U0001f44b{tone}"), "\U0001f44b") for tone in tones)
    assert all(is_named(folded(f"@\U0001f44b{other}"), "\U0001f44b") for other in ("\U0001f3fa", "\U0001f400"))


def test_addresses_and_paths_contain_no_key() -> None:
    assert not has_key(folded(f"see https://example.org/{KEY}"), KEY)
    assert not has_key(folded(f"src/{KEY[:8]}.py"), KEY)
    assert has_key(folded(f"@{KEY[:8]}님"), KEY)
