"""Bloom filters of causal logs: hashes, bits and bytes of both deployed implementations, and foreign filters."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import mmh3
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sds_filters import BloomFilter
from sds_messages import FEWER, VECTORS, field, ids, in_each

from cablestore import limits
from cablestore.errors import SdsError
from cablestore.sds.bloom import FilterParameters, ForeignFilter, positions, size_of, to_wire
from cablestore.sds.dialects import NIM, SPEC, SdsDialect
from cablestore.sds.hashes import javascript_hash, nim_hash, sha256_hash

DEFAULT = FilterParameters()
SMALL = FilterParameters(100)
COLUMNS = ((SPEC, "js"), (NIM, "nim"))


def made(names: list[str], parameters: FilterParameters, dialect: SdsDialect) -> BloomFilter:
    filter_ = BloomFilter(parameters)
    for name in names:
        filter_.add(positions(name, parameters, dialect))
    return filter_


def bits_of(bits: bytes) -> list[int]:
    number = int.from_bytes(bits, "little")
    return [position for position in range(len(bits) * 8) if number >> position & 1]


def described(words: bytes, capacity: int, millionths: int, hashes: int, bits: int) -> bytes:
    """Return a filter as nim-sds writes it."""
    return field(1, words) + field(2, capacity) + field(3, millionths) + field(4, hashes) + field(5, bits)


# --- hashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", VECTORS["hashes"], ids=lambda known: repr(known["item"][:20]))
def test_hashes_of_ids_equal_those_of_both_implementations(known: dict[str, Any]) -> None:
    item = known["item"]
    assert mmh3.hash(item) == known["murmur3_32_seed0_signed"]
    assert (javascript_hash(item) == mmh3.hash(item)) == known["js_equals_murmur_of_utf8"]
    assert nim_hash(item) == known["nim_native_hash_farm64_signed"]
    for dialect, column in COLUMNS:
        found = positions(item, DEFAULT, dialect)
        assert [found[0], found[1], found[9]] == known[f"{column}_hashn_n0_1_9_mod_150000"]


@pytest.mark.parametrize("item", sorted({row[0] for row in VECTORS["hashn_test_vectors"]}))
def test_double_hashing_matches_the_tests_of_the_npm_package(item: str) -> None:
    """The package skips its answers for Greek, which are those of UTF-8. It hashes UTF-16 units, as our code does."""
    rows = [row for row in VECTORS["hashn_test_vectors"] if row[0] == item]
    assert len(rows) == 12
    for _, n, most, first, step, found in rows:
        assert (first, step) == (abs(mmh3.hash(item)) % most, abs(mmh3.hash(item + " b")) % most)
        assert (first + n * step) % most == found
        if item.isascii():
            assert (first, step) == (abs(javascript_hash(item)) % most, abs(javascript_hash(item + " b")) % most)


@given(st.text(st.characters(max_codepoint=127), max_size=40))
def test_ascii_strings_are_hashed_as_bytes(text: str) -> None:
    assert javascript_hash(text) == mmh3.hash(text.encode())


@given(st.text(st.characters(min_codepoint=128, max_codepoint=255), max_size=40))
def test_murmur3_of_utf_16_units_equals_that_of_the_library(text: str) -> None:
    """If each unit is a byte, both can be compared."""
    assert javascript_hash(text) == mmh3.hash(text.encode("latin-1"))


def test_characters_beyond_the_basic_plane_are_hashed_by_their_first_unit() -> None:
    """The package computes the units with `Array.from(item).map((char) => char.charCodeAt(0))`."""
    for text, known in {
        "a😀b😀😀": (99_912, 145_905),
        "日本語テキスト": (34_422, 135_440),
        "é": (81_266, 26_886),
    }.items():
        assert positions(text, DEFAULT, SPEC)[:2] == known
    assert javascript_hash("😀") == javascript_hash("😁")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_hash_of_repairs_is_a_prefix_of_sha_256(text: str) -> None:
    assert sha256_hash(text).to_bytes(8, "big") == hashlib.sha256(text.encode()).digest()[:8]


# --- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("known", VECTORS["bloom"], ids=lambda known: f"{known['capacity']} {len(known['insert'])}")
def test_filters_have_the_sizes_bits_and_bytes_of_both_implementations(known: dict[str, Any]) -> None:
    parameters = FilterParameters(known["capacity"], known["errorRate"])
    assert (parameters.hashes, parameters.bits) == (known["k"], known["m_bits"])
    assert parameters.size_bytes == known["words"] * 8
    for dialect, column in COLUMNS:
        filter_ = made(known["insert"], parameters, dialect)
        assert bits_of(filter_.bits) == known[f"{column}_bits"]
        wire = to_wire(filter_.bits, parameters, dialect)
        if f"{column}_hex" in known:
            assert wire.hex() == known[f"{column}_hex"]
        else:
            assert len(wire) == known[f"{column}_bytes_len"]
            assert hashlib.sha256(wire).hexdigest() == known[f"{column}_bytes_sha256"]
            assert column == "js" or wire.hex().endswith(known["nim_suffix_hex"])
        foreign = ForeignFilter.read(wire, parameters, dialect)
        assert foreign == ForeignFilter(filter_.bits, parameters.bits, parameters.hashes)


def test_parameters_are_those_of_both_implementations() -> None:
    known = {row["errorRate"]: row for row in VECTORS["bloom_parameters"] if row["call"] == "optimal"}
    assert len(known) == 2
    for error, row in known.items():
        assert FilterParameters(1, error).bits == row["bits_per_elem"]
        assert FilterParameters(1, error).hashes == row["k"]
    for name in ("js", "nim"):
        defaults = VECTORS["defaults"][name]
        assert FilterParameters() == FilterParameters(defaults["bloom_capacity"], defaults["bloom_error"])


def test_filters_of_nim_with_other_parameters_are_accepted() -> None:
    """A peer chooses the number of hashes and bits, except the two that cause an error there."""
    chosen = []
    for row in VECTORS["bloom_parameters"]:
        if forced := re.fullmatch(r"k=(\d+),force=(\d+)", row["call"]):
            assert row["m_bits"] == row["capacity"] * int(forced[2])
            chosen.append((row["capacity"], row["m_bits"], int(forced[1])))
        elif "m_over_n" in row:
            chosen.append((1_000, 1_000 * row["m_over_n"], row["k"]))
            rate = (1 - math.exp(-row["k"] / row["m_over_n"])) ** row["k"]
            assert rate < row["err"] < (1 - math.exp(-row["k"] / (row["m_over_n"] - 1))) ** row["k"]
    assert len(chosen) == 4 == len(VECTORS["bloom_parameters"]) - 2 - 2
    for capacity, bits, hashes in chosen:
        own = ForeignFilter(bytes(size_of(bits)), bits, hashes)
        words = bytearray(own.words)
        for position in positions("hello", own, NIM):
            words[position >> 3] |= 1 << (position & 7)
        foreign = ForeignFilter.read(described(bytes(words), capacity, 1_000, hashes, bits), DEFAULT, NIM)
        assert foreign is not None
        assert foreign.contains(positions("hello", foreign, NIM))
        assert not foreign.contains(positions("other", foreign, NIM))


@pytest.mark.parametrize(
    ("capacity", "error"), [(0, 0.001), (-1, 0.001), (10, 0.0), (10, 1.0), (10, -0.5), (10, math.nan)]
)
def test_impossible_filter_parameters_are_rejected(capacity: int, error: float) -> None:
    with pytest.raises(SdsError, match="at least 1 id"):
        FilterParameters(capacity, error)


def test_the_size_of_a_filter_is_limited() -> None:
    """MAX_SDS_FILTER_SIZE_BYTES and MAX_SDS_FILTER_HASHES; a large error results in one hash, not zero."""
    most = (limits.MAX_SDS_FILTER_SIZE_BYTES * 8 - 1) // 15
    largest = FilterParameters(most)
    assert largest.size_bytes <= limits.MAX_SDS_FILTER_SIZE_BYTES
    with pytest.raises(SdsError, match=r"the maximum is 262144 bytes and 32 bits"):
        FilterParameters(most + 1)
    assert FilterParameters(10, 1e-9).hashes == 30
    with pytest.raises(SdsError, match=r"33 bits per id, the maximum is 262144 bytes and 32 bits"):
        FilterParameters(10, 2e-10)
    assert FilterParameters(10, 0.99).hashes == 1
    for dialect in (SPEC, NIM):
        assert ForeignFilter.read(to_wire(bytes(largest.size_bytes), largest, dialect), largest, dialect) is not None
    bits = largest.bits + 64 * 64
    assert ForeignFilter.read(described(bytes(size_of(bits)), most, 1_000, 10, bits), largest, NIM) is None
    for hashes, is_read in ((limits.MAX_SDS_FILTER_HASHES, True), (limits.MAX_SDS_FILTER_HASHES + 1, False)):
        found = ForeignFilter.read(described(bytes(16), 10, 1_000, hashes, 100), SMALL, NIM)
        assert (found is not None) == is_read


# --- contents -----------------------------------------------------------------------------------


@in_each
@FEWER
@given(names=st.lists(ids, max_size=100), others=st.lists(ids, max_size=20))
def test_a_filter_contains_all_added_ids(dialect: SdsDialect, names: list[str], others: list[str]) -> None:
    filter_ = made(names, SMALL, dialect)
    foreign = ForeignFilter.read(to_wire(filter_.bits, SMALL, dialect), SMALL, dialect)
    assert foreign is not None
    for name in names:
        assert filter_.contains(positions(name, SMALL, dialect))
        assert foreign.contains(positions(name, foreign, dialect))
    for name in others:
        found = positions(name, SMALL, dialect)
        assert filter_.contains(found) == foreign.contains(found) == set(found).issubset(bits_of(filter_.bits))


def test_the_false_positive_rate_equals_the_measured_one() -> None:
    """At capacity, fewer than one in a thousand; the measured rate is `false_positive_rate`."""
    filter_, count = BloomFilter(DEFAULT), 0
    for load, known in VECTORS["js_bloom_false_positive_rate_measured"]:
        while count < load:
            filter_.add(positions(f"in {count}", DEFAULT, SPEC))
            count += 1
        probes = [positions(f"out {number}", DEFAULT, SPEC) for number in range(10_000)]
        found = sum(map(filter_.contains, probes)) / len(probes)
        assert found == pytest.approx(known, rel=0.1, abs=0.001)
        foreign = ForeignFilter.read(to_wire(filter_.bits, DEFAULT, SPEC), DEFAULT, SPEC)
        assert foreign is not None
        assert foreign.false_positive_rate == pytest.approx(found, rel=0.1, abs=0.001)
        share_set = foreign.false_positive_rate ** (1 / DEFAULT.hashes)
        assert share_set == pytest.approx(1 - math.exp(-10 * load / DEFAULT.bits), abs=0.01)


# --- foreign filters ------------------------------------------------------------------------------


@in_each
@given(data=st.binary(max_size=300) | st.binary(min_size=SMALL.size_bytes, max_size=SMALL.size_bytes), name=ids)
@example(data=b"", name="m")
@example(data=b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", name="m")
def test_random_bytes_are_a_filter_or_rejected(dialect: SdsDialect, data: bytes, name: str) -> None:
    foreign = ForeignFilter.read(data, SMALL, dialect)
    if dialect is SPEC:
        assert (foreign is not None) == (len(data) == SMALL.size_bytes)
    if foreign is not None:
        found = positions(name, foreign, dialect)
        assert len(found) == foreign.hashes
        assert foreign.contains(found) in {True, False}
        assert 0.0 <= foreign.false_positive_rate <= 1.0


@given(data=st.data())
def test_a_filter_with_any_parameters_is_accepted_or_rejected(data: st.DataObject) -> None:
    bits = data.draw(st.integers(0, 500) | st.integers(0, 2**64 - 1))
    hashes = data.draw(st.integers(0, 40) | st.integers(0, 2**64 - 1))
    words = data.draw(st.binary(max_size=80) | st.just(bytes(size_of(min(bits, 500)))))
    foreign = ForeignFilter.read(described(words, 1, 1, hashes, bits), SMALL, NIM)
    fits = 1 <= hashes <= limits.MAX_SDS_FILTER_HASHES and bits > 0 and len(words) == size_of(bits)
    assert (foreign is not None) == fits
    if foreign is not None:
        foreign.contains(positions("m", foreign, NIM))


def test_missing_filters_and_filters_of_other_sizes_are_ignored() -> None:
    """The npm package loses the whole message if one byte is missing."""
    wire = to_wire(bytes(DEFAULT.size_bytes), DEFAULT, SPEC)
    assert len(wire) == 18_752
    for foreign in (None, b"", wire[:-1], wire + b"\x00", to_wire(bytes(SMALL.size_bytes), SMALL, SPEC)):
        assert ForeignFilter.read(foreign, DEFAULT, SPEC) is None
    described_ = to_wire(bytes(DEFAULT.size_bytes), DEFAULT, NIM)
    assert ForeignFilter.read(described_, DEFAULT, SPEC) is None
    assert ForeignFilter.read(wire, DEFAULT, NIM) is None
    for broken in (described_[:-1], described_ + b"\x08", described_ + field(9, 1), field(1, 5) + described_[:-5]):
        assert ForeignFilter.read(broken, DEFAULT, NIM) is None
    # nim-sds writes a larger one after it rolls over, with its size.
    larger = FilterParameters(12_000)
    assert larger.bits == 180_000
    assert ForeignFilter.read(to_wire(bytes(larger.size_bytes), larger, NIM), DEFAULT, NIM) is not None


def test_a_filter_that_matches_everything_has_a_false_positive_rate_of_1() -> None:
    foreign = ForeignFilter.read(b"\xff" * DEFAULT.size_bytes, DEFAULT, SPEC)
    assert foreign is not None
    assert foreign.contains(positions("anything", foreign, SPEC))
    assert foreign.false_positive_rate == 1.0
    empty = ForeignFilter.read(bytes(DEFAULT.size_bytes), DEFAULT, SPEC)
    assert empty is not None
    assert empty.false_positive_rate == 0.0


def test_bits_of_another_size_are_rejected() -> None:
    for bits in (b"", bytes(SMALL.size_bytes - 1), bytes(DEFAULT.size_bytes)):
        with pytest.raises(SdsError, match="for these parameters"):
            to_wire(bits, SMALL, SPEC)
