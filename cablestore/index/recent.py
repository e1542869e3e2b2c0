"""Rows that follow from many posts, as the last batches left them: a store that takes one post at a time reads few rows.

Nearly every post changes the same counts, sums and folds. Between two batches of the one writer they cannot change, so what
the writer wrote last is what it would read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cablestore import limits
from cablestore.index.database import Source


class RecentRows:
    """The rows of one database. Only its writer may ask."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes | None] = {}

    def over(self, source: Source) -> Source:
        """Return the present state, in which these rows need not be read."""
        return _Known(self._rows, source)

    def remember(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Take what was just written of such rows: all of them, or what is known of others would be outdated."""
        if len(self._rows) + len(rows) > limits.MAX_ROWS_REMEMBERED:
            self._rows.clear()
        if len(rows) > limits.MAX_ROWS_REMEMBERED:
            return
        for key, value in rows.items():
            if value is not None and len(value) > limits.MAX_ROW_REMEMBERED_SIZE_BYTES:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value

    def forget(self) -> None:
        """Forget all: the database is another one, or nobody knows what a write that failed has left."""
        self._rows.clear()


class _Known:
    """A source some of whose rows are in memory."""

    __slots__ = ("_get", "_rows", "blocks", "scan")

    def __init__(self, rows: dict[bytes, bytes | None], source: Source) -> None:
        self._rows: Final = rows
        self._get = source.get
        self.scan = source.scan
        self.blocks = source.blocks

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`."""
        return self._rows[key] if key in self._rows else self._get(key)
