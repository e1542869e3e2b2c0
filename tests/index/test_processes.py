"""Results of a pool: in the order of the items, with a limited number of items in progress."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cablestore.index.processes import in_order


@pytest.mark.parametrize(("most", "begun_first"), [(1, 1), (3, 3), (5, 5), (6, 5), (None, 5)])
def test_results_are_in_order_and_the_items_in_progress_are_limited(most: int | None, begun_first: int) -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for item in range(5):
            begun.append(item)
            yield item

    with ThreadPoolExecutor(2) as pool:
        results = in_order(pool, str, items(), most=most)
        assert next(results) == "0"
        assert begun == [*range(begun_first)]
        assert [*results] == ["1", "2", "3", "4"]
