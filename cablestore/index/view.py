"""The interface of views, for cablestore's own views and for custom views.

A view consists of a few pure functions of one post. With these functions, the store adds and removes rows, the rebuild
and the Spark job derive whole databases, and `check` checks a database.

There are five kinds of rows:

    post ----------> rows                 View.rows: they follow from only one post
    tombstone -----> rows                 View.dead_rows: the remains of a deleted post
    posts -- parts -> one row per key     Fold: parts of one key are merged
    posts -- 1 -----> one row per key     Tally: posts are counted
    rows ----------> summary              Census (rows of a fold are counted), Tree (sums over ranges of posts)

All functions of a view are pure: they only depend on their arguments, and not on clocks, random numbers, files, or
mutable global state. The same post always produces the same bytes, in every process. So the database is a function of
the set of posts, regardless of their order.

Keys begin with a prefix of their view, followed by the parts that the view needs, with `!` between the parts. Text in
keys is encoded with `cablestore.protocol.keys.escape`. Keys do not contain bytes from 0 to 3, which the reverse hash
map uses.

Functions must be importable (defined at the top level of a module), because they are sent to other processes by name.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from struct import Struct
from typing import Any, Final

from cablestore.errors import ArgumentError, CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.guarded import GuardedItems, GuardedKey, GuardedRows, GuardedValue
from cablestore.index.latest import ORDER_KEY_SIZE_BYTES, order_key
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader, record_key
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.body import ALL_TYPES
from cablestore.protocol.post import Post
from cablestore.reprs import hex_repr

REVERSE_NAME: Final = "reverse"
REVERSE_PREFIX: Final = b"!reverse!"
OWN_PREFIX: Final = b"!x!"
"""Prefix of the keys of all custom views: `!x!<name of the view>!`."""
_RESERVED: Final = frozenset({b"meta", b"sizes", b"arrival", b"local"})
"""First parts of keys outside views."""
_PREFIX: Final = re.compile(rb"!([^!\x00-\x03]+!)+")
_OWN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_NOTHING: list[Row] = []
_NUMBER: Final = Struct(">Q")
_NUMBERS: Final = range(max(ALL_TYPES) + 1)
_LEAST_COUNTS: Final = 10
"""Minimum number of counts in each row of a tally. Versions with ten types of posts wrote this number."""
_COUNT_TYPES: Final = [int] * len(_NUMBERS)


def _no_rows(_: object) -> list[Row]:
    return _NOTHING


def _as_it_is(part: bytes) -> bytes | None:
    return part


@dataclass(frozen=True)
class Census:
    """The number of a fold's rows in each group. Only rows for which `counts` returns True are counted.

    A group consists of all rows of the fold whose keys are the same up to their last `!`. The key of the group's row is
    the key of these rows with `prefix` instead of the fold's prefix, and without the last part. Its value is the
    number, u64 big-endian. A group with the number 0 has no row.

    For example, a fold with `!channel!member!<channel>!<pubkey>` and a census with the prefix `!channel!members!`
    result in `!channel!members!<channel>`.
    """

    prefix: bytes
    """One of the view's prefixes, only for this census."""
    counts: Callable[[bytes], bool]
    """Returns True if the row of the fold with this stored value counts."""

    __repr__ = hex_repr


@dataclass(frozen=True)
class Fold:
    """A row for each group of posts, merged from the parts of each post of the group.

    The key identifies the group. A part is bytes in any form. The row's value is
    `stored_value(merge(part, part, ...))`. `latest_fold` returns a fold that keeps the content of the latest post.

    `merge` must be associative, commutative and idempotent: merge(a, merge(b, c)) == merge(merge(a, b), c),
    merge(a, b) == merge(b, a), merge(a, a) == a. Then neither the order of posts nor duplicates matter.
    """

    prefix: bytes
    """One of the view's prefixes, only for this fold. All keys of the parts begin with it."""
    types: frozenset[int]
    """The types of post that have parts, as numbered in `cablestore.protocol.body`."""
    parts: Callable[[Post], list[Row]]
    """Returns the (key, part) pairs of a live post whose type is in `types`."""
    refold: Callable[[Reader, bytes], bytes | None]
    """Returns the part of a key after a post of its group was removed, None if no part remains.

    The store calls it when a post is deleted or discarded, because a part cannot be subtracted. It may read the
    remaining rows of any view, but not folds, tallies or summaries, which change later in the same write. Its result
    must equal the merged parts of all remaining posts. A view should keep rows in order of time, so that few are read.
    """
    merge: Callable[[bytes, bytes], bytes] = max
    """Merges two parts of one key. The default returns the greater bytes."""
    dead_parts: Callable[[Tombstone], list[Row]] = _no_rows
    """Returns the (key, part) pairs of a deletion. They are merged with the parts of posts."""
    stored_value: Callable[[bytes], bytes | None] = _as_it_is
    """Returns the row's value for the merged part, or None if the key must not have a row. The default is the part
    itself.

    A stored value must be a part again: merging it with a new part must be the same as merging all parts.
    """
    absent_part: Callable[[Reader, bytes, bytes], bytes | None] | None = None
    """Returns the part of a key without a row, or None if the key has no part. This function is needed if
    `stored_value` returns None for a part that counts. The arguments are a reader of the state before the write, the
    key, and the new part. By default a key without a row has no part.
    """
    census: Census | None = None
    """Counts the stored rows of the fold by group."""

    __repr__ = hex_repr


