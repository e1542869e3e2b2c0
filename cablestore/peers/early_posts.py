"""Posts that were rejected because they are dated too far ahead: when they become acceptable, and who has them."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from cablestore import limits

Giver = TypeVar("Giver", bound=Hashable)


class DuePosts(NamedTuple, Generic[Giver]):
    """Posts that have become acceptable."""

    hashes: dict[Giver, list[bytes]]
    """Hashes by the peers that have the posts."""
    are_complete: bool
    """False if peers must be asked for further posts by channel."""


class EarlyPosts(Generic[Giver]):
    """Hashes of rejected posts, at most `max_posts`. Of further ones only the earliest time is kept."""

    def __init__(self, max_posts: int = limits.MAX_EARLY_POSTS) -> None:
        self._max_posts = max_posts
        self._due: list[tuple[int, bytes]] = []
        """Heap of the times at which posts become acceptable."""
        self._givers: dict[bytes, list[Giver]] = {}
        self._others_due_ms: int | None = None

    def __len__(self) -> int:
        """Return the number of remembered posts."""
        return len(self._givers)

    def refuse(self, digest: bytes, due_ms: int, giver: Giver | None) -> None:
        """Record a post that becomes acceptable at `due_ms`. `giver` is None if it cannot be requested by hash."""
        if digest not in self._givers:
            if len(self._givers) >= self._max_posts:
                self._others_due_ms = min(due_ms, self._others_due_ms or due_ms)
                return
            self._givers[digest] = []
            heapq.heappush(self._due, (due_ms, digest))
        if giver is not None:
            self.is_early(digest, giver)

    def is_early(self, digest: bytes, giver: Giver) -> bool:
        """Return True if a post that a peer offers was rejected before, and note that the peer has it."""
        givers = self._givers.get(digest)
        if givers is None:
            return False
        if giver not in givers and len(givers) <= limits.OFFERS_REMEMBERED:
            givers.append(giver)
        return True

    def lose(self, giver: Giver) -> None:
        """Forget a lost peer."""
        for givers in self._givers.values():
            if giver in givers:
                givers.remove(giver)

    def take_due(self, now_ms: int) -> DuePosts[Giver]:
        """Remove and return the posts that are acceptable now."""
        hashes: defaultdict[Giver, list[bytes]] = defaultdict(list)
        are_complete = self._others_due_ms is None or self._others_due_ms > now_ms
        if not are_complete:
            self._others_due_ms = None
        while self._due and self._due[0][0] <= now_ms:
            _, digest = heapq.heappop(self._due)
            givers = self._givers.pop(digest)
            are_complete &= bool(givers)
            for giver in givers:
                hashes[giver].append(digest)
        return DuePosts(hashes, are_complete)
