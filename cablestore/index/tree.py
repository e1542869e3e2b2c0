"""Trees: stored counts and sums over ranges of posts in order of time. They sum any range in a few reads.

A tree of a set of posts branches by the digits of <mono-ts>, the time and the hash of a post. The name of a node is the
common prefix of its posts: 5 digits of the time on the first level, then one digit more on each level. The row of a
node lists its parts, which are the nodes one level below. For each part, it contains the number of its posts, and the
XOR and the sum of their hashes:

    set      "" row:   tail 170012  |  16998: 910, XOR, sum  |  16999: 400, XOR, sum  |  17001: 150, XOR, sum
                                         |                        |                        |
    node     "16998" row:  169980: 90 | 169981: 820   "16999" row: ...           "17001" row:  170011: 150
                              |            |                                                       (170012 is the tail)
                          no row: 90    "169981" row: ...
                          posts are read

    <prefix><set>!<node>~ -> for each part, in order: label | count u64 | XOR u8[32] | sum modulo 2^256 u8[32]

The label is the part's name without the node's name at its beginning. Each set, and each node with more than
`leaf_rows` posts, has a row. The posts of a smaller node are read one by one.

Most posts are the newest of their set. They would change all rows on the path to them. So the newest part without a
row, the tail, is stored only in the row of the set, before its parts: size of its name u8 | name | count | XOR | sum.
The rows on the path to the tail do not count its posts, so a newest post changes one row in each set.

The rows only depend on the set of posts, not on the order of arrival. Two ways lead to the same bytes: `TreeBuilder`
computes the rows from all posts in order, `changed` from the added and removed posts of a batch.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import accumulate, islice
from operator import add, xor
from typing import Final, NamedTuple

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.view import Tree
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import SEPARATOR, SORT_TIME_SIZE_BYTES, TIME_DIGITS

LENGTHS: Final = (0, *range(5, TIME_DIGITS + 1), *range(TIME_DIGITS + 2, SORT_TIME_SIZE_BYTES + 1))
"""Length of a node's name on each level. The dot and the digit after it are added together."""
LAST_LEVEL: Final = len(LENGTHS) - 1
"""On this level a node is one post and has no row."""
SUM_MODULUS: Final = 2**256

_NO_RUN: Final = b"\xff"
_BLOCK_ITEMS: Final = 4_096
_SUMS: Final = struct.Struct(">Q32s32s")


class NodePart(NamedTuple):
    """Part of a node: its name without the node's name at the beginning, and the number, XOR and sum of its posts."""

    label: bytes
    posts: int
    xor: int
    sum: int


Move = tuple[bytes, bytes, int]
"""<set>!<mono-ts> and hash of a post, with 1 if it is added, -1 if it is removed."""
Change = tuple[bytes, bytes | None, bytes | None]
"""A key, its value before and its value after. None means that the row does not exist."""


def encode_part(part: NodePart) -> bytes:
    """Return the encoding of a part in the row of a node. Raises CorruptStoreError for an impossible number."""
    try:
        return part.label + _SUMS.pack(part.posts, part.xor.to_bytes(32, "big"), part.sum.to_bytes(32, "big"))
    except struct.error:
        raise _damaged() from None


def split_parts(value: bytes, level: int) -> dict[bytes, bytes]:
    """Return the encoded parts in the row of a node on this level, by their labels. Raises CorruptStoreError."""
    label_size = LENGTHS[level + 1] - LENGTHS[level]
    size = label_size + _SUMS.size
    if len(value) % size:
        raise _damaged()
    return {value[at : at + label_size]: value[at : at + size] for at in range(0, len(value), size)}


def encode_root(tail: NodePart, parts: bytes) -> bytes:
    """Return the row of a set, with this tail and these encoded parts."""
    return bytes((len(tail.label),)) + encode_part(tail) + parts


def split_root(value: bytes) -> tuple[NodePart, bytes]:
    """Return the tail and the encoded parts in the row of a set. Raises CorruptStoreError."""
    end = 1 + value[0] + _SUMS.size if value else 0
    if not value or value[0] not in LENGTHS[1:] or len(value) < end:
        raise _damaged()
    return decode_part(value[1:end]), value[end:]


