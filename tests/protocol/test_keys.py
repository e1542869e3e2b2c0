"""Key parts: escaping preserves order and separators, and sort times sort like posts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cablestore import DRAFT8, LEGACY, Dialect
from cablestore.errors import ArgumentError, CorruptStoreError, DecodeError
from cablestore.limits import MAX_TIMESTAMP_MS
from cablestore.protocol.keys import (
    after_prefix,
    escape,
    number_in,
    parse_hex,
    sort_time,
    time_floor,
    time_of,
    unescape,
    unhex,
)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
low_texts = st.text(st.sampled_from('\x00\x01 !"#~aé'), max_size=8)
times = st.integers(0, MAX_TIMESTAMP_MS)
hashes = st.binary(min_size=32, max_size=32)


@given(st.one_of(texts, low_texts))
def test_escaping_hides_the_separator_and_is_reversible(text: str) -> None:
    assert b"!" not in escape(text)
    assert unescape(escape(text)) == text


@given(st.one_of(texts, low_texts), st.one_of(texts, low_texts))
def test_escaping_keeps_the_order_of_bytes(a: str, b: str) -> None:
    assert (escape(a) < escape(b)) == (a.encode() < b.encode())
    assert (escape(a) + b"!" < escape(b) + b"!") == (a.encode() < b.encode())


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("a!b", b'a"ab'), ("~", b"~"), (" ", b'"`'), ("\x00", b'"@'), ('"', b'"b'), ("#", b"#"), ("é", b"\xc3\xa9")],
)
def test_escapes_match_known_answers(text: str, escaped: bytes) -> None:
    assert escape(text) == escaped


@given(times, hashes, times, hashes)
def test_sort_times_sort_by_timestamp_then_hash(at: int, digest: bytes, other_at: int, other: bytes) -> None:
    a, b = sort_time(at, digest.hex().encode()), sort_time(other_at, other.hex().encode())
    if (at, digest[:16]) != (other_at, other[:16]):
        assert (a < b) == ((at, digest) < (other_at, other))
    assert time_of(a) == at
    assert len(a) == 49
    assert (time_floor(other_at) <= a) == (other_at <= at)


@given(st.binary(min_size=1, max_size=6).filter(lambda p: p[-1] < 0xFF), st.binary(max_size=6))
def test_after_prefix_is_the_end_of_the_range_of_a_prefix(prefix: bytes, key: bytes) -> None:
    assert prefix <= prefix + key < after_prefix(prefix)
    assert (prefix <= key < after_prefix(prefix)) == key.startswith(prefix)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "have 64 hex digits, got 0"), ("zz", "consist of hex digits"), ("abc", "consist of hex digits")]
    + [("00" * size, f"have 64 hex digits, got {2 * size}") for size in (31, 33)],
)
def test_malformed_hex_raises_an_error(text: str, problem: str) -> None:
    with pytest.raises(DecodeError, match=f"a hash must {problem}") as error:
        parse_hex(text, "a hash")
    assert error.value.offset == 0
    assert parse_hex("5e" * 32, "a hash") == b"\x5e" * 32


@pytest.mark.parametrize("part", [b"", b"12x4", b"\xff" * 16])
def test_malformed_parts_of_stored_keys_are_reported_as_damage(part: bytes) -> None:
    for read, damaged in ((time_of, part), (number_in, part), (unhex, part + b"zz")):
        with pytest.raises(CorruptStoreError, match=r"is damaged\. Run `cablestore rebuild`"):
            read(damaged)


@pytest.mark.parametrize("text", ["zz" * 32, "5eed", "5eed" * 17])
def test_a_malformed_secret_is_not_shown(text: str) -> None:
    with pytest.raises(
        DecodeError, match=f"a key must have 64 hex digits, got {len(text)} characters. They are secret"
    ) as error:
        parse_hex(text, "a key", is_secret=True)
    assert text[:4] not in str(error.value)


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)
def test_an_invalid_channel_name_has_no_id(dialect: Dialect) -> None:
    assert dialect.channel_id("a") == "a"
    assert dialect.channel_id("ä") == "ä"
    for name in ("\ud800", "a\udfff"):
        with pytest.raises(ArgumentError):
            dialect.channel_id(name)
