"""Checking a database against what its posts and tombstones say it should hold.

Nothing is taken from the code that stores posts: expected rows come from the views' functions, expected folds from the
rows. Memory stays flat: the rows of a view are compared by their number and a sum of hashes, and only a view that
differs is gone through row by row.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from cablestore import arrival, meta, sizes
from cablestore.body import DELETE, TYPE_NAMES, Delete
from cablestore.crypto import is_signed
from cablestore.errors import CorruptStoreError, DecodeError
from cablestore.post import Post, decode_post
from cablestore.reader import DATA_PREFIX, PRIVATE_PREFIX, TOMBSTONE_PREFIX, Reader, Row
from cablestore.sizes import Size
from cablestore.tombstone import Tombstone
from cablestore.view import Catalog, Fold, decode_counts, encode_counts
from cablestore.views.deleted import tombstones

MAX_PROBLEMS_TOLD: Final = 100
"""Problems that a report describes; the rest are counted."""

_REMEMBERED_FOLDS: Final = 100_000
_PARTITION_ROWS: Final = 500_000


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be, at one key of one view."""

    what: str
    view: str
    key: bytes

    def __str__(self) -> str:
        """Tell it in a line."""
        return f"{self.view}: {self.what}: {self.key.decode(errors='backslashreplace')}"


@dataclass(slots=True)
class CheckReport:
    """What `check` went through and found. `problems` has the first 100, `problem_count` all."""

    posts: int = 0
    tombstones: int = 0
    rows: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return self.problem_count == 0

    def tell(self, what: str, view: str, key: bytes, count: int = 1) -> None:
        """Add a problem."""
        self.problem_count += count
        if len(self.problems) < MAX_PROBLEMS_TOLD:
            self.problems.append(Problem(what, view, key))


class _Sum:
    """A number of rows and a sum of their hashes: equal for equal sets of rows, in whatever order they come."""

    __slots__ = ("rows", "total")

    def __init__(self) -> None:
        self.rows = 0
        self.total = 0

    def add(self, key: bytes, value: bytes) -> None:
        digest = hashlib.blake2b(b"%d:%b%b" % (len(key), key, value), digest_size=16).digest()
        self.total = (self.total + int.from_bytes(digest, "big")) % 2**128
        self.rows += 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sum) and (self.rows, self.total) == (other.rows, other.total)

    __hash__ = None  # type: ignore[assignment] # mutable


def check(
    reader: Reader, catalog: Catalog, *, signatures: bool = False, progress: Callable[[int], None] = lambda _: None
) -> CheckReport:
    """Check every row of the database. With `signatures`, verify every post too (about 60 us each)."""
    checker = _Checker(reader, catalog, signatures=signatures)
    for key, value in reader.prefix(DATA_PREFIX):
        checker.check_post(key, value)
        progress(1)
    for key, value in reader.prefix(PRIVATE_PREFIX):
        checker.check_private(key, value)
    for stone in reader.tombstones():
        checker.check_tombstone(stone)
    checker.check_rows()
    checker.check_arrivals()
    return checker.report


