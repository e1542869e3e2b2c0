"""State of the node that connects a store to peers, for clients in the same process or in another process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cablestore.arguments import check, check_text
from cablestore.errors import NotFoundError

_NOT_RUNNING: Final = "the node is not running"


@dataclass(frozen=True, slots=True)
class PeerState:
    """Connected peer: see `cablestore.peers.Peer`."""

    address: str
    is_in_step: bool | None
    no_answer_s: int


@dataclass(frozen=True, slots=True)
class PeerFailure:
    """Peer to which a node tries to reconnect, and the reason for the last failure."""

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


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Connected peer, its traffic, requests and reconciliations: see `cablestore.peers.Peer`. `key` is in hex."""

    address: str
    key: str | None
    is_outgoing: bool
    only_reconciles: bool
    since_ms: int
    is_in_step: bool | None
    no_answer_s: int
    received_size_bytes: int
    sent_size_bytes: int
    received_bytes_per_s: float
    sent_bytes_per_s: float
    queued_size_bytes: int
    received_requests: int
    reconciliations: int
    reconciled_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Ban:
    """Banned peer: the host or the static key in hex, and the time of the ban."""

    peer: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """Policy of a node: the file, sorted lists, and limits of posts per minute and of bytes. None means unlimited."""

    path: str | None
    allowed_authors: tuple[str, ...] = ()
    denied_authors: tuple[str, ...] = ()
    allowed_channels: tuple[str, ...] = ()
    denied_channels: tuple[str, ...] = ()
    allowed_peers: tuple[str, ...] = ()
    denied_peers: tuple[str, ...] = ()
    author_posts_per_minute: int | None = None
    author_burst: int | None = None
    peer_posts_per_minute: int | None = None
    peer_burst: int | None = None
    max_post_size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Health and load of a node and its process, as on the status pages. `since_ms` is the time at which it started.

    `quota` is off, ok, near, full or exceeded. A size of 0 means unlimited. `quota_room_bytes` is None without a limit.
    """

    version: str
    since_ms: int
    state: str
    reason: str
    loop_lag_s: float
    live_requests: int
    queued_size_bytes: int
    reads_waiting: int
    ingest_queued_size_bytes: int
    wanted_hashes: int
    early_posts: int
    unreachable_peers: int
    postponed_posts: int
    quota: str
    quota_room_bytes: int | None
    max_store_size_bytes: int
    min_free_space_bytes: int
    policy_command_failure: str
    peers: tuple[PeerStatus, ...] = ()


class WatchedNode:
    """Current state of a node. One thread sets it, and any thread can read and watch it."""

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

    def status(self) -> NodeStatus | None:
        """Return the status of the node and its peers, None if the node is not running. Thread-safe."""
        return None

    def kick(self, peer: str) -> list[str]:
        """Disconnect a peer, which may connect again. Return the addresses of its connections. Thread-safe.

        A peer is named by its address or host, or at least the first 4 digits of its key. Raises NotFoundError.
        """
        check_text("peer", peer)
        raise NotFoundError(_NOT_RUNNING)

    def ban(self, peer: str) -> list[str]:
        """Disconnect a peer, and reject it until `unban`, also after a restart. Thread-safe.

        A peer with a key is banned by its key, other peers by their host. Returns the banned keys or hosts. Raises
        NotFoundError, and StorageError if the ban cannot be stored.
        """
        check_text("peer", peer)
        raise NotFoundError(_NOT_RUNNING)

    def unban(self, peer: str) -> bool:
        """Accept a banned key or host again. Return False if it is not banned. Thread-safe. Raises StorageError."""
        check_text("peer", peer)
        raise NotFoundError(_NOT_RUNNING)

    def bans(self) -> list[Ban]:
        """Return the banned peers. Thread-safe."""
        return []

    def policy(self) -> PolicyStatus:
        """Return the policy. Thread-safe. Raises NotFoundError."""
        raise NotFoundError(_NOT_RUNNING)

    def change_policy(self, action: str, kind: str, name: str) -> bool:
        """Allow or deny an author, a channel or a peer, or remove it from both lists. Thread-safe.

        Writes the file of the policy, and applies it. Returns False if the policy does not change. Raises
        ArgumentError, NotFoundError, NodeError if the file is invalid, and StorageError.
        """
        check_text("action", action)
        check_text("kind", kind)
        check_text("name", name)
        raise NotFoundError(_NOT_RUNNING)

    def change(self, **fields: Any) -> None:
        """Change fields of the state. Do nothing if the store has no node."""
        if self.state is not None:
            self.set(replace(self.state, **fields))

    def set(self, state: NodeState) -> None:
        """Set the state, and call the watchers if it changed."""
        if state != self.state:
            self.state = state
            for call in self._watchers:
                call()

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after each change of the state, in the thread that makes it. Return a function to end this."""

        def unwatch() -> None:
            with self._changing:
                self._watchers = tuple(each for each in self._watchers if each is not call)

        with self._changing:
            self._watchers += (call,)
        return unwatch
