"""A node, as programs see it: listen, connect, fetch once, and who is connected. `core` has what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from cablestore import limits
from cablestore.forks import ProcessBound, bind
from cablestore.peers.address import Address
from cablestore.peers.connection import Connection
from cablestore.peers.core import NodeCore
from cablestore.peers.metrics import NodeLoad
from cablestore.peers.peer_events import Peer, PeerEvents
from cablestore.peers.reconcile_port import ReconcilePort
from cablestore.peers.report import ReconcileReport, SyncReport
from cablestore.peers.settings import NodeSettings
from cablestore.peers.sync_once import SingleSync
from cablestore.reconcile.messages import Purpose, Terms
from cablestore.store.store import CableStore


class Node(ProcessBound):
    """A store among peers. Use it in an `async with` on its loop.

    >>> async with Node(store, NodeSettings()) as node:
    ...     await node.listen(Address("127.0.0.1", 13333))
    ...     node.keep_connected(Address("192.0.2.7", 13333))
    """

    def __init__(self, store: CableStore, settings: NodeSettings | None = None) -> None:
        self.store: Final = store
        self._core: Final = NodeCore(store, settings or NodeSettings())
        bind(self)

    async def __aenter__(self) -> Self:
        await self._core.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop in good order: no new connections, what is written goes out, what arrived is stored.

        Own posts that peers were told of less than `NodeSettings.grace_s` ago are given to those that still ask for them.
        """
        await self._core.stop()

    @property
    def settings(self) -> NodeSettings:
        """The settings of the node."""
        return self._core.settings

    def change_settings(self, settings: NodeSettings) -> None:
        """Use other limits and intervals from now on; limits of rows apply to new connections.

        Raises NodeError if another setting differs.
        """
        self._core.change_settings(settings)

    # --- connections ---------------------------------------------------------------------------

    @property
    def connections(self) -> set[Connection]:
        """The connections of the Cable port, in both directions."""
        return self._core.connections

    async def listen(self, address: Address) -> Address:
        """Accept connections. Returns the address, with the port that was given for port 0. Raises NodeError."""
        return await self._core.listener.listen(address)

    async def connect(self, address: Address, timeout_s: float = limits.HANDSHAKE_TIMEOUT_S) -> Connection:
        """Connect to a peer, the handshake included. Raises NodeError."""
        return await self._core.listener.connect(address, timeout_s)

    def keep_connected(self, address: Address) -> None:
        """Stay connected to a peer. After a failure, try again after longer and longer pauses."""
        self._core.listener.keep_connected(address)

    def disconnect(self, address: Address) -> None:
        """End the connection with a peer, and do not connect to it again by itself."""
        self._core.listener.disconnect(address)

    async def sync_once(self, address: Address, progress: Callable[[int], None] | None = None) -> SyncReport:
        """Fetch what a peer has and the store lacks, then end the connection. Raises NodeError."""
        core = self._core
        return await SingleSync(core.context, core.sync, core.reconciler, address).run(core.connect_once, progress)

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
        return await self._core.reconciler.once(
            address,
            self._core.connect_met if over_cable else self.reconcile_port.connect,
            Terms(from_ms=since_ms),
            report or ReconcileReport(),
            expected="a store that reconciles" if over_cable else "the reconciliation port of a store",
            purpose=Purpose.AUDIT if is_audit else Purpose.RECONCILE,
            progress=progress,
        )

    # --- who is connected ----------------------------------------------------------------------

    def peers(self) -> list[Peer]:
        """Return who is connected, in order of time. Of handshakes that are not done there is nothing."""
        return self._core.peers()

    def peer_events(self) -> PeerEvents:
        """Return an async iterator of what changes from now on: `PeerConnected`, `PeerInStep`, `PeerLost`.

        It begins with this call: call `peers` after it, without an `await` in between, and nothing is missed. It ends
        when the node stops.
        """
        return self._core.watchers.follow()

    @property
    def reconcile_port(self) -> ReconcilePort:
        """The port for reconciliation alone, with a `listen`, `connect` and `keep_connected` of its own."""
        return self._core.reconcile_port

    def load(self) -> NodeLoad:
        """Return the load of the node at this moment. In any thread."""
        return self._core.load()
