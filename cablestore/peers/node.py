"""A node, as programs see it: listen, connect, fetch once, and who is connected. `core` has what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.forks import ProcessBound, bind
from cablestore.peers.address import Address
from cablestore.peers.connection import Connection
from cablestore.peers.core import NodeCore
from cablestore.peers.dialling import DialState
from cablestore.peers.lifetime import NOT_RUNNING, check_task, running_loop
from cablestore.peers.metrics import NodeLoad
from cablestore.peers.peer_events import Peer, PeerEvents, PeerWatchers
from cablestore.peers.reconcile_port import ReconcilePort
from cablestore.peers.report import ReconcileReport, SyncReport
from cablestore.peers.settings import NodeSettings
from cablestore.peers.sync_once import SingleSync
from cablestore.reconcile.messages import Purpose, Terms
from cablestore.store.store import CableStore


class Node(ProcessBound):
    """A store among peers. Use it in an `async with` on an event loop of asyncio. It can be used again after that.

    >>> async with Node(store, NodeSettings()) as node:
    ...     await node.listen(Address("127.0.0.1", 13333))
    ...     node.keep_connected(Address("192.0.2.7", 13333))

    Outside of the `async with`, and from other threads and loops, calls raise NodeError. `settings` and `load` can be
    used at all times and in any thread, `peers`, `connections` and `peer_events` at all times.
    """

    def __init__(self, store: CableStore, settings: NodeSettings | None = None) -> None:
        self.store: Final = store
        self._settings = settings or NodeSettings()
        self._watchers = PeerWatchers()
        self._running: NodeCore | None = None
        bind(self)

    async def __aenter__(self) -> Self:
        """Start the node. Raises NodeError if it is running, and errors of a store that cannot be read."""
        check_task()
        if self._running is not None:
            raise NodeError("this node is running. Leave its `async with` first, or make another node")
        if self._watchers.is_over:
            self._watchers = PeerWatchers()
        self._running = core = NodeCore(self.store, self._settings, self._watchers)
        try:
            await core.start()
        except BaseException:
            self._running = None
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop in good order: no new connections, what is written goes out, what arrived is stored.

        Own posts that were announced to peers less than `NodeSettings.grace_s` ago are sent to those that still ask for
        them. A cancellation ends this grace. CancelledError is raised after the node has stopped.
        """
        core = self._running
        if core is None:
            return
        here, loop = running_loop(), core.life.loop
        if here is not loop and (loop.is_closed() or here is None):
            self._running = None
            core.abandon()
            return
        core.life.check_loop()
        try:
            await core.stop()
        finally:
            self._running = None

    @property
    def _core(self) -> NodeCore:
        """The parts of the running node. Raises NodeError if it does not run, or runs on another loop."""
        core = self._running
        if core is None:
            raise NodeError(NOT_RUNNING)
        core.life.check()
        return core

    @property
    def settings(self) -> NodeSettings:
        """The settings of the node."""
        return self._settings

    def change_settings(self, settings: NodeSettings) -> None:
        """Use other limits and intervals from now on; limits of rows apply to new connections.

        Raises NodeError if another setting differs.
        """
        if self._settings.with_numbers_of(settings) != settings:
            raise NodeError("a node can change limits and intervals only. Make a new node for other settings")
        if self._running is not None:
            self._core.change_settings(settings)
        self._settings = settings

    # --- connections ---------------------------------------------------------------------------

    @property
    def connections(self) -> set[Connection]:
        """The connections of the Cable port, in both directions."""
        core = self._on_loop()
        return set() if core is None else core.connections

    async def listen(self, address: Address) -> Address:
        """Accept connections. Returns the address, with the port that was given for port 0. Raises NodeError."""
        return await self._core.listener.listen(address)

    def addresses(self) -> list[Address]:
        """Return where peers can connect: each address of the machine instead of 0.0.0.0 or ::."""
        return self._core.listener.addresses()

    async def connect(self, address: Address, timeout_s: float = limits.HANDSHAKE_TIMEOUT_S) -> Connection:
        """Connect to a peer, the handshake included. Raises NodeError."""
        return await self._core.listener.connect(address, timeout_s)

    def keep_connected(self, address: Address) -> None:
        """Stay connected to a peer. After failures, try again after pauses of a second to a minute.

        A pause ends early if the machine's network changes, if it wakes up, or if another peer is reachable again.
        """
        self._core.listener.keep_connected(address)

    def dial_now(self) -> None:
        """Connect now to all peers that the node stays connected to and is not connected to. On its loop."""
        self._core.context.dials.retry_now()

    def dials(self) -> list[DialState]:
        """Return the state of each address that the node stays connected to. In any thread."""
        core = self._running
        return core.context.dials.states() if core is not None and core.has_started else []

    def disconnect(self, address: Address) -> None:
        """End the connection with a peer, and do not connect to it again by itself."""
        self._core.listener.disconnect(address)

    async def sync_once(self, address: Address, progress: Callable[[int], None] | None = None) -> SyncReport:
        """Fetch what a peer has and the store lacks, then end the connection. Raises NodeError."""
        core = self._core
        single = SingleSync(core.context, core.sync, core.reconciler, address)
        return await core.life.call(single.run, core.connect_once, progress)

    async def reconcile_once(
        self,
        address: Address,
        *,
        since_ms: int = 0,
        over_cable: bool = False,
        is_audit: bool = False,
        progress: Callable[[int], None] | None = None,
        report: ReconcileReport | None = None,
    ) -> ReconcileReport:
        """Reconcile with a store at its reconciliation port, or at its Cable port, once, then end the connection.

        Posts of the channels and the window of the settings move both ways, unless they are older than `since_ms`. An
        audit moves none. `report` gets the counts, also if there is an error. Raises NodeError and ReconcileError.
        """
        core = self._core
        return await core.life.call(
            core.reconciler.once,
            address,
            core.connect_met if over_cable else core.reconcile_port.connect,
            Terms(from_ms=since_ms),
            report or ReconcileReport(),
            expected="a store that reconciles" if over_cable else "the reconciliation port of a store",
            purpose=Purpose.AUDIT if is_audit else Purpose.RECONCILE,
            progress=progress,
        )

    # --- who is connected ----------------------------------------------------------------------

    def peers(self) -> list[Peer]:
        """Return who is connected, in order of time. Of handshakes that are not done there is nothing."""
        core = self._on_loop()
        return [] if core is None else core.peers()

    def peer_events(self) -> PeerEvents:
        """Return an async iterator of what changes from now on: `PeerConnected`, `PeerInStep`, `PeerLost`.

        It begins with this call: call `peers` after it, without an `await` in between, and nothing is missed. It ends
        when the node stops.
        """
        self._on_loop()
        return self._watchers.follow()

    @property
    def reconcile_port(self) -> ReconcilePort:
        """The port for reconciliation alone, with a `listen`, `connect` and `keep_connected` of its own."""
        return self._core.reconcile_port

    def load(self) -> NodeLoad:
        """Return the load of the node at this moment. In any thread."""
        core = self._running
        return NodeLoad() if core is None else core.load()

    def _on_loop(self) -> NodeCore | None:
        """Return the parts of the node, None if it does not run. Raises NodeError on another loop than the node's."""
        core = self._running
        if core is not None:
            core.life.check_loop()
        return core
