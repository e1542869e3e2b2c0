"""The plan of a batch: all rows that change when posts are added and removed, computed before the write.

A plan reads one state of the database, collects changes in memory and returns them as one atomic write. It does not
write anything itself, so an unused plan has no effect.

    add, discard, ...    read the overlay: the base with the changes so far, so that a post sees the posts before it
      |         |
      |         +-- parts of folds, counts of tallies, moves in trees --> collected by key
      +-- rows of one post or one tombstone --> changes                         |
                                                  ^                             v
    finish                                        +-- each shared row: read once from the base, joined, put
      |
      +-- PlannedWrite: one atomic write, with the sizes of the views and the entries of the arrival log

A row that follows from one post is put or deleted immediately. Many posts share a membership, the number of posts of a
channel, or the sums of a tree. The changes of such a row are collected, and `finish` reads and writes it once per
batch.

A part is added to a fold by a merge with the stored part. It cannot be removed that way: a maximum cannot be undone. A
fold that loses a part is computed again from the remaining rows (`Fold.refold`). `finish` does this first, while the
overlay contains only rows of single posts and tombstones.

The rows of views do not depend on the order of the posts or on the batches: `derive` computes the same rows from all
posts at once, and `check` compares both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from operator import add
from typing import Final, NamedTuple

from cablestore.index import arrival_log, notes
from cablestore.index.arrival_log import Arrival, EventKind
from cablestore.index.census import census_key
from cablestore.index.local import CONFIRMED, VALUE, local_key
from cablestore.index.meta import NO_SIZE, SIZES_KEY, Sizes, encode_sizes
from cablestore.index.overlay import Overlay
from cablestore.index.reader import Reader, record_key, target_key, tombstone_key
from cablestore.index.tombstone import Skeleton, Tombstone, tombstones
from cablestore.index.tree import Change, Move, changed
from cablestore.index.verdict import Verdict
from cablestore.index.view import (
    REVERSE_NAME,
    REVERSE_PREFIX,
    Catalog,
    Fold,
    Tree,
    decode_counts,
    decode_number,
    encode_counts,
    encode_number,
    reverse_keys,
    reverse_row,
)
from cablestore.protocol.body import DELETE
from cablestore.protocol.post import Post

_OWN_VALUES: Final = local_key(VALUE)
_NO_COUNTS: Final = decode_counts(None)


class Position(NamedTuple):
    """Lengths of the lists of posts in a plan at one moment. The lists only grow."""

    added: int = 0
    removed: int = 0
    discarded: int = 0
    remembered: int = 0


BEGINNING: Final = Position()
"""The position before the first change."""


class PlannedWrite(NamedTuple):
    """One atomic write. In `rows`, None deletes a row. `sizes` and `next_sequence` are the values after the write."""

    rows: dict[bytes, bytes | None]
    combined: list[Change]
    """The changes of rows that follow from many posts. Some may leave their row as it was."""
    sizes: Sizes
    next_sequence: int | None
    last_entry: Arrival | None
    """The last entry of a post that the write adds to the arrival log."""
    is_local: bool = False
    """True if the write only changes local values of the user."""


class Plan:
    """Collector of the changes of a batch to the state of `base`. Discard the plan if a signature is invalid.

    The arrival log continues at `next_sequence`. If it is None, the plan does not log changes.
    """

    def __init__(self, base: Reader, catalog: Catalog, sizes: Sizes, next_sequence: int | None) -> None:
        overlay = Overlay(base)
        self._base = base
        self._catalog = catalog
        self._sizes = dict(sizes)
        """Rows and bytes of each view, including the changes."""
        self._next_sequence = next_sequence
        self._changes: Final = overlay.changes
        self._reader: Final = base.over(overlay)
        self._parts: dict[bytes, tuple[Fold, bytes]] = {}
        self._refolds: dict[bytes, Fold] = {}
        self._counts: defaultdict[bytes, list[int]] = defaultdict(partial(list, _NO_COUNTS))
        """Changes of the counts of tallies."""
        self._moved: list[tuple[Tree, list[Move]]] = [(tree, []) for tree in catalog.trees]
        """For each tree, the posts added to its sets and removed from them."""
        self._targets: set[bytes] = set()
        """Targets of the tombstones that this plan puts. Their rows are folds, which are put last, so `get` does not
        see them.
        """
        self._log: list[tuple[EventKind, bytes]] = []
        self.added: Final[list[Post]] = []
        """Posts that this plan stores, in order. A later deletion in the same plan may remove them."""
        self.removed: Final[list[Post]] = []
        """Posts that this plan removes for any reason."""
        self.discarded: Final[list[Post]] = []
        """Removed posts that leave no tombstone."""
        self._notes: dict[bytes, None] = {}
        self._touched: dict[bytes, None] = {}
        self.remembered: Final[list[Post]] = []
        """Posts that are not stored, but remembered in local rows."""
        self.types: Final[set[int]] = set()
        """The types of all added, removed and remembered posts."""

    @property
    def reader(self) -> Reader:
        """A reader of rows, posts and tombstones after the changes so far. Folds, tallies and trees are unchanged."""
        return self._reader

    @property
    def position(self) -> Position:
        """The position after all changes so far."""
        return Position(len(self.added), len(self.removed), len(self.discarded), len(self.remembered))

    def add(self, post: Post) -> Verdict:
        """Add a post. Return ACCEPTED, DUPLICATE, or DELETED if its author deleted it."""
        own_key = record_key(post)
        if self._reader.get(own_key) is not None:
            return Verdict.DUPLICATE
        if post.hash in self._targets or self._reader.get(target_key(post.hash_hex)) is not None:
            if post.type != DELETE and self._reader.tombstone(post.hash, post.author) is not None:
                self._bury(post)
                return Verdict.DELETED
            self._overrule(post, None)
        self._add_rows(post, own_key)
        for fold in self._catalog.folds[post.type]:
            for key, part in fold.parts(post):
                known = self._parts.get(key)
                self._parts[key] = (fold, part if known is None else fold.merge(known[1], part))
        self._count(post, 1)
        self._log.append((EventKind.ACCEPTED, post.hash))
        self.added.append(post)
        self.types.add(post.type)
        if post.type == DELETE:
            for stone in tombstones(post):
                self.add_tombstone(stone)
        return Verdict.ACCEPTED

    def add_tombstone(self, stone: Tombstone) -> bool:
        """Add a tombstone, and remove its target if it is a live post by the same author.

        Return True if the tombstone is new or changed. The skeleton of the tombstone is a claim of another store. It is
        ignored if this store has the target or confirmed its deletion.
        """
        known = self._reader.tombstone(stone.target, stone.author)
        target = self._reader.post(stone.target) if known is None or not known.is_effective else None
        if stone.is_effective and (target is not None or self._reader.is_deletion_confirmed(stone.target)):
            stone = replace(stone, skeleton=None)
        merged = stone if known is None else known.merge(stone)
        self._put_tombstone(known, merged)
        if target is not None and target.author == stone.author and target.type != DELETE:
            self._remove(target)
            self._bury(target)
        return merged != known

    def confirm_deletion(self, stone: Tombstone) -> None:
        """Record that this store itself had the target and its deletion. `stone` is effective and was added before."""
        self._overrule(stone, stone.skeleton)
        self.set_local(CONFIRMED, stone.target_hex, stone.author)

    def set_local(self, name: bytes, key: bytes, value: bytes | None, *, noted: bool = False) -> None:
        """Put a local row (`cablestore.index.local`), or delete it if `value` is None.

        With `noted`, a change is logged in the arrival log.
        """
        full_key = local_key(name, key)
        if self._reader.get(full_key) != value:
            self._changes[full_key] = value
            if noted:
                self._notes[full_key] = None

    def touch(self, key: bytes) -> None:
        """Record that a discarded post changed the row with this key. Nothing else shows this later."""
        self._touched[key] = None

    def discard(self, digest: bytes) -> Verdict:
        """Remove a post without leaving a tombstone. Return DISCARDED, UNKNOWN, or KEPT for a post/delete."""
        post = self._reader.post(digest)
        if post is None:
            return Verdict.UNKNOWN
        if post.type == DELETE:
            return Verdict.KEPT
        self._remove(post)
        self.discarded.append(post)
        self._log.append((EventKind.DISCARDED, digest))
        return Verdict.DISCARDED

    def drop(self, post: Post, remains: Iterable[tuple[bytes, bytes, bytes]]) -> None:
        """Remove a stored post, and put `remains`, the (name, key, value) of the local rows that remember it."""
        self._remove(post)
        self.discarded.append(post)
        self._log.append((EventKind.DISCARDED, post.hash))
        self.remember(post, remains)

    def remember(self, post: Post, remains: Iterable[tuple[bytes, bytes, bytes]]) -> None:
        """Put `remains`, the (name, key, value) of the local rows that remember a post that is not stored."""
        for row in remains:
            self.set_local(*row)
        self.remembered.append(post)
        self.types.add(post.type)

    def finish(self) -> PlannedWrite:
        """Merge folds and tallies and return the atomic write. The plan must not be used afterwards."""
        folded = self._folded()
        combined = [(key, before, value) for _, key, before, value in folded]
        combined += self._counted()
        combined += self._counted_groups(folded)
        for tree, moves in self._moved:
            combined += changed(self._base, tree, moves)
        self._change_all(combined)
        if self._changes:
            self._changes[SIZES_KEY] = encode_sizes(self._sizes)
        last = None
        if self._next_sequence is not None and self._log:
            last = Arrival(self._next_sequence + len(self._log) - 1, *self._log[-1])
        is_local = bool(self._notes) and not self._log and all(key.startswith(_OWN_VALUES) for key in self._notes)
        return PlannedWrite(self._changes, combined, self._sizes, self._append_log(), last, is_local)

    def _add_rows(self, post: Post, own_key: bytes) -> None:
        """Put the rows of a new post. The rows must not exist yet. `own_key` is the key of the post's own row."""
        keys: list[bytes] = []
        for view in self._catalog.by_type[post.type]:
            rows, size_bytes = self._sizes.get(view.name, NO_SIZE)
            made = view.rows(post)
            for key, value in made:
                self._changes[key] = value
                size_bytes += len(key) + len(value)
                if key != own_key:
                    keys.append(key)
            self._sizes[view.name] = (rows + len(made), size_bytes)
        key, value = reverse_row(post, keys)
        self._changes[key] = value
        rows, size_bytes = self._sizes.get(REVERSE_NAME, NO_SIZE)
        self._sizes[REVERSE_NAME] = (rows + 1, size_bytes + len(key) + len(value))

    def _set(self, key: bytes, value: bytes | None) -> None:
        """Put a row that may already exist, or delete it if `value` is None."""
        self._change_all([(key, self._reader.get(key), value)])

    def _change_all(self, changes: Iterable[Change]) -> None:
        """Put or delete the rows in `changes`, and update the sizes of their views."""
        for key, before, value in changes:
            if value == before:
                continue
            self._changes[key] = value
            if before is None or value is None or len(value) != len(before):
                _, view = self._catalog.range_of(key)
                rows, size_bytes = self._sizes.get(view, NO_SIZE)
                more = (value is not None) - (before is not None)
                size_bytes += more * len(key) + len(value or b"") - len(before or b"")
                self._sizes[view] = (rows + more, size_bytes)

    def _folded(self) -> list[tuple[Fold, bytes, bytes | None, bytes | None]]:
        """Return (fold, key, value before, value after) of each row of a fold that gained or lost a part.

        If it lost a part, `refold` computes it from other rows. The overlay does not contain changes of folds yet.
        """
        found = []
        for key, fold in self._refolds.items():
            part = fold.refold(self._reader, key)
            found.append((fold, key, self._base.get(key), None if part is None else fold.stored_value(part)))
        for key, (fold, part) in self._parts.items():
            if key not in self._refolds:
                before = self._base.get(key)
                absent = fold.absent_part
                known = absent(self._base, key, part) if before is None and absent is not None else before
                found.append((fold, key, before, fold.stored_value(part if known is None else fold.merge(known, part))))
        return found

    def _count(self, post: Post, change: int) -> None:
        for tally in self._catalog.tallies[post.type]:
            self._counts[tally.key(post)][post.type] += change
        for tree, moves in self._moved:
            for name in tree.sets(post):
                moves.append((name + b"!" + post.sort_time, post.hash, change))

    def _counted(self) -> list[Change]:
        """Return the changed rows of tallies: the previous counts plus the changes."""
        found = []
        for key, changes in self._counts.items():
            before = self._base.get(key)
            found.append((key, before, encode_counts(list(map(add, decode_counts(before), changes)))))
        return found

    def _counted_groups(self, folded: list[tuple[Fold, bytes, bytes | None, bytes | None]]) -> Iterator[Change]:
        """Yield the changed rows of censuses. `folded` is the result of `_folded`."""
        more: defaultdict[bytes, int] = defaultdict(int)
        for fold, key, before, value in folded:
            census = fold.census
            if census is not None:
                change = (value is not None and census.counts(value)) - (before is not None and census.counts(before))
                if change:
                    more[census_key(fold, census, key)] += change
        for key, change in more.items():
            counted = self._base.get(key)
            yield key, counted, encode_number(decode_number(counted) + change)

    def _bury(self, post: Post) -> None:
        """If the post's author deleted it, record once that this store had both the post and its deletion."""
        known = self._reader.tombstone(post.hash, post.author)
        if known is not None and not self._reader.is_deletion_confirmed(post.hash):
            self.confirm_deletion(replace(known, skeleton=Skeleton.of(post)))
            self._log.append((EventKind.DELETED, post.hash))

    def _overrule(self, target: Post | Tombstone, skeleton: Skeleton | None) -> None:
        """Set the skeleton in the tombstone by the author of `target` to `skeleton`, None if the target is live.

        Remove the skeletons from tombstones by other authors, because they are false claims.
        """
        digest = target.hash if isinstance(target, Post) else target.target
        for stone in list(self._reader.tombstones(digest)):
            self._put_tombstone(stone, replace(stone, skeleton=skeleton if stone.author == target.author else None))

    def _put_tombstone(self, known: Tombstone | None, stone: Tombstone) -> None:
        """Put a tombstone and the rows that follow from it. They replace the rows of the tombstone `known`."""
        if stone == known:
            return
        self._targets.add(stone.target)
        self._set(tombstone_key(stone.target_hex, stone.author.hex().encode()), stone.encode())
        rows = dict(self._catalog.dead_rows(stone))
        for key, _ in self._catalog.dead_rows(known) if known else ():
            if key not in rows:
                self._set(key, None)
        for key, value in rows.items():
            self._set(key, value)
        for each in (known, stone):
            for fold, key, _ in self._catalog.dead_parts(each) if each else ():
                self._refolds[key] = fold

    def _remove(self, post: Post) -> None:
        """Delete a live post and the rows that the reverse hash map lists for it, and mark its folds for `refold`."""
        self.removed.append(post)
        self.types.add(post.type)
        keys = reverse_keys(self._reader, post)
        if keys is None:
            keys = [key for key, _ in self._catalog.rows(post)]
        for key in [record_key(post), *keys, REVERSE_PREFIX + post.hash_hex]:
            self._set(key, None)
        for fold, key in self._catalog.fold_keys(post):
            self._refolds[key] = fold
        self._count(post, -1)

    def _append_log(self) -> int | None:
        sequence = self._next_sequence
        if sequence is None:
            return None
        if self._notes:
            self._changes.update(notes.note_rows(self._base.get, sequence + len(self._log), self._notes))
            self._log += [(EventKind.LOCAL, notes.note_hash(key)) for key in self._notes]
        if not self._log:
            return sequence
        key, value = arrival_log.log_row(sequence, self._log)
        self._changes[key] = value
        sequence += len(self._log)
        if self._touched:
            self._changes.update([notes.touched_row(sequence - 1, self._touched)])
        self._changes[arrival_log.NEXT_KEY] = b"%d" % sequence
        return sequence
