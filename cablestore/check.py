"""Checking a database against what its posts and tombstones say it should hold.

Nothing is taken from the code that stores posts: expected rows come from the views' functions, expected folds from the
rows. Memory stays flat: the rows of a view are compared by their number and a sum of hashes, and only a view that
differs is gone through row by row.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cablestore import arrival, meta, sizes
from cablestore.body import DELETE, TYPE_NAMES
from cablestore.crypto import is_signed
from cablestore.errors import CorruptStoreError, DecodeError
from cablestore.post import Post, decode_post
from cablestore.reader import DATA_PREFIX, PRIVATE_PREFIX, TOMBSTONE_PREFIX, Reader, Row, decode_tombstone
from cablestore.sizes import Size
from cablestore.view import Catalog, Fold, decode_counts, encode_counts
from cablestore.views.deleted import is_borne_out, tombstones

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
        checker.guard(checker.check_post, key, value)
        progress(1)
    for key, value in reader.prefix(PRIVATE_PREFIX):
        checker.guard(checker.check_private, key, value)
    for key, value in reader.prefix(TOMBSTONE_PREFIX):
        checker.guard(checker.check_tombstone, key, value)
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

    def guard(self, work: Callable[[bytes, bytes], None], key: bytes, value: bytes) -> None:
        """Check a row; whatever cannot be read while doing so is a problem of this row."""
        try:
            work(key, value)
        except (CorruptStoreError, DecodeError) as error:
            self.report.tell(f"a damaged row ({error})", self._catalog.view_of(key), key)

    # --- what posts and tombstones say ---------------------------------------------------------

    def check_post(self, key: bytes, raw: bytes) -> None:
        """Check a post's bytes and take note of what it says."""
        self.report.posts += 1
        post = decode_post(raw, self._reader.dialect)
        if post.hash_hex != key[len(DATA_PREFIX) :]:
            self.report.tell("a post whose bytes do not give its hash", "data", key)
        elif post.is_local_only:
            self.report.tell("a local-only post in the clear", "data", key)
        else:
            if self._signatures and not is_signed(raw):
                self.report.tell("a post with a bad signature", "data", key)
            self._expect_post(post, key)

    def check_private(self, key: bytes, sealed: bytes) -> None:
        """Check a local-only post."""
        self.report.posts += 1
        self._expect_post(self._reader.unseal(sealed), key)

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

    def check_tombstone(self, key: bytes, value: bytes) -> None:
        """Check a tombstone against its post/delete, and take note of what it says."""
        self.report.tombstones += 1
        stone = decode_tombstone((key, value))
        if not is_borne_out(self._reader, stone):
            self.report.tell("a tombstone that its post/delete does not bear out", "deleted", stone.target_hex)
        self._expect(self._catalog.dead_rows(stone))
        for fold, fold_key, _ in self._catalog.dead_parts(stone):
            self._check_fold(fold, fold_key)

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
        measured = {name: [0, 0] for name in sorted(self._expected)}
        for key, value in self._reader.scan(b"", b"\xff"):
            self.report.rows += 1
            view = self._catalog.view_of(key)
            if not view:
                if key not in (meta.KEY, sizes.KEY) and not key.startswith(arrival.PREFIX):
                    self.report.tell("a row that belongs to no view", "none", key)
                continue
            measured[view][0] += 1
            measured[view][1] += len(key) + len(value)
            self.guard(partial(self._check_row, actual[view]), key, value)
        for key in self._counts:
            if self._reader.get(key) is None:
                self.report.tell("a missing count", self._catalog.view_of(key), key)
        for name, total in actual.items():
            if total != self._expected[name]:
                self._find_differences(name, total.rows)
        due = {name: Size(*size) for name, size in measured.items()}
        if self._reader.get(sizes.KEY) != sizes.encode_sizes(due):
            self.report.tell("sizes that are not those of the rows", "sizes", sizes.KEY)

    def _check_row(self, actual: _Sum, key: bytes, value: bytes) -> None:
        prefix = self._prefix_of(key)
        if prefix in self._folds:
            self._check_fold(self._folds[prefix], key)
        elif prefix in self._tallies:
            if encode_counts(self._counts.get(key, [])) != encode_counts(decode_counts(value)):
                self.report.tell("a wrong count", self._catalog.view_of(key), key)
        elif prefix != TOMBSTONE_PREFIX:
            actual.add(key, value)

    def _prefix_of(self, key: bytes) -> bytes:
        return next(prefix for prefix, _ in self._views if key.startswith(prefix))

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
            if name == view and prefix not in (*self._folds, *self._tallies, TOMBSTONE_PREFIX):
                for key, _ in self._reader.prefix(prefix):
                    yield key

    def _expected_rows(self, view: str) -> Iterator[Row]:
        for source in (self._rows_of_post, self._rows_of_private, self._rows_of_tombstone):
            yield from (row for row in source() if self._catalog.view_of(row[0]) == view)

    def _rows_of_post(self) -> Iterator[Row]:
        for key, raw in self._reader.prefix(DATA_PREFIX):
            with contextlib.suppress(DecodeError):
                post = decode_post(raw, self._reader.dialect)
                if post.hash_hex == key[len(DATA_PREFIX) :] and not post.is_local_only:
                    yield from self._catalog.rows(post)

    def _rows_of_private(self) -> Iterator[Row]:
        for _, sealed in self._reader.prefix(PRIVATE_PREFIX):
            with contextlib.suppress(CorruptStoreError, DecodeError):
                yield from self._catalog.rows(self._reader.unseal(sealed))

    def _rows_of_tombstone(self) -> Iterator[Row]:
        for row in self._reader.prefix(TOMBSTONE_PREFIX):
            with contextlib.suppress(CorruptStoreError):
                yield from self._catalog.dead_rows(decode_tombstone(row))

    def check_arrivals(self) -> None:
        """Check that the arrival log ends where the next entry begins."""
        following = 1
        for entry in arrival.entries(self._reader, 0):
            if entry.sequence < following:
                self.report.tell("a number that stands twice", "arrival log", b"%d" % entry.sequence)
            following = entry.sequence + 1
        if arrival.next_sequence(self._reader) < following:
            self.report.tell("a next number that is taken", "arrival log", arrival.NEXT_KEY)
