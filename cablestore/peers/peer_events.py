"""Who is connected to a node, and what changes: for programs that show it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple
from weakref import WeakSet

from cablestore import limits
from cablestore.peers.address import Address
from cablestore.reprs import hex_repr


@dataclass(frozen=True, slots=True)
class Peer:
    """One connection of a node, as it was when this was read.

    `number` differs for each connection of a node. `address` is the one that this node connected to, or the one that
    the peer came from. `key` is the public key that the peer showed in the handshake, None without encryption.
    `only_reconciles` says that it is connected to a port for reconciliation alone.

    `is_in_step` is True if both stores held the same posts when everything that both want was compared last, and neither
    has changed since. It is False after a change, and if the comparison broke off, until the next one. It is None before
    the first one has ended, and for a peer that does not reconcile. Each connection begins with None.

    `no_answer_s` is for how many seconds the peer has sent nothing although it was asked, 0 if it answers.
    """

    number: int
    address: Address
    key: bytes | None
    is_outgoing: bool
    only_reconciles: bool
    since_ms: int
    received_size_bytes: int
    sent_size_bytes: int
    is_in_step: bool | None
    no_answer_s: int = 0

    __repr__ = hex_repr


class PeerConnected(NamedTuple):
    """A connection was made, the handshake included."""

    peer: Peer


class PeerInStep(NamedTuple):
    """`peer.is_in_step` is another one than before."""

    peer: Peer


class PeerSilent(NamedTuple):
    """`peer.no_answer_s` is above 0 and was 0 before, or the other way round."""

    peer: Peer


class PeerLost(NamedTuple):
    """A connection is over."""

    peer: Peer
    reason: str


class PeerUnreachable(NamedTuple):
    """An attempt to connect to an address that the node stays connected to failed, or the connection there ended."""

    address: Address
    reason: str


class PeerEventsMissed(NamedTuple):
    """Earlier events were given up, because they were not read. `Node.peers` has the present state."""

    number: int


PeerEvent = PeerConnected | PeerInStep | PeerSilent | PeerLost | PeerUnreachable | PeerEventsMissed


class PeerEvents(AsyncIterator[PeerEvent]):
    """Events of a node from now on, for one reader on the node's loop. It ends when the node stops, or by `close`.

    At most `limits.MAX_PEER_EVENTS` wait to be read.
    """

    def __init__(self) -> None:
        self._waiting: Final[deque[PeerEvent]] = deque()
        self._changed: Final = asyncio.Event()
        self._is_over = False

    async def __anext__(self) -> PeerEvent:
        while not self._waiting:
            if self._is_over:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    def put(self, event: PeerEvent) -> None:
        """Add an event. The node calls this."""
        if self._is_over:
            return
        if len(self._waiting) >= limits.MAX_PEER_EVENTS:
            missed = sum(known.number if isinstance(known, PeerEventsMissed) else 1 for known in self._waiting)
            self._waiting.clear()
            self._waiting.append(PeerEventsMissed(missed))
        self._waiting.append(event)
        self._changed.set()

    def close(self) -> None:
        """End the iteration after the events that wait."""
        self._is_over = True
        self._changed.set()


class PeerWatchers:
    """Watchers that get the events of one node. On its loop."""

    def __init__(self) -> None:
        self._followers: Final[WeakSet[PeerEvents]] = WeakSet()
        self._numbers: Final = count(1)
        self.is_over = False
        """True after `close`."""

    def next_number(self) -> int:
        """Return the number of a new connection."""
        return next(self._numbers)

    def follow(self) -> PeerEvents:
        """Return an iterator of the events from now on. Nothing remains of one that is forgotten."""
        found = PeerEvents()
        self._followers.add(found)
        if self.is_over:
            found.close()
        return found

    def tell(self, event: PeerEvent) -> None:
        """Give an event to all."""
        for follower in tuple(self._followers):
            follower.put(event)

    def close(self) -> None:
        """End all iterations."""
        self.is_over = True
        for follower in tuple(self._followers):
            follower.close()
