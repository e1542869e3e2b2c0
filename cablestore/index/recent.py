"""A cache of the rows of the last batches, so that few rows are read to store a single post.

Nearly every post changes the same counts, sums and folds. Because only one writer exists, these rows cannot change
between two of its batches.

A group consists of the rows of a fold with the same key up to the last `!`, such as the heads of a channel. A group is
slow to read if many of its rows were deleted, because LevelDB must skip them. Each post of the user deletes a head of
its channel and adds another. So `hold` caches whole groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from cablestore import limits
from cablestore.index.database import Row, Source
from cablestore.protocol.keys import SEPARATOR, after_prefix


class RecentRows:
    """Cached rows of one database, only for the writer."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes | None] = {}
        self._groups: dict[bytes, dict[bytes, bytes] | None] = {}
        """All rows of groups by the prefix of their keys, None for a group that is too large."""

    def over(self, source: Source) -> Source:
        """Return a source that reads cached rows from the cache, and all other rows from `source`, the current state."""
        return _RememberedSource(self._rows, self._groups, source)

    def hold(self, group: bytes, source: Source) -> None:
        """Cache all rows of a group. `group` is the prefix of their keys, including the last `!`.

        `source` is the current state. A group with more than MAX_GROUP_ROWS_REMEMBERED rows is not cached.
        """
        if group not in self._groups:
            if len(self._groups) >= limits.MAX_GROUPS_REMEMBERED:
                self._groups.clear()
            most = limits.MAX_GROUP_ROWS_REMEMBERED
            rows = dict(islice(source.scan(group, after_prefix(group)), most + 1))
            self._groups[group] = rows if len(rows) <= most else None

    def remember(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Cache `rows`, the `PlannedWrite.combined` of the last write. Call this after every write.

        Otherwise cached values become outdated.
        """
        if self._groups:
            self._regroup(rows)
        if len(self._rows) + len(rows) > limits.MAX_ROWS_REMEMBERED:
            self._rows.clear()
        if len(rows) > limits.MAX_ROWS_REMEMBERED:
            return
        self._rows.update(rows)
        most = limits.MAX_ROW_REMEMBERED_SIZE_BYTES
        for key, value in rows.items():
            if value and len(value) > most:
                del self._rows[key]

    def _regroup(self, rows: Mapping[bytes, bytes | None]) -> None:
        for key, value in rows.items():
            name = key[: key.rindex(SEPARATOR) + 1]
            group = self._groups.get(name)
            if group is None:
                continue
            if value is None:
                group.pop(key, None)
                continue
            group[key] = value
            if len(group) > limits.MAX_GROUP_ROWS_REMEMBERED:
                self._groups[name] = None

    def forget(self) -> None:
        """Clear the cache, because the database was replaced, or a write failed and its effect is unknown."""
        self._rows.clear()
        self._groups.clear()


class _RememberedSource:
    """A source with some of its rows in a cache."""

    __slots__ = ("_get", "_groups", "_rows", "_scan", "blocks")

    def __init__(
        self, rows: dict[bytes, bytes | None], groups: dict[bytes, dict[bytes, bytes] | None], source: Source
    ) -> None:
        self._rows: Final = rows
        self._groups: Final = groups
        self._get = source.get
        self._scan = source.scan
        self.blocks = source.blocks

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, None if it does not exist."""
        return self._rows[key] if key in self._rows else self._get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:
        """Yield the rows with start <= key < stop in key order, or backwards."""
        group = self._groups.get(start)
        if group is not None and stop == after_prefix(start):
            return iter(sorted(group.items(), reverse=reverse))
        return self._scan(start, stop, reverse=reverse, at_once=at_once)
