"""Checking a database against the rows that follow from its posts and tombstones.

The check does not use the code that stores posts one by one. It derives all rows from scratch and compares them with
the rows in the database. Rows that follow from many posts are compared one by one. For rows that follow from one post,
only the sums of their hashes are compared, to avoid sorting. If the sums differ, all rows are derived again and
compared one by one, to find the wrong rows. Memory use is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

from cablestore.errors import CorruptStoreError, DecodeError
from cablestore.index import arrival_log, meta
from cablestore.index.batches import batches
from cablestore.index.census import Summary, summaries, summary_rows
from cablestore.index.database import Row
from cablestore.index.derive import Derivation, key_of, measure, side_by_side
from cablestore.index.evidence import Evidence
from cablestore.index.local import CONFIRMED, DROPPED, DROPPED_HEAD, DROPPED_LINK, local_key
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.local_forms import is_damaged
from cablestore.index.meta import Sizes
from cablestore.index.reader import (
    AFTER_HEX,
    DATA_PREFIX,
    PRIVATE_PREFIX,
    TOMBSTONE_PREFIX,
    Reader,
    decode_tombstone,
    fraction_before,
    hash_part,
)
from cablestore.index.runs import Sorter, sampled
from cablestore.index.tombstone import Tombstone, tombstones
from cablestore.index.view import REVERSE_PREFIX, Catalog
from cablestore.protocol.body import DELETE
from cablestore.protocol.crypto import is_signed
from cablestore.protocol.keys import after_prefix
from cablestore.protocol.post import Post, decode_post
from cablestore.reprs import hex_repr

MAX_PROBLEMS_LISTED: Final = 100
"""Maximum number of problems that a report lists. Further problems are only counted."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem at one key of one view."""

    what: str
    view: str
    key: bytes

    __repr__ = hex_repr

    def __str__(self) -> str:
        """Return the line `view: problem: key`."""
        return f"{self.view}: {self.what}: {self.key.decode(errors='backslashreplace')}"


@dataclass(slots=True)
class ProblemReport(Generic[T]):
    """Counts and problems of a check. `problems` lists the first 100, `problem_count` counts all."""

    posts: int = 0
    tombstones: int = 0
    problem_count: int = 0
    problems: list[T] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """True if no problem was found."""
        return self.problem_count == 0

    def add_problem(self, problem: T) -> None:
        """Count a problem, and list it if it is one of the first 100."""
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS_LISTED:
            self.problems.append(problem)


@dataclass(slots=True)
class CheckReport(ProblemReport[Problem]):
    """Result of `check`."""

    rows: int = 0
    sizes: Sizes = field(default_factory=dict)
    """Number of rows and of bytes of each view, as counted by the check."""
    following: int = 1
    """Number of the next entry of the arrival log."""
    balance: int = 0
    """Sum of the hashes of expected rows minus the sum for found rows. If it is not 0, an exact check is needed."""

    def note_problem(self, what: str, view: str, key: bytes) -> None:
        """Add the problem `what` at `key`. `view` is the name of the key's view in reports."""
        self.add_problem(Problem(what, view, key))

    def add(self, other: CheckReport) -> None:
        """Add the numbers and problems of `other`, the report of another range of hashes or keys."""
        self.posts += other.posts
        self.tombstones += other.tombstones
        self.rows += other.rows
        self.problem_count += other.problem_count
        self.problems = (self.problems + other.problems)[:MAX_PROBLEMS_LISTED]
        self.sizes = meta.add_sizes(self.sizes, other.sizes)
        self.balance += other.balance


