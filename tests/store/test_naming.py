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
def test_a_text_names(text: str, name: str) -> None:
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
def test_a_text_does_not_name(text: str, name: str) -> None:
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
    ],
)
def test_a_key_names(text: str, names: bool) -> None:
    assert has_key(folded(text), KEY) is names
