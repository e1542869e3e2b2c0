"""Node of a cabal in a thread of the client. `RunningNode` holds the state of any node of this process.

The node uses a separate event loop, so that the posts of peers do not delay key presses.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from cablestore import __version__
from cablestore.arguments import check
from cablestore.errors import CableStoreError
from cablestore.peers import Address, Node, NodeSettings, Peer
from cablestore.peers.heartbeat import Heartbeat
from cablestore.peers.peer_control import PeerControl
from cablestore.peers.policy import chosen_action, chosen_kind
from cablestore.peers.policy_keeper import PolicyKeeper
from cablestore.remote.node import (
    Ban,
    NodeState,
    NodeStatus,
    PeerDial,
    PeerFailure,
    PeerState,
    PeerStatus,
    PolicyStatus,
    WatchedNode,
)
from cablestore.store.lookup import find_channel
from cablestore.store.options import system_clock_ms
from cablestore.store.store import CableStore


class Hosting(NamedTuple):
    """Settings of a node, the addresses at which it listens, and the peers that it stays connected to."""

    settings: NodeSettings
    listen: tuple[Address, ...] = ()
    connect: tuple[Address, ...] = ()


def with_stored_channels(store: CableStore, settings: NodeSettings) -> NodeSettings:
    """Return settings with the followed channels as the store spells them. Raises NotFoundError: see `find_channel`."""
    if not settings.channels:
        return settings
    known = [channel.name for channel in store.channels(with_reserved=True)]
    return replace(settings, channels=frozenset(find_channel(name, known) for name in settings.channels))


class _Run(NamedTuple):
    """Running node. It was started at `since_ms`."""

    node: Node
    loop: asyncio.AbstractEventLoop
    heartbeat: Heartbeat
    since_ms: int


class RunningNode(WatchedNode):
    """State of a node of this process. Clients in any thread or process can watch it."""

    def __init__(self, cabal_key: bytes | None, connect: tuple[Address, ...] = ()) -> None:
        """Create the state of a node that has not started."""
        super().__init__(NodeState(cabal_key, tuple(map(str, connect))))
        self._run: _Run | None = None

    def dials(self, *, now: bool = False) -> list[PeerDial]:
        """Return the peers that the node stays connected to: see `WatchedNode.dials`."""
        check(now=now)
        run = self._run
        if run is None:
            return []
        node = run.node
        if now:
            with suppress(RuntimeError):  # the loop is closed
                run.loop.call_soon_threadsafe(node.dial_now)
        return [
            PeerDial(str(dial.address), dial.only_reconciles, dial.is_connected, dial.reason, dial.again_in_s)
            for dial in node.dials()
        ]

    def status(self) -> NodeStatus | None:
        """Return the status of the node and its peers: see `WatchedNode.status`."""
        run = self._run
        control = None if run is None else run.node.control
        if run is None or control is None:
            return None
        node = run.node
        health, load = node.health(run.heartbeat.lag_s), node.load()
        return NodeStatus(
            version=__version__,
            since_ms=run.since_ms,
            state=str(health.state),
            reason=health.reason,
            loop_lag_s=round(run.heartbeat.lag_s, 3),
            live_requests=load.live_requests,
            queued_size_bytes=load.queued_size_bytes,
            reads_waiting=load.reads_waiting,
            ingest_queued_size_bytes=load.ingest_queued_size_bytes,
            wanted_hashes=load.wanted_hashes,
            early_posts=load.early_posts,
            unreachable_peers=load.unreachable_peers,
            postponed_posts=load.postponed_posts,
            quota=load.quota,
            quota_room_bytes=load.quota_room_bytes,
            max_store_size_bytes=node.settings.max_store_size_bytes,
            min_free_space_bytes=node.settings.min_free_space_bytes,
            policy_command_failure=load.policy_command_failure,
            peers=tuple(map(_status_of, control.peers())),
        )

    def kick(self, peer: str) -> list[str]:
        """Disconnect a peer: see `WatchedNode.kick`."""
        control = self._control()
        return super().kick(peer) if control is None else [str(each.address) for each in control.kick(peer)]

    def ban(self, peer: str) -> list[str]:
        """Ban a peer: see `WatchedNode.ban`."""
        control = self._control()
        return super().ban(peer) if control is None else control.ban(peer)

    def unban(self, peer: str) -> bool:
        """Accept a banned peer again: see `WatchedNode.unban`."""
        control = self._control()
        return super().unban(peer) if control is None else control.unban(peer)

    def bans(self) -> list[Ban]:
        """Return the banned peers: see `WatchedNode.bans`."""
        control = self._control()
        return [] if control is None else [Ban(peer, since_ms) for peer, since_ms in control.bans().items()]

    def policy(self) -> PolicyStatus:
        """Return the policy: see `WatchedNode.policy`."""
        control = self._control()
        return super().policy() if control is None else _policy_status(control.policies)

    def change_policy(self, action: str, kind: str, name: str) -> bool:
        """Change a list of the policy: see `WatchedNode.change_policy`."""
        control = self._control()
        if control is None:
            return super().change_policy(action, kind, name)
        return control.policies.change(chosen_action(action), chosen_kind(kind), name)

    def _control(self) -> PeerControl | None:
        run = self._run
        return None if run is None else run.node.control

    async def listen(self, node: Node, addresses: Sequence[Address]) -> None:
        """Listen for peers at these addresses."""
        found: list[str] = []
        for address in addresses:
            found.append(str(await node.listen(address)))
            self.change(listening=tuple(found))

    def change_peers(self, node: Node, connect: tuple[Address, ...], reconcile_connect: tuple[Address, ...]) -> None:
        """Record `connect` as the peers that the node stays connected to, and forget failures of peers in neither list."""
        kept = set(map(str, (*connect, *reconcile_connect)))
        failures = tuple(each for each in _failures(node) if each.address in kept)
        self.change(connect=tuple(map(str, connect)), failures=failures)

    async def follow(self, node: Node) -> None:
        """Update the state of the connections until the node stops. Runs on the node's loop."""
        events = node.peer_events()
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(loop, time.monotonic)
        self._run = _Run(node, loop, heartbeat, system_clock_ms())
        try:
            self.change(peers=_peers(node))
            async for _ in events:
                self.change(peers=_peers(node), failures=_failures(node))
        finally:
            self._run = None
            heartbeat.end()
            self.change(peers=(), failures=())


