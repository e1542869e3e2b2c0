"""A membership follows from the latest posts, in any order of arrival."""

from __future__ import annotations

from functools import reduce
from itertools import permutations

from people import ANN, START_MS

from cablestore.views.membership import merge, parts


def test_only_the_latest_part_of_each_kind_remains() -> None:
    posts = [
        ANN.join("default", at=START_MS),
        ANN.leave("default", at=START_MS + 1),
        ANN.text("default", "a", at=START_MS + 2),
        ANN.text("default", "b", at=START_MS + 3),
    ]
    _, left, _, spoken = found = [value for [(_, value)] in map(parts, posts)]
    half = len(left) // 2
    expected = max(left[:half], spoken[:half]) + max(left[half:], spoken[half:])
    assert {reduce(merge, order) for order in permutations(found)} == {expected}
