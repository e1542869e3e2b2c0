"""One closed database open in several processes, each over links of its tables, and the shares that they work on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from cablestore.index.database import Row
from cablestore.index.derive import Derivation
from cablestore.index.leveldb import LevelDB, link_database
from cablestore.index.reader import AFTER_HEX, Reader
from cablestore.index.runs import Sorter, finished, read_bucket
from cablestore.index.view import Catalog
from cablestore.limits import PARTITION_POSTS, SHARED_OUT_FROM_SIZE_BYTES
from cablestore.protocol.dialect import Dialect

_HEX_DIGITS: Final = 4
"""Of a hash, by which ranges of hashes are cut."""

_ROWS_SIZE_BYTES: Final = 1_200
"""What all rows of a post take, about."""


@dataclass(frozen=True)
class Origin:
    """A database that nobody has open."""

    path: Path
    dialect: Dialect
    unseal: Callable[[bytes], bytes]

    @contextmanager
    def opened(self) -> Iterator[tuple[Reader, int]]:
        """Open it; yields a reader and about how many bytes the database has."""
        database = LevelDB(self.path)
        try:
            with database.snapshot() as state:
                yield Reader(state, self.dialect, self.unseal), database.approximate_size_bytes(b"", b"\xff")
        finally:
            database.close()


class Copy:
    """The database of this process."""

    opened: LevelDB | None = None

    @classmethod
    def open(cls, path: Path, scratch: Path) -> None:
        """Link the closed database at `path` into `scratch` and open the links."""
        copy = scratch / f"copy-{os.getpid()}"
        link_database(path, copy)
        cls.opened = LevelDB(copy)

    @classmethod
    def reader(cls, origin: Origin) -> Reader:
        """Return a reader of it."""
        assert cls.opened is not None  # noqa: S101 - the pool's initializer opened it
        return Reader(cls.opened.snapshot(), origin.dialect, origin.unseal)


@dataclass(frozen=True)
class Work:
    """What all processes are told. `boundaries` are keys that cut the rows into buckets that fit in memory."""

    origin: Origin
    catalog: Catalog
    scratch: Path
    boundaries: tuple[bytes, ...]

    def reader(self) -> Reader:
        """Return a reader of this process's copy."""
        return Copy.reader(self.origin)

    def sorter(self, derivation: Derivation, hashes: tuple[bytes, bytes]) -> Sorter:
        """Return what sorts the pieces of a range of hashes."""
        name = f"run-{hashes[0].decode() or 0}"
        return Sorter(derivation, self.catalog, self.scratch, boundaries=self.boundaries, name=name)

    def bucket(self, runs: tuple[Path, ...], index: int) -> list[Row]:
        """Return the rows of one bucket that the runs of all ranges give."""
        return finished(read_bucket(runs, index, len(self.boundaries) + 1), self.catalog)


def is_shared_out(size_bytes: int, processes: int | None) -> bool:
    """Tell whether processes share out the work on a database of this size; so many are asked for, if any."""
    return processes != 1 if processes is not None else size_bytes >= SHARED_OUT_FROM_SIZE_BYTES


def posts_in(size_bytes: int) -> int:
    """Return about how many posts are in a database of this size."""
    return size_bytes // _ROWS_SIZE_BYTES


def partitions_for(posts: int) -> int:
    """Return into how many shares so many posts are cut by their hashes."""
    return 1 + posts // PARTITION_POSTS


def hash_ranges(posts: int) -> list[tuple[bytes, bytes]]:
    """Return ranges of hashes, as (start, stop) in hex digits, that share out so many posts."""
    shares = partitions_for(posts)
    places = sorted({2 ** (4 * _HEX_DIGITS) * share // shares for share in range(1, shares)})
    return list(pairwise([b"", *(b"%0*x" % (_HEX_DIGITS, place) for place in places), AFTER_HEX]))
