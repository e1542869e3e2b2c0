"""Paging: how to continue after a page of history.

Answers should begin with the newest post (wire.md 6.3.2.3), but cable.rs begins with the oldest. A peer may return
fewer hashes than were requested. The answers of a peer show its direction and its page size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cablestore import limits

SURELY_WHOLE: Final = 64
"""Shortest page of any client. An answer with fewer hashes is complete."""


class Paging:
    """The page to request: `start_ms` <= timestamp < `end_ms`, `limit` hashes at most, 0 for all."""

    def __init__(self, start_ms: int, end_ms: int, page_hashes: int) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.limit = page_hashes
        self._page_hashes = page_hashes
        self._most = SURELY_WHOLE
        """Size of the largest page so far. A peer with further posts does not return a shorter page."""
        self._before: frozenset[bytes] = frozenset()
        self._is_newest_first: bool | None = None

    def is_last(self, count: int) -> bool:
        """Return True if a complete answer of this many hashes is all that the peer has in this range."""
        is_last = not self.limit or not count or (count < self.limit and count < self._most)
        self._most = max(self._most, count)
        return is_last

    def is_repeated(self, hashes: Sequence[bytes]) -> bool:
        """Return True if an answer only repeats the page before it. Then the peer has no further posts of this range."""
        return self._before.issuperset(hashes)

    def turn(
        self, hashes: Sequence[bytes], first_ms: int | None, last_ms: int | None, page_hashes: int | None = None
    ) -> None:
        """Advance past the page `hashes`. `first_ms` and `last_ms` are the times of its first and last post, if known.

        `page_hashes` is the size of the next page, None for an unchanged size.
        """
        self._page_hashes = page_hashes or self._page_hashes
        is_cut = bool(self.limit) and len(hashes) < self.limit
        is_stuck = self.is_repeated(hashes)
        self._before = frozenset(hashes)
        if first_ms is None or last_ms is None:
            self.limit = 0  # the end of this page is unknown: request all the rest at once
            return
        if first_ms != last_ms:
            self._is_newest_first = first_ms > last_ms
        if is_cut and is_stuck:
            self._move(last_ms, over=True)  # the peer returns no more posts of this moment
        elif self._is_newest_first is None or not self._move(last_ms, over=False):
            self._grow()

    def _move(self, last_ms: int, *, over: bool) -> bool:
        """Move to `last_ms`, where the page ended, or past it if `over` is True. Return False if nothing changes."""
        if self._is_newest_first is False:
            start_ms = last_ms + over
            has_moved = start_ms > self.start_ms
            self.start_ms = max(self.start_ms, start_ms)
        else:
            end_ms = last_ms + (not over)
            has_moved = end_ms < self.end_ms
            self.end_ms = min(self.end_ms, end_ms)
        if has_moved:
            self.limit = self._page_hashes
        elif over:
            self.limit = 0
        return has_moved

    def _grow(self) -> None:
        """Enlarge the page: more posts have the same timestamp than a page holds."""
        self.limit = 4 * self.limit if 4 * self.limit <= limits.MAX_PAGE_HASHES else 0
