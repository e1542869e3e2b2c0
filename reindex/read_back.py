"""Reading back: every row of a new database is compared with the written rows, by digests and recorded changes.

The job returns the number and the digest of the rows of each segment. Later changes of the loaded database are
recorded. So one pass over the finished database proves that it contains exactly these rows with these changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from typing import Final, Self

import blake3
import msgpack

from cablestore.errors import ReindexError
from cablestore.index.cores import usable_cores
from cablestore.index.database import Database, Row, SnapshotSource, Source
from cablestore.index.leveldb import LevelDB
from cablestore.index.leveldb_checkpoint import link_database
from cablestore.index.packing import pack, unpack
from cablestore.index.processes import in_order, process_pool
from cablestore.index.runs import AFTER_ALL
from cablestore.limits import PART_ROWS
from cablestore.reindex.row_segments import RowDigest, RowRange

_HASH_SIZE_BYTES: Final = 16

_Work = Sequence[tuple[RowRange, bytes]]
"""Ranges to compare, each with the key at which the next range begins."""


class RecordedDatabase:
    """A database whose changes are recorded in another database.

    The recorded rows are key -> msgpack [value before all changes, hash of the last value]. The first is nil if the row
    did not exist before, the second if it does not exist now.
    """

    def __init__(self, database: Database, changes: Database) -> None:
        """Record all writes to `database` in `changes`, which is empty."""
        self._database = database
        self._changes = changes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def snapshot(self) -> SnapshotSource:
        """Return a snapshot of the current state."""
        return self._database.snapshot()

    def live(self) -> Source:
        """Return the current state for the writer."""
        return self._database.live()

    def write(self, rows: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        """Put rows, and delete keys whose value is None. Record the changes."""
        present, known = self._database.live(), self._changes.live()
        changes: dict[bytes, bytes | None] = {}
        for key, value in rows.items():
            change = known.get(key)
            before = present.get(key) if change is None else unpack(change)[0]
            changes[key] = pack([before, _hash_of(value)])
        self._changes.write(changes, sync=False)
        self._database.write(rows, sync=sync)

    def sync(self) -> None:
        """Wait until all written rows are on the disk."""
        self._changes.sync()
        self._database.sync()

    def bulk_writer(self) -> Self:
        """Return this object, as a writer for many rows."""
        return self

    def put(self, rows: Iterable[Row]) -> None:
        """Write rows, and record the changes."""
        self.write(dict(rows), sync=False)

    def flush(self) -> None:
        """Store the rows written so far in a separate table: see `LevelDB.flush`."""
        self._database.flush()

    def compact(self) -> None:
        """Compact the database."""
        self._database.compact()

    def remove_unused_tables(self) -> None:
        """Remove files that were kept only for closed snapshots."""
        self._database.remove_unused_tables()

    def approximate_size_bytes(self, start: bytes, stop: bytes) -> int:
        """Return the approximate size of a range on disk in bytes."""
        return self._database.approximate_size_bytes(start, stop)

    def close(self) -> None:
        """Close the database. The caller closes the database of changes."""
        self._database.close()


def read_back(
    path: Path,
    changes: Path,
    scratch: Path,
    ranges: Sequence[RowRange],
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Read the closed database at `path` completely and compare it with `ranges` and the recorded changes at `changes`.

    `ranges` are in order of keys. For a large database one process per core reads a part, through links in the folder
    `scratch`. Returns the number of rows. `progress` is called with the number of rows read since the last call.

    Raises ReindexError if a row is missing, different or extra, StorageError if reading fails.
    """
    every = [RowRange(b"", 0, RowDigest().hexdigest(), "nothing"), *ranges]
    work = list(zip(every, [*(each.first for each in ranges), AFTER_ALL], strict=True))
    processes = min(usable_cores(), 1 + sum(each.rows for each in ranges) // PART_ROWS)
    with _comparing(path, changes, scratch, processes) as compare:
        total = 0
        for (written, _), rows in zip(work, compare(work), strict=True):
            total += rows
            progress(written.rows)
    return total


@contextmanager
def _comparing(path: Path, changes: Path, scratch: Path, processes: int) -> Iterator[Callable[[_Work], Iterator[int]]]:
    """Yield a function that compares ranges, and yields the number of rows in the database for each, in order."""
    if processes > 1:
        with process_pool(processes, _Copies.open, (path, changes, scratch)) as pool:
            yield partial(in_order, pool, _compare_copies)
        return
    with (
        closing(LevelDB(path)) as database,
        closing(LevelDB(changes)) as recorded,
        database.snapshot() as state,
        recorded.snapshot() as changed,
    ):
        yield partial(starmap, partial(compare_range, state, changed))


def compare_range(database: Source, changes: Source, written: RowRange, stop: bytes) -> int:
    """Compare the rows of `database` from `written.first` to `stop` with `written`. Return their number.

    Raises ReindexError if they differ from the written rows with the changes.
    """
    found = 0

    def blocks() -> Iterator[list[Row]]:
        nonlocal found
        for rows in database.blocks(written.first, stop):
            found += len(rows)
            yield rows

    digest = RowDigest()
    # Damage may end `blocks` early. Then the number of rows differs.
    for rows in _before(blocks(), changes.scan(written.first, stop)):
        digest.add(msgpack.packb(rows), len(rows))
    if (digest.rows, digest.hexdigest()) != (written.rows, written.digest):
        raise ReindexError(
            f"the new database does not contain the rows of {written.source}: their number or digest differs (read "
            f"back {digest.rows:,} rows, expected {written.rows:,}). The old database remains live. Check the disk, then "
            "run the command again"
        )
    return found


def _before(blocks: Iterator[list[Row]], changes: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield the rows in `blocks` as they were before `changes`. Raises ReindexError if the rows lack a change."""
    change = next(changes, None)
    for rows in chain(blocks, [[]]):
        last = rows[-1][0] if rows else AFTER_ALL
        if rows and (change is None or change[0] > last):
            yield rows
            continue
        by_key = dict(rows)
        while change is not None and change[0] <= last:
            key, (before, due) = change[0], unpack(change[1])
            if _hash_of(by_key.pop(key, None)) != due:
                raise ReindexError(
                    "the new database does not contain the last written value of "
                    f"{key.decode(errors='backslashreplace')}. The old database remains live. Check the disk, then "
                    "run the command again"
                )
            if before is not None:
                by_key[key] = before
            change = next(changes, None)
        if by_key:
            yield sorted(by_key.items())


def _hash_of(value: bytes | None) -> bytes | None:
    return None if value is None else blake3.blake3(value).digest(length=_HASH_SIZE_BYTES)


class _Copies:
    """The open copies of the database and of its changes in this process."""

    states: tuple[Source, Source]

    @classmethod
    def open(cls, path: Path, changes: Path, scratch: Path) -> None:
        """Link both databases into `scratch` and open the links."""
        copies = [scratch / f"{of.name}-{os.getpid()}" for of in (path, changes)]
        for of, copy in zip((path, changes), copies, strict=True):
            link_database(of, copy)
        cls.states = (LevelDB(copies[0]).snapshot(), LevelDB(copies[1]).snapshot())


def _compare_copies(work: tuple[RowRange, bytes]) -> int:
    return compare_range(*_Copies.states, *work)
