"""One closed database open in several processes, each over links of its tables, and the shares that they work on."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

from cablestore.dialect import Dialect
from cablestore.kv import LevelDB, link_database
from cablestore.limits import PARTITION_POSTS
from cablestore.reader import BEHIND_HEX, Reader

_HEX_DIGITS: Final = 4
"""Of a hash, by which ranges of hashes are cut."""


class Copy:
    """The database of this process."""

    opened: LevelDB | None = None

    @classmethod
    def open(cls, path: Path, scratch: Path) -> None:
        """Link the closed database at `path` into `scratch` and open the links."""
        copy = scratch / f"copy-{os.getpid()}"
        link_database(path, copy)
        cls.opened = LevelDB(copy, create=False)

    @classmethod
    def reader(cls, dialect: Dialect, unseal: Callable[[bytes], bytes] | None) -> Reader:
        """Return a reader of it."""
        assert cls.opened is not None  # noqa: S101 - the pool's initializer opened it
        return Reader(cls.opened.snapshot(), dialect, unseal)


def partitions_for(posts: int) -> int:
    """Return into how many shares so many posts are cut by their hashes."""
    return 1 + posts // PARTITION_POSTS


def hash_ranges(posts: int) -> list[tuple[bytes, bytes]]:
    """Return ranges of hashes, as (start, stop) in hex digits, that share out so many posts."""
    shares = partitions_for(posts)
    places = sorted({2 ** (4 * _HEX_DIGITS) * share // shares for share in range(1, shares)})
    return list(pairwise([b"", *(b"%0*x" % (_HEX_DIGITS, place) for place in places), BEHIND_HEX]))
