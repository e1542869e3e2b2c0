"""The contract of views: what a view is to the code that keeps it.

A view is pure functions of one post, written once. The store adds and removes rows with them, the in-process rebuild
and the Spark job make whole databases with them, and `check` holds a database against them.

Rows (`View.rows`) follow from one post alone. What follows from several posts is either

* a Fold: each post gives parts, parts of one key are merged, the merged part is stored. Merging is commutative,
  associative and idempotent, so neither order nor repetition matters;
* a Tally: each post counts 1 at a key. Counts of live posts are added up.

What follows from rows, once these are known, is a summary:

* a Census: how many rows of a fold count, by group;
* a Tree: counts and sums over ranges of posts in order of time, in sets that the view names.

Keys hold text as `keys.escape` writes it: bytes 0 to 3 stand in no key, for the reverse hash map has a use for them.

Rows and parts of a tombstone (`dead_rows`, `dead_parts`) are what a view keeps of a deleted post.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader, record_key
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.body import TYPE_NAMES
from cablestore.protocol.post import Post

ALL_TYPES: Final = frozenset(TYPE_NAMES)
REVERSE_NAME: Final = "reverse"
REVERSE_PREFIX: Final = b"!reverse!"
_NOTHING: list[Row] = []
_NUMBER: Final = Struct(">Q")


def _no_rows(_: object) -> list[Row]:
    return _NOTHING


def _as_it_is(part: bytes) -> bytes | None:
    return part


@dataclass(frozen=True)
class Census:
    """How many rows of a fold count, one row a group.

    A group is all rows of the fold whose keys are the same up to their last `!`. `counts(value)` tells whether a stored row
    counts. The group's row has `prefix` in place of the fold's, the key's parts but the last one, and the number, u64
    big-endian. Where nothing counts there is no row.

    So a fold with `!channel!member!<channel>!<pubkey>` and a census with `!channel!members!` have `!channel!members!<channel>`.
    """

    prefix: bytes
    counts: Callable[[bytes], bool]


@dataclass(frozen=True)
class Fold:
    """One row a group of posts, merged from the parts that each of them gives.

    * `parts(post)` gives the (key, part) pairs of a post whose type is in `types`.
    * `merge(a, b)` joins two parts of one key.
    * `stored(part)` is the value that is kept for a part, None where no row is.
    * `recall(reader, key, part)` is what the absence of a row stands for when `part` is added: None is nothing.
    * `refold(reader, key)` finds the part anew from the rows that are left after one was removed.
    * `census` counts the stored rows.
    """

    prefix: bytes
    types: frozenset[int]
    parts: Callable[[Post], list[Row]]
    refold: Callable[[Reader, bytes], bytes | None]
    merge: Callable[[bytes, bytes], bytes] = max
    dead_parts: Callable[[Tombstone], list[Row]] = _no_rows
    stored: Callable[[bytes], bytes | None] = _as_it_is
    recall: Callable[[Reader, bytes, bytes], bytes | None] | None = None
    census: Census | None = None


@dataclass(frozen=True)
class Tally:
    """Numbers of live posts by type under the key that `key(post)` names.

    The value is a msgpack list of ten counts, one for each post type. A row whose counts are all 0 is removed.
    """

    prefix: bytes
    types: frozenset[int]
    key: Callable[[Post], bytes]


@dataclass(frozen=True)
class Tree:
    """Sums over ranges of posts in order of <mono-ts>, so that any range is a few reads. `cablestore.index.tree` makes them.

    Posts are in sets: `sets(post)` has their names. The tree of each set has rows under `prefix`: of the whole set, and of
    every range with more than `leaf_rows` posts. `items(reader, start, stop)` reads (<set>!<mono-ts>, hash) of a set's
    posts in a range. All of these stand in rows whose keys begin with one of `sources`.
    """

    prefix: bytes
    sets: Callable[[Post], list[bytes]]
    items: Callable[[Reader, bytes, bytes], Iterator[Row]]
    sources: tuple[bytes, ...]
    leaf_rows: int = 128


def decode_counts(value: bytes | None) -> list[int]:
    """Return the ten counts of a tally's row."""
    if value is None:
        return [0] * len(TYPE_NAMES)
    counts = unpack(value)
    if type(counts) is not list or len(counts) != len(TYPE_NAMES) or set(map(type, counts)) != {int}:
        raise CorruptStoreError("a tally's row is not ten counts. Run `cablestore rebuild`")
    return counts


def encode_counts(counts: list[int]) -> bytes | None:
    """Return the value of a tally's row, None where nothing is left to count."""
    return pack(counts) if any(counts) else None


def decode_number(value: bytes | None) -> int:
    """Return the number in a census' row."""
    if value is None:
        return 0
    if len(value) != _NUMBER.size:
        raise CorruptStoreError("a census' row is not a number. Run `cablestore rebuild`")
    number: int = _NUMBER.unpack(value)[0]
    return number


def encode_number(number: int) -> bytes | None:
    """Return the value of a census' row, None where nothing counts."""
    if number < 0:
        raise CorruptStoreError("a census' row has less than was counted. Run `cablestore rebuild`")
    return _NUMBER.pack(number) if number else None