@dataclass(frozen=True)
class Tally:
    """Numbers of live posts by type, one row for each key.

    A post adds 1 to the count of its type when it is stored and subtracts 1 when it is deleted or discarded. The value
    is a msgpack list of counts, by the number of the type (`decode_counts`): the counts of types 0 to 9, and further
    counts up to the last that is not 0. A row whose counts are all 0 is removed.
    """

    prefix: bytes
    """One of the view's prefixes, only for this tally."""
    types: frozenset[int]
    """The types of post that are counted."""
    key: Callable[[Post], bytes]
    """Returns the key at which a post counts. It begins with `prefix`."""

    __repr__ = hex_repr


@dataclass(frozen=True)
class Tree:
    """Sums over ranges of posts in order of <mono-ts>: any range takes a few reads. See `cablestore.index.tree`.

    The tree of each set has rows under `prefix`: one row for the whole set, and one row for every range with more than
    `leaf_rows` posts.
    """

    prefix: bytes
    """One of the view's prefixes, only for this tree."""
    sets: Callable[[Post], list[bytes]]
    """Returns the names of the sets that contain a post."""
    items: Callable[[Reader, bytes, bytes], Iterator[Row]]
    """Yields (<set>!<mono-ts>, hash) of a set's posts with start <= <set>!<mono-ts> < stop, in order."""
    sources: tuple[bytes, ...]
    """Prefixes of the rows that `items` reads. They may belong to other views."""
    leaf_rows: int = 128
    """A range with more posts than this has a separate row."""

    __repr__ = hex_repr


def latest_fold(
    *, prefix: bytes, types: frozenset[int], group: Callable[[Post], bytes], says: Callable[[Post], bytes], rows: bytes
) -> Fold:
    """Return a fold that keeps the content of the latest post of each group. Decode its values with `split_latest`.

        <prefix><group> -> timestamp u64 big-endian | hash u8[32] | <content of the post>

    The latest is the greatest by (timestamp, hash). `types` are the types of the posts. `group(post)` is the group in a
    key, `says(post)` the content to keep, of any length.

    `rows` is a prefix of rows `<rows><group>!<mono-ts> -> hash`, one for each of these posts, from a view of the same
    catalog. When the latest post is deleted, the previous post is found there in one step.
    """
    part = partial(_latest_part, prefix, group, says)
    return Fold(prefix=prefix, types=types, parts=part, refold=partial(_refold_latest, prefix, part, rows))


def split_latest(value: bytes) -> tuple[bytes, bytes]:
    """Split a value of a `latest_fold`: return the hash of the latest post, and its content."""
    return value[8:ORDER_KEY_SIZE_BYTES], value[ORDER_KEY_SIZE_BYTES:]


def _latest_part(prefix: bytes, group: Callable[[Post], bytes], says: Callable[[Post], bytes], post: Post) -> list[Row]:
    return [(prefix + group(post), order_key(post.timestamp_ms, post.hash) + says(post))]


def _refold_latest(
    prefix: bytes, part: Callable[[Post], list[Row]], rows: bytes, reader: Reader, key: bytes
) -> bytes | None:
    row = reader.last(rows + key[len(prefix) :] + b"!")
    post = None if row is None else reader.post(row[1])
    return None if post is None else part(post)[0][1]


