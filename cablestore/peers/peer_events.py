"""The connected peers of a node, and events about them, for programs that display them."""

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
    """A snapshot of one connection of a node.

    `number` is unique for each connection of a node. `address` is the address that this node connected to, or the
    peer's source address. `key` is the peer's public key in the handshake, or None if the connection is not encrypted.
    `only_reconciles` is True for a connection to the reconciliation port.

    `is_in_step` is True if both stores had the same posts at the last complete comparison, and neither has changed
    since. It is False after a change or a failed comparison, until the next comparison. It is None before the end of
    the first comparison, and for a peer that does not reconcile.

    `no_answer_s` is the number of seconds without an expected answer, 0 if the peer answers. The rates are averages over
    about the last ten seconds. `queued_size_bytes` is the size of the data that the peer has not read yet.

    `received_requests` counts the requests of the peer that this node accepted. `reconciliations` counts the complete
    reconciliations over this connection, without audits. `reconciled_at_ms` is when the last of them ended, or None.
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
    received_bytes_per_s: float = 0.0
    sent_bytes_per_s: float = 0.0
    queued_size_bytes: int = 0
    received_requests: int = 0
    reconciliations: int = 0
    reconciled_at_ms: int | None = None

    __repr__ = hex_repr


class PeerConnected(NamedTuple):
    """A connection was established, including its handshake."""

    peer: Peer


class PeerInStep(NamedTuple):
    """`peer.is_in_step` has changed."""

    peer: Peer


class PeerSilent(NamedTuple):
    """`peer.no_answer_s` has changed from 0 to another value, or back to 0."""

    peer: Peer


class PeerLost(NamedTuple):
    """A connection has ended."""

    peer: Peer
    reason: str


class PeerUnreachable(NamedTuple):
    """An attempt to connect to an address of `Node.keep_connected` failed, or a connection to it ended."""

    address: Address
    reason: str


class PeerEventsMissed(NamedTuple):
    """Earlier events were discarded because they were not read. `Node.peers` returns the present state."""

    number: int


PeerEvent = PeerConnected | PeerInStep | PeerSilent | PeerLost | PeerUnreachable | PeerEventsMissed


class PeerEvents(AsyncIterator[PeerEvent]):
    """Iterator of the later events of a node, for one reader on the node's loop.

    It ends when the node stops or `close` is called. At most `limits.MAX_PEER_EVENTS` events are queued.
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
        """Add an event. Only the node calls this."""
        if self._is_over:
            return
        if len(self._waiting) >= limits.MAX_PEER_EVENTS:
            missed = sum(known.number if isinstance(known, PeerEventsMissed) else 1 for known in self._waiting)
            self._waiting.clear()
            self._waiting.append(PeerEventsMissed(missed))
        self._waiting.append(event)
        self._changed.set()

    def close(self) -> None:
        """End the iteration after the queued events."""
        self._is_over = True
        self._changed.set()


class PeerWatchers:
    """Watchers that receive the events of one node. Use it on the node's loop."""

    def __init__(self) -> None:
        self._followers: Final[WeakSet[PeerEvents]] = WeakSet()
        self._numbers: Final = count(1)
        self.is_over = False
        """True after `close`."""

    def next_number(self) -> int:
        """Return the number of a new connection."""
        return next(self._numbers)

    def follow(self) -> PeerEvents:
        """Return an iterator of later events. This object holds only a weak reference to it."""
        found = PeerEvents()
        self._followers.add(found)
        if self.is_over:
            found.close()
        return found

    def notify(self, event: PeerEvent) -> None:
        """Send an event to all iterators."""
        for follower in tuple(self._followers):
            follower.put(event)

    def close(self) -> None:
        """End all iterations."""
        self.is_over = True
        for follower in tuple(self._followers):
            follower.close()
