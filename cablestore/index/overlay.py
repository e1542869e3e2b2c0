"""A state of the database with unwritten changes on top."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from cablestore.index.database import Row, Source


class Overlay:
    """A source that shows `changes` (key to value, None for a deleted row) on top of another source.

    Keys may be added to `changes` but never removed.
    """

    __slots__ = ("_base", "_get", "_order", "changes")

    def __init__(self, base: Source) -> None:
        self.changes: Final[dict[bytes, bytes | None]] = {}
        self._base = base
        self._get = base.get
        self._order: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key` after the changes, None if it does not exist."""
        return self.changes[key] if key in self.changes else self._get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:
        """Yield the rows of a range after the changes. Do not modify `changes` while iterating."""
        if len(self._order) != len(self.changes):
            self._order = sorted(self.changes)
        keys = self._order[bisect_left(self._order, start) : bisect_left(self._order, stop)]
        rows = self._base.scan(start, stop, reverse=reverse, at_once=at_once)
        return self._merged(rows, keys[::-1] if reverse else keys, reverse=reverse) if keys else rows

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        """Yield one list of the rows with start <= key < stop."""
        yield list(self.scan(start, stop))

    def _merged(self, rows: Iterator[Row], keys: list[bytes], *, reverse: bool) -> Iterator[Row]:
        upcoming = iter(keys)
        key = next(upcoming, None)
        for row in rows:
            while key is not None and (key > row[0] if reverse else key < row[0]):
                yield from self._changed(key)
                key = next(upcoming, None)
            if key == row[0]:
                yield from self._changed(key)
                key = next(upcoming, None)
            else:
                yield row
        while key is not None:
            yield from self._changed(key)
            key = next(upcoming, None)

    def _changed(self, key: bytes) -> Iterator[Row]:
        value = self.changes[key]
        if value is not None:
            yield key, value
