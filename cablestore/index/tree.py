"""Trees: counts and sums over ranges of a view's rows, as rows of their own. Pure.

A node is a set of posts and a beginning of <mono-ts>, 5 digits of the time and from there on one digit more on each level,
then digits of the hash. Its row lists its parts, which are the nodes one level down:

    <prefix><set>!<node>~ -> for each part, in order: label | count u64 | XOR u8[32] | sum modulo 2^256 u8[32]

The label is what the part's name has beyond the node's. There is a row for each set, and for each node with more than
`leaf_rows` posts: what is in a smaller one is read post by post.

The newest part without a row of its own, the tail, stands in the set's row alone, before its parts: size of its name u8 | name |
count | XOR | sum. All rows on the way down to it leave its posts out, so that a post that is the newest changes one row a set.

The rows follow from the set of posts alone. There are two ways to them that end at the same bytes: `TreeBuilder` makes
them of all posts in order, `changed` of what a batch adds and takes away.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from heapq import merge
from itertools import accumulate, islice
from operator import add, xor
from struct import Struct
from typing import Final, NamedTuple

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.view import Tree
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import SEPARATOR, SORT_TIME_SIZE_BYTES, TIME_DIGITS, after_prefix

LENGTHS: Final = (0, *range(5, TIME_DIGITS + 1), *range(TIME_DIGITS + 2, SORT_TIME_SIZE_BYTES + 1))
"""How long a node's name is on each level. The dot comes together with the digit behind it."""
LAST_LEVEL: Final = len(LENGTHS) - 1
"""Here a node is one post, and has no row."""
SUM_MODULUS: Final = 2**256

_NO_RUN: Final = b"\xff"
_BLOCK_ITEMS: Final = 4_096
_SUMS: Final = Struct(">Q32s32s")


class NodePart(NamedTuple):
    """A part of a node: what its name has beyond the node's, and what its posts come to."""

    label: bytes
    posts: int
    xor: int
    sum: int


Move = tuple[bytes, bytes, int]
"""<set>!<mono-ts> and hash of a post, and 1 where it is added, -1 where it is taken out."""
Change = tuple[bytes, bytes | None, bytes | None]
"""A key, its value before and after, None for no row."""


def encode_part(part: NodePart) -> bytes:
    """Return a part as it stands in the row of a node."""
    return part.label + _SUMS.pack(part.posts, part.xor.to_bytes(32, "big"), part.sum.to_bytes(32, "big"))


def split_parts(value: bytes, level: int) -> dict[bytes, bytes]:
    """Return what stands in the row of a node on this level of each part, by its label, or raise CorruptStoreError."""
    label_size = LENGTHS[level + 1] - LENGTHS[level]
    size = label_size + _SUMS.size
    if len(value) % size:
        raise _damaged()
    return {value[at : at + label_size]: value[at : at + size] for at in range(0, len(value), size)}


def encode_root(tail: NodePart, parts: bytes) -> bytes:
    """Return the row of a set: its tail, and what stands in it of its parts."""
    return bytes((len(tail.label),)) + encode_part(tail) + parts


def split_root(value: bytes) -> tuple[NodePart, bytes]:
    """Return the tail of a set, and what its row has of its parts, or raise CorruptStoreError."""
    end = 1 + value[0] + _SUMS.size if value else 0
    if not value or value[0] not in LENGTHS[1:] or len(value) < end:
        raise _damaged()
    return decode_part(value[1:end]), value[end:]


def with_part(value: bytes, change: NodePart) -> tuple[bytes, int]:
    """Return the parts of a node after one of them changed, and how many posts it has then; without any it goes."""
    size = len(change.label) + _SUMS.size
    if len(value) % size:
        raise _damaged()
    at = len(value) - size
    if at < 0 or not value.startswith(change.label, at):  # the last one, mostly
        places = range(0, len(value), size)
        at = size * bisect_left(places, change.label, key=lambda place: value[place : place + len(change.label)])
    is_there = value.startswith(change.label, at)
    after = _with(decode_part(value[at : at + size]), change) if is_there else change
    if after.posts < 0:
        raise _damaged()
    return value[:at] + (encode_part(after) if after.posts else b"") + value[at + size * is_there :], after.posts


