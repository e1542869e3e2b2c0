"""Slots of reconciliations: which reconciliation to stop when a new one starts at the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol, TypeVar

from cablestore import limits


class Holder(Protocol):
    """A reconciliation in progress."""

    @property
    def network(self) -> str:
        """The network of its peer's address: see `network_of`."""

    def waited_s(self, now_s: float) -> float:
        """Return for how long in total this node has waited for the peer."""

    @property
    def moved_size_bytes(self) -> int:
        """The number of bytes transferred in both directions."""


H = TypeVar("H", bound=Holder)


def reconciliation_to_stop(holders: Collection[H], network: str, now_s: float) -> H | None:
    """Return the reconciliation to stop for a new peer in `network`, None if none may be stopped.

    If other networks use more slots than the new peer's network would use, the slowest reconciliation in the networks
    with the most slots is stopped. Otherwise the slowest of all reconciliations is stopped if its peer is slow.
    """
    shares = Counter(holder.network for holder in holders)
    most = max(shares.values(), default=0)
    if most > shares[network] + 1:
        candidates = [holder for holder in holders if shares[holder.network] == most]
    else:
        candidates = [holder for holder in holders if _is_slow(holder, now_s)]
    return min(candidates, key=lambda holder: _pace(holder, now_s), default=None)


def _is_slow(holder: Holder, now_s: float) -> bool:
    return holder.waited_s(now_s) > limits.TALK_SLOW_AFTER_S and _pace(holder, now_s) < limits.TALK_SLOW_BYTES_PER_S


def _pace(holder: Holder, now_s: float) -> float:
    """Return the bytes transferred per second of waiting for the peer."""
    return holder.moved_size_bytes / max(holder.waited_s(now_s), 1e-3)