def decode_counts(value: bytes | None) -> list[int]:
    """Return the counts of a tally's row, by the number of the type. Missing counts are zeros."""
    if value is None:
        return [0] * len(_NUMBERS)
    counts = unpack(value)
    if type(counts) is list and len(counts) >= _LEAST_COUNTS:
        counts += [0] * (len(_NUMBERS) - len(counts))
    if type(counts) is not list or list(map(type, counts)) != _COUNT_TYPES:
        raise CorruptStoreError(
            "a row of a tally is not a list of counts by type, or counts post types that this version does not know. "
            "Install a newer version, or run `cablestore rebuild`"
        )
    return counts


def encode_counts(counts: list[int]) -> bytes | None:
    """Return the value of a tally's row, None if all counts are 0."""
    if not any(counts):
        return None
    while len(counts) > _LEAST_COUNTS and not counts[-1]:
        counts = counts[:-1]
    return pack(counts)


def decode_number(value: bytes | None) -> int:
    """Return the number in a row of a census, 0 for None."""
    if value is None:
        return 0
    if len(value) != _NUMBER.size:
        raise CorruptStoreError("a row of a census is not a number. Run `cablestore rebuild`")
    number: int = _NUMBER.unpack(value)[0]
    return number


def encode_number(number: int) -> bytes | None:
    """Return the value of a row of a census, None for 0."""
    if number < 0:
        raise CorruptStoreError("a row of a census would become negative. Run `cablestore rebuild`")
    return _NUMBER.pack(number) if number else None


@dataclass(frozen=True)
class View:
    """A view: its name, its version, its keys, and the functions that derive its rows."""

    name: str
    """The unique name in the catalog, in statistics and reports."""
    version: int
    """A number that increases whenever the functions derive other rows than before. A store with rows of another
    version cannot be opened until it is rebuilt.
    """
    prefixes: tuple[bytes, ...]
    """The prefixes of all keys of the view, in the form `!word!` or `!word!word!`, which other views must not use. Each
    fold, tally, census and tree has its own prefix. The prefixes of a custom view begin with `!x!<name>!`
    (`Catalog.extended`).
    """
    answers: str
    """The requests of peers and the reads of clients that the view serves, for the documentation."""
    types: frozenset[int] = frozenset()
    """The types of post for which `rows` is called."""
    rows: Callable[[Post], list[Row]] = _no_rows
    """Returns the (key, value) rows of a live post. Two posts must not have the same key."""
    dead_rows: Callable[[Tombstone], list[Row]] = _no_rows
    """Returns the (key, value) rows of a known deletion. Two tombstones must not have the same key."""
    folds: tuple[Fold, ...] = ()
    tallies: tuple[Tally, ...] = ()
    tree: Tree | None = None

    __repr__ = hex_repr


