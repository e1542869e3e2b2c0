"""A memory of the rows that the last batches wrote, so that a store that gets one post at a time reads few rows.

Nearly every post changes the same counts, sums and folds. There is one writer, so these rows cannot change between two
of its batches: what it wrote last is what it would read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cablestore import limits
from cablestore.index.database import Source


class RecentRows:
    """Remembered rows of one database. Only the writer may use them."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes | None] = {}

    def over(self, source: Source) -> Source:
        """Return a source that takes these rows from memory and all others from `source`, the current state."""
        return _RememberedSource(self._rows, source)

    def remember(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Remember the combined rows that were just written. Pass all of them, or older values would be outdated."""
        if len(self._rows) + len(rows) > limits.MAX_ROWS_REMEMBERED:
            self._rows.clear()
        if len(rows) > limits.MAX_ROWS_REMEMBERED:
            return
        self._rows.update(rows)
        most = limits.MAX_ROW_REMEMBERED_SIZE_BYTES
        for key, value in rows.items():
            if value and len(value) > most:
                del self._rows[key]

    def forget(self) -> None:
        """Forget all rows: the database was replaced, or a write failed and its effect is unknown."""
        self._rows.clear()


class _RememberedSource:
    """A source with some of its rows in memory."""

    __slots__ = ("_get", "_rows", "blocks", "scan")

    def __init__(self, rows: dict[bytes, bytes | None], source: Source) -> None:
        self._rows: Final = rows
        self._get = source.get
        self.scan = source.scan
        self.blocks = source.blocks

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, None if there is none."""
        return self._rows[key] if key in self._rows else self._get(key)
