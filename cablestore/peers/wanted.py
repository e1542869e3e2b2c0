"""Which posts are wanted, which peers offer them, and which of those was asked. Pure; a peer is any hashable thing.

A hash is asked of one peer at a time. What a peer has not delivered, also when it is lost, is asked of the next one
that offered it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Final, Generic, TypeVar

from cablestore import limits

Peer = TypeVar("Peer", bound=Hashable)


class Wanted(Generic[Peer]):
    """Hashes that the store lacks, by the peer that each is asked of.

    Bounded by `max_per_peer`: what a peer offers beyond it is refused, and must be offered again later.
    """

    def __init__(self, max_per_peer: int = limits.MAX_WANTED_PER_PEER) -> None:
        self._max_per_peer = max_per_peer
        self._holder: dict[bytes, Peer] = {}
        """By hash, the peer that it is asked of, or will be."""
        self._others: dict[bytes, list[Peer]] = {}
        """By hash, further peers that offered it."""
        self._queued: Final[defaultdict[Peer, dict[bytes, None]]] = defaultdict(dict)
        self._asked: Final[defaultdict[Peer, dict[bytes, None]]] = defaultdict(dict)

    def __len__(self) -> int:
        """Return how many hashes are wanted."""
        return len(self._holder)

    def __contains__(self, digest: bytes) -> bool:
        """Tell whether a hash is wanted."""
        return digest in self._holder

    def offer(self, peer: Peer, hashes: Iterable[bytes]) -> list[bytes]:
        """Note that `peer` has these posts. Returns those for which there was no room."""
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
        """Return up to `count` hashes to ask of a peer now, the first offered first."""
        queue = self._queued.get(peer)
        if not queue:
            return []
        taken = list(islice(queue, count))
        for digest in taken:
            del queue[digest]
        self._asked[peer].update(dict.fromkeys(taken))
        return taken

    def hurry(self, hashes: Iterable[bytes]) -> None:
        """Ask for these first, of the peers that they wait to be asked of."""
        first: defaultdict[Peer, list[bytes]] = defaultdict(list)
        for digest in hashes:
            holder = self._holder.get(digest)
            if holder is not None and digest in self._queued[holder]:
                first[holder].append(digest)
        for peer, found in first.items():
            self._queued[peer] = dict.fromkeys((*found, *self._queued[peer]))

    def waiting(self, peer: Peer) -> int:
        """Return how many hashes wait to be asked of a peer."""
        return len(self._queued.get(peer, ()))

    def outstanding(self, peer: Peer) -> int:
        """Return how many hashes a peer was asked for and has not delivered."""
        return len(self._asked.get(peer, ()))

    def _has_room(self, peer: Peer) -> bool:
        return self.waiting(peer) + self.outstanding(peer) < self._max_per_peer

    def arrived(self, digest: bytes) -> None:
        """Forget a hash: its post is here, or is no longer wanted."""
        holder = self._holder.pop(digest, None)
        self._others.pop(digest, None)
        if holder is not None:
            self._asked[holder].pop(digest, None)
            self._queued[holder].pop(digest, None)

    def failed(self, peer: Peer, hashes: Iterable[bytes]) -> tuple[set[Peer], list[bytes]]:
        """Note that a peer did not deliver.

        Returns the peers that more must be asked of now, and the hashes that nobody else offers.
        """
        busier: set[Peer] = set()
        lost = []
        for digest in hashes:
            if self._holder.get(digest) != peer:
                continue
            self._asked[peer].pop(digest, None)
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
        """Forget a peer that is gone, and all that it offered. Returns what `failed` returns."""
        for digest, others in list(self._others.items()):
            if peer in others:
                others.remove(peer)
                if not others:
                    del self._others[digest]
        owed = [*self._asked.pop(peer, ()), *self._queued.pop(peer, ())]
        found = self.failed(peer, owed)
        self._asked.pop(peer, None)
        self._queued.pop(peer, None)
        return found
