"""Limits of posts per author and per address: token buckets, which fill at a steady rate up to a maximum."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from cablestore import limits
from cablestore.peers.policy import PostRate

_S_PER_MINUTE: Final = 60.0


class TokenBuckets:
    """A bucket of tokens for each key. All of them have the same rate.

    The bucket of a key that has not been used for a long time is full. So the least recently used keys can be forgotten
    without effect.
    """

    def __init__(self, rate: PostRate, max_keys: int = limits.MAX_RATES_REMEMBERED) -> None:
        self._tokens_per_s = rate.posts_per_minute / _S_PER_MINUTE
        self._burst = float(rate.burst)
        self._max_keys = max_keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Tokens, and the time at which they were counted in seconds."""

    def __len__(self) -> int:
        """Return the number of remembered keys."""
        return len(self._buckets)

    def take(self, key: str, count: int, now_s: float) -> float:
        """Take `count` tokens of `key`. Return 0.0 on success, otherwise the seconds to wait before the next attempt.

        If at least one token is left, `count` may exceed the number of tokens. The next attempt then waits longer.
        """
        tokens, at_s = self._buckets.get(key, (self._burst, now_s))
        tokens = min(self._burst, tokens + (now_s - at_s) * self._tokens_per_s)
        wait_s = 0.0 if tokens >= 1.0 else max((1.0 - tokens) / self._tokens_per_s, 0.001)
        self._buckets[key] = (tokens if wait_s else tokens - count, now_s)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._max_keys:
            self._buckets.popitem(last=False)
        return wait_s