class Catalog:
    """The views of a store, sorted by the types of their posts. Immutable.

    Raises ArgumentError for two views with the same name. Raises it for prefixes that overlap, are reserved, or do not
    have the form `!word!`. Also raises it for a fold, tally, census or tree whose prefix is not one of its view's
    prefixes.
    """

    def __init__(self, views: Iterable[View]) -> None:
        self.views: Final = tuple(views)
        views = self.views
        _check_names(views)
        _check_prefixes(views)
        self.versions: Final = {view.name: view.version for view in views}
        self.by_type: Final = tuple(tuple(v for v in views if t in v.types) for t in _NUMBERS)
        """The views with rows for each type of post."""
        self.folds: Final = tuple(tuple(f for v in views for f in v.folds if t in f.types) for t in _NUMBERS)
        """The folds with parts of each type of post."""
        self.tallies: Final = tuple(tuple(y for v in views for y in v.tallies if t in y.types) for t in _NUMBERS)
        """The tallies that count each type of post."""
        self.trees: Final = tuple(view.tree for view in views if view.tree is not None)
        self.censuses: Final = tuple((f, f.census) for view in views for f in view.folds if f.census is not None)
        self.prefixes: Final = sorted((prefix, view.name) for view in views for prefix in view.prefixes)
        """The prefixes of all views, each with the name of its view, in order of keys."""
        folds: list[tuple[bytes, Fold | None]] = [(fold.prefix, fold) for view in views for fold in view.folds]
        tallies: list[tuple[bytes, Fold | None]] = [(tally.prefix, None) for view in views for tally in view.tallies]
        self.combined: Final = sorted(folds + tallies, key=lambda pair: pair[0])
        """The prefixes of all folds and tallies, in order of keys: each with its fold, or None for a tally."""
        self._dead_rows: Final = tuple(view.dead_rows for view in views if view.dead_rows is not _no_rows)
        self._dead_folds: Final = tuple(f for view in views for f in view.folds if f.dead_parts is not _no_rows)

    def extended(self, views: Iterable[View]) -> Catalog:
        """Return a catalog with additional custom views.

        Raises ArgumentError for a view whose keys do not begin with `!x!<name>!`, and in the same cases as `Catalog`. A
        name has up to 64 of the characters a-z, 0-9, `_`, `-` and `.`, and begins with a letter or digit. If a function
        of these views raises, or returns rows outside the prefixes, the write or rebuild raises CableStoreError.
        """
        added = tuple(views)
        for view in added:
            if not isinstance(view, View):
                raise ArgumentError(f"invalid view: expected a View, got {type(view).__name__}")
            if not _OWN_NAME.fullmatch(view.name):
                raise ArgumentError(
                    f"invalid view name {view.name!r}: use up to 64 of the characters a-z, 0-9, '_', '-' and '.', and "
                    "begin with a letter or digit"
                )
            own = OWN_PREFIX + view.name.encode() + b"!"
            for prefix in view.prefixes:
                if not prefix.startswith(own):
                    raise ArgumentError(
                        f"the prefix {_shown(prefix)} of the view {view.name} does not begin with {_shown(own)}. "
                        "Begin all prefixes of the view with it"
                    )
        return Catalog((*self.views, *map(_guarded, added))) if added else self

    def rows(self, post: Post) -> list[Row]:
        """Return every row that follows from only the post. The row of the reverse hash map is last."""
        rows: list[Row] = []
        for view in self.by_type[post.type]:
            rows += view.rows(post)
        own = record_key(post)
        rows.append(reverse_row(post, [key for key, _ in rows if key != own]))
        return rows

    def dead_rows(self, tombstone: Tombstone) -> list[Row]:
        """Return every row that follows from only the tombstone."""
        return [row for rows_of in self._dead_rows for row in rows_of(tombstone)]

    def fold_keys(self, post: Post) -> list[tuple[Fold, bytes]]:
        """Return (fold, key) for each part of the post."""
        return [(fold, key) for fold in self.folds[post.type] for key, _ in fold.parts(post)]

    def dead_parts(self, tombstone: Tombstone) -> list[tuple[Fold, bytes, bytes]]:
        """Return (fold, key, part) for each part of the tombstone."""
        return [(fold, key, part) for fold in self._dead_folds for key, part in fold.dead_parts(tombstone)]

    def with_dependencies(self, views: frozenset[str]) -> frozenset[str]:
        """Return `views` and the views that must be rebuilt with them: a tree in one view reads rows of the other."""
        for tree in self.trees:
            bound = {self.view_of(prefix) for prefix in (tree.prefix, *tree.sources)}
            views = views | bound if views & bound else views
        return views

    def view_of(self, key: bytes) -> str:
        """Return the name of the view of a key, "" if it does not belong to a view."""
        return self.range_of(key)[1]

    def range_of(self, key: bytes) -> tuple[bytes, str]:
        """Return the prefix with which a key begins and the name of its view. Both are empty if no view has the key."""
        index = bisect_right(self.prefixes, (key, "~")) - 1
        if index >= 0 and key.startswith(self.prefixes[index][0]):
            return self.prefixes[index]
        return b"", ""


def _guarded(view: View) -> View:
    """Return the view with its functions guarded. Missing functions keep their defaults."""
    inner = _inner_prefixes(view)
    own = tuple(prefix for prefix in view.prefixes if prefix not in inner)
    bare = View(view.name, view.version, view.prefixes, view.answers)
    return replace(
        view,
        rows=GuardedRows(view.name, "rows", view.rows, own) if view.types else view.rows,
        dead_rows=view.dead_rows
        if view.dead_rows is bare.dead_rows
        else GuardedRows(view.name, "dead_rows", view.dead_rows, own),
        folds=tuple(_guarded_fold(view.name, fold) for fold in view.folds),
        tallies=tuple(_guarded_tally(view.name, tally) for tally in view.tallies),
        tree=None if view.tree is None else _guarded_tree(view.name, view.tree),
    )