def with_tail(value: bytes | None, node: bytes, posts: int, tail: NodePart) -> bytes:
    """Return the parts of a node with `posts` in all, the tail among them if it lies in the node.

    `value` is the node's row without what a set's row begins with. Raises CorruptStoreError where it is missing.
    """
    has_tail = len(tail.label) > len(node) and tail.label.startswith(node)
    if value is None and not (has_tail and posts == tail.posts):
        raise CorruptStoreError("the sums of a range are missing. Run `cablestore rebuild`")
    return with_part(value or b"", _within(tail, node, 1))[0] if has_tail else value or b""


def _within(tail: NodePart, node: bytes, sign: int) -> NodePart:
    """Return how a node on the way down to the tail changes with it."""
    behind = LENGTHS[LENGTHS.index(len(node)) + 1]
    return NodePart(tail.label[len(node) : behind], sign * tail.posts, tail.xor, sign * tail.sum)


def _damaged() -> CorruptStoreError:
    return CorruptStoreError("the sums of a range are damaged. Run `cablestore rebuild`")


def decode_part(encoded: bytes) -> NodePart:
    """Read a part."""
    at = len(encoded) - _SUMS.size
    count, xor_, sum_ = _SUMS.unpack_from(encoded, at)
    return NodePart(encoded[:at], count, int.from_bytes(xor_, "big"), int.from_bytes(sum_, "big"))


def decode_parts(value: bytes, level: int) -> list[NodePart]:
    """Read all parts in the row of a node on this level, or raise CorruptStoreError."""
    return list(map(decode_part, split_parts(value, level).values()))


def _number(item: Row) -> int:
    return int.from_bytes(item[1][:HASH_SIZE_BYTES], "big")  # damage may have made it longer


# --- from all posts -------------------------------------------------------------------------------


class _Open:
    """A node that is not whole yet, and the parts of it that are."""

    __slots__ = ("key", "level", "parts")

    def __init__(self, key: bytes, level: int) -> None:
        self.key = key
        self.level = level
        self.parts: list[NodePart] = []


class TreeBuilder:
    """Makes the rows of trees from all items in order of keys, in order of keys too. It holds a few hundred items."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._stack: list[_Open] = []
        self._head_size = 0
        self._run: list[Row] = []
        """Items of one part of the node on top of the stack."""
        self._edge = _NO_RUN
        """What the keys of the run begin with."""
        self._done: list[Row] = []

    def add(self, items: Iterable[Row]) -> list[Row]:
        """Take the next items; return the rows that are whole."""
        for item in items:
            self._take(item)
        done, self._done = self._done, []
        return done

    def finish(self) -> list[Row]:
        """Return the last rows."""
        self._close_set()
        return self.add(())

    def _take(self, item: Row) -> None:
        if not item[0].startswith(self._edge):
            self._turn_to(item[0])
        self._run.append(item)
        if len(self._run) > self._tree.leaf_rows and self._stack[-1].level + 1 < LAST_LEVEL:
            self._split()

    def _turn_to(self, key: bytes) -> None:
        """Begin the run that this key belongs to."""
        if self._stack and not key.startswith(self._stack[0].key):
            self._close_set()
        self._close_run()
        while self._stack and not key.startswith(self._stack[-1].key):
            self._close_node()
        if not self._stack:
            self._head_size = len(key) - SORT_TIME_SIZE_BYTES
            self._stack.append(_Open(key[: self._head_size], 0))
        self._edge = key[: self._head_size + LENGTHS[self._stack[-1].level + 1]]

    def _split(self) -> None:
        """Make a node of the run: it has become too long."""
        self._stack.append(_Open(self._edge, self._stack[-1].level + 1))
        items, self._run, self._edge = self._run, [], _NO_RUN
        for item in items:
            self._take(item)

    def _close_run(self) -> None:
        if self._run:
            node = self._stack[-1]
            node.parts.append(self._total_of_run(len(node.key)))
        self._run, self._edge = [], _NO_RUN

    def _total_of_run(self, label_from: int) -> NodePart:
        numbers = list(map(_number, self._run))
        return NodePart(self._edge[label_from:], len(numbers), reduce(xor, numbers), sum(numbers) % SUM_MODULUS)

    def _close_node(self) -> None:
        node = self._stack.pop()
        if node.parts:
            self._done.append((self._tree.prefix + node.key + b"~", b"".join(map(encode_part, node.parts))))
            self._stack[-1].parts.append(total_of(node.key[len(self._stack[-1].key) :], node.parts))

    def _close_set(self) -> None:
        """Close all nodes. The last run is the tail."""
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
    """Return what parts come to together."""
    return NodePart(
        label,
        sum(part.posts for part in parts),
        reduce(xor, (part.xor for part in parts), 0),
        sum(part.sum for part in parts) % SUM_MODULUS,
    )


def tree_rows(tree: Tree, items: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of all sets' trees from all items, (<set>!<mono-ts>, hash) in order, in order of keys."""
    builder = TreeBuilder(tree)
    source = iter(items)
    while block := list(islice(source, _BLOCK_ITEMS)):
        yield from builder.add(block)
    yield from builder.finish()


