"""Our set, corrected by what a reconciliation found: what the peer's should be, for an audit. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cablestore.index.tree import SUM_MODULUS
from cablestore.reconcile.ids import Range, SyncID
from cablestore.reconcile.memory_set import MemorySet
from cablestore.reconcile.sets import Fingerprint, OrderedSet


class CorrectedSet:
    """An `OrderedSet` whose fingerprints are those of `items` without `have` and with `need`.

    Where ranges are cut is decided by `items` alone: all but fingerprints is its own.
    """

    def __init__(self, items: OrderedSet, have: Iterable[SyncID], need: Iterable[SyncID]) -> None:
        self._items = items
        self._have = MemorySet(have).snapshot()
        self._need = MemorySet(need).snapshot()
        self.count = items.count
        self.items = items.items
        self.select = items.select
        self.cut = items.cut

    def fingerprint(self, within: Range) -> Fingerprint:
        """Return what should stand for the peer's ids of the range."""
        ours, less, more = (known.fingerprint(within) for known in (self._items, self._have, self._need))
        return Fingerprint(
            ours.ids - less.ids + more.ids,
            ours.xor ^ less.xor ^ more.xor,
            (ours.sum - less.sum + more.sum) % SUM_MODULUS,
        )
