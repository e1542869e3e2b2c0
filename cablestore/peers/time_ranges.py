"""Time ranges: parts of a reconciliation of all posts, newest first, which resume after a broken link.

The first conversation covers all times. If the link breaks before any post is transferred, the next conversation covers
a fourth of this range, and so on. After a completed conversation, the ranges grow again. The progress is a mark of the
peer (`SyncState`), so that a new connection or process does not start from the beginning.
"""

from __future__ import annotations

import hashlib
from typing import Final

from cablestore.peers.sync_state import SyncMark, SyncState
from cablestore.reconcile.messages import Terms

_SHRINK: Final = 4
_GROW: Final = 2
_SHORTEST_MS: Final = 1
_PREFIX: Final = "unfinished:"
"""Prefix of the names of marks. With the 64 digits after it, a name is longer than any channel's name."""


class TimeRanges:
    """The part of a reconciliation with `peer` on `terms` that remains to be done.

    The reconciliation can be continued for `keep_ms` after its start.
    """

    def __init__(self, marks: SyncState, peer: str, terms: Terms, *, now_ms: int, keep_ms: float) -> None:
        self._marks = marks
        self._epoch = marks.epoch
        self._peer = peer
        self._terms = terms
        self._name = _PREFIX + hashlib.blake2b(repr(_subject(terms)).encode(), digest_size=32).hexdigest()
        self._now_ms = now_ms
        self._reached_ms: int | None = None
        """Start of the times that are already compared, None if no times are compared yet."""
        self._length_ms = 0
        """Length of the next time range, 0 if it is all that remains."""
        self._has_done_one = False
        mark = marks.get(peer, self._name)
        self._began_ms = now_ms
        if mark is not None and 0 <= now_ms - mark.full_at_ms < keep_ms:
            self._began_ms, self._length_ms = mark.full_at_ms, max(0, mark.range_ms)
            # A mark that covers these terms completely does not cover later posts, so the reconciliation restarts.
            self._reached_ms = mark.from_ms if terms.from_ms < mark.from_ms < mark.until_ms else None
        self.was_begun = self._reached_ms is not None
        """True if an earlier connection completed a part, which may have changed since."""

    @property
    def next(self) -> Terms | None:
        """The terms of the next conversation, None when everything is done."""
        if self._reached_ms is not None and self._reached_ms <= self._terms.from_ms:
            return None
        from_ms = max(self._terms.from_ms, self._top_ms - self._length_ms) if self._length_ms else self._terms.from_ms
        until_ms = self._terms.until_ms if self._reached_ms is None else self._reached_ms
        return self._terms._replace(from_ms=from_ms, until_ms=until_ms)

    def done(self) -> None:
        """Record that the conversation about `next` was completed."""
        time_range = self.next
        self._has_done_one = True
        self._reached_ms = self._terms.from_ms if time_range is None else time_range.from_ms
        self._length_ms *= _GROW
        if self._reached_ms > self._terms.from_ms:
            self._note()
        else:
            self._marks.drop(self._peer, self._name)

    def is_over(self) -> None:
        """Record that the peer does not reconcile older posts."""
        self._reached_ms = self._terms.from_ms
        self._marks.drop(self._peer, self._name)

    def broke(self, *, has_moved: bool) -> None:
        """Record that the link broke during the conversation about `next`.

        If no posts were transferred and no range was completed over this link, the next range is shorter.
        """
        time_range = self.next
        if time_range is not None and not has_moved and not self._has_done_one:
            self._length_ms = max(_SHORTEST_MS, (self._top_ms - time_range.from_ms) // _SHRINK)
            self._note()

    @property
    def _top_ms(self) -> int:
        return self._now_ms if self._reached_ms is None else self._reached_ms

    @property
    def is_void(self) -> bool:
        """True if posts of these conversations may have been lost meanwhile."""
        return self._epoch != self._marks.epoch

    def _note(self) -> None:
        if self.is_void:
            return
        self._marks.put(self._peer, self._name, SyncMark(self._top_ms, self._now_ms, self._began_ms, self._length_ms))


def _subject(terms: Terms) -> tuple[bool, list[str] | None]:
    return terms.accepts_posts, None if terms.channels is None else sorted(terms.channels)