def check(
    reader: Reader,
    catalog: Catalog,
    scratch: Path | None,
    *,
    signatures: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> CheckReport:
    """Check every row of the database. With `signatures`, also verify every signature, in about 60 us each.

    Rows that do not fit in memory are sorted in the folder `scratch`. If it is None, all rows must fit in memory.
    """
    for is_exact in (False, True):
        checker = Checker(reader, catalog, signatures=signatures, is_exact=is_exact)
        sorter = Sorter(checker.derivation, catalog, scratch, sample=partial(sampled, reader, catalog))
        checker.check_records(sorter, b"", AFTER_HEX, progress)
        for start, stop, expected in sorter.buckets():
            checker.check_rows(start, stop, expected)
        if checker.report.balance == 0:
            break
    check_rest(reader, catalog, checker.report)
    return checker.report


def check_rest(reader: Reader, catalog: Catalog, report: CheckReport) -> None:
    """Check the summaries, sizes, local rows and arrival log. `report` already contains the results of all ranges."""
    for summary in summaries(catalog):
        _check_summary(reader, catalog, summary, report)
    if reader.get(meta.SIZES_KEY) != meta.encode_sizes(report.sizes):
        report.note_problem("sizes that differ from the sizes of the rows", "sizes", meta.SIZES_KEY)
    report.rows += sum(reader.get(key) is not None for key in _ROWS_LEFT_OUT)
    _check_local(reader, report)
    _check_arrivals(reader, report)


def check_evidence(evidence: Evidence, report: CheckReport) -> None:
    """Add a problem to `report` if `evidence` shows lost writes. Call this after the complete check of the database."""
    closed = evidence.closed
    if evidence.lost:
        report.note_problem(f"lost writes, in {evidence.lost}", "arrival log", arrival_log.NEXT_KEY)
    elif closed is not None and closed.next > report.following:
        what = f"lost entries, from {report.following:,} to {closed.next - 1:,}"
        report.note_problem(what, "arrival log", arrival_log.NEXT_KEY)


def _check_arrivals(reader: Reader, report: CheckReport) -> None:
    following = 1
    for row in reader.prefix(arrival_log.LOG_PREFIX):
        try:
            first, end = arrival_log.span_of(row)
        except CorruptStoreError as error:
            report.note_problem(f"a damaged row ({error})", "arrival log", row[0])
            continue
        if first < following:
            report.note_problem("a number that occurs twice", "arrival log", b"%d" % first)
        following = end
    try:
        report.following = arrival_log.next_sequence(reader)
        if report.following < following:
            report.note_problem("a stored next number that an entry already has", "arrival log", arrival_log.NEXT_KEY)
    except CorruptStoreError as error:
        report.note_problem(f"a damaged row ({error})", "arrival log", arrival_log.NEXT_KEY)


def _check_local(reader: Reader, report: CheckReport) -> None:
    """Check the form of local rows, and whether rows about deleted and dropped posts fit the stored posts."""
    for key, value in reader.prefix(LOCAL_PREFIX):
        if is_damaged(key, value):
            report.note_problem("a damaged row", "local", key)
    for hash_hex, author in reader.local_rows(CONFIRMED):
        if not reader.is_buried(hash_hex, author):
            report.note_problem(
                "a post recorded as deleted, without a tombstone", "local", local_key(CONFIRMED, hash_hex)
            )
    for hash_hex, _ in reader.local_rows(DROPPED):
        if reader.has(hash_hex):
            report.note_problem("a dropped post that is stored", "local", local_key(DROPPED, hash_hex))
    for name in (DROPPED_LINK, DROPPED_HEAD):
        for key, _ in reader.local_rows(name):
            if reader.local(DROPPED, key.rsplit(b"!", 1)[1]) is None:
                report.note_problem("a row of an unknown dropped post", "local", local_key(name, key))


def _check_summary(reader: Reader, catalog: Catalog, summary: Summary, report: CheckReport) -> None:
    """Compare the stored rows of `summary` with the rows derived from its sources, and count the stored rows."""
    for key, due, present in side_by_side(summary_rows(summary, reader), reader.prefix(summary.prefix)):
        if present is not None:
            report.rows += 1
            report.sizes = meta.add_sizes(report.sizes, measure([(key, present)], catalog))
        if due != present:
            report.note_problem(f"a {_state(due, present)} {summary.noun}", catalog.view_of(key), key)


def _state(due: bytes | None, present: bytes | None) -> str:
    """Return "dangling", "missing" or "wrong" for a row whose expected and present values differ."""
    return "dangling" if due is None else "missing" if present is None else "wrong"


_LEFT_OUT: Final = (DATA_PREFIX, PRIVATE_PREFIX, REVERSE_PREFIX, arrival_log.PREFIX, LOCAL_PREFIX)
"""Prefixes of the rows that `Checker.check_rows` skips: `check_records` checks them, or they do not follow from posts.
"""
_ROWS_LEFT_OUT: Final = (meta.META_KEY, meta.SIZES_KEY)


class Checker:
    """Checker of one database: `check_records` for each range of hashes, then `check_rows` for each range of keys.

    Several checkers can share the ranges. Unless `is_exact`, rows that follow from only one post are summed in the
    report's balance instead of compared.
    """

    def __init__(self, reader: Reader, catalog: Catalog, *, signatures: bool, is_exact: bool) -> None:
        self.report = CheckReport()
        self.derivation: Final = Derivation(catalog)
        self._reader = reader
        self._catalog = catalog
        self._signatures = signatures
        self._reverse_from = REVERSE_PREFIX
        self._stones: list[Tombstone] = []
        """Tombstones of the last target. In order of hashes, they precede the post with this hash."""
        self._is_exact = is_exact
        self._of_many = {prefix: "count" if fold is None else "fold" for prefix, fold in catalog.combined}
        self._spans = sorted(
            [(p, after_prefix(p), False) for p in (*_LEFT_OUT, *(summary.prefix for summary in summaries(catalog)))]
            + [(key, key + b"\x00", False) for key in _ROWS_LEFT_OUT]
            + [(prefix, after_prefix(prefix), True) for prefix in self._of_many]
        )
        """Ranges of all keys except the keys of rows that follow from one post: (start, stop, True if compared)."""

    # --- rows that follow from posts and tombstones ---------------------------------------------

    def check_records(self, sorter: Sorter, start: bytes, stop: bytes, progress: Callable[[int], None]) -> None:
        """Check the posts and tombstones in a range of hashes (hex digits), and their rows in the reverse hash map."""
        self._reverse_from = REVERSE_PREFIX + start
        for rows in batches(self._reader.records(start, stop), lambda row: len(row[1])):
            for key, value in rows:
                self._check_record(key, value)
            # `check_rows` counts the tombstones.
            self._measure(sorted(row for row in rows if not row[0].startswith(TOMBSTONE_PREFIX)))
            last = hash_part(rows[-1])
            self._check_reverse(last if rows[-1][0].startswith(TOMBSTONE_PREFIX) else last + AFTER_HEX)
            self._sum_expected()
            sorter.make_room(fraction_before(last))
            progress(len(rows))
        self._check_reverse(stop)

    def _check_record(self, key: bytes, value: bytes) -> None:
        """Check a post or a tombstone and collect the rows that follow from it. Report damage."""
        try:
            if key.startswith(TOMBSTONE_PREFIX):
                self._check_tombstone(key, value)
                return
            self.report.posts += 1
            if key.startswith(PRIVATE_PREFIX):
                self._expect_post(self._reader.unseal(value), key)
            else:
                self._check_post(key, value)
        except (CorruptStoreError, DecodeError) as error:
            self.report.note_problem(f"a damaged row ({error})", self._catalog.view_of(key), key)

    def _check_post(self, key: bytes, raw: bytes) -> None:
        post = decode_post(raw, self._reader.dialect)
        if post.hash_hex != key[len(DATA_PREFIX) :]:
            self.report.note_problem("a post whose bytes do not match its hash", "data", key)
        elif post.is_local_only:
            self.report.note_problem("an unencrypted local-only post", "data", key)
        else:
            if self._signatures and not is_signed(raw):
                self.report.note_problem("a post with a bad signature", "data", key)
            self._expect_post(post, key)

    def _expect_post(self, post: Post, key: bytes) -> None:
        self.derivation.post(post)
        stones = [stone for stone in self._stones if stone.target == post.hash]
        if post.type != DELETE and any(stone.author == post.author for stone in stones):
            self.report.note_problem("a post that its author deleted", "data", key)
        elif any(stone.is_effective for stone in stones):
            self.report.note_problem("a stored post with a tombstone that claims to be in effect", "data", key)
        if post.type != DELETE:
            return
        for due in tombstones(post):
            known = self._reader.tombstone(due.target, due.author)
            if known is None or known.merge(due) != known:
                self.report.note_problem("a deletion without its tombstone", "deleted", due.target_hex)

    def _check_tombstone(self, key: bytes, value: bytes) -> None:
        self.report.tombstones += 1
        stone = decode_tombstone((key, value))
        self._stones = [*(each for each in self._stones if each.target == stone.target), stone]
        if not self._reader.confirms(stone):
            self.report.note_problem("a tombstone that its post/delete does not confirm", "deleted", stone.target_hex)
        self.derivation.tombstone(stone)

    def _sum_expected(self) -> None:
        if not self._is_exact:
            rows, self.derivation.rows = self.derivation.rows, []
            self.report.balance += _sum(rows)

    # --- rows in the database --------------------------------------------------------------------

    def _check_reverse(self, stop: bytes) -> None:
        """Compare the next rows of the reverse hash map, up to the hash `stop` in hex digits, with the derived rows."""
        expected, self.derivation.reverse = self.derivation.reverse, []
        self._compare(self._reverse_from, REVERSE_PREFIX + stop, expected)
        self._reverse_from = REVERSE_PREFIX + stop

    def check_rows(self, start: bytes, stop: bytes, expected: list[Row]) -> None:
        """Compare the rows with start <= key < stop with `expected`, except rows that other methods check.

        Unless the check is exact, sum the rows that follow from one post instead.
        """
        of_one = self._compare if self._is_exact else self._sum_found
        for span_start, span_stop, is_compared in (*self._spans, (stop, stop, False)):
            of_span = self._compare if is_compared else _pass_over
            for part_stop, check_part in ((min(stop, span_start), of_one), (min(stop, span_stop), of_span)):
                if start < part_stop:
                    place = bisect_left(expected, part_stop, key=key_of)
                    check_part(start, part_stop, expected[:place])
                    expected = expected[place:]
                    start = part_stop

    def _sum_found(self, start: bytes, stop: bytes, expected: list[Row]) -> None:
        """Subtract the hashes of the found rows from the balance, and add the hashes of the rows in `expected`.

        `expected` is empty unless the database is damaged.
        """
        self.report.balance += _sum(expected)
        for rows in self._reader.blocks(start, stop):
            self.report.balance -= _sum(rows)
            self._measure(rows)

    def _compare(self, start: bytes, stop: bytes, expected: list[Row]) -> None:
        found = [row for rows in self._reader.blocks(start, stop) for row in rows]
        if found != expected:
            found = list(self._reader.scan(start, stop))  # raises if rows are missing because they are unreadable
        self._measure(found)
        if found == expected:
            return
        for key, due, present in side_by_side(sorted(dict(expected).items()), found):
            view = self._catalog.view_of(key)
            if due != present and view:
                self.report.note_problem(f"a {_state(due, present)} {self._kind_of(key)}", view, key)
            elif due != present:
                self.report.note_problem("a row that does not belong to a view", "none", key)

    def _kind_of(self, key: bytes) -> str:
        return next((kind for prefix, kind in self._of_many.items() if key.startswith(prefix)), "row")

    def _measure(self, rows: list[Row]) -> None:
        self.report.rows += len(rows)
        self.report.sizes = meta.add_sizes(self.report.sizes, measure(rows, self._catalog))


def _sum(rows: Iterable[Row]) -> int:
    """Return the sum of the hashes of rows, each joined to one string of bytes.

    Python's hash of bytes is a keyed SipHash, so different rows practically never have equal sums. Sums of hashes of
    tuples would often be equal if two rows exchanged their values.
    """
    return sum(map(hash, map(b"\x00".join, rows)))


def _pass_over(_start: bytes, _stop: bytes, _expected: list[Row]) -> None:
    pass
