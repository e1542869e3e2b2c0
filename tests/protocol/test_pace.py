"""Pace: the window follows what a link carries, against a model of links."""

from __future__ import annotations

from collections import deque

import pytest

from cablestore import limits
from cablestore.protocol.pace import Pace, PaceStart

MOST = 4_000_000
BATCHES = 4


def settled(pace: Pace, bytes_per_s: float, delay_s: float) -> float:
    """Return the window after two minutes over a link that passes batches one after the other, and answers late."""
    now_s = free_s = 0.0
    on_way: deque[tuple[float, PaceStart, float]] = deque()
    while now_s < 120:
        size_bytes = max(limits.PACE_LEAST_SIZE_BYTES / BATCHES, pace.window_size_bytes / BATCHES)
        while not on_way or pace.room_size_bytes >= size_bytes:
            free_s = max(free_s, now_s) + size_bytes / bytes_per_s
            on_way.append((free_s + delay_s, pace.began(size_bytes, now_s), size_bytes))
        now_s, start, size = on_way.popleft()
        pace.arrived(int(size))
        pace.ended(start, size, now_s)
    return pace.window_size_bytes


@pytest.mark.parametrize("delay_s", [0.01, 0.2, 1.2])
@pytest.mark.parametrize("bytes_per_s", [5_000, 30_000, 100_000])
def test_a_link_is_full_and_loses_about_a_second_of_it_when_it_breaks(bytes_per_s: float, delay_s: float) -> None:
    """PACE_FIRST_SIZE_BYTES, PACE_LEAST_SIZE_BYTES, PACE_AHEAD_S."""
    pace = Pace(MOST)
    assert pace.window_size_bytes == limits.PACE_FIRST_SIZE_BYTES
    window_size_bytes = settled(pace, bytes_per_s, delay_s)
    assert window_size_bytes >= 0.9 * bytes_per_s * delay_s, "the link is never idle"
    assert window_size_bytes >= limits.PACE_LEAST_SIZE_BYTES
    assert window_size_bytes <= bytes_per_s * (delay_s + 3 * limits.PACE_AHEAD_S) + limits.PACE_FIRST_SIZE_BYTES


def test_a_fast_link_gets_the_most() -> None:
    assert settled(Pace(300_000), 50_000_000, 0.001) == 300_000


def test_little_that_is_wanted_does_not_count_as_a_slow_link() -> None:
    pace = Pace(MOST)
    settled(pace, 100_000, 0.01)
    before = pace.window_size_bytes
    for _ in range(20):
        start = pace.began(100, 200.0)
        pace.arrived(100)
        pace.ended(start, 100, 201.0)
    assert pace.window_size_bytes == before
