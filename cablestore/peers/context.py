"""The services that all parts of a node share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from logging import Logger

from cablestore import limits
from cablestore.peers.bans import Bans
from cablestore.peers.dialling import Dials
from cablestore.peers.key_warnings import KeyWarnings
from cablestore.peers.lifetime import Lifetime
from cablestore.peers.metrics import Metrics
from cablestore.peers.peer_events import PeerWatchers
from cablestore.peers.policy_keeper import PolicyKeeper
from cablestore.peers.restrictions import RestrictionKeeper
from cablestore.peers.settings import NodeSettings
from cablestore.peers.sync_state import SyncState
from cablestore.peers.threads import ReadThread, Stopwatch, WriteThread, beside_loop
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.secure_channel import SecureChannel
from cablestore.store.store import CableStore


@dataclass(slots=True, eq=False)
class PeerContext:
    """Services of one node, created when it starts. Use them on its loop."""

    store: CableStore
    dialect: Dialect
    settings: NodeSettings
    life: Lifetime
    loop: asyncio.AbstractEventLoop
    log: Logger
    watch: Stopwatch
    """Stopwatch for the thread of the loop."""
    reads: ReadThread
    writes: WriteThread
    restrictions: RestrictionKeeper
    marks: SyncState
    metrics: Metrics
    watchers: PeerWatchers
    dials: Dials
    key_warnings: KeyWarnings
    bans: Bans
    policies: PolicyKeeper

    async def current_marks(self) -> SyncState:
        """Return the marks. If the store lost posts, discard the marks from before the loss first.

        Raises CableStoreError if the store cannot be read.
        """
        await self.marks.follow(self.reads.call)
        return self.marks

    async def save_marks(self) -> None:
        """Write changed marks to the disk without blocking the loop."""
        write = self.marks.changed()
        if write is not None:
            await beside_loop(write)

    def new_channel(self, *, is_initiator: bool, port_name: bytes = b"") -> SecureChannel | None:
        """Create the encrypted channel of a connection, None if the node has no cabal key.

        `port_name` is added to the prologue, so that a peer cannot take one port for another.
        """
        settings = self.settings
        if settings.cabal_key is None:
            return None
        identity = self.store.identity
        separate = settings.has_separate_static_key
        return SecureChannel(
            cabal_key=settings.cabal_key,
            static_secret=identity.separate_exchange_secret if separate else identity.exchange_secret,
            is_initiator=is_initiator,
            prologue=settings.prologue + port_name,
            max_message_size_bytes=limits.MAX_MESSAGE_SIZE_BYTES + 16,
        )