def all_items(reader: Reader, tree: Tree) -> Iterator[Row]:
    """Yield all items of all sets, in order."""
    return merge(*(items_in(reader.blocks(prefix, after_prefix(prefix)), prefix) for prefix in tree.sources))


def items_in(blocks: Iterable[list[Row]], prefix: bytes) -> Iterator[Row]:
    """Yield the items in rows under one of a tree's sources."""
    size = len(prefix)
    for block in blocks:
        for key, digest in block:
            if key[-SORT_TIME_SIZE_BYTES - 1 : -SORT_TIME_SIZE_BYTES] == SEPARATOR:
                yield key[size:], digest


# --- from what changes ----------------------------------------------------------------------------


def changed(reader: Reader, tree: Tree, moves: list[Move]) -> Iterator[Change]:
    """Yield how rows change with these moves. `reader` has the state before them."""
    if -1 in [sign for _, _, sign in moves]:
        net: Counter[tuple[bytes, bytes]] = Counter()
        for key, digest, sign in moves:
            net[key, digest] += sign
        moves = [(key, digest, sign) for (key, digest), sign in net.items() if sign]
    sets: dict[bytes, list[Move]] = {}
    for move in moves:
        sets.setdefault(move[0][:-SORT_TIME_SIZE_BYTES], []).append(move)
    for head, of_set in sets.items():
        root_key = tree.prefix + head + b"~"
        root = reader.get(root_key)
        grown = None if root is None else _grown(root, head, of_set, tree.leaf_rows)
        if grown is None:
            yield from _SetChange(reader, tree, head, root, sorted(of_set)).run()
        else:
            yield root_key, root, grown


