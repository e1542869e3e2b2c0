"""Places: which reconciliation gives way to a new one when the most that may are under way. Pure, the time comes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol, TypeVar

from cablestore import limits


class Holder(Protocol):
    """A reconciliation under way."""

    @property
    def host(self) -> str:
        """The address of its peer."""

    def waited_s(self, now_s: float) -> float:
        """Return how long, in all, this node had nothing to do until the peer said something."""

    @property
    def moved_size_bytes(self) -> int:
        """How many bytes it has moved, both ways."""


H = TypeVar("H", bound=Holder)


def reconciliation_to_stop(holders: Collection[H], host: str, now_s: float) -> H | None:
    """Return which reconciliation gives way to one with `host`, None if all have more right to their place.

    An address with more places than the newcomer's address would have gives up its slowest. If the places are shared
    fairly, one whose peer keeps us waiting gives way.
    """
    shares = Counter(holder.host for holder in holders)
    most = max(shares.values(), default=0)
    if most > shares[host] + 1:
        candidates = [holder for holder in holders if shares[holder.host] == most]
    else:
        candidates = [holder for holder in holders if _is_slow(holder, now_s)]
    return min(candidates, key=lambda holder: _pace(holder, now_s), default=None)


def _is_slow(holder: Holder, now_s: float) -> bool:
    return holder.waited_s(now_s) > limits.TALK_SLOW_AFTER_S and _pace(holder, now_s) < limits.TALK_SLOW_BYTES_PER_S


def _pace(holder: Holder, now_s: float) -> float:
    """Return the bytes moved for each second that we waited for the peer."""
    return holder.moved_size_bytes / max(holder.waited_s(now_s), 1e-3)