def with_part(value: bytes, change: NodePart) -> bytes:
    """Return the encoded parts `value` after adding `change` to the part with its label. Omit a part without posts.

    Raises CorruptStoreError if the part has fewer posts than `change` removes.
    """
    size = len(change.label) + _SUMS.size
    if len(value) % size:
        raise _damaged()
    at = len(value) - size
    if at < 0 or not value.startswith(change.label, at):  # usually the last part changed
        places = range(0, len(value), size)
        at = size * bisect_left(places, change.label, key=lambda place: value[place : place + len(change.label)])
    is_there = value.startswith(change.label, at)
    after = _with(decode_part(value[at : at + size]), change) if is_there else change
    return value[:at] + (encode_part(after) if after.posts else b"") + value[at + size * is_there :]


def with_tail(value: bytes | None, node: bytes, tail: NodePart) -> bytes:
    """Return the encoded parts of `node`, and count the posts of `tail` in them if it is below the node.

    `value` is the encoded parts in the node's row, or None if the row is missing. Raises CorruptStoreError if the row is
    missing.
    """
    if value is None:  # a node must have more posts than its tail
        raise CorruptStoreError("the sums of a range are missing. Run `cablestore rebuild`")
    has_tail = len(tail.label) > len(node) and tail.label.startswith(node)
    return with_part(value, _within(tail, node, 1)) if has_tail else value


def _within(tail: NodePart, node: bytes, sign: int) -> NodePart:
    """Return the change of a part of `node`, above the tail, if the tail is added (`sign` 1) or removed (-1)."""
    end = LENGTHS[LENGTHS.index(len(node)) + 1]
    return NodePart(tail.label[len(node) : end], sign * tail.posts, tail.xor, sign * tail.sum)


def _damaged() -> CorruptStoreError:
    return CorruptStoreError("the sums of a range are damaged. Run `cablestore rebuild`")


def decode_part(encoded: bytes) -> NodePart:
    """Decode the result of `encode_part`."""
    at = len(encoded) - _SUMS.size
    count, xor_, sum_ = _SUMS.unpack_from(encoded, at)
    return NodePart(encoded[:at], count, int.from_bytes(xor_, "big"), int.from_bytes(sum_, "big"))


def decode_parts(value: bytes, level: int) -> list[NodePart]:
    """Return all parts in the row of a node on this level. Raises CorruptStoreError."""
    return list(map(decode_part, split_parts(value, level).values()))


# --- from all posts -------------------------------------------------------------------------------


class _OpenNode:
    """A node that may get more posts, and its complete parts."""

    __slots__ = ("key", "level", "parts")

    def __init__(self, key: bytes, level: int) -> None:
        self.key = key
        self.level = level
        self.parts: list[NodePart] = []


