"""Pools: results in the order of the items, a limited number of items in progress, and silent helper processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import LIMIT_S

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


REMOVED = """
import sys
from multiprocessing import resource_tracker
from cablestore.index.processes import process_pool
from loky.backend import resource_tracker as loky_tracker
before = sys.warnoptions[:]
with process_pool(1) as pool:
    assert pool.submit(abs, -7).result() == 7
assert sys.warnoptions == before
loky_tracker.register("/nonexistent/file", "file")
resource_tracker.register("/nonexistent", "semaphore")
"""


def test_a_program_that_ends_without_its_files_prints_no_warnings_of_its_pool() -> None:
    """The trackers of resources outlive the program, and would warn about what it has not removed itself."""
    done = subprocess.run([sys.executable, "-c", REMOVED], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
