"""The ids of a store's posts in one state, as an `OrderedSet` that uses stored sums (`cablestore.views.sync`).

The sums are one tree per set, and each channel has a set. A node's name is the common prefix of its posts' keys, so all
trees have the same nodes. The trees of several channels can be read like one. Nodes are read on first use, then cached.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from operator import add, xor
from typing import Final, NamedTuple

from cablestore.errors import CorruptStoreError
from cablestore.index.reader import Reader
from cablestore.index.tree import (
    LAST_LEVEL,
    LENGTHS,
    NodePart,
    decode_parts,
    split_root,
    total_of,
    with_tail,
)
from cablestore.index.view import Tree
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import NS_PER_MS, SORT_TIME_SIZE_BYTES, TIME_DIGITS, time_floor
from cablestore.reconcile.ids import Bound, Range, SyncID, bound_between
from cablestore.reconcile.sets import Fingerprint, OrderedSet, SortedRecords
from cablestore.views.sync import TREE, posts_in, sets_of

_HASH_DIGITS: Final = 32
_RECORD_SIZE_BYTES: Final = SORT_TIME_SIZE_BYTES + HASH_SIZE_BYTES
_POSTS_HELD: Final = 500_000
"""Maximum number of posts in a session's cache: 40 MB, and another 40 MB if their sums are used."""
_POSTS_FORGOTTEN: Final = 50_000
"""Number of posts that are removed from a full cache at a time."""
_POSTS_OF_BRANCH: Final = 16
"""Number of posts that take as much memory as a branch."""
_POSTS_AT_ONCE: Final = 512
_BOUNDS_REMEMBERED: Final = 1_024

Sets = Sequence[tuple[bytes, int]]
"""Names of sets, and the number of posts that each has in a node."""


def stored_set(reader: Reader, channels: frozenset[str] | None = None) -> OrderedSet:
    """Return the ids of all live posts of this state that may be sent, or only of posts in these channels.

    Posts without a channel always belong to the set: names of users, deletions, moderation. An id is (timestamp_ms *
    1,000,000, hash of the post).
    """
    return StoredSet(reader, sets_of(channels))


class _Place(NamedTuple):
    """A bound in two forms. `mono_ts` is compared with a `sort_time`, which contains only half of the hash."""

    mono_ts: bytes
    record: bytes
    """The form that is compared with records, each of which is a `sort_time` and the whole hash."""

    @classmethod
    def of(cls, bound: Bound) -> _Place:
        """Return the forms of a bound."""
        time_ms, rest_ns = divmod(bound.timestamp_ns, NS_PER_MS)
        if rest_ns:
            return cls(time_floor(time_ms + 1), time_floor(time_ms + 1))
        digits = b"." + bound.prefix.hex().encode()[:_HASH_DIGITS] if bound.prefix else b""
        mono_ts = time_floor(time_ms) + digits
        return cls(mono_ts, mono_ts + bound.prefix if len(mono_ts) == SORT_TIME_SIZE_BYTES else mono_ts)

    def lies_within(self, node: bytes) -> bool:
        """Return True if a node can contain posts on both sides of the bound."""
        return self.mono_ts.startswith(node) and bool(self.mono_ts[len(node) :].strip(b"0"))


_Leaf = SortedRecords
"""A node whose posts were read: the `sort_time` and hash of each post."""


class _Branch:
    """A node with running sums over its parts. Each list of sums begins with 0, before the first part."""

    __slots__ = ("ids", "name", "names", "nodes", "sets", "sums", "xors")

    def __init__(self, name: bytes, parts: Sequence[NodePart], sets: Sequence[Sets]) -> None:
        self.name = name
        self.names = [name + part.label for part in parts]
        self.sets = sets
        """For each part: the sets with posts in it, and their numbers of posts."""
        self.nodes: list[_Branch | _Leaf | None] = [None] * len(parts)
        """The parts that were read."""
        self.ids = list(accumulate((part.posts for part in parts), initial=0))
        self.xors = list(accumulate((part.xor for part in parts), xor, initial=0))
        self.sums = list(accumulate((part.sum for part in parts), add, initial=0))

    def part_of(self, place: _Place) -> int:
        """Return the index of the part that contains the bound `place`, or of the first part after the bound."""
        at = bisect_left(self.names, place.mono_ts)
        return at - 1 if at and place.mono_ts.startswith(self.names[at - 1]) else at


class _Step(NamedTuple):
    """A node on the path from the root, with count, XOR and sum of all posts before it."""

    node: _Branch
    ids: int
    xor: int
    sum: int