class TreeBuilder:
    """Builder of the rows of trees. It accepts all items and returns all rows in key order, and keeps few in memory."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._stack: list[_OpenNode] = []
        self._head_size = 0
        self._run: list[Row] = []
        """Items collected so far for the current part of the node on top of the stack."""
        self._edge = _NO_RUN
        """Common prefix of all keys of the run."""
        self._done: list[Row] = []

    def add(self, items: list[Row]) -> list[Row]:
        """Add the next items. Return the rows that are now complete."""
        self._take(items)
        done, self._done = self._done, []
        return done

    def finish(self) -> list[Row]:
        """Close the last set. Return its remaining rows."""
        self._close_set()
        return self.add([])

    def _take(self, items: list[Row]) -> None:
        """Add items to the run, and start or split runs. Each step adds as many items as possible."""
        start = 0
        while start < len(items):
            if not items[start][0].startswith(self._edge):
                self._turn_to(items[start][0])
            stop = min(start + max(self._tree.leaf_rows + 1 - len(self._run), 1), len(items))
            if not items[stop - 1][0].startswith(self._edge):
                stop = bisect_left(items, True, start, stop, key=lambda item: not item[0].startswith(self._edge))
            self._run += items[start:stop]
            if len(self._run) > self._tree.leaf_rows and self._stack[-1].level + 1 < LAST_LEVEL:
                self._split()
            start = stop

    def _turn_to(self, key: bytes) -> None:
        """Close the current run and the nodes that cannot contain `key`, and start the run that contains it."""
        if self._stack and not key.startswith(self._stack[0].key):
            self._close_set()
        self._close_run()
        while self._stack and not key.startswith(self._stack[-1].key):
            self._close_node()
        if not self._stack:
            self._head_size = len(key) - SORT_TIME_SIZE_BYTES
            self._stack.append(_OpenNode(key[: self._head_size], 0))
        self._edge = key[: self._head_size + LENGTHS[self._stack[-1].level + 1]]

    def _split(self) -> None:
        """Turn a run that is too long into a node."""
        self._stack.append(_OpenNode(self._edge, self._stack[-1].level + 1))
        items, self._run, self._edge = self._run, [], _NO_RUN
        self._take(items)

    def _close_run(self) -> None:
        if self._run:
            node = self._stack[-1]
            node.parts.append(self._total_of_run(len(node.key)))
        self._run, self._edge = [], _NO_RUN

    def _total_of_run(self, label_from: int) -> NodePart:
        numbers = [int.from_bytes(digest[:HASH_SIZE_BYTES]) for _, digest in self._run]  # a damaged hash may be longer
        return NodePart(self._edge[label_from:], len(numbers), reduce(xor, numbers), sum(numbers) % SUM_MODULUS)

    def _close_node(self) -> None:
        node = self._stack.pop()
        if node.parts:
            self._done.append((self._tree.prefix + node.key + b"~", b"".join(map(encode_part, node.parts))))
            self._stack[-1].parts.append(total_of(node.key[len(self._stack[-1].key) :], node.parts))

    def _close_set(self) -> None:
        """Close all nodes of the set. The last run is the tail."""
        if not self._stack:
            return
        tail = self._total_of_run(self._head_size)
        self._run, self._edge = [], _NO_RUN
        while len(self._stack) > 1:
            self._close_node()
        root = self._stack.pop()
        value = encode_root(tail, b"".join(map(encode_part, root.parts)))
        self._done.append((self._tree.prefix + root.key + b"~", value))


def total_of(label: bytes, parts: Sequence[NodePart]) -> NodePart:
    """Return one part, with this label, that sums several parts."""
    return NodePart(
        label,
        sum(part.posts for part in parts),
        reduce(xor, (part.xor for part in parts), 0),
        sum(part.sum for part in parts) % SUM_MODULUS,
    )


def tree_rows(tree: Tree, items: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of the trees of all sets in key order. `items` are all (<set>!<mono-ts>, hash) in order."""
    builder = TreeBuilder(tree)
    source = iter(items)
    while block := list(islice(source, _BLOCK_ITEMS)):
        yield from builder.add(block)
    yield from builder.finish()


def items_in(blocks: Iterable[list[Row]], prefix: bytes) -> Iterator[list[Row]]:
    """Yield a tree's items in `blocks`, which are blocks of the rows under `prefix`, one of its sources."""
    size, end, separator = len(prefix), -SORT_TIME_SIZE_BYTES, SEPARATOR
    for block in blocks:
        yield [(key[size:], digest) for key, digest in block if key[end - 1 : end] == separator]


# --- from the changes of a batch ------------------------------------------------------------------


def changed(reader: Reader, tree: Tree, moves: list[Move]) -> list[Change]:
    """Return the rows of `tree` that `moves` change. `reader` reads the state before the moves."""
    found: list[Change] = []
    sets: dict[bytes, list[Move]] = {}
    for move in moves:
        sets.setdefault(move[0][:-SORT_TIME_SIZE_BYTES], []).append(move)
    for head, of_set in sets.items():
        root_key = tree.prefix + head + b"~"
        root = reader.get(root_key)
        grown = None if root is None else _grown(root, head, of_set, tree.leaf_rows)
        if grown is not None:
            found.append((root_key, root, grown))
        elif net := _net(of_set):
            found += _SetChange(reader, tree, head, root, net).run()
    return found


def _net(moves: list[Move]) -> list[Move]:
    """Return moves in order, without those of posts that were added and removed again."""
    if -1 not in [sign for _, _, sign in moves]:
        return sorted(moves)
    net: Counter[tuple[bytes, bytes]] = Counter()
    for key, digest, sign in moves:
        net[key, digest] += sign
    return sorted((key, digest, sign) for (key, digest), sign in net.items() if sign)


