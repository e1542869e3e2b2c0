"""State of the node that connects a store to peers, for clients in the same process or in another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from cablestore.arguments import check


@dataclass(frozen=True, slots=True)
class PeerState:
    """Connected peer: see `cablestore.peers.Peer`."""

    address: str
    is_in_step: bool | None
    no_answer_s: int


@dataclass(frozen=True, slots=True)
class PeerFailure:
    """Peer that a node keeps reconnecting to, and why the last attempt or connection failed."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """State of a node. `connect` lists the peers that it stays connected to, `listening` its own addresses."""

    cabal_key: bytes | None = field(repr=False)
    connect: tuple[str, ...] = ()
    listening: tuple[str, ...] = ()
    peers: tuple[PeerState, ...] = ()
    failures: tuple[PeerFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerDial:
    """Peer that a node stays connected to: see `cablestore.peers.DialState`."""

    address: str
    only_reconciles: bool
    is_connected: bool
    reason: str
    again_in_s: float


class WatchedNode:
    """Current state of a node. One thread sets it; any thread reads and watches it."""

    def __init__(self, state: NodeState | None = None) -> None:
        """Start with a state, or None if the store has no node."""
        self.state = state
        self._changing = threading.Lock()
        self._watchers: tuple[Callable[[], None], ...] = ()

    def dials(self, *, now: bool = False) -> list[PeerDial]:
        """Return the peers that the node stays connected to. Thread-safe.

        With `now`, retry failed connections immediately.
        """
        check(now=now)
        return []

    def change(self, **fields: Any) -> None:
        """Change fields of the state. Does nothing without a node."""
        if self.state is not None:
            self.set(replace(self.state, **fields))

    def set(self, state: NodeState) -> None:
        """Set the state, and call the watchers if it changed."""
        if state != self.state:
            self.state = state
            for call in self._watchers:
                call()

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function after each change, in the changing thread. Returns a function that unregisters it."""

        def unwatch() -> None:
            with self._changing:
                self._watchers = tuple(each for each in self._watchers if each is not call)

        with self._changing:
            self._watchers += (call,)
        return unwatch
