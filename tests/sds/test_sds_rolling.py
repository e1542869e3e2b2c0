"""Rolling filter: its contents, error rate, size, and written blocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cablestore.sds.bloom import BLOCK_SIZE_BYTES, FilterParameters, ForeignFilter, RollingFilter, positions
from cablestore.sds.dialects import NIM, SPEC, SdsDialect
from cablestore.sds.settings import COMPACT_FILTER


def filled(parameters: FilterParameters, number: int, dialect: SdsDialect = SPEC) -> RollingFilter:
    rolling = RollingFilter(parameters, dialect)
    for i in range(number):
        rolling.add(f"id {i}")
    return rolling


def contained(ids: list[str], rolling: RollingFilter, parameters: FilterParameters) -> int:
    """Return the number of ids that a member finds in the received filter."""
    foreign = ForeignFilter.read(rolling.wire(), parameters, SPEC)
    assert foreign is not None
    return sum(foreign.contains(positions(message_id, foreign, SPEC)) for message_id in ids)


def newest(number: int, parameters: FilterParameters) -> list[str]:
    return [f"id {i}" for i in range(max(0, number - parameters.capacity // 2), number)]


@pytest.mark.parametrize("number", [1, 499, 500, 501, 999, 1_000, 1_001, 4_321])
def test_the_filter_always_contains_the_last_half_of_its_capacity(number: int) -> None:
    rolling = filled(COMPACT_FILTER, number)
    ids = newest(number, COMPACT_FILTER)
    assert contained(ids, rolling, COMPACT_FILTER) == len(ids)


@pytest.mark.parametrize("number", [1_000, 3_000, 9_999])
def test_the_error_rate_does_not_depend_on_the_number_of_ids(number: int) -> None:
    """Another implementation never rolls over, and matches 70% of all ids after five times its capacity."""
    rolling = filled(COMPACT_FILTER, number)
    wrong = contained([f"other {i}" for i in range(50_000)], rolling, COMPACT_FILTER) / 50_000
    assert wrong <= 2 * COMPACT_FILTER.error


@pytest.mark.parametrize(("dialect", "size_bytes"), [(SPEC, 18_752), (NIM, 18_768)])
def test_the_encoded_size_does_not_change(dialect: SdsDialect, size_bytes: int) -> None:
    rolling = RollingFilter(FilterParameters(), dialect)
    sizes = {len(rolling.wire())}
    for i in range(12_001):
        rolling.add(f"id {i}")
        if i % 1_000 == 0:
            sizes.add(len(rolling.wire()))
    assert sizes == {size_bytes}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 60), max_size=12),
    st.sampled_from([FilterParameters(16, 0.01), FilterParameters(600, 0.01)]),
)
def test_the_filter_is_unchanged_after_every_write_and_reload(sizes: list[int], parameters: FilterParameters) -> None:
    """Only changed blocks are written, and the filter is rebuilt from them."""
    rows: dict[bytes, bytes] = {}
    rolling = RollingFilter(parameters, SPEC)
    number = 0
    for size in sizes:
        for _ in range(size):
            rolling.add(f"id {number}")
            number += 1
        rows.update(rolling.changed_blocks())
        again = RollingFilter(
            parameters, SPEC, newer_slot=rolling.newer_slot, newer_count=rolling.newer_count, read_block=rows.get
        )
        assert again.wire() == rolling.wire()
        ids = newest(number, parameters)
        assert contained(ids, again, parameters) == len(ids)
        if number % 2:
            rolling = again


def test_one_id_changes_at_most_one_block_for_each_of_its_bits() -> None:
    rolling = RollingFilter(FilterParameters(), SPEC)
    rolling.add("x")
    blocks = list(rolling.changed_blocks())
    assert 1 <= len(blocks) <= 10
    assert all(len(block) == BLOCK_SIZE_BYTES for _, block in blocks[:-1])
    assert not list(rolling.changed_blocks())
