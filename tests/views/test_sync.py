"""Posts are reconciled up to the last millisecond whose nanoseconds fit into a signed integer of 64 bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from people import ANN

from cablestore import Post
from cablestore.views import sync

LAST_MS = 9_223_372_036_854


@pytest.mark.parametrize("make", [lambda at: ANN.text("default", "x", at=at), lambda at: ANN.join("default", at=at)])
def test_posts_after_the_last_millisecond_are_in_no_set(make: Callable[[int], Post]) -> None:
    last, later = make(LAST_MS), make(LAST_MS + 1)
    assert (len(sync.sets(last)), len(sync.rows(last))) == (2, 1 if last.type == 0 else 2)
    assert (sync.sets(later), sync.rows(later)) == ([], [])
