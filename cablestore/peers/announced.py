"""Posts of the local user that were announced to peers and not requested yet.

A stopping node waits until peers request the latest of these posts.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from itertools import islice
from typing import Final

from cablestore import limits
from cablestore.peers.link import PeerLink


class AnnouncedPosts:
    """Hashes of the local user's posts by peer, with the time of the announcement.

    Two connections of one peer share an entry, because the peer requests a post on only one of them.
    """

    def __init__(self) -> None:
        self._announced: Final[dict[Hashable, dict[bytes, float]]] = {}
        self._received: Final[dict[Hashable, dict[bytes, None]]] = {}
        """The latest posts sent to each peer. An answer may contain a post before the post is announced to the peer."""

    def note_announced(self, link: PeerLink, hashes: Iterable[bytes], now_s: float) -> None:
        """Record that posts of the local user were announced to a peer."""
        peer = _peer(link)
        announced, received = self._announced.setdefault(peer, {}), self._received.get(peer, {})
        for digest in hashes:
            if digest in received:
                continue
            announced.pop(digest, None)  # keeps the order by time
            announced[digest] = now_s
        for digest in list(islice(announced, max(len(announced) - limits.MAX_ANNOUNCED_REMEMBERED, 0))):
            del announced[digest]

    def note_sent(self, link: PeerLink, hashes: Collection[bytes]) -> None:
        """Record that a request of a peer for these posts was answered."""
        peer = _peer(link)
        announced, received = self._announced.get(peer, {}), self._received.setdefault(peer, {})
        for digest in hashes:
            announced.pop(digest, None)
            received[digest] = None
        for digest in list(islice(received, max(len(received) - limits.MAX_ANNOUNCED_REMEMBERED, 0))):
            del received[digest]

    def forget(self, link: PeerLink) -> None:
        """Forget the peer of a closed connection."""
        self._announced.pop(_peer(link), None)
        self._received.pop(_peer(link), None)

    def is_recent(self, since_s: float) -> bool:
        """Return True if a post was announced after `since_s` and has not been requested."""
        return any(
            announced_s > since_s for announced in self._announced.values() for announced_s in announced.values()
        )


def _peer(link: PeerLink) -> Hashable:
    return link.remote_static or link