def _status_of(peer: Peer) -> PeerStatus:
    return PeerStatus(
        address=str(peer.address),
        key=None if peer.key is None else peer.key.hex(),
        is_outgoing=peer.is_outgoing,
        only_reconciles=peer.only_reconciles,
        since_ms=peer.since_ms,
        is_in_step=peer.is_in_step,
        no_answer_s=peer.no_answer_s,
        received_size_bytes=peer.received_size_bytes,
        sent_size_bytes=peer.sent_size_bytes,
        received_bytes_per_s=round(peer.received_bytes_per_s, 1),
        sent_bytes_per_s=round(peer.sent_bytes_per_s, 1),
        queued_size_bytes=peer.queued_size_bytes,
        received_requests=peer.received_requests,
        reconciliations=peer.reconciliations,
        reconciled_at_ms=peer.reconciled_at_ms,
    )


def _policy_status(policies: PolicyKeeper) -> PolicyStatus:
    policy = policies.policy
    author_rate, peer_rate, most = policy.authors.rate, policy.peers.rate, policy.posts.max_size
    return PolicyStatus(
        path=None if policies.path is None else str(policies.path),
        allowed_authors=tuple(sorted(policy.authors.allow)),
        denied_authors=tuple(sorted(policy.authors.deny)),
        allowed_channels=tuple(sorted(policy.channels.allow)),
        denied_channels=tuple(sorted(policy.channels.deny)),
        allowed_peers=tuple(sorted(policy.peers.allow)),
        denied_peers=tuple(sorted(policy.peers.deny)),
        author_posts_per_minute=None if author_rate is None else author_rate.posts_per_minute,
        author_burst=None if author_rate is None else author_rate.burst,
        peer_posts_per_minute=None if peer_rate is None else peer_rate.posts_per_minute,
        peer_burst=None if peer_rate is None else peer_rate.burst,
        max_post_size_bytes=most if isinstance(most, int) else None,
    )


def _peers(node: Node) -> tuple[PeerState, ...]:
    return tuple(PeerState(str(peer.address), peer.is_in_step, peer.no_answer_s) for peer in node.peers())


def _failures(node: Node) -> tuple[PeerFailure, ...]:
    return tuple(PeerFailure(str(dial.address), dial.reason) for dial in node.dials() if dial.reason)


class HostedNode:
    """Node of an open store. Call `close` before closing the store."""

    def __init__(self, store: CableStore, hosting: Hosting) -> None:
        """Start the node. Raises NodeError if it cannot listen at an address."""
        self._store = store
        self._hosting: Final = hosting
        self.watched: Final = RunningNode(hosting.settings.cabal_key, hosting.connect)
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="chat-node", daemon=True)
        self._thread.start()
        try:
            self._loop, self._stop = self._started.result()
        except CableStoreError:
            self._thread.join()
            raise

    def close(self) -> None:
        """Stop the node after it has sent the written posts and stored the received posts."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        settings = with_stored_channels(self._store, self._hosting.settings)
        async with Node(self._store, settings) as node:
            await self.watched.listen(node, self._hosting.listen)
            for address in self._hosting.connect:
                node.keep_connected(address)
            watching = asyncio.create_task(self.watched.follow(node))
            self._started.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()
            watching.cancel()
