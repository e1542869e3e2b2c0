"""A cache of the rows of the last batches, so that few rows are read to store a single post.

Nearly every post changes the same counts, sums and folds. Because only one writer exists, these rows cannot change
between two of its batches.

A group consists of the rows of a fold with the same key up to the last `!`, such as the heads of a channel. A group is
slow to read if many of its rows were deleted, because LevelDB must skip them. Each post of the user deletes a head of
its channel and adds another. So `hold` caches whole groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from cablestore import limits
from cablestore.index.database import Row, Source
from cablestore.index.tree import Change
from cablestore.protocol.keys import SEPARATOR, after_prefix


class _Rows(dict[bytes, bytes | None]):
    """Cached rows by key. A row that is not cached is read from `source`, and not added to the cache."""

    source: Source

    def __missing__(self, key: bytes) -> bytes | None:
        return self.source.get(key)


class RecentRows:
    """Cached rows of one database, only for the writer."""

    def __init__(self) -> None:
        self._rows = _Rows()
        self._groups: dict[bytes, dict[bytes, bytes] | None] = {}
        """All rows of groups by the prefix of their keys, None for a group that is too large."""

    def over(self, source: Source) -> Source:
        """Return a source that reads cached rows from the cache, and all other rows from `source`, the current state.

        It replaces the result of an earlier call.
        """
        self._rows.source = source
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

    def remember(self, changes: list[Change]) -> None:
        """Cache the rows of `changes`, the `PlannedWrite.combined` of the last write. Call this after every write.

        Otherwise cached values become outdated.
        """
        if self._groups:
            self._regroup(changes)
        if len(self._rows) + len(changes) > limits.MAX_ROWS_REMEMBERED:
            self._rows.clear()
        if len(changes) > limits.MAX_ROWS_REMEMBERED:
            return
        most = limits.MAX_ROW_REMEMBERED_SIZE_BYTES
        for key, _, value in changes:
            if value is None or len(value) <= most:
                self._rows[key] = value
            else:
                self._rows.pop(key, None)

    def _regroup(self, changes: list[Change]) -> None:
        for key, _, value in changes:
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

    __slots__ = ("_groups", "_scan", "blocks", "get")

    def __init__(self, rows: _Rows, groups: dict[bytes, dict[bytes, bytes] | None], source: Source) -> None:
        self._groups: Final = groups
        self.get = rows.__getitem__
        self._scan = source.scan
        self.blocks = source.blocks

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:
        """Yield the rows with start <= key < stop in key order, or backwards."""
        group = self._groups.get(start)
        if group is not None and stop == after_prefix(start):
            return iter(sorted(group.items(), reverse=reverse))
        return self._scan(start, stop, reverse=reverse, at_once=at_once)
