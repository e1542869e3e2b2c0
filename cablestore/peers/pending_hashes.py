"""Pending posts, the peers that offer them, and the peer from which each post is requested.

A peer can be any hashable object.

A hash is requested from one peer at a time. If that peer is lost or does not deliver the post, the hash is requested
from the next peer that offered it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

from cablestore import limits

Peer = TypeVar("Peer", bound=Hashable)


class PendingHashes(Generic[Peer]):
    """Hashes that the store lacks, by the peer from which each is requested.

    Each peer has at most `max_per_peer` of these hashes. Further offers are rejected, and must be repeated later.
    """

    def __init__(self, max_per_peer: int = limits.MAX_PENDING_HASHES_PER_PEER) -> None:
        self._max_per_peer = max_per_peer
        self._holder: dict[bytes, Peer] = {}
        """The peer from which each hash is requested, or will be."""
        self._others: dict[bytes, list[Peer]] = {}
        """Further peers that offered each hash."""
        self._queued: Final[defaultdict[Peer, dict[bytes, None]]] = defaultdict(dict)
        self._requested: Final[defaultdict[Peer, dict[bytes, None]]] = defaultdict(dict)

    def __len__(self) -> int:
        """Return the number of pending hashes."""
        return len(self._holder)

    def __contains__(self, digest: bytes) -> bool:
        """Return True if a hash is pending."""
        return digest in self._holder

    def offer(self, peer: Peer, hashes: Iterable[bytes]) -> list[bytes]:
        """Record that `peer` has these posts. Return the hashes for which there was no room."""
        refused = []
        queue = self._queued[peer]
        for digest in hashes:
            holder = self._holder.get(digest)
            if holder is None:
                if not self._has_room(peer):
                    refused.append(digest)
                    continue
                self._holder[digest] = peer
                queue[digest] = None
            elif holder != peer:
                others = self._others.setdefault(digest, [])
                if peer not in others and len(others) < limits.OFFERS_REMEMBERED:
                    others.append(peer)
        return refused

    def take(self, peer: Peer, count: int) -> list[bytes]:
        """Return up to `count` hashes to request from a peer now, in the order of the offers."""
        queue = self._queued.get(peer)
        if not queue:
            return []
        taken = list(islice(queue, count))
        for digest in taken:
            del queue[digest]
        self._requested[peer].update(dict.fromkeys(taken))
        return taken

    def hurry(self, hashes: Iterable[bytes]) -> None:
        """Move these hashes to the front of the queues that contain them."""
        first: defaultdict[Peer, list[bytes]] = defaultdict(list)
        for digest in hashes:
            holder = self._holder.get(digest)
            if holder is not None and digest in self._queued[holder]:
                first[holder].append(digest)
        for peer, found in first.items():
            self._queued[peer] = dict.fromkeys((*found, *self._queued[peer]))

    def waiting(self, peer: Peer) -> int:
        """Return the number of hashes queued for a peer."""
        return len(self._queued.get(peer, ()))

    def outstanding(self, peer: Peer) -> int:
        """Return the number of hashes that were requested from a peer and whose posts it has not delivered."""
        return len(self._requested.get(peer, ()))

    def _has_room(self, peer: Peer) -> bool:
        return self.waiting(peer) + self.outstanding(peer) < self._max_per_peer

    def arrived(self, digest: bytes) -> None:
        """Forget a hash: its post has arrived, or is no longer wanted."""
        holder = self._holder.pop(digest, None)
        self._others.pop(digest, None)
        if holder is not None:
            self._requested[holder].pop(digest, None)
            self._queued[holder].pop(digest, None)

    def failed(self, peer: Peer, hashes: Iterable[bytes]) -> tuple[set[Peer], list[bytes]]:
        """Record that a peer did not deliver these posts.

        Return the peers in whose queues some of these hashes are now, and the hashes that no other peer offers.
        """
        busier: set[Peer] = set()
        lost = []
        for digest in hashes:
            if self._holder.get(digest) != peer:
                continue
            self._requested[peer].pop(digest, None)
            self._queued[peer].pop(digest, None)
            others = self._others.get(digest, [])
            while others and not self._has_room(others[0]):
                others.pop(0)
            if others:
                following = others.pop(0)
                self._holder[digest] = following
                self._queued[following][digest] = None
                busier.add(following)
            else:
                self.arrived(digest)
                lost.append(digest)
        return busier, lost

    def lose(self, peer: Peer) -> tuple[set[Peer], list[bytes]]:
        """Forget a lost peer and its offers. Return the same as `failed`."""
        for digest, others in list(self._others.items()):
            if peer in others:
                others.remove(peer)
                if not others:
                    del self._others[digest]
        owed = [*self._requested.pop(peer, ()), *self._queued.pop(peer, ())]
        found = self.failed(peer, owed)
        self._requested.pop(peer, None)
        self._queued.pop(peer, None)
        return found