@dataclass(frozen=True)
class View:
    """One view: its name, its version, and the functions that make it. Its module's docstring gives the key layout.

    `prefixes` are the key ranges that are the view's own; each fold, tally, census and tree has one of them to itself.
    The version goes up when the rows that the functions make change. `answers` names the requests of peers and the reads of clients that the view serves.
    """

    name: str
    version: int
    prefixes: tuple[bytes, ...]
    answers: str
    types: frozenset[int] = frozenset()
    """The types of post that have rows."""
    rows: Callable[[Post], list[Row]] = _no_rows
    dead_rows: Callable[[Tombstone], list[Row]] = _no_rows
    folds: tuple[Fold, ...] = ()
    tallies: tuple[Tally, ...] = ()
    tree: Tree | None = None


class Catalog:
    """All views, sorted out by the type of post that concerns them."""

    def __init__(self, views: tuple[View, ...]) -> None:
        self.views: Final = views
        self.versions: Final = {view.name: view.version for view in views}
        self.by_type: Final = tuple(tuple(v for v in views if t in v.types) for t in TYPE_NAMES)
        """The views that have rows for each type of post."""
        self.folds: Final = tuple(tuple(f for v in views for f in v.folds if t in f.types) for t in TYPE_NAMES)
        self.tallies: Final = tuple(tuple(y for v in views for y in v.tallies if t in y.types) for t in TYPE_NAMES)
        self.trees: Final = tuple(view.tree for view in views if view.tree is not None)
        self.censuses: Final = tuple((f, f.census) for view in views for f in view.folds if f.census is not None)
        self.prefixes: Final = sorted((prefix, view.name) for view in views for prefix in view.prefixes)
        """Every key range that is a view's own, and the view's name, in order of keys."""
        folds: list[tuple[bytes, Fold | None]] = [(fold.prefix, fold) for view in views for fold in view.folds]
        tallies: list[tuple[bytes, Fold | None]] = [(tally.prefix, None) for view in views for tally in view.tallies]
        self.combined: Final = sorted(folds + tallies, key=lambda pair: pair[0])
        """The prefixes under which a row is made of many posts: with the fold, or None for counts."""

    def rows(self, post: Post) -> list[Row]:
        """Return every row that follows from the post alone, the one of the reverse hash map last."""
        rows: list[Row] = []
        for view in self.by_type[post.type]:
            rows += view.rows(post)
        own = record_key(post)
        rows.append(reverse_row(post, [key for key, _ in rows if key != own]))
        return rows

    def dead_rows(self, tombstone: Tombstone) -> list[Row]:
        """Return every row that follows from the tombstone alone."""
        return [row for view in self.views for row in view.dead_rows(tombstone)]

    def fold_keys(self, post: Post) -> list[tuple[Fold, bytes]]:
        """Return every fold's key that the post gives a part to."""
        return [(fold, key) for fold in self.folds[post.type] for key, _ in fold.parts(post)]

    def dead_parts(self, tombstone: Tombstone) -> list[tuple[Fold, bytes, bytes]]:
        """Return (fold, key, part) for all that the tombstone gives to folds."""
        folds = [fold for view in self.views for fold in view.folds]
        return [(fold, key, part) for fold in folds for key, part in fold.dead_parts(tombstone)]

    def tally_keys(self, post: Post) -> list[bytes]:
        """Return the keys at which the post counts."""
        return [tally.key(post) for tally in self.tallies[post.type]]

    def together(self, views: frozenset[str]) -> frozenset[str]:
        """Return these views and those that can only be built anew along with them: a tree, and what it is over."""
        for tree in self.trees:
            bound = {self.view_of(prefix) for prefix in (tree.prefix, *tree.sources)}
            views = views | bound if views & bound else views
        return views

    def view_of(self, key: bytes) -> str:
        """Return the name of the view that a key belongs to, "" where it is none's."""
        return self.range_of(key)[1]

    def range_of(self, key: bytes) -> tuple[bytes, str]:
        """Return the prefix that a key has and the name of the view whose prefix it is, empty where it is none's."""
        index = bisect_right(self.prefixes, (key, "~")) - 1
        if index >= 0 and key.startswith(self.prefixes[index][0]):
            return self.prefixes[index]
        return b"", ""


def reverse_row(post: Post, keys: list[bytes]) -> Row:
    """Return the row of the reverse hash map for a post with rows at these keys, besides the post's own."""
    short = (
        b"\x00".join(keys)
        .replace(post.sort_time, b"\x01")
        .replace(post.author_hex, b"\x02")
        .replace(post.hash_hex, b"\x03")
    )
    return REVERSE_PREFIX + post.hash_hex, pack(short.split(b"\x00"))


def reverse_keys(reader: Reader, post: Post) -> list[bytes] | None:
    """Return the keys that the reverse hash map holds for a post, None where it has no row."""
    value = reader.get(REVERSE_PREFIX + post.hash_hex)
    if value is None:
        return None
    short: list[bytes] = unpack(value)
    return [
        key.replace(b"\x03", post.hash_hex).replace(b"\x02", post.author_hex).replace(b"\x01", post.sort_time)
        for key in short
    ]
