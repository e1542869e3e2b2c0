"""Rates of posts: no interval has more posts than its length and the burst allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cablestore import limits
from cablestore.peers.address import network_of
from cablestore.peers.policy import PostRate
from cablestore.peers.token_buckets import TokenBuckets


@given(
    st.integers(1, 600),
    st.integers(1, 50),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 30)), max_size=80),
)
def test_no_interval_has_more_posts_than_its_length_and_the_burst_allow(
    per_minute: int, burst: int, tries: list[tuple[str, float]]
) -> None:
    buckets = TokenBuckets(PostRate(per_minute, burst))
    taken: dict[str, list[float]] = {"a": [], "b": []}
    now_s = 0.0
    for key, pause_s in tries:
        now_s += pause_s
        wait_s = buckets.take(key, 1, now_s)
        if wait_s:
            assert not buckets.take(key, 1, now_s + wait_s + 0.001)
            now_s += wait_s + 0.001
        taken[key].append(now_s)
    for times_s in taken.values():
        for first, from_s in enumerate(times_s):
            for last in range(first, len(times_s)):
                posts = last - first + 1
                assert posts <= burst + (times_s[last] - from_s) * per_minute / 60 + 1e-6


def test_a_batch_larger_than_the_burst_delays_the_next_one() -> None:
    buckets = TokenBuckets(PostRate(60, 10))
    assert buckets.take("a", 25, 0.0) == 0.0
    assert buckets.take("a", 1, 0.0) == 16.0
    assert buckets.take("b", 1, 0.0) == 0.0
    assert buckets.take("a", 1, 16.0) == 0.0


def test_the_number_of_remembered_keys_is_limited() -> None:
    """MAX_RATES_REMEMBERED: the least recent keys are forgotten."""
    buckets = TokenBuckets(PostRate(1, 1))
    for number in range(limits.MAX_RATES_REMEMBERED + 100):
        assert not buckets.take(str(number), 1, 0.0)
    assert len(buckets) == limits.MAX_RATES_REMEMBERED
    assert buckets.take("100", 1, 0.0)
    assert not buckets.take("99", 1, 0.0)


def test_addresses_of_one_customer_share_limits() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1:2%eth0") != network_of("2001:db8:0:1::1")
    assert network_of("2001:db8::%eth0") == network_of("2001:db8::ffff:ffff:ffff:ffff")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("?") == "?"
