"""Derivation of all rows from all posts and tombstones at once, in one process or on many machines.

    posts and tombstones, by hash      pieces, by key                  rows, by key
    hash 1: post                       !author!ann!t1   ->  h1         !author!ann!t1   ->  h1
    hash 2: post, tombstone    -->     !member!x!ann    ->  part  -->  !member!x!ann    ->  merged part
    hash 3: tombstone                  !member!x!ann    ->  part       !count!x         ->  2
                                       !count!x         ->  1
             1. settle, derive         !count!x         ->  1          2. combine

1. All data of one hash is collected: copies of the post and its tombstones. This decides whether the post is live or
   dead (`settle`). A live post has rows, parts of folds and counts of tallies, called pieces (`Derivation`). This step
   needs all data of one hash together, and the hashes of a share in order.
2. All pieces of one key are collected: parts are merged, counts are added (`combine`). This step needs the pieces of a
   key together, sorted by key.

Between the steps, pieces may be split anywhere and be in any order: merging and adding do not depend on the order. So
step 1 can be distributed by hash and step 2 by key, among processes (`parallel`) or Spark workers
(`cablestore.reindex`).

The rows are, byte for byte, the same as after storing the posts one by one (`cablestore.index.plan`). Summaries are not
derived here, because they follow from rows (`cablestore.index.census`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import Final

from cablestore.index.database import Row
from cablestore.index.local import CONFIRMED, local_key
from cablestore.index.meta import Sizes
from cablestore.index.reader import record_key, tombstone_key
from cablestore.index.tombstone import Skeleton, Tombstone
from cablestore.index.view import REVERSE_PREFIX, Catalog, Fold, decode_counts, encode_counts, reverse_row
from cablestore.protocol.body import DELETE
from cablestore.protocol.keys import after_prefix
from cablestore.protocol.post import Post

_PIECE_SIZE_BYTES: Final = 140
"""Approximate size of a key and its value."""

key_of: Final = itemgetter(0)
"""The key of a row."""


Settled = tuple[Post | None, list[Tombstone], Post | None]
"""The data of one hash: the post if it is live, its tombstones, and the post if it is dead."""


def settle(post: Post | None, stones: Iterable[Tombstone]) -> Settled:
    """Settle one hash: return the post if it is live, a tombstone for each author in order, and the post if it is dead.

    `stones` may contain several tombstones of one author. Their skeletons are ignored if the post exists.
    """
    merged: dict[bytes, Tombstone] = {}
    for stone in stones:
        told = stone if post is None or not stone.is_effective else replace(stone, skeleton=None)
        known = merged.get(told.author)
        merged[told.author] = told if known is None else known.merge(told)
    laid = [merged[author] for author in sorted(merged)]
    if post is None or post.type == DELETE or post.author not in merged:
        return post, laid, None
    skeleton = Skeleton.of(post)
    return None, [replace(stone, skeleton=skeleton) if stone.author == post.author else stone for stone in laid], post


class Derivation:
    """Collector of the pieces of posts and tombstones. Posts must be added in order of their hashes, each once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.rows: list[Row] = []
        """Rows that follow from only one post or tombstone. The caller may remove them, and the rows of `reverse`."""
        self.reverse: list[Row] = []
        """The rows of the reverse hash map, in order."""
        self._parts: dict[bytes, dict[bytes, bytes]] = {prefix: {} for prefix, fold in catalog.combined if fold}
        self._rows_of = [[view.rows for view in views] for views in catalog.by_type]
        self._tallies = [[tally.key for tally in tallies] for tallies in catalog.tallies]
        self._folds = [[(f.parts, f.merge, self._parts[f.prefix]) for f in folds] for folds in catalog.folds]
        self._counts: dict[bytes, list[int]] = {}
        self.size_bytes = 0
        """Approximate size of the collected keys and values."""

    def post(self, post: Post) -> Row:
        """Add the pieces of a live post. Return the row of the post itself, which is not a piece."""
        post_type = post.type
        rows: list[Row] = []
        for rows_of in self._rows_of[post_type]:
            rows += rows_of(post)
        keys = [key for key, _ in rows]
        place = keys.index(record_key(post))
        del keys[place]
        own = rows.pop(place)
        self.rows += rows
        self.reverse.append(reverse_row(post, keys))
        for parts_of, merge, merged in self._folds[post_type]:
            for key, part in parts_of(post):
                known = merged.get(key)
                merged[key] = part if known is None else merge(known, part)
        for key_of_tally in self._tallies[post_type]:
            key = key_of_tally(post)
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = decode_counts(None)
            counts[post_type] += 1
        # The parts of folds and the reverse row are about three more pieces.
        self.size_bytes += _PIECE_SIZE_BYTES * (len(rows) + 3)
        return own

    def tombstone(self, stone: Tombstone) -> None:
        """Add the pieces of a tombstone, including its own row."""
        rows = [(tombstone_key(stone.target_hex, stone.author.hex().encode()), stone.encode())]
        rows += self._catalog.dead_rows(stone)
        self.rows += rows
        self.size_bytes += _size_bytes(rows)
        for fold, key, part in self._catalog.dead_parts(stone):
            merged = self._parts[fold.prefix]
            known = merged.get(key)
            merged[key] = part if known is None else fold.merge(known, part)
            self.size_bytes += _PIECE_SIZE_BYTES

    def dead(self, post: Post) -> None:
        """Add the local row which records that this post and its author's deletion were found together."""
        self.rows.append((local_key(CONFIRMED, post.hash_hex), post.author))

    def take(self) -> list[Row]:
        """Remove and return the collected pieces, sorted by key. Only damage can cause two pieces with the same key."""
        pieces = self.rows
        for merged in self._parts.values():
            pieces += merged.items()
            merged.clear()
        pieces += [(key, encode_counts(counts) or b"") for key, counts in self._counts.items()]
        pieces.sort(key=key_of)
        place = bisect_left(pieces, REVERSE_PREFIX, key=key_of)
        pieces[place:place] = self.reverse
        self.rows, self.reverse, self._counts, self.size_bytes = [], [], {}, 0
        return pieces


