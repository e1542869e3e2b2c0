"""Told: own posts that peers were told of and have not asked for. A node that stops lets them ask for the latest ones."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from itertools import islice
from typing import Final

from cablestore import limits
from cablestore.peers.link import PeerLink


class AnnouncedPosts:
    """Hashes by peer, with the time when the peer was told. A peer with two connections asks on one of them."""

    def __init__(self) -> None:
        self._announced: Final[dict[Hashable, dict[bytes, float]]] = {}
        self._given: Final[dict[Hashable, dict[bytes, None]]] = {}
        """Posts that a peer got last. It may get a post in an answer before the post is announced to it."""

    def tell(self, link: PeerLink, hashes: Iterable[bytes], now_s: float) -> None:
        """Note that a peer was told of own posts."""
        announced, given = self._announced.setdefault(_peer(link), {}), self._given.get(_peer(link), {})
        for digest in hashes:
            if digest in given:
                continue
            announced.pop(digest, None)  # the latest are last
            announced[digest] = now_s
        for digest in list(islice(announced, max(len(announced) - limits.MAX_TOLD_REMEMBERED, 0))):
            del announced[digest]

    def gave(self, link: PeerLink, hashes: Collection[bytes]) -> None:
        """Note that a peer asked for posts and got those that are here."""
        announced, given = self._announced.get(_peer(link), {}), self._given.setdefault(_peer(link), {})
        for digest in hashes:
            announced.pop(digest, None)
            given[digest] = None
        for digest in list(islice(given, max(len(given) - limits.MAX_TOLD_REMEMBERED, 0))):
            del given[digest]

    def lost(self, link: PeerLink) -> None:
        """Forget a connection that is over."""
        self._announced.pop(_peer(link), None)
        self._given.pop(_peer(link), None)

    def is_recent(self, since_s: float) -> bool:
        """Tell whether a peer was told of something since then and has not asked for it."""
        return any(told_s > since_s for announced in self._announced.values() for told_s in announced.values())


def _peer(link: PeerLink) -> Hashable:
    return link.remote_static or link
