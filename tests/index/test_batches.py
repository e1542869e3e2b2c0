"""Batches: sorted lists of several sources are merged in one order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cablestore.index.batches import batches, merged

blocks = st.lists(st.lists(st.binary(max_size=2), max_size=4), max_size=5)


@given(st.lists(blocks, max_size=4))
def test_sources_of_sorted_lists_are_merged(sources: list[list[list[bytes]]]) -> None:
    """The sources are divided into lists in any way, including empty lists and equal items."""
    ordered: list[list[list[bytes]]] = []
    for cut in sources:
        items = iter(sorted(item for block in cut for item in block))
        ordered.append([[next(items) for _ in block] for block in cut])
    assert list(merged(ordered)) == sorted(item for cut in sources for block in cut for item in block)


def test_a_batch_ends_exactly_at_its_limits() -> None:
    items = ["aa", "bb", "cc", "ddddd", "e"]
    assert list(batches(items, len, 2, 100)) == [["aa", "bb"], ["cc", "ddddd"], ["e"]]
    assert list(batches(items, len, 100, 4)) == [["aa", "bb"], ["cc"], ["ddddd"], ["e"]]
    assert list(batches(items, len, 100, 3)) == [["aa"], ["bb"], ["cc"], ["ddddd"], ["e"]]
    assert list(batches(items, len, 1, 0)) == [[item] for item in items]
    assert list(batches([], len)) == []
