"""Deriving all rows from posts and tombstones at once, in two steps that can run in one process or on many machines.

1. What is known of one hash (copies of a post, tombstones of it) is settled: it lives or it is dead. A live post gives
   rows, parts of folds and counts, together called pieces (`Derivation`).
2. Pieces of all posts, sorted by key, are combined: parts of one key are merged, counts of one key added up (`combine`).

Between the steps pieces may be cut anywhere, in any order. The outcome is what storing the posts one by one leaves behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import Final

from cablestore.index.database import Row
from cablestore.index.local import WITNESSED, local_key
from cablestore.index.meta import Sizes
from cablestore.index.reader import record_key, tombstone_key
from cablestore.index.tombstone import Skeleton, Tombstone
from cablestore.index.view import REVERSE_PREFIX, Catalog, Fold, decode_counts, encode_counts, reverse_row
from cablestore.protocol.body import DELETE
from cablestore.protocol.keys import after_prefix
from cablestore.protocol.post import Post

_PIECE_SIZE_BYTES: Final = 140
"""A key and its value, about."""

key_of: Final = itemgetter(0)
"""The key of a row."""


Settled = tuple[Post | None, list[Tombstone], Post | None]
"""What is known of one hash: the post if it lives, its tombstones, and the post if it is dead."""


def settle(post: Post | None, stones: Iterable[Tombstone]) -> Settled:
    """Settle one hash: return the post if it lives, its tombstones, one an author, in order of authors, the post if it is dead.

    `stones` may hold several of one author, from wherever they came. What they tell of a post that is here does not count.
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
    """Collects the pieces of posts and tombstones. Posts must come in order of their hashes, each once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.rows: list[Row] = []
        """Rows that follow from one post or tombstone alone. Like those below they may be taken out."""
        self.reverse: list[Row] = []
        """The rows of the reverse hash map, in order."""
        self._parts: dict[bytes, dict[bytes, bytes]] = {prefix: {} for prefix, fold in catalog.combined if fold}
        self._rows_of = [[view.rows for view in views] for views in catalog.by_type]
        self._tallies = [[tally.key for tally in tallies] for tallies in catalog.tallies]
        self._folds = [[(f.parts, f.merge, self._parts[f.prefix]) for f in folds] for folds in catalog.folds]
        self._counts: dict[bytes, list[int]] = {}
        self.size_bytes = 0
        """Keys and values that are collected, about."""

    def post(self, post: Post) -> Row:
        """Take the pieces of a live post. Returns the row that holds the post itself, which is no piece."""
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
        # The parts of folds and the reverse row come to about three pieces more.
        self.size_bytes += _PIECE_SIZE_BYTES * (len(rows) + 3)
        return own

    def tombstone(self, stone: Tombstone) -> None:
        """Take the pieces of a tombstone, the row that holds it among them."""
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
        """Take note that a post was seen together with its author's deletion."""
        self.rows.append((local_key(WITNESSED, post.hash_hex), post.author))

    def take(self) -> list[Row]:
        """Return the pieces collected so far, sorted and each key once but for damage, and begin with none."""
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
    """Merge the parts and add the counts of equal keys in `pieces`, sorted by key: all that there are of every key.

    What comes back are the rows of the database.
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
    merge, stored = fold.merge, fold.stored
    merged: dict[bytes, bytes] = {}
    for key, part in parts:
        known = merged.get(key)
        merged[key] = part if known is None else merge(known, part)
    return [(key, value) for key, part in merged.items() if (value := stored(part)) is not None]


def _added(counts: list[Row]) -> list[Row]:
    added: dict[bytes, list[int]] = {}
    for key, value in counts:
        known = added.get(key)
        found = decode_counts(value)
        added[key] = found if known is None else [a + b for a, b in zip(known, found, strict=True)]
    return [(key, total) for key, sums in added.items() if (total := encode_counts(sums)) is not None]


def measure(rows: Sequence[Row], catalog: Catalog) -> Sizes:
    """Return rows and bytes by view of rows that are sorted by key."""
    found: dict[str, tuple[int, int]] = {}
    start = 0
    while start < len(rows):
        # From row to range, for most rows that come together are of one view.
        prefix, name = catalog.range_of(rows[start][0])
        stop = bisect_left(rows, after_prefix(prefix), lo=start + 1, key=key_of) if prefix else start + 1
        if name:
            known = found.get(name, (0, 0))
            found[name] = (known[0] + stop - start, known[1] + _size_bytes(rows[start:stop]))
        start = stop
    return found


def side_by_side(expected: Iterable[Row], found: Iterable[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """Yield rows of the same key together, and None beside a row that only one side has."""
    others = iter(found)
    present = next(others, None)
    for due in expected:
        while present is not None and present[0] < due[0]:
            yield None, present
            present = next(others, None)
        if present is not None and present[0] == due[0]:
            yield due, present
            present = next(others, None)
        else:
            yield due, None
    while present is not None:
        yield None, present
        present = next(others, None)


def _size_bytes(rows: Sequence[Row]) -> int:
    return sum(map(len, chain.from_iterable(rows)))
