"""Checking a database that nobody has open, in several processes.

What is checked is what `cablestore.index.check` checks, by the same functions: ranges of hashes first, then ranges of keys.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from cablestore.index.check import Checker, CheckReport, check, check_rest
from cablestore.index.parallel import Origin, ProcessCopy, SharedWork, hash_ranges, is_shared_out, posts_in
from cablestore.index.processes import in_order
from cablestore.index.processes import process_pool as processes_for
from cablestore.index.runs import AFTER_ALL, choose_boundaries, sampled
from cablestore.index.view import Catalog
from cablestore.limits import MAX_BUCKET_SIZE_BYTES


@dataclass(frozen=True)
class _Check(SharedWork):
    """What all processes are told, and how to check."""

    signatures: bool
    is_exact: bool

    def checker(self) -> Checker:
        """Return a checker of this process's copy."""
        return Checker(self.reader(), self.catalog, signatures=self.signatures, is_exact=self.is_exact)


def check_database(
    origin: Origin,
    catalog: Catalog,
    scratch: Path,
    *,
    signatures: bool = False,
    processes: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> CheckReport:
    """Check a database, with work under way in `scratch`, a folder.

    Without a number of processes a large one is shared out among as many as there are cores.
    """
    with origin.opened() as (reader, size_bytes):
        if not is_shared_out(size_bytes, processes):
            return check(reader, catalog, scratch, signatures=signatures, progress=progress)
        boundaries = choose_boundaries(sampled(reader, catalog), 1 + size_bytes // MAX_BUCKET_SIZE_BYTES)
    return check_in_parts(
        origin,
        catalog,
        scratch / "check",
        boundaries=boundaries,
        posts=posts_in(size_bytes),
        signatures=signatures,
        processes=processes,
        progress=progress,
    )


def check_in_parts(
    origin: Origin,
    catalog: Catalog,
    scratch: Path,
    *,
    boundaries: Sequence[bytes],
    posts: int,
    signatures: bool = False,
    processes: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> CheckReport:
    """Check a database, which has about so many `posts`, in several processes.

    `boundaries` are keys that cut its rows into shares that fit in memory. `scratch` is a folder that is made anew and
    removed at the end. `progress` is called with posts checked.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with processes_for(processes, ProcessCopy.open, (origin.path, scratch)) as pool:
        for is_exact in (False, True):
            work = _Check(origin, catalog, scratch, tuple(boundaries), signatures, is_exact)
            report = CheckReport()
            runs: list[Path] = []
            for part, written in in_order(pool, partial(_check_hashes, work), hash_ranges(posts)):
                report.add(part)
                runs += written
                progress(part.posts)
            key_ranges = enumerate(pairwise((b"", *boundaries, AFTER_ALL)))
            for part in in_order(pool, partial(_check_keys, work, tuple(runs)), key_ranges):
                report.add(part)
            if report.balance == 0:
                break
    with origin.opened() as (reader, _):
        check_rest(reader, catalog, report)
    shutil.rmtree(scratch, ignore_errors=True)
    return report


def _check_hashes(work: _Check, hashes: tuple[bytes, bytes]) -> tuple[CheckReport, list[Path]]:
    """Check a range of hashes; returns what was found and the runs in which the pieces of its posts lie."""
    checker = work.checker()
    sorter = work.sorter(checker.derivation, hashes)
    checker.check_records(sorter, *hashes, lambda _: None)
    sorter.write_rest()
    return checker.report, sorter.runs


def _check_keys(work: _Check, runs: tuple[Path, ...], numbered: tuple[int, tuple[bytes, bytes]]) -> CheckReport:
    """Check the rows of a range of keys against the pieces in the runs."""
    index, (start, stop) = numbered
    checker = work.checker()
    checker.check_rows(start, stop, work.bucket(runs, index))
    return checker.report
