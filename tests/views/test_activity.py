"""A day begins at midnight UTC, and its first and last millisecond belong to it."""

from __future__ import annotations

from peering import memory
from people import ANN

from cablestore.protocol.body import TEXT
from cablestore.views import activity

DAY_MS = 86_400_000
MIDNIGHT_MS = 19_600 * DAY_MS


def test_a_day_has_the_posts_from_midnight_to_the_millisecond_before_the_next() -> None:
    times = [MIDNIGHT_MS - 1, MIDNIGHT_MS, MIDNIGHT_MS + DAY_MS - 1, MIDNIGHT_MS + DAY_MS]
    with memory("a", posts=[ANN.text("default", f"{at}", at=at) for at in times]) as store, store.snapshot() as state:
        found = [(start_ms, counts[TEXT]) for start_ms, counts in activity.days(state.reader)]
        assert found == [(MIDNIGHT_MS - DAY_MS, 1), (MIDNIGHT_MS, 2), (MIDNIGHT_MS + DAY_MS, 1)]
        for from_ms, to_ms, texts in (
            (MIDNIGHT_MS, MIDNIGHT_MS + DAY_MS, 2),
            (MIDNIGHT_MS - 1, MIDNIGHT_MS + DAY_MS, 3),
            (MIDNIGHT_MS, MIDNIGHT_MS + DAY_MS + 1, 3),
            (MIDNIGHT_MS + DAY_MS, MIDNIGHT_MS + DAY_MS + 1, 1),
        ):
            assert activity.between(state.reader, from_ms, to_ms)[TEXT] == texts
