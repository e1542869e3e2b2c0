"""The flow window adapts to the throughput of a link, compared with a model of links."""

from __future__ import annotations

from collections import deque

import pytest

from cablestore import limits
from cablestore.protocol.flow_window import BatchStart, FlowWindow

MOST = 4_000_000
BATCHES = 4


def settled(flow: FlowWindow, bytes_per_s: float, delay_s: float) -> float:
    """Return the window after two minutes over a link that delivers batches in sequence, and answers with a delay."""
    now_s = free_s = 0.0
    on_way: deque[tuple[float, BatchStart, float]] = deque()
    while now_s < 120:
        size_bytes = max(limits.FLOW_LEAST_SIZE_BYTES / BATCHES, flow.window_size_bytes / BATCHES)
        while not on_way or flow.room_size_bytes >= size_bytes:
            free_s = max(free_s, now_s) + size_bytes / bytes_per_s
            on_way.append((free_s + delay_s, flow.began(size_bytes, now_s), size_bytes))
        now_s, start, size = on_way.popleft()
        flow.arrived(int(size))
        flow.ended(start, size, now_s)
    return flow.window_size_bytes


@pytest.mark.parametrize("delay_s", [0.01, 0.2, 1.2])
@pytest.mark.parametrize("bytes_per_s", [5_000, 30_000, 100_000])
def test_the_window_fills_a_link_and_is_limited_to_a_few_seconds(bytes_per_s: float, delay_s: float) -> None:
    """The limits are FLOW_FIRST_SIZE_BYTES, FLOW_LEAST_SIZE_BYTES and FLOW_AHEAD_S."""
    flow = FlowWindow(MOST)
    assert flow.window_size_bytes == limits.FLOW_FIRST_SIZE_BYTES
    window_size_bytes = settled(flow, bytes_per_s, delay_s)
    assert window_size_bytes >= 0.9 * bytes_per_s * delay_s, "the link is never idle"
    assert window_size_bytes >= limits.FLOW_LEAST_SIZE_BYTES
    assert window_size_bytes <= bytes_per_s * (delay_s + 3 * limits.FLOW_AHEAD_S) + limits.FLOW_FIRST_SIZE_BYTES


def test_a_fast_link_has_the_largest_window() -> None:
    assert settled(FlowWindow(300_000), 50_000_000, 0.001) == 300_000


def test_small_requests_do_not_count_as_a_slow_link() -> None:
    flow = FlowWindow(MOST)
    settled(flow, 100_000, 0.01)
    before = flow.window_size_bytes
    for _ in range(20):
        start = flow.began(100, 200.0)
        flow.arrived(100)
        flow.ended(start, 100, 201.0)
    assert flow.window_size_bytes == before