class _Checker:
    def __init__(self, reader: Reader, catalog: Catalog, *, signatures: bool) -> None:
        self.report = CheckReport()
        self._reader = reader
        self._catalog = catalog
        self._signatures = signatures
        self._expected = {view.name: _Sum() for view in catalog.views}
        self._counts: dict[bytes, list[int]] = {}
        self._folds_seen: OrderedDict[bytes, None] = OrderedDict()
        self._views = sorted((prefix, view.name) for view in catalog.views for prefix in view.prefixes)
        self._folds = {fold.prefix: fold for view in catalog.views for fold in view.folds}
        self._tallies = {tally.prefix for view in catalog.views for tally in view.tallies}

    # --- what posts and tombstones say ---------------------------------------------------------

    def check_post(self, key: bytes, raw: bytes) -> None:
        """Check a post's bytes and take note of what it says."""
        self.report.posts += 1
        try:
            post = decode_post(raw, self._reader.dialect)
        except DecodeError as error:
            self.report.tell(f"a post that does not decode ({error})", "data", key)
            return
        if post.hash_hex != key[len(DATA_PREFIX) :]:
            self.report.tell("a post whose bytes do not give its hash", "data", key)
        elif post.is_local_only:
            self.report.tell("a local-only post in the clear", "data", key)
        elif self._signatures and not is_signed(raw):
            self.report.tell("a post with a bad signature", "data", key)
        else:
            self._expect_post(post, key)

    def check_private(self, key: bytes, sealed: bytes) -> None:
        """Check a local-only post."""
        self.report.posts += 1
        try:
            post = self._reader.unseal(sealed)
        except (CorruptStoreError, DecodeError) as error:
            self.report.tell(f"a local-only post that cannot be read ({error})", "data", key)
            return
        self._expect_post(post, key)

    def _expect_post(self, post: Post, key: bytes) -> None:
        stone = None if post.type == DELETE else self._reader.tombstone(post.hash, post.author)
        if stone is not None:
            self.report.tell("a post that its author deleted", "data", key)
        self._expect(self._catalog.rows(post))
        for tally_key in self._catalog.tally_keys(post):
            self._counts.setdefault(tally_key, [0] * len(TYPE_NAMES))[post.type] += 1
        for fold, fold_key in self._catalog.fold_keys(post):
            self._check_fold(fold, fold_key)
        for due in tombstones(post):
            known = self._reader.tombstone(due.target, due.author)
            if known is None or known.merge(due) != known:
                self.report.tell("a deletion without its tombstone", "deleted", due.target_hex)

    def check_tombstone(self, stone: Tombstone) -> None:
        """Check a tombstone against its post/delete, and take note of what it says."""
        self.report.tombstones += 1
        deletion = self._reader.post(stone.deleted_by)
        if deletion is not None and not (
            isinstance(deletion.body, Delete)
            and stone.target in deletion.body.hashes
            and (deletion.author, deletion.timestamp_ms) == (stone.author, stone.deleted_at_ms)
        ):
            self.report.tell("a tombstone that its post/delete does not bear out", "deleted", stone.target_hex)
        self._expect(self._catalog.dead_rows(stone))
        for fold, key, _ in self._catalog.dead_parts(stone):
            self._check_fold(fold, key)

    def _expect(self, rows: list[Row]) -> None:
        for key, value in rows:
            self._expected[self._catalog.view_of(key)].add(key, value)

    def _check_fold(self, fold: Fold, key: bytes) -> None:
        """Compare a fold's row with what the rows say, once."""
        if key in self._folds_seen:
            return
        self._folds_seen[key] = None
        if len(self._folds_seen) > _REMEMBERED_FOLDS:
            self._folds_seen.popitem(last=False)
        part = fold.refold(self._reader, key)
        expected = None if part is None else fold.stored(part)
        found = self._reader.get(key)
        if found != expected:
            what = "missing" if found is None else "dangling" if expected is None else "wrong"
            self.report.tell(f"a {what} fold", self._catalog.view_of(key), key)

    # --- what the database holds ---------------------------------------------------------------

    def check_rows(self) -> None:
        """Go through every row once, then through the views that differ."""
        actual = {name: _Sum() for name in self._expected}
        measured = {name: [0, 0] for name in self._expected}
        for key, value in self._reader.scan(b"", b"\xff"):
            self.report.rows += 1
            view = self._catalog.view_of(key)
            if not view:
                if key not in (meta.KEY, sizes.KEY) and not key.startswith(arrival.PREFIX):
                    self.report.tell("a row that belongs to no view", "none", key)
                continue
            measured[view][0] += 1
            measured[view][1] += len(key) + len(value)
            self._check_row(view, key, value, actual[view])
        for key in self._counts:
            if self._reader.get(key) is None:
                self.report.tell("a missing count", self._catalog.view_of(key), key)
        for name, total in actual.items():
            if total != self._expected[name]:
                self._find_differences(name, total.rows)
        held = sizes.decode_sizes(self._reader.get(sizes.KEY))
        if held != {name: Size(*size) for name, size in measured.items() if size[0]}:
            self.report.tell("sizes that are not those of the rows", "sizes", sizes.KEY)

    def _check_row(self, view: str, key: bytes, value: bytes, actual: _Sum) -> None:
        prefix = next(prefix for prefix, name in self._views if name == view and key.startswith(prefix))
        if prefix in self._folds:
            self._check_fold(self._folds[prefix], key)
        elif prefix in self._tallies:
            if encode_counts(self._counts.get(key, [])) != encode_counts(decode_counts(value)):
                self.report.tell("a wrong count", view, key)
        elif prefix != TOMBSTONE_PREFIX:
            actual.add(key, value)

    def _find_differences(self, view: str, actual_rows: int) -> None:
        """Name the rows of a view that are missing, wrong or dangling."""
        missing = 0
        for key, value in self._expected_rows(view):
            found = self._reader.get(key)
            if found != value:
                missing += found is None
                self.report.tell("a missing row" if found is None else "a wrong row", view, key)
        dangling = actual_rows - (self._expected[view].rows - missing)
        if dangling:
            self._find_dangling(view, dangling)

    def _find_dangling(self, view: str, count: int) -> None:
        found = 0
        partitions = 1 + self._expected[view].rows // _PARTITION_ROWS
        for partition in range(partitions):
            due = {key for key, _ in self._expected_rows(view) if hash(key) % partitions == partition}
            for key in self._own_rows(view):
                if hash(key) % partitions == partition and key not in due:
                    self.report.tell("a dangling row", view, key)
                    found += 1
                    if found >= MAX_PROBLEMS_TOLD:
                        self.report.problem_count += count - found
                        return

    def _own_rows(self, view: str) -> Iterator[bytes]:
        for prefix, name in self._views:
            if (
                name == view
                and prefix not in self._folds
                and prefix not in self._tallies
                and prefix != TOMBSTONE_PREFIX
            ):
                for key, _ in self._reader.prefix(prefix):
                    yield key

    def _expected_rows(self, view: str) -> Iterator[Row]:
        for post in self._whole_posts():
            yield from (row for row in self._catalog.rows(post) if self._catalog.view_of(row[0]) == view)
        for stone in self._reader.tombstones():
            yield from (row for row in self._catalog.dead_rows(stone) if self._catalog.view_of(row[0]) == view)

    def _whole_posts(self) -> Iterator[Post]:
        for key, raw in self._reader.prefix(DATA_PREFIX):
            try:
                post = decode_post(raw, self._reader.dialect)
            except DecodeError:
                continue
            if post.hash_hex == key[len(DATA_PREFIX) :] and not post.is_local_only:
                yield post
        for _, sealed in self._reader.prefix(PRIVATE_PREFIX):
            try:
                yield self._reader.unseal(sealed)
            except (CorruptStoreError, DecodeError):
                continue

    def check_arrivals(self) -> None:
        """Check that the arrival log ends where the next entry begins."""
        following = 1
        for entry in arrival.entries(self._reader, 0):
            if entry.sequence < following:
                self.report.tell("a number that stands twice", "arrival log", b"%d" % entry.sequence)
            following = entry.sequence + 1
        if arrival.next_sequence(self._reader) < following:
            self.report.tell("a next number that is taken", "arrival log", arrival.NEXT_KEY)
