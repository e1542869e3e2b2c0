"""The rate of a connection: the average of about the last ten seconds, whenever it is updated."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cablestore.peers.rate import Rate

PAUSES_S = st.lists(st.floats(0.1, 3), min_size=1, max_size=100)
SPEEDS = st.floats(0, 1e9)


@given(PAUSES_S, SPEEDS, SPEEDS)
def test_the_rate_follows_a_speed_that_changes(pauses_s: list[float], before: float, after: float) -> None:
    rate = Rate(1_000.0)
    size_bytes, now_s = 0.0, 1_000.0
    for speed in (before, after):
        for passed_s in [*pauses_s, *[2.0] * 50]:
            now_s, size_bytes = now_s + passed_s, size_bytes + speed * passed_s
            previous = rate.bytes_per_s
            rate.update(now_s, int(size_bytes))
            low, high = sorted((previous, speed))
            assert low - 20 <= rate.bytes_per_s <= high + 20  # the sizes are whole bytes
        assert rate.bytes_per_s == pytest.approx(speed, abs=20 + 1e-3 * max(before, after))


@given(PAUSES_S)
def test_ten_seconds_without_data_reduce_the_rate_to_a_third(pauses_s: list[float]) -> None:
    rate = Rate(0.0)
    rate.update(1.0, 1_000_000)
    began = rate.bytes_per_s
    assert 0 < began < 1_000_000
    for now_s in accumulate([*pauses_s, 0.0], initial=1.0):  # the same time twice changes nothing
        rate.update(now_s, 1_000_000)
    passed_s = sum(pauses_s)
    assert rate.bytes_per_s == pytest.approx(began * 2.718281828 ** (-passed_s / 10))
