"""A node: start and stop, listening, connecting, fetching once, and the connected peers. `parts` creates its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import NoneType
from typing import Final, Self

from cablestore import limits
from cablestore.arguments import Time, check, check_given, check_instance, check_seconds, checked_time
from cablestore.errors import NodeError
from cablestore.forks import ProcessBound, bind
from cablestore.interruptible import in_thread
from cablestore.peers.address import Address, check_address
from cablestore.peers.connection import Connection
from cablestore.peers.dialling import DialState
from cablestore.peers.health import Health, State
from cablestore.peers.lifetime import NOT_RUNNING, Lifetime, check_task, running_loop
from cablestore.peers.metrics import Metrics, NodeLoad
from cablestore.peers.parts import NodeParts
from cablestore.peers.peer_control import PeerControl
from cablestore.peers.peer_events import Peer, PeerEvents, PeerWatchers
from cablestore.peers.reconcile_port import ReconcilePort
from cablestore.peers.report import ReconcileReport, SyncReport
from cablestore.peers.settings import NodeSettings
from cablestore.peers.sync_once import SingleSync
from cablestore.peers.threads import beside_loop
from cablestore.reconcile.messages import Purpose, Terms
from cablestore.store.store import CableStore

_ROUNDS_OF_OUTCOMES: Final = 3
"""Loop iterations until outcomes of the write thread reach the code that waits for them."""


class Node(ProcessBound):
    """Node that connects a store with peers. Use it in an `async with` on an asyncio event loop. It is reusable.

    >>> async with Node(store, NodeSettings()) as node:
    ...     await node.listen(Address("127.0.0.1", 13333))
    ...     node.keep_connected(Address("192.0.2.7", 13333))

    Outside the `async with`, and from other threads and loops, calls raise NodeError. But `settings`, `control`,
    `health` and `load` can be used at all times and in any thread. `peers`, `connections` and `peer_events` can be used
    at all times on the node's loop.
    """

    def __init__(self, store: CableStore, settings: NodeSettings | None = None) -> None:
        check_instance("store", store, CableStore, "an open CableStore, such as CableStore.open(path)")
        check_instance("settings", settings, (NodeSettings, NoneType))
        self.store: Final = store
        self._settings = settings or NodeSettings()
        self._watchers = PeerWatchers()
        self._life: Lifetime | None = None
        """The present run of the node, None while it does not run."""
        self._parts: NodeParts | None = None
        """The parts of the run, None until all of them exist."""
        self._threads = ExitStack()
        """Calls that end the started threads, in reverse order, and wait for them. Usable in any thread."""
        bind(self)

    def _sockets(self) -> Iterable[int]:
        """Return the descriptors of all ports and connections, which a child process must not keep open."""
        ports = () if self._parts is None else self._parts.ports
        return [descriptor for port in ports for descriptor in port.sockets()]

    # --- life ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start the node. Raises NodeError if it is running, and CableStoreError if the store cannot be read."""
        check_task()
        if self._life is not None:
            raise NodeError("the node is already running. Exit its `async with` block first, or create another node")
        if self._watchers.is_over:
            self._watchers = PeerWatchers()
        self._life = life = Lifetime(asyncio.get_running_loop(), logging.getLogger("cablestore.node"))
        try:
            metrics = Metrics(self.store, self.load)
            self._parts = parts = NodeParts(self.store, self._settings, life, metrics, self._watchers, self._threads)
            await parts.context.restrictions.read()
            await parts.quota.measure()
        except BaseException:
            await self._stop(life)
            raise
        life.run(self._tick(parts))
        life.run(parts.serving.expire_forwards())
        life.run(parts.serving.feed.follow())
        life.run(parts.sync.read_channels())
        if parts.command is not None:
            life.run(parts.command.run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop gracefully: reject new connections, send pending output, store received posts.

        Posts of the local user that were announced less than `NodeSettings.grace_s` ago are still sent to peers that
        request them. A cancellation ends this grace period. CancelledError is raised after the node has stopped.
        """
        life = self._life
        if life is None:
            return
        here = running_loop()
        if here is not life.loop and (life.loop.is_closed() or here is None):
            self._abandon(life)
            return
        life.check_loop()
        await self._stop(life)

    async def _stop(self, life: Lifetime) -> None:
        """Stop, even if not all parts exist.

        If the caller is cancelled meanwhile, peers get no more time. The node has still stopped completely when
        CancelledError is raised.
        """
        parts = self._parts
        try:
            life.end()
            if parts is not None:
                await self._end_connections(life, parts)
            await life.finish(beside_loop(self._threads.close))
            if parts is not None:
                await life.finish(self._save_last(parts))
            self._watchers.close()
            life.conclude()
        finally:
            self._life = self._parts = None

    async def _end_connections(self, life: Lifetime, parts: NodeParts) -> None:
        for port in parts.ports:
            port.stop()
        if not self.store.is_closed:
            await life.finish(parts.serving.wait_for_requests(), may_hurry=True)
        life.cancel_tasks()
        parts.end_work()
        await life.finish(asyncio.gather(*(port.close() for port in parts.ports)), may_hurry=True)
        await life.finish(life.tasks_ended())
        await life.finish(asyncio.gather(*(port.abort() for port in parts.ports)))
        parts.context.reads.flush()

    @staticmethod
    async def _save_last(parts: NodeParts) -> None:
        """Process the last results of the threads, and save the marks."""
        for _ in range(_ROUNDS_OF_OUTCOMES):
            await asyncio.sleep(0)
        await parts.context.save_marks()

    def _abandon(self, life: Lifetime) -> None:
        """End the threads and close the sockets without awaiting: the loop no longer runs."""
        parts, self._life, self._parts = self._parts, None, None
        life.end()
        in_thread(self._threads.pop_all().close)  # the node may be used again before they end
        if parts is not None:
            parts.reachability.close()
            for port in parts.ports:
                port.abandon()
        self._watchers.close()

    @staticmethod
    async def _tick(parts: NodeParts) -> None:
        while True:
            await asyncio.sleep(limits.TIMEOUTS_EVERY_S)
            parts.tick(parts.context.loop.time())

    @property
    def parts(self) -> NodeParts:
        """The parts of the running node, for its exporter and for tests. They may change in each version.

        Raises NodeError if the node does not run, or runs on another loop.
        """
        if self._life is None or self._parts is None:
            raise NodeError(NOT_RUNNING)
        self._life.check()
        return self._parts

    @property
    def settings(self) -> NodeSettings:
        """The settings of the node."""
        return self._settings

    def change_settings(self, settings: NodeSettings) -> None:
        """Change limits, intervals and ages of posts. New limits of rows per peer apply only to later connections.

        Raises NodeError if another setting differs from its present value.
        """
        check_instance("settings", settings, NodeSettings)
        if self._settings.with_changes_of(settings) != settings:
            raise NodeError(
                "only limits, intervals and ages of a node can change. Create a new node for other settings"
            )
        if self._life is not None:
            self.parts.context.settings = settings
        self._settings = settings

    def reload_policy(self) -> bool:
        """Read the file of the policy again. Return True if the policy changed.

        Raises NodeError if the node does not run, or if the file is invalid. Then the old policy remains in force.
        """
        return self.parts.context.policies.reload()

    # --- connections ---------------------------------------------------------------------------

    @property
    def connections(self) -> set[Connection]:
        """The connections of the Cable port, in both directions."""
        parts = self._on_loop()
        return set() if parts is None else parts.links.cable

    async def listen(self, address: Address) -> Address:
        """Accept connections. Return the address, with the assigned port for port 0. Raises NodeError."""
        check_address(address)
        return await self.parts.cable_port.listen(address)

    def addresses(self) -> list[Address]:
        """Return the addresses to which peers can connect. Each address of the machine replaces 0.0.0.0 and ::."""
        return self.parts.cable_port.addresses()

    async def connect(self, address: Address, timeout_s: float = limits.HANDSHAKE_TIMEOUT_S) -> Connection:
        """Connect to a peer, including the handshake. Raises NodeError."""
        check_address(address)
        check(timeout_s=timeout_s)
        return await self.parts.cable_port.connect(address, timeout_s)

    def keep_connected(self, address: Address) -> None:
        """Stay connected to a peer. The pauses between attempts grow up to `NodeSettings.longest_retry_s`.

        A pause ends early if the machine's network changes, the machine wakes up, or another peer is reachable again.
        """
        check_address(address)
        self.parts.cable_port.keep_connected(address)

    def dial_now(self) -> None:
        """Connect now to all disconnected peers of `keep_connected`. Call it on the node's loop."""
        self.parts.context.dials.retry_now()

    def dials(self) -> list[DialState]:
        """Return the state of each address of `keep_connected`. Callable in any thread."""
        parts = self._parts
        return [] if parts is None else parts.context.dials.states()

    def disconnect(self, address: Address) -> None:
        """End the connection with a peer, and stop reconnecting to it."""
        check_address(address)
        self.parts.cable_port.disconnect(address)

    async def sync_once(self, address: Address, progress: Callable[[int], None] | None = None) -> SyncReport:
        """Fetch the posts that a peer has and the store lacks, then end the connection. Raises NodeError."""
        check_address(address)
        check_given(progress=progress)
        parts = self.parts
        single = SingleSync(parts.context, parts.sync, parts.reconciler, address)
        return await parts.context.life.call(single.run, parts.cable_port.connect_once, progress)

    async def reconcile_once(
        self,
        address: Address,
        *,
        after_ms: Time = 0,
        over_cable: bool = False,
        is_audit: bool = False,
        progress: Callable[[int], None] | None = None,
        report: ReconcileReport | None = None,
    ) -> ReconcileReport:
        """Reconcile once with a store at its reconciliation port, then end the connection. Raises NodeError.

        If `over_cable` is True, connect to the Cable port instead. Posts of the followed channels are transferred in
        both directions, except for posts older than the settings or `after_ms` allow. An audit transfers no posts.
        `report` receives the counts, also if there is an error.
        """
        check_address(address)
        terms = Terms(from_ms=checked_time("after_ms", after_ms))
        check(over_cable=over_cable, is_audit=is_audit)
        check_given(progress=progress)
        check_instance("report", report, (ReconcileReport, NoneType))
        parts = self.parts
        return await parts.context.life.call(
            parts.reconciler.once,
            address,
            parts.cable_port.connect_met if over_cable else parts.reconcile_port.connect,
            terms,
            report or ReconcileReport(),
            expected="a store that reconciles" if over_cable else "the reconciliation port of a store",
            purpose=Purpose.AUDIT if is_audit else Purpose.RECONCILE,
            progress=progress,
        )

    # --- who is connected ----------------------------------------------------------------------

    def peers(self) -> list[Peer]:
        """Return the connected peers in the order of their connections, without those whose handshake is unfinished."""
        parts = self._on_loop()
        return [] if parts is None else parts.control.peers()

    def peer_events(self) -> PeerEvents:
        """Return an async iterator of later changes: `PeerConnected`, `PeerLost` and so on.

        The iterator starts with this call, and ends when the node stops. To miss no change, call `peers` afterwards,
        without an `await` in between.
        """
        self._on_loop()
        return self._watchers.follow()

    @property
    def reconcile_port(self) -> ReconcilePort:
        """The separate port for reconciliation, with its own `listen`, `connect` and `keep_connected`."""
        return self.parts.reconcile_port

    @property
    def control(self) -> PeerControl | None:
        """The connected peers, and commands to disconnect and ban them, for any thread. None if the node does not run."""
        parts = self._parts
        return None if parts is None else parts.control

    def health(self, lag_s: float = 0.0) -> Health:
        """Return the health of the node. Callable in any thread. `lag_s` is how late its event loop is."""
        check_seconds("lag_s", lag_s)
        parts = self._parts
        return Health(State.STOPPING) if parts is None else parts.health(lag_s)

    def load(self) -> NodeLoad:
        """Return the present load of the node. Callable in any thread."""
        parts = self._parts
        return NodeLoad() if parts is None else parts.load()

    def _on_loop(self) -> NodeParts | None:
        """Return the parts of the node, None if it does not run. Raises NodeError on a loop other than the node's."""
        if self._life is not None:
            self._life.check_loop()
        return self._parts
