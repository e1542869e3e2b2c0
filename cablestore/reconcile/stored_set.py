"""The set of ids that a store holds: one state of it, read through the sums that the store keeps (`cablestore.views.sync`).

Nodes are read as they are needed and remembered. All sets have the same nodes, so that several of them, those of the
channels that a reconciliation is about, are gone down together like one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import add, xor
from typing import Final, NamedTuple

from cablestore.errors import CorruptStoreError
from cablestore.keys import time_floor
from cablestore.reader import Reader
from cablestore.reconcile.ordered_set import SUM_MODULUS, Fingerprint, OrderedSet
from cablestore.reconcile.sync_id import Bound, Range, SyncID, key_of
from cablestore.tree import LAST_LEVEL, LENGTHS, Part, decode_parts
from cablestore.view import Tree
from cablestore.views.sync import TREE, sets_of

_NS_PER_MS: Final = 1_000_000
_TIME_SIZE_BYTES: Final = 16
_HASH_DIGITS: Final = 32
_NOTHING: Final = Fingerprint(0, 0, 0)
_NODES_REMEMBERED: Final = 16_384
"""Nodes that a session holds, 2 to 10 kB each."""
_BOUNDS_REMEMBERED: Final = 1_024


def stored_set(reader: Reader, channels: frozenset[str] | None = None) -> OrderedSet:
    """Return the ids of all live posts of this state that may travel, or of those of some channels and of none.

    What belongs to no channel comes along with any: names of people, deletions, moderation. An id is
    (timestamp_ms * 1,000,000, hash of the post).
    """
    return StoredSet(reader, sets_of(channels))


class _Branch(NamedTuple):
    """A node whose parts are added up. Each list of sums has one entry more than there are parts."""

    names: list[bytes]
    """Of the parts, whole, in order."""
    posts: list[int]
    xors: list[int]
    sums: list[int]
    sets: list[dict[bytes, int]]
    """Of each part, the sets that have posts in it, and how many."""


class _Leaf(NamedTuple):
    """A node with few posts, which are added up one by one."""

    ids: list[SyncID]
    keys: list[bytes]
    xors: list[int]
    sums: list[int]


class StoredSet:
    """The union of sets of a store."""

    def __init__(self, reader: Reader, names: Sequence[bytes], tree: Tree = TREE) -> None:
        self._reader = reader
        self._tree = tree
        self._names = tuple(names)
        self._branch = lru_cache(_NODES_REMEMBERED)(self._read_branch)
        self._leaf = lru_cache(_NODES_REMEMBERED)(self._read_leaf)
        self._below = lru_cache(_BOUNDS_REMEMBERED)(self._add_up)
        self._root = self._read_branch(b"", tuple((name, None) for name in names))

    # --- questions -----------------------------------------------------------------------------

    def count(self, within: Range) -> int:
        """Return how many ids the range has."""
        return self._below(within.upper).ids - self._below(within.lower).ids

    def fingerprint(self, within: Range) -> Fingerprint:
        """Return what stands for the ids of the range."""
        lower, upper = self._below(within.lower), self._below(within.upper)
        return Fingerprint(upper.ids - lower.ids, upper.xor ^ lower.xor, (upper.sum - lower.sum) % SUM_MODULUS)

    def items(self, within: Range) -> list[SyncID]:
        """Return the ids of the range, in order."""
        if within.upper <= within.lower:
            return []
        start, stop = _place_of(within.lower)[:_TIME_SIZE_BYTES], _place_of(within.upper)[:_TIME_SIZE_BYTES] + b"~"
        found = self._ids(self._names, start, stop)
        return found[bisect_left(found, within.lower) : bisect_left(found, within.upper)]

    def select(self, within: Range, k: int) -> SyncID:
        """Return the id before which k others are in the range; IndexError where there is none."""
        rank = self._below(within.lower).ids + k
        if k < 0 or rank >= self._below(within.upper).ids:
            raise IndexError(f"the range has no id number {k}")
        node: _Branch | _Leaf = self._root
        while isinstance(node, _Branch):
            at = bisect_right(node.posts, rank) - 1
            rank -= node.posts[at]
            node = self._part(node, at)
        return node.ids[rank]

    # --- going down ----------------------------------------------------------------------------

    def _add_up(self, bound: Bound) -> Fingerprint:
        """Return what all ids below a bound come to. The sum is not reduced."""
        place = _place_of(bound)
        ids = xor_ = sum_ = 0
        node: _Branch | _Leaf = self._root
        while isinstance(node, _Branch):
            at = bisect_left(node.names, place)
            # The part in which the bound lies has a name that the bound's place begins with.
            has_part = at > 0 and place.startswith(node.names[at - 1])
            whole = at - has_part
            ids, xor_, sum_ = ids + node.posts[whole], xor_ ^ node.xors[whole], sum_ + node.sums[whole]
            if not has_part:
                return Fingerprint(ids, xor_, sum_)
            node = self._part(node, whole)
        at = bisect_left(node.keys, key_of(bound))
        return Fingerprint(ids + at, xor_ ^ node.xors[at], sum_ + node.sums[at])

    def _part(self, node: _Branch, at: int) -> _Branch | _Leaf:
        """Return the part of a node with this number."""
        name, sets = node.names[at], node.sets[at]
        posts = sum(sets.values())
        if posts <= self._tree.leaf_rows or len(name) >= LENGTHS[LAST_LEVEL - 1]:
            return self._leaf(name, tuple(sets))
        return self._branch(name, tuple(sets.items()))

    def _read_branch(self, node: bytes, sets: tuple[tuple[bytes, int | None], ...]) -> _Branch:
        """Read what the parts of a node come to in these sets, of each of which it is said how many posts it has here."""
        found: dict[bytes, Fingerprint] = {}
        by_set: defaultdict[bytes, dict[bytes, int]] = defaultdict(dict)
        for name, posts in sets:
            for part in self._parts(name, node, posts):
                label, ids, xor_, sum_ = part
                known = found.get(label, _NOTHING)
                found[label] = Fingerprint(known.ids + ids, known.xor ^ xor_, known.sum + sum_)
                by_set[label][name] = ids
        labels = sorted(found)
        parts = [found[label] for label in labels]
        return _Branch(
            [node + label for label in labels],
            list(accumulate((part.ids for part in parts), initial=0)),
            list(accumulate((part.xor for part in parts), xor, initial=0)),
            list(accumulate((part.sum for part in parts), add, initial=0)),
            [by_set[label] for label in labels],
        )

    def _parts(self, name: bytes, node: bytes, posts: int | None) -> list[Part]:
        """Return the parts of a node in one set: from its row, or from its posts where those are too few for one."""
        level = LENGTHS.index(len(node))
        if posts is None or posts > self._tree.leaf_rows:
            value = self._reader.get(self._tree.prefix + name + b"!" + node + b"~")
            if value is None and posts is not None:
                raise CorruptStoreError("the sums of a range are missing. Run `cablestore rebuild`")
            return decode_parts(value or b"", level)
        start = name + b"!" + node
        at, behind = len(name) + 1 + LENGTHS[level], len(name) + 1 + LENGTHS[level + 1]
        return [
            Part(key[at:behind], 1, number := int.from_bytes(digest, "big"), number)
            for key, digest in self._tree.items(self._reader, start, start + b"~")
        ]

    def _read_leaf(self, node: bytes, sets: tuple[bytes, ...]) -> _Leaf:
        """Read the posts of a node in these sets."""
        ids = self._ids(sets, node, node + b"~")
        numbers = [int.from_bytes(found.hash, "big") for found in ids]
        return _Leaf(
            ids,
            list(map(key_of, ids)),
            list(accumulate(numbers, xor, initial=0)),
            list(accumulate(numbers, add, initial=0)),
        )

    def _ids(self, sets: Sequence[bytes], start: bytes, stop: bytes) -> list[SyncID]:
        """Return the ids of these sets with start <= <mono-ts> < stop, in order."""
        ids = []
        for name in sets:
            time_at = len(name) + 1
            head = name + b"!"
            for key, digest in self._tree.items(self._reader, head + start, head + stop):
                ids.append(SyncID(int(key[time_at : time_at + _TIME_SIZE_BYTES]) * _NS_PER_MS, digest))
        return sorted(ids) if len(sets) > 1 else ids


def _place_of(bound: Bound) -> bytes:
    """Return what compares with <mono-ts> as the bound does with ids, as far as <mono-ts> tells them apart."""
    time_ms, rest_ns = divmod(bound.timestamp_ns, _NS_PER_MS)
    if rest_ns:
        return time_floor(time_ms + 1)
    return time_floor(time_ms) + (b"." + bound.prefix.hex().encode()[:_HASH_DIGITS] if bound.prefix else b"")
