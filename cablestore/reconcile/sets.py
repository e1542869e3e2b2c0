"""What reconciliation asks of a set of ids: one state of it, in order, with fingerprints of any range. Pure.

A session asks one set from its first payload to its last, so an implementation is a snapshot: whatever is stored
meanwhile, its answers stay the same. All four questions should cost O(log n), and `items` what it returns.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.reconcile.ids import Bound, Range, SyncID


class Fingerprint(NamedTuple):
    """What stands for the ids of a range: how many `ids` there are, the XOR of their hashes, and the sum modulo 2**256.

    Hashes count as numbers, their first byte as the highest. Only the XOR is sent in a reconciliation (WAKU-SYNC). It
    is linear: of any 257 hashes some have XOR 0. The sum stays here, for audits.
    """

    ids: int
    xor: int
    sum: int

    @property
    def wire(self) -> bytes:
        """The 32 bytes that are sent: the XOR, 32 zero bytes for no ids."""
        return self.xor.to_bytes(HASH_SIZE_BYTES, "big")


class OrderedSet(Protocol):
    """One state of a set of ids."""

    def count(self, within: Range) -> int:
        """Return how many ids the range has."""
        ...

    def fingerprint(self, within: Range) -> Fingerprint:
        """Return what stands for the ids of the range."""
        ...

    def items(self, within: Range) -> list[SyncID]:
        """Return the ids of the range, in order."""
        ...

    def select(self, within: Range, k: int) -> SyncID:
        """Return the id before which k others are in the range, the first one for 0; IndexError where there is none."""
        ...

    def cut(self, within: Range, k: int, slack: int) -> Bound:
        """Return a bound inside of the range with k ids of it below, or up to `slack` more or less where that is found sooner.

        `k` is at least 1 and less than the range has.
        """
        ...