def _grown(root: bytes, head: bytes, moves: list[Move], leaf_rows: int) -> bytes | None:
    """Return the row of a set after `moves`, given the row `root` before. This is the fast way for new posts.

    Return None unless all moves add posts to the set's tail and the tail is not split.
    """
    start = 1 + root[0] if root else 0
    stop = start + _SUMS.size
    if len(root) < stop:
        return None
    tail = head + root[1:start]
    posts, xor_bytes, sum_bytes = _SUMS.unpack_from(root, start)
    if posts + len(moves) > leaf_rows:
        return None
    xor_, sum_ = int.from_bytes(xor_bytes, "big"), int.from_bytes(sum_bytes, "big")
    for key, digest, sign in moves:
        if sign < 0 or not key.startswith(tail):
            return None
        number = int.from_bytes(digest, "big")
        xor_ ^= number
        sum_ += number
    sums = _SUMS.pack(posts + len(moves), xor_.to_bytes(32, "big"), (sum_ % SUM_MODULUS).to_bytes(32, "big"))
    return root[:start] + sums + root[stop:]


class _Sums:
    """The moves of a set in order, with running sums. The sum of any range is a difference of two running sums."""

    def __init__(self, moves: list[Move]) -> None:
        self.keys = [key for key, _, _ in moves]
        numbers = [int.from_bytes(digest, "big") for _, digest, _ in moves]
        signs = [sign for _, _, sign in moves]
        self._xors = list(accumulate(numbers, xor, initial=0))
        if -1 in signs:
            numbers = [number * sign for number, sign in zip(numbers, signs, strict=True)]
        self._posts = list(accumulate(signs, initial=0))
        self._sums = list(accumulate(numbers, add, initial=0))

    def of(self, label: bytes, start: int, stop: int) -> NodePart:
        """Return the sum of a range. It may be negative or above the modulus."""
        return NodePart(
            label,
            self._posts[stop] - self._posts[start],
            self._xors[stop] ^ self._xors[start],
            self._sums[stop] - self._sums[start],
        )

    def ranges(self, start: int, stop: int, size: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield (prefix, start, stop) of the ranges of keys with the same first `size` bytes."""
        while start < stop:
            edge = self.keys[start][:size]
            end = bisect_left(self.keys, edge + b"~", start, stop)
            yield edge, start, end
            start = end


class _SetChange:
    """Change of the tree of one set by a batch. `head` is the name of the set with its separator."""

    def __init__(self, reader: Reader, tree: Tree, head: bytes, root: bytes | None, moves: list[Move]) -> None:
        self._reader = reader
        self._root = root
        self._tree = tree
        self._head = head
        self._moves = moves
        self._key = tree.prefix + head
        self._changes = _Sums(moves)
        self._tail: NodePart | None = None
        self._found: dict[bytes, bytes | None] = {}
        """Rows of nodes before the change, by name."""
        self._rows: dict[bytes, bytes | None] = {}
        """Rows of nodes after the changes so far, by name. They include the tail until `_leave_out` subtracts it."""

    def run(self) -> Iterator[Change]:
        """Yield the changed rows."""
        key, root = self._key + b"~", self._root
        if root is None:
            self._make(self._head, 0, 0, len(self._moves))
            tail = self._newest()
        else:
            self._tail, parts = split_root(root)
            self._rows[b""] = with_tail(parts, b"", self._tail)
            tail = self._altered_tail(self._tail)
        self._leave_out(tail)
        after = self._rows.pop(b"")
        yield key, root, None if tail is None else encode_root(tail, after or b"")
        for name, after in self._rows.items():
            yield self._key + name + b"~", self._found[name], after

    def _altered_tail(self, tail: NodePart) -> NodePart | None:
        """Change the rows of all nodes, and return the tail after the change, None if the set is empty."""
        stays = all(sign > 0 and key < self._head + tail.label for key, _, sign in self._moves)
        if not stays:
            for name in _above(tail.label):
                self._row(name)
        self._alter(self._head, 0, 0, len(self._moves), self._row(b""), is_kept=True)
        return tail if stays else self._newest()

    def _newest(self) -> NodePart | None:
        """Return the newest part without a row, None if the set is empty."""
        name = b""
        value = self._rows[name]
        level = 0
        while value:
            last = decode_part(value[-(LENGTHS[level + 1] - LENGTHS[level]) - _SUMS.size :])
            name, level = name + last.label, level + 1
            if last.posts <= self._tree.leaf_rows or level == LAST_LEVEL:
                return last._replace(label=name)
            value = self._row(name)
        return None

    def _leave_out(self, tail: NodePart | None) -> None:
        """Subtract `tail`, the tail after the change, from the rows of the nodes above it."""
        for name in _above(tail.label) if tail is not None else ():
            value = self._rows.get(name)
            if tail is not None and value is not None:
                self._rows[name] = with_part(value, _within(tail, name, -1))

    def _row(self, name: bytes) -> bytes:
        """Return the row of the node `name` after the changes so far, including the tail."""
        value = self._rows.get(name)
        if value is None:
            assert self._tail is not None  # noqa: S101 - a set without a tail has no rows
            self._found[name] = self._reader.get(self._key + name + b"~")
            value = self._rows[name] = with_tail(self._found[name], name, self._tail)
        return value

    def _make(self, node: bytes, level: int, start: int, stop: int) -> None:
        """Create the row of `node`, which had none, and the rows below it, from its posts after the moves.

        `start` and `stop` select the moves of posts in this node.
        """
        posts = dict(self._tree.items(self._reader, node, node + b"~"))
        for key, digest, sign in self._moves[start:stop]:
            if sign > 0:
                posts[key] = digest
            else:
                posts.pop(key, None)
        sums = _Sums([(key, digest[:HASH_SIZE_BYTES], 1) for key, digest in sorted(posts.items())])
        self._make_whole(sums, node, level, 0, len(posts))

    def _make_whole(self, sums: _Sums, node: bytes, level: int, start: int, stop: int) -> None:
        """Create the row of a node from the posts `start` to `stop` of `sums`, and the rows below it."""
        parts = []
        for edge, first, end in sums.ranges(start, stop, len(self._head) + LENGTHS[level + 1]):
            if end - first > self._tree.leaf_rows and level + 1 < LAST_LEVEL:
                self._make_whole(sums, edge, level + 1, first, end)
            parts.append(encode_part(_with(NodePart(edge[len(node) :], 0, 0, 0), sums.of(b"", first, end))))
        name = node[len(self._head) :]
        self._found[name] = None
        self._rows[name] = b"".join(parts) or None

    def _alter(self, node: bytes, level: int, start: int, stop: int, value: bytes, *, is_kept: bool) -> None:
        """Apply the moves `start` to `stop` to the row `value` of a node and to the rows below it.

        Unless `is_kept`, delete the node's row.
        """
        parts = split_parts(value, level)
        for edge, first, end in self._changes.ranges(start, stop, len(self._head) + LENGTHS[level + 1]):
            label = edge[len(node) :]
            before = decode_part(parts[label]) if label in parts else NodePart(label, 0, 0, 0)
            after = _with(before, self._changes.of(label, first, end))
            if after.posts:
                parts[label] = encode_part(after)
            else:
                parts.pop(label, None)
            if level + 1 < LAST_LEVEL:
                self._alter_below(edge, level + 1, first, end, before.posts, after.posts)
        whole = b"".join([parts[label] for label in sorted(parts)])
        self._rows[node[len(self._head) :]] = whole if whole and is_kept else None

    def _alter_below(self, node: bytes, level: int, start: int, stop: int, before: int, after: int) -> None:
        """Apply the moves `start` to `stop` to the rows of `node`, which had `before` posts and now has `after`."""
        leaf_rows = self._tree.leaf_rows
        if before <= leaf_rows < after:
            self._make(node, level, start, stop)
        elif before > leaf_rows:
            value = self._row(node[len(self._head) :])
            self._alter(node, level, start, stop, value, is_kept=after > leaf_rows)


def _above(name: bytes) -> list[bytes]:
    """Return the names of the nodes above a node, starting with the set's name."""
    return [name[:size] for size in LENGTHS if size < len(name)]


def _with(part: NodePart, change: NodePart) -> NodePart:
    """Return a part with the numbers of a change added."""
    return NodePart(part.label, part.posts + change.posts, part.xor ^ change.xor, (part.sum + change.sum) % SUM_MODULUS)