def combine(pieces: list[Row], catalog: Catalog) -> list[Row]:
    """Return the rows of the database: merge the parts of each key, and sum the counts of each key.

    `pieces` is sorted by key and contains all pieces of each of its keys.
    """
    found: list[Row] = []
    at = 0
    for prefix, fold in catalog.combined:
        start = bisect_left(pieces, prefix, lo=at, key=key_of)
        stop = bisect_left(pieces, after_prefix(prefix), lo=start, key=key_of)
        found += pieces[at:start]
        group = pieces[start:stop]
        found += _added(group) if fold is None else _merged(group, fold)
        at = stop
    found += pieces[at:]
    return found


def _merged(parts: list[Row], fold: Fold) -> list[Row]:
    """Return the rows of a fold from its sorted parts. Equal keys are adjacent, so a dict is not needed."""
    merge, stored_value = fold.merge, fold.stored_value
    found: list[Row] = []
    last, merged = b"", b""
    for key, part in parts:
        if key == last:
            merged = merge(merged, part)
            continue
        if last and (value := stored_value(merged)) is not None:
            found.append((last, value))
        last, merged = key, part
    if last and (value := stored_value(merged)) is not None:
        found.append((last, value))
    return found


def _added(counts: list[Row]) -> list[Row]:
    added: dict[bytes, list[int]] = {}
    for key, value in counts:
        known = added.get(key)
        found = decode_counts(value)
        added[key] = found if known is None else [a + b for a, b in zip(known, found, strict=True)]
    return [(key, total) for key, sums in added.items() if (total := encode_counts(sums)) is not None]


def measure(rows: Sequence[Row], catalog: Catalog) -> Sizes:
    """Return the number of rows and bytes of each view. `rows` is sorted by key."""
    found: dict[str, tuple[int, int]] = {}
    start = 0
    while start < len(rows):
        # Skip from range to range: most adjacent rows belong to one view.
        prefix, name = catalog.range_of(rows[start][0])
        stop = bisect_left(rows, after_prefix(prefix), lo=start + 1, key=key_of) if prefix else start + 1
        if name:
            known = found.get(name, (0, 0))
            found[name] = (known[0] + stop - start, known[1] + _size_bytes(rows[start:stop]))
        start = stop
    return found


def side_by_side(expected: Iterable[Row], found: Iterable[Row]) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Yield (key, value in `expected`, value in `found`) for each key, in order. None stands for a missing row."""
    others = iter(found)
    present = next(others, None)
    for key, due in expected:
        while present is not None and present[0] < key:
            yield present[0], None, present[1]
            present = next(others, None)
        if present is not None and present[0] == key:
            yield key, due, present[1]
            present = next(others, None)
        else:
            yield key, due, None
    while present is not None:
        yield present[0], None, present[1]
        present = next(others, None)


def _size_bytes(rows: Sequence[Row]) -> int:
    return sum(map(len, chain.from_iterable(rows)))
