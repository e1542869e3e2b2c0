"""Ordered sets of ids with fingerprints of any range: the interface, a set in memory, and the set expected of a peer.

A session uses the same set from its first payload to its last. So an implementation is a snapshot: its results do not
change when posts are stored meanwhile. The cost of `items` should be proportional to its result, and the cost of the
other calls O(log n).

`MemorySet` keeps its ids in immutable chunks: adding or discarding an id replaces one chunk. So a snapshot is the list
of the present chunks and the running sums over them, which are 30,000 numbers of each kind for a million ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache, reduce
from itertools import accumulate
from operator import add, xor
from typing import Final, NamedTuple, Protocol

from cablestore.index.tree import SUM_MODULUS
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.reconcile.ids import Bound, Range, SyncID, bound_between, checked, id_of, key_of


class Fingerprint(NamedTuple):
    """Fingerprint of the ids of a range: their number `ids`, the XOR of their hashes, and the sum modulo 2**256.

    Hashes are read as big-endian numbers. A reconciliation sends only the XOR (WAKU-SYNC). XOR is linear: among any 257
    hashes some have XOR 0. Audits use the sum.
    """

    ids: int
    xor: int
    sum: int

    @property
    def wire(self) -> bytes:
        """The 32 bytes on the wire: the XOR, which is zero without ids."""
        return self.xor.to_bytes(HASH_SIZE_BYTES, "big")

    def without(self, other: Fingerprint) -> Fingerprint:
        """Return the fingerprint of these ids without the ids of `other`."""
        return Fingerprint(self.ids - other.ids, self.xor ^ other.xor, (self.sum - other.sum) % SUM_MODULUS)


class OrderedSet(Protocol):
    """A set of ids at one moment."""

    def count(self, within: Range) -> int:
        """Return the number of ids in the range."""

    def fingerprint(self, within: Range) -> Fingerprint:
        """Return the fingerprint of the range."""

    def items(self, within: Range) -> list[SyncID]:
        """Return the ids of the range, in order."""

    def select(self, within: Range, k: int) -> SyncID:
        """Return the id number k of the range, counted from 0. Raises IndexError if it does not exist."""

    def cut(self, within: Range, k: int, slack: int) -> Bound:
        """Return a bound inside the range with k of its ids below. The count may differ by up to `slack`.

        `k` is at least 1 and less than the number of ids in the range.
        """


_CHUNK_IDS: Final = 32
_KEY_SIZE_BYTES: Final = 8 + HASH_SIZE_BYTES
_BOUNDS_REMEMBERED: Final = 256  # cutting a range uses the same bounds several times


class SortedRecords:
    """Sorted records of one size that end with a hash, joined in one bytes object to use a third of the memory."""

    __slots__ = ("_joined", "_parts", "_size_bytes", "count")

    def __init__(self, joined: bytes, size_bytes: int) -> None:
        self.count = len(joined) // size_bytes
        self._joined = joined
        self._size_bytes = size_bytes
        self._parts: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def record(self, at: int) -> bytes:
        """Return the record at an index."""
        return self._joined[at * self._size_bytes : (at + 1) * self._size_bytes]

    def records(self, start: int = 0, end: int | None = None) -> list[bytes]:
        """Return the records from index `start` up to, but without, index `end`."""
        joined, size = self._joined, self._size_bytes
        last = self.count if end is None else end
        return [joined[at : at + size] for at in range(start * size, last * size, size)]

    def number_below(self, key: bytes) -> int:
        """Return the number of records that sort before `key`."""
        joined, size = self._joined, self._size_bytes
        low, high = 0, self.count
        while low < high:  # this takes two thirds of the time of `bisect_left`, which calls a method for each record
            middle = (low + high) // 2
            if joined[middle * size : (middle + 1) * size] < key:
                low = middle + 1
            else:
                high = middle
        return low

    def hashes(self) -> list[int]:
        """Return the hashes as numbers."""
        starts = range(self._size_bytes - HASH_SIZE_BYTES, len(self._joined), self._size_bytes)
        return [int.from_bytes(self._joined[at : at + HASH_SIZE_BYTES], "big") for at in starts]

    def sums_below(self, at: int) -> tuple[int, int]:
        """Return XOR and sum of the first `at` hashes.

        They are computed on first use, because most chunks are never cut.
        """
        if self._parts is None:
            hashes = self.hashes()
            # Tuples of numbers, because the garbage collector scans lists repeatedly.
            self._parts = tuple(accumulate(hashes, xor, initial=0)), tuple(accumulate(hashes, add, initial=0))
        return self._parts[0][at], self._parts[1][at]


class _Chunk(SortedRecords):
    """A chunk of sorted keys."""

    __slots__ = ("first", "sum", "xor")

    def __init__(self, keys: list[bytes]) -> None:
        super().__init__(b"".join(keys), _KEY_SIZE_BYTES)
        self.first = keys[0]
        hashes = self.hashes()
        self.xor = reduce(xor, hashes)
        self.sum = sum(hashes)


class MemorySet:
    """Mutable set of ids in memory. Reconciliation uses a `snapshot` of it."""

    def __init__(self, ids: Iterable[SyncID] = ()) -> None:
        keys = sorted({key_of(checked(sync_id)) for sync_id in ids})
        self._chunks = _chunks(keys)
        self._firsts = [chunk.first for chunk in self._chunks]

    def add(self, sync_id: SyncID) -> bool:
        """Add an id; return True if it is new. Raises ReconcileError like `checked`."""
        key = key_of(checked(sync_id))
        at, keys, place = self._find(key)
        if key in keys[place : place + 1]:
            return False
        self._replace(at, [*keys[:place], key, *keys[place:]])
        return True

    def discard(self, sync_id: SyncID) -> bool:
        """Remove an id; return True if it was present."""
        key = key_of(checked(sync_id))
        at, keys, place = self._find(key)
        if key not in keys[place : place + 1]:
            return False
        self._replace(at, keys[:place] + keys[place + 1 :])
        return True

    def snapshot(self) -> MemorySetSnapshot:
        """Return the present state, which later changes do not affect."""
        return MemorySetSnapshot(list(self._chunks), list(self._firsts))

    def _find(self, key: bytes) -> tuple[int, list[bytes], int]:
        """Return the index of the chunk for a key, the keys of the chunk, and the number of keys below this key."""
        at = max(bisect_right(self._firsts, key) - 1, 0)
        keys = self._chunks[at].records() if self._chunks else []
        return at, keys, bisect_left(keys, key)

    def _replace(self, at: int, keys: list[bytes]) -> None:
        """Replace the chunk at an index with chunks of these keys."""
        chunks = _chunks(keys) if len(keys) > 2 * _CHUNK_IDS else [_Chunk(keys)] if keys else []
        self._chunks[at : at + 1] = chunks
        self._firsts[at : at + 1] = [chunk.first for chunk in chunks]


class MemorySetSnapshot:
    """Snapshot of a `MemorySet`: an `OrderedSet`."""

    def __init__(self, chunks: list[_Chunk], firsts: list[bytes]) -> None:
        self._chunks = chunks
        self._firsts = firsts
        self._counts = list(accumulate((chunk.count for chunk in chunks), initial=0))
        self._xors = list(accumulate((chunk.xor for chunk in chunks), xor, initial=0))
        self._sums = list(accumulate((chunk.sum for chunk in chunks), add, initial=0))
        self._place = lru_cache(_BOUNDS_REMEMBERED)(self._find_place)
        self._below = lru_cache(_BOUNDS_REMEMBERED)(self._add_up)

    def count(self, within: Range) -> int:
        """Return the number of ids in the range."""
        return self._rank(within.upper) - self._rank(within.lower)

    def fingerprint(self, within: Range) -> Fingerprint:
        """Return the fingerprint of the range."""
        return self._below(within.upper).without(self._below(within.lower))

    def items(self, within: Range) -> list[SyncID]:
        """Return the ids of the range, in order."""
        first, first_place = self._place(within.lower)
        last, last_place = self._place(within.upper)
        if first == last:
            return list(map(id_of, self._chunks[first].records(first_place, last_place))) if self._chunks else []
        keys = self._chunks[first].records(first_place)
        for chunk in self._chunks[first + 1 : last]:
            keys += chunk.records()
        keys += self._chunks[last].records(0, last_place)
        return list(map(id_of, keys))

    def select(self, within: Range, k: int) -> SyncID:
        """Return the id number k of the range. Raises IndexError if it does not exist."""
        rank = self._rank(within.lower) + k
        if k < 0 or rank >= self._rank(within.upper):
            raise IndexError(f"the range does not contain an id with number {k}")
        at = bisect_right(self._counts, rank) - 1
        return id_of(self._chunks[at].record(rank - self._counts[at]))

    def cut(self, within: Range, k: int, slack: int) -> Bound:  # noqa: ARG002 - an exact cut is as fast
        """Return the shortest bound with k ids of the range below it."""
        return bound_between(self.select(within, k - 1), self.select(within, k))

    def _find_place(self, bound: Bound) -> tuple[int, int]:
        """Return the index of the chunk for a bound, and how many ids of this chunk are below the bound."""
        key = key_of(bound)
        at = max(bisect_right(self._firsts, key) - 1, 0)
        return at, self._chunks[at].number_below(key) if self._chunks else 0

    def _rank(self, bound: Bound) -> int:
        at, place = self._place(bound)
        return self._counts[at] + place

    def _add_up(self, bound: Bound) -> Fingerprint:
        """Return the fingerprint of all ids below a bound. Its sum is not reduced modulo 2**256."""
        at, place = self._place(bound)
        xor_, sum_ = self._chunks[at].sums_below(place) if place else (0, 0)
        return Fingerprint(self._counts[at] + place, self._xors[at] ^ xor_, self._sums[at] + sum_)


def _chunks(keys: list[bytes]) -> list[_Chunk]:
    return [_Chunk(keys[at : at + _CHUNK_IDS]) for at in range(0, len(keys), _CHUNK_IDS)]


class CorrectedSet:
    """Set that the peer should have after a reconciliation: the ids in `items`, without `have` and with `need`.

    Only `fingerprint` takes `have` and `need` into account. All other methods return the results of `items`.
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
        """Return the fingerprint that the peer should have for the range."""
        ours, less, more = (known.fingerprint(within) for known in (self._items, self._have, self._need))
        return ours.without(less.without(more))
