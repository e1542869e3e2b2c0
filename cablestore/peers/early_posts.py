"""Posts that become acceptable later, and the peers that have them: posts dated too far ahead, and postponed posts."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from cablestore import limits

Sender = TypeVar("Sender", bound=Hashable)


class DuePosts(NamedTuple, Generic[Sender]):
    """Posts that have become acceptable."""

    hashes: dict[Sender, list[bytes]]
    """Hashes by the peers that have the posts."""
    are_complete: bool
    """False if further posts have become acceptable whose hashes or peers are unknown. Request all channels again."""


class EarlyPosts(Generic[Sender]):
    """Hashes of at most `max_posts` rejected posts that become acceptable later.

    For further posts, only the time when the first of them becomes acceptable is kept.
    """

    def __init__(self, max_posts: int = limits.MAX_EARLY_POSTS) -> None:
        self._max_posts = max_posts
        self._due: list[tuple[int, bytes]] = []
        """Heap of the times at which posts become acceptable."""
        self._senders: dict[bytes, list[Sender]] = {}
        self._others_due_ms: int | None = None

    def __len__(self) -> int:
        """Return the number of remembered posts."""
        return len(self._senders)

    def reject(self, digest: bytes, due_ms: int, sender: Sender | None) -> None:
        """Record a post that becomes acceptable at `due_ms`. `sender` is None if it cannot be requested by hash."""
        if digest not in self._senders:
            if len(self._senders) >= self._max_posts:
                self._others_due_ms = min(due_ms, self._others_due_ms or due_ms)
                return
            self._senders[digest] = []
            heapq.heappush(self._due, (due_ms, digest))
        if sender is not None:
            self.is_early(digest, sender)

    def is_early(self, digest: bytes, sender: Sender) -> bool:
        """Return True if the post was rejected as not acceptable yet. Then note that `sender` has it."""
        senders = self._senders.get(digest)
        if senders is None:
            return False
        if sender not in senders and len(senders) <= limits.OFFERS_REMEMBERED:
            senders.append(sender)
        return True

    def lose(self, sender: Sender) -> None:
        """Forget a lost peer."""
        for senders in self._senders.values():
            if sender in senders:
                senders.remove(sender)

    def take_due(self, now_ms: int) -> DuePosts[Sender]:
        """Remove and return the posts that are acceptable at `now_ms`."""
        hashes: defaultdict[Sender, list[bytes]] = defaultdict(list)
        are_complete = self._others_due_ms is None or self._others_due_ms > now_ms
        if not are_complete:
            self._others_due_ms = None
        while self._due and self._due[0][0] <= now_ms:
            _, digest = heapq.heappop(self._due)
            senders = self._senders.pop(digest)
            are_complete &= bool(senders)
            for sender in senders:
                hashes[sender].append(digest)
        return DuePosts(hashes, are_complete)