class StoredSet:
    """The union of sets of a store: an `OrderedSet`."""

    def __init__(self, reader: Reader, names: Sequence[bytes], tree: Tree = TREE) -> None:
        self._reader = reader
        self._tree = tree
        self._names = tuple(names)
        self._below = lru_cache(_BOUNDS_REMEMBERED)(self._add_up)
        self._reads: list[tuple[_Branch, slice, int]] = []
        """For each read, in order: a node, the parts that were read, and how many posts take as much memory as they."""
        self._held_posts = 0
        self._tails: dict[bytes, NodePart] = {}
        self._root = self._read_root()
        self._path = [_Step(self._root, 0, 0, 0)]
        """The path from the root to the node of the last result. The next result is usually near."""

    # --- queries -------------------------------------------------------------------------------

    def count(self, within: Range) -> int:
        """Return the number of ids in the range."""
        return self._below(within.upper).ids - self._below(within.lower).ids

    def fingerprint(self, within: Range) -> Fingerprint:
        """Return the fingerprint of the range."""
        return self._below(within.upper).without(self._below(within.lower))

    def items(self, within: Range) -> list[SyncID]:
        """Return the ids of the range, in order."""
        lower, upper = _Place.of(within.lower), _Place.of(within.upper)
        path = self._path
        while not (lower.mono_ts.startswith(path[-1].node.name) and upper.mono_ts.startswith(path[-1].node.name)):
            path.pop()
        found: list[bytes] = []
        self._collect(path[-1].node, lower, upper, found)
        return list(map(_id_of, found))

    def select(self, within: Range, k: int) -> SyncID:
        """Return the id number k of the range. Raises IndexError if it does not exist."""
        rank = self._below(within.lower).ids + k
        if k < 0 or rank >= self._below(within.upper).ids:
            raise IndexError(f"the range does not contain an id with number {k}")
        return self._id(rank)

    def cut(self, within: Range, k: int, slack: int) -> Bound:
        """Return a bound inside the range with about `k` of its ids below.

        It is the start of a node if one is within `slack` ids of the exact cut. Otherwise exactly `k` ids are below.
        """
        rank = self._below(within.lower).ids + k
        node, start = self._root, 0
        while slack:
            at = bisect_right(node.ids, rank - start) - 1
            before, after = rank - start - node.ids[at], start + node.ids[at + 1] - rank
            nearest = at if before <= after else at + 1
            if min(before, after) <= slack and nearest < len(node.names):
                found = _beginning_of(node.names[nearest])
                if within.lower < found < within.upper:
                    return found
            start += node.ids[at]
            part = self._part(node, at)
            if isinstance(part, _Leaf):
                break
            node = part
        last_below, first_above = self._id(rank - 1), self._id(rank)
        if last_below >= first_above:
            raise CorruptStoreError("the ids of a range are not in order. Run `cablestore rebuild`")
        return bound_between(last_below, first_above)

    # --- going down ----------------------------------------------------------------------------

    def _id(self, rank: int) -> SyncID:
        """Return the id with this index in the whole set, counted from 0."""
        path = self._path
        while not 0 <= rank - path[-1].ids < path[-1].node.ids[-1]:
            path.pop()
        node, start = path[-1].node, path[-1].ids
        at = bisect_right(node.ids, rank - start) - 1
        while isinstance(part := self._part(node, at), _Branch):
            _, ids, xor_, sum_ = path[-1]
            path.append(_Step(part, ids + node.ids[at], xor_ ^ node.xors[at], sum_ + node.sums[at]))
            node, start = part, path[-1].ids
            at = bisect_right(node.ids, rank - start) - 1
        return _id_of(part.record(rank - start - node.ids[at]))

    def _add_up(self, bound: Bound) -> Fingerprint:
        """Return the fingerprint of all ids below a bound. Its sum is not reduced modulo 2**256."""
        place = _Place.of(bound)
        path = self._path
        while not place.mono_ts.startswith(path[-1].node.name):
            path.pop()
        while True:
            node, ids, xor_, sum_ = path[-1]
            at = node.part_of(place)
            ids, xor_, sum_ = ids + node.ids[at], xor_ ^ node.xors[at], sum_ + node.sums[at]
            if at == len(node.names) or not place.lies_within(node.names[at]):
                return Fingerprint(ids, xor_, sum_)
            part = self._part(node, at)
            if isinstance(part, _Leaf):
                number = part.number_below(place.record)
                more_xor, more_sum = part.sums_below(number)
                return Fingerprint(ids + number, xor_ ^ more_xor, sum_ + more_sum)
            path.append(_Step(part, ids, xor_, sum_))

    def _collect(self, node: _Branch | _Leaf, lower: _Place, upper: _Place, found: list[bytes]) -> None:
        """Append to `found` the records of a node from `lower` to `upper`, in order."""
        if isinstance(node, _Leaf):
            found += node.records(node.number_below(lower.record), node.number_below(upper.record))
            return
        for at in range(node.part_of(lower), bisect_left(node.names, upper.mono_ts)):
            self._collect(self._part(node, at), lower, upper, found)

    def _part(self, node: _Branch, at: int) -> _Branch | _Leaf:
        """Return the part of a node at index `at`. Read the part if it is not cached."""
        found = node.nodes[at]
        if found is None:
            self._make_room()
            if node.ids[-1] <= _POSTS_AT_ONCE:
                self._read_leaves(node)
            else:
                read = self._read(node.names[at], node.sets[at])
                posts = node.ids[at + 1] - node.ids[at] if isinstance(read, _Leaf) else _POSTS_OF_BRANCH
                self._remember(node, slice(at, at + 1), [read], posts)
            found = node.nodes[at]
            assert found is not None  # noqa: S101 - it was just read
        return found

    def _make_room(self) -> None:
        """Remove the most recently read nodes from a full cache.

        A payload describes posts from the first to the last, so the next payload needs earlier nodes first.
        """
        if self._held_posts > _POSTS_HELD:
            while self._held_posts > _POSTS_HELD - _POSTS_FORGOTTEN:
                node, parts, posts = self._reads.pop()
                node.nodes[parts] = [None] * len(node.nodes[parts])
                self._held_posts -= posts

    def _remember(self, node: _Branch, parts: slice, read: list[_Branch | _Leaf | None], posts: int) -> None:
        """Cache the nodes `read` as these parts of `node`. They take as much memory as `posts` posts."""
        node.nodes[parts] = read
        self._reads.append((node, parts, posts))
        self._held_posts += posts

    def _read_leaves(self, node: _Branch) -> None:
        """Read all posts of a node at once: finding the first post of a range takes as long as reading a hundred."""
        totals: Counter[bytes] = Counter()
        for sets in node.sets:
            totals.update(dict(sets))
        posts = self._posts(node.name, tuple(totals.items()))
        size = _RECORD_SIZE_BYTES
        leaves: list[_Branch | _Leaf | None] = [
            _Leaf(posts[start * size : stop * size], size) for start, stop in pairwise(node.ids)
        ]
        self._remember(node, slice(None), leaves, node.ids[-1])

    def _read(self, name: bytes, sets: Sets) -> _Branch | _Leaf:
        """Read the node `name`: its parts, or its posts if they are few. `sets` are the sets with posts in the node."""
        if sum(count for _, count in sets) > self._tree.leaf_rows and len(name) < LENGTHS[LAST_LEVEL - 1]:
            return self._branch(name, [self._parts(part_of, name, count) for part_of, count in sets], sets)
        return _Leaf(self._posts(name, sets), _RECORD_SIZE_BYTES)

    def _posts(self, node: bytes, sets: Sets) -> bytes:
        """Return the records of the posts that these sets have in a node: sorted, and joined."""
        found = [record for name, count in sets for record in posts_in(self._reader, name, node, count)]
        joined = b"".join(sorted(found) if len(sets) > 1 else found)
        if len(joined) != _RECORD_SIZE_BYTES * sum(count for _, count in sets):
            raise CorruptStoreError("the posts of a range do not match its sums. Run `cablestore rebuild`")
        return joined

    def _read_root(self) -> _Branch:
        found = []
        for name in self._names:
            value = self._reader.get(self._tree.prefix + name + b"!~")
            if value is not None:
                self._tails[name], parts = split_root(value)
                value = with_tail(parts, b"", self._tails[name])
            found.append(decode_parts(value or b"", 0))
        return self._branch(b"", found, [(name, 0) for name in self._names])

    def _branch(self, node: bytes, found: list[list[NodePart]], sets: Sets) -> _Branch:
        """Return the node whose parts are `found`, a list for each of the `sets`. Add up parts with the same label."""
        if len(found) == 1:
            parts, name = found[0], sets[0][0]
            return _Branch(node, parts, [((name, part.posts),) for part in parts])
        by_label: defaultdict[bytes, list[tuple[bytes, NodePart]]] = defaultdict(list)
        for (name, _), parts in zip(sets, found, strict=True):
            for part in parts:
                by_label[part.label].append((name, part))
        labels = sorted(by_label)
        return _Branch(
            node,
            [total_of(label, [part for _, part in by_label[label]]) for label in labels],
            [tuple((name, part.posts) for name, part in by_label[label]) for label in labels],
        )

    def _parts(self, name: bytes, node: bytes, posts: int) -> list[NodePart]:
        """Return the parts of `node` in the set `name`: from its row, or from its posts if too few for a row."""
        level = LENGTHS.index(len(node))
        if posts > self._tree.leaf_rows:
            value = self._reader.get(self._tree.prefix + name + b"!" + node + b"~")
            return decode_parts(with_tail(value, node, self._tails[name]), level)
        at, end = LENGTHS[level], LENGTHS[level + 1]
        records = posts_in(self._reader, name, node, posts)
        numbered = groupby(records, lambda record: record[at:end])
        return [
            total_of(
                label, [NodePart(label, 1, n := int.from_bytes(one[SORT_TIME_SIZE_BYTES:], "big"), n) for one in group]
            )
            for label, group in numbered
        ]


def _beginning_of(node: bytes) -> Bound:
    """Return the bound below all posts that a node can contain."""
    digits = node[TIME_DIGITS + 1 :]
    prefix = bytes.fromhex((digits + b"0" * (len(digits) % 2)).decode())
    return Bound(int(node[:TIME_DIGITS].ljust(TIME_DIGITS, b"0")) * NS_PER_MS, prefix.rstrip(b"\0"))


def _id_of(record: bytes) -> SyncID:
    return SyncID(int(record[:TIME_DIGITS]) * NS_PER_MS, record[SORT_TIME_SIZE_BYTES:])