def _inner_prefixes(view: View) -> list[bytes]:
    """Return the prefixes of the view's folds, tallies, censuses and tree."""
    summaries = [fold.census for fold in view.folds if fold.census] + ([view.tree] if view.tree else [])
    return [each.prefix for each in (*view.folds, *view.tallies, *summaries)]


def _guarded_fold(name: str, fold: Fold) -> Fold:
    bare = Fold(fold.prefix, fold.types, fold.parts, fold.refold)
    own = (fold.prefix,)
    optional: dict[str, Any] = {}
    if fold.merge is not bare.merge:
        optional["merge"] = GuardedValue(name, "merge", fold.merge, bytes)
    if fold.dead_parts is not bare.dead_parts:
        optional["dead_parts"] = GuardedRows(name, "dead_parts", fold.dead_parts, own)
    if fold.stored_value is not bare.stored_value:
        optional["stored_value"] = GuardedValue(name, "stored_value", fold.stored_value, (bytes, type(None)))
    if fold.absent_part is not None:
        optional["absent_part"] = GuardedValue(name, "absent_part", fold.absent_part, (bytes, type(None)))
    if fold.census is not None:
        counts = GuardedValue(name, "counts", fold.census.counts, object)
        optional["census"] = Census(fold.census.prefix, counts)
    parts = GuardedRows(name, "parts", fold.parts, own)
    return replace(fold, parts=parts, refold=GuardedValue(name, "refold", fold.refold, (bytes, type(None))), **optional)


def _guarded_tally(name: str, tally: Tally) -> Tally:
    return replace(tally, key=GuardedKey(name, "key", tally.key, tally.prefix))


def _guarded_tree(name: str, tree: Tree) -> Tree:
    return replace(
        tree, sets=GuardedValue(name, "sets", tree.sets, list), items=GuardedItems(name, "items", tree.items)
    )


def _check_names(views: tuple[View, ...]) -> None:
    names = [view.name for view in views]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"{names.count(name)} views have the name {name}. Rename or remove all but one")


def _check_prefixes(views: tuple[View, ...]) -> None:
    for view in views:
        for prefix in view.prefixes:
            if not _PREFIX.fullmatch(prefix):
                raise ArgumentError(
                    f"the prefix {_shown(prefix)} of the view {view.name} does not have the form !word!. Choose another"
                )
            if prefix.split(b"!")[1] in _RESERVED:
                raise ArgumentError(f"the prefix {_shown(prefix)} of the view {view.name} is reserved. Choose another")
        inner = _inner_prefixes(view)
        for prefix in inner:
            if prefix not in view.prefixes or inner.count(prefix) > 1:
                raise ArgumentError(
                    f"the prefix {_shown(prefix)} of a fold, tally, census or tree of the view {view.name} is used "
                    "twice, or is not one of the view's prefixes. Use a separate prefix of the view"
                )
    prefixes = sorted((prefix, view.name) for view in views for prefix in view.prefixes)
    for (prefix, name), (other, other_name) in pairwise(prefixes):
        if other.startswith(prefix):
            raise ArgumentError(
                f"the prefix {_shown(other)} of the view {other_name} overlaps with {_shown(prefix)} of the view "
                f"{name}. Choose another"
            )


def _shown(prefix: bytes) -> str:
    return prefix.decode(errors="backslashreplace")


def reverse_row(post: Post, keys: list[bytes]) -> Row:
    """Return a post's row of the reverse hash map. `keys` are the keys of its rows, except that of the post itself."""
    # Splitting and joining takes three quarters of the time of `replace`, which first counts the matches.
    short = b"\x01".join(b"\x00".join(keys).split(post.sort_time))
    short = b"\x02".join(short.split(post.author_hex))
    short = b"\x03".join(short.split(post.hash_hex))
    return REVERSE_PREFIX + post.hash_hex, pack(short.split(b"\x00"))


def reverse_keys(reader: Reader, post: Post) -> list[bytes] | None:
    """Return the keys in the reverse hash map for a post, or None if it has no row."""
    value = reader.get(REVERSE_PREFIX + post.hash_hex)
    if value is None:
        return None
    short = unpack(value)
    if not isinstance(short, list) or not all(isinstance(key, bytes) for key in short):
        raise CorruptStoreError("a row of the reverse hash map is damaged. Run `cablestore rebuild`")
    return [
        key.replace(b"\x03", post.hash_hex).replace(b"\x02", post.author_hex).replace(b"\x01", post.sort_time)
        for key in short
    ]