def _grown(root: bytes, head: bytes, moves: list[Move], leaf_rows: int) -> bytes | None:
    """Return the row of a set after moves, None where they are more than posts added to its tail."""
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
    """Posts of a set in order, each with 1 or -1, and what any stretch of them comes to: a difference of two sums."""

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
        """Return what a stretch comes to. The sum may be negative, or beyond the modulus."""
        return NodePart(
            label,
            self._posts[stop] - self._posts[start],
            self._xors[stop] ^ self._xors[start],
            self._sums[stop] - self._sums[start],
        )

    def stretches(self, start: int, stop: int, size: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield (beginning, start, stop) of the stretches of keys that have so many bytes in common."""
        while start < stop:
            edge = self.keys[start][:size]
            behind = bisect_left(self.keys, edge + b"~", start, stop)
            yield edge, start, behind
            start = behind


class _SetChange:
    """What a batch changes about the tree of one set. `head` is its name and what parts that from places."""

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
        """The rows of nodes as they are, by name."""
        self._rows: dict[bytes, bytes | None] = {}
        """The same rows with the tail in them, or as they will be once they are changed."""

    def run(self) -> Iterator[Change]:
        """Yield the changed rows."""
        key, root = self._key + b"~", self._root
        if root is None:
            self._make(self._head, 0, 0, len(self._moves))
            tail = self._newest()
        else:
            self._tail, parts = split_root(root)
            self._rows[b""] = with_tail(parts, b"", 0, self._tail)
            tail = self._altered_tail(self._tail)
        self._leave_out(tail)
        after = self._rows.pop(b"")
        yield key, root, None if tail is None else encode_root(tail, after or b"")
        for name, after in self._rows.items():
            yield self._key + name + b"~", self._found[name], after

    def _altered_tail(self, tail: NodePart) -> NodePart | None:
        """Change all nodes but for the tail, and return what it is then, None where no post is left."""
        stays = all(sign > 0 and key < self._head + tail.label for key, _, sign in self._moves)
        if not stays:
            posts = 0
            for name in _above(tail.label):
                value = self._row(name, posts)
                posts = with_part(value, _within(tail, name, 0))[1]
        self._alter(self._head, 0, 0, len(self._moves), self._row(b"", 0), is_kept=True)
        return tail if stays else self._newest()

    def _newest(self) -> NodePart | None:
        """Return the newest part without a row of its own."""
        name = b""
        value = self._rows[name]
        level = 0
        while value:
            last = decode_part(value[-(LENGTHS[level + 1] - LENGTHS[level]) - _SUMS.size :])
            name, level = name + last.label, level + 1
            if last.posts <= self._tree.leaf_rows or level == LAST_LEVEL:
                return last._replace(label=name)
            value = self._row(name, last.posts)
        return None

    def _leave_out(self, tail: NodePart | None) -> None:
        """Take the tail out of the rows that will be."""
        for name in _above(tail.label) if tail is not None else ():
            value = self._rows.get(name)
            if tail is not None and value is not None:
                self._rows[name] = with_part(value, _within(tail, name, -1))[0] or None

    def _row(self, name: bytes, posts: int) -> bytes:
        """Return the row of a node with this many posts, the tail in it."""
        value = self._rows.get(name)
        if value is None:
            assert self._tail is not None  # noqa: S101 - without one there are no rows to read
            self._found[name] = self._reader.get(self._key + name + b"~")
            value = self._rows[name] = with_tail(self._found[name], name, posts, self._tail)
        return value

    def _make(self, node: bytes, level: int, start: int, stop: int) -> None:
        """Make the rows of a node that had none, and of those in it."""
        posts = dict(self._tree.items(self._reader, node, node + b"~"))
        for key, digest, sign in self._moves[start:stop]:
            if sign > 0:
                posts[key] = digest
            else:
                posts.pop(key, None)
        sums = _Sums([(key, digest[:HASH_SIZE_BYTES], 1) for key, digest in sorted(posts.items())])
        self._make_whole(sums, node, level, 0, len(posts))

    def _make_whole(self, sums: _Sums, node: bytes, level: int, start: int, stop: int) -> None:
        """Make the row of a node that has a stretch of posts, and of those in it."""
        parts = []
        for edge, first, behind in sums.stretches(start, stop, len(self._head) + LENGTHS[level + 1]):
            if behind - first > self._tree.leaf_rows and level + 1 < LAST_LEVEL:
                self._make_whole(sums, edge, level + 1, first, behind)
            parts.append(encode_part(_with(NodePart(edge[len(node) :], 0, 0, 0), sums.of(b"", first, behind))))
        name = node[len(self._head) :]
        self._found[name] = None
        self._rows[name] = b"".join(parts) or None

    def _alter(self, node: bytes, level: int, start: int, stop: int, value: bytes, *, is_kept: bool) -> None:
        """Change the row of a node, and of those in it."""
        parts = split_parts(value, level)
        for edge, first, behind in self._changes.stretches(start, stop, len(self._head) + LENGTHS[level + 1]):
            label = edge[len(node) :]
            before = decode_part(parts[label]) if label in parts else NodePart(label, 0, 0, 0)
            after = _with(before, self._changes.of(label, first, behind))
            if after.posts:
                parts[label] = encode_part(after)
            else:
                parts.pop(label, None)
            if level + 1 < LAST_LEVEL:
                self._alter_below(edge, level + 1, first, behind, before.posts, after.posts)
        whole = b"".join([parts[label] for label in sorted(parts)])
        self._rows[node[len(self._head) :]] = whole if whole and is_kept else None

    def _alter_below(self, node: bytes, level: int, start: int, stop: int, before: int, after: int) -> None:
        """Change the rows of a node that had `before` posts and has `after`."""
        leaf_rows = self._tree.leaf_rows
        if before <= leaf_rows < after:
            self._make(node, level, start, stop)
        elif before > leaf_rows:
            value = self._row(node[len(self._head) :], before)
            self._alter(node, level, start, stop, value, is_kept=after > leaf_rows)


def _above(name: bytes) -> list[bytes]:
    """Return the names of the nodes on the way down to a node, that of the set first."""
    return [name[:size] for size in LENGTHS if size < len(name)]


def _with(part: NodePart, change: NodePart) -> NodePart:
    """Return what a part comes to with a change."""
    return NodePart(part.label, part.posts + change.posts, part.xor ^ change.xor, (part.sum + change.sum) % SUM_MODULUS)
