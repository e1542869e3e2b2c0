"""Checking a database that nobody has open, in several processes, each over links of its tables.

What is checked is what `cablestore.check` checks, by the same functions: ranges of hashes first, then ranges of keys.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from cablestore.check import Checker, CheckReport, check_rest
from cablestore.dialect import Dialect
from cablestore.generations import unseal_with
from cablestore.kv import LevelDB, link_database
from cablestore.reader import BEHIND_HEX, Reader
from cablestore.reindex.pool import processes as processes_for
from cablestore.reindex.prepare import partitions_for
from cablestore.runs import BEHIND_ALL, Sorter, finished, read_bucket
from cablestore.view import Catalog

_HEX_DIGITS: Final = 4
"""Of a hash, by which ranges of hashes are cut."""


class _Copy:
    """A database opened over links, once a process."""

    opened: LevelDB | None = None
    path = Path()

    @classmethod
    def open(cls, path: Path, scratch: Path) -> None:
        """Link the closed database at `path` and open the links."""
        cls.path = scratch / f"copy-{os.getpid()}"
        link_database(path, cls.path)
        cls.opened = LevelDB(cls.path, create=False)

    @classmethod
    def reader(cls, dialect: Dialect, key_file: Path) -> Reader:
        """Return a reader of it."""
        assert cls.opened is not None  # noqa: S101 - the pool's initializer opened it
        return Reader(cls.opened.snapshot(), dialect, partial(unseal_with, key_file))


def check_closed(
    path: Path,
    dialect: Dialect,
    key_file: Path,
    catalog: Catalog,
    scratch: Path,
    *,
    boundaries: Sequence[bytes],
    posts: int,
    processes: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> CheckReport:
    """Check the closed database at `path`, which has about so many `posts`.

    `boundaries` are keys that cut its rows into shares that fit in memory. `progress` is called with posts checked.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    edges = _hash_edges(partitions_for(posts))
    with processes_for(processes, _Copy.open, (path, scratch)) as pool:
        for is_exact in (False, True):
            report = CheckReport()
            of_hashes = partial(_check_hashes, dialect, key_file, catalog, is_exact, scratch, tuple(boundaries))
            runs: list[Path] = []
            for part, written in pool.map(of_hashes, pairwise(edges)):
                report.add(part)
                runs += written
                progress(part.posts)
            of_keys = partial(_check_keys, dialect, key_file, catalog, is_exact, tuple(runs), len(boundaries) + 1)
            for part in pool.map(of_keys, enumerate(pairwise((b"", *boundaries, BEHIND_ALL)))):
                report.add(part)
            if report.balance == 0:
                break
    database = LevelDB(path, create=False)
    try:
        with database.snapshot() as state:
            check_rest(Reader(state, dialect), report)
    finally:
        database.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return report


def _hash_edges(shares: int) -> list[bytes]:
    places = sorted({2 ** (4 * _HEX_DIGITS) * share // shares for share in range(1, shares)})
    return [b"", *(b"%0*x" % (_HEX_DIGITS, place) for place in places), BEHIND_HEX]


def _check_hashes(
    dialect: Dialect,
    key_file: Path,
    catalog: Catalog,
    is_exact: bool,
    scratch: Path,
    boundaries: tuple[bytes, ...],
    hashes: tuple[bytes, bytes],
) -> tuple[CheckReport, list[Path]]:
    """Check a range of hashes; returns what was found and the runs in which the pieces of its posts lie."""
    checker = Checker(_Copy.reader(dialect, key_file), catalog, signatures=False, is_exact=is_exact)
    sorter = Sorter(checker.derivation, catalog, scratch, boundaries=boundaries, name=f"run-{hashes[0].decode() or 0}")
    checker.check_records(sorter, *hashes, lambda _: None)
    sorter.write_rest()
    return checker.report, sorter.runs


def _check_keys(
    dialect: Dialect,
    key_file: Path,
    catalog: Catalog,
    is_exact: bool,
    runs: tuple[Path, ...],
    buckets: int,
    numbered: tuple[int, tuple[bytes, bytes]],
) -> CheckReport:
    """Check the rows of a range of keys against the pieces in the runs."""
    index, (start, stop) = numbered
    checker = Checker(_Copy.reader(dialect, key_file), catalog, signatures=False, is_exact=is_exact)
    checker.check_rows(start, stop, finished(read_bucket(runs, index, buckets), catalog))
    return checker.report
