"""One sync with a peer: the stores are reconciled, and posts that were not compared are requested over Cable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.peers.address import Address
from cablestore.peers.connection import Connection
from cablestore.peers.context import PeerContext
from cablestore.peers.peer_sync import own_channels
from cablestore.peers.reconciler import ReconcileJob, Reconciler
from cablestore.peers.reconciliation import LostError
from cablestore.peers.report import ReconcileReport, SyncReport
from cablestore.peers.sync import Sync


class SingleSync:
    """A sync with the peer at an address, over a temporary connection."""

    def __init__(self, context: PeerContext, sync: Sync, reconciler: Reconciler, address: Address) -> None:
        self._context = context
        self._sync = sync
        self._reconciler = reconciler
        self._address = address

    async def run(
        self, connect: Callable[[Address], Awaitable[Connection]], progress: Callable[[int], None] | None
    ) -> SyncReport:
        """Fetch the peer's posts. Raises NodeError, and CableStoreError if the store cannot be read."""
        began_s = self._context.loop.time()
        connection = await connect(self._address)
        try:
            await connection.until_known()
            report = await self._reconciled(connection, progress) if connection.is_met else SyncReport()
            if not connection.coverage.is_all:
                report.add(await self._requested(connection, progress))
        finally:
            connection.end("synced")
            if connection.closed.done():  # perhaps before the sync began: forget the sync here
                self._sync.lost(connection)
        await asyncio.wait({connection.closed}, timeout=limits.HANDSHAKE_TIMEOUT_S)
        report.received_size_bytes = connection.received_size_bytes
        report.sent_size_bytes = connection.sent_size_bytes
        report.seconds = self._context.loop.time() - began_s
        await self._context.save_marks()
        return report

    async def _reconciled(self, connection: Connection, progress: Callable[[int], None] | None) -> SyncReport:
        """Reconcile with the peer. Raises NodeError if it is lost. Logs other failures: then `run` uses Cable."""
        found, terms = ReconcileReport(), self._reconciler.own_terms()
        try:
            await self._reconciler.until_equal(ReconcileJob(connection, terms, found, progress=progress))
        except LostError:
            await self._lost(connection)
        except NodeError as error:
            self._context.log.info("requesting all posts", extra={"peer": connection.name, "reason": str(error)})
        channels = len(await self._context.reads.call(own_channels)) if connection.coverage.is_all else 0
        return SyncReport(channels, found.posts_received, found.refused, found.missing, found.unstored)

    async def _requested(self, connection: Connection, progress: Callable[[int], None] | None) -> SyncReport:
        """Request over Cable the posts that no comparison covers."""
        peer = self._sync.begin_once(connection, progress)
        try:
            ends: set[asyncio.Future[Any]] = {peer.task, connection.closed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not peer.task.done() or peer.task.cancelled():
                await self._lost(connection)
            await peer.task
        finally:
            peer.task.cancel()
        if peer.error is not None:
            raise peer.error
        if not peer.has_answered:
            waited_s = self._context.settings.answer_timeout_s
            raise NodeError(
                f"{self._address} did not answer within {waited_s:g} s. Check that this is the address of a peer, or try again later"
            )
        return peer.report

    async def _lost(self, connection: Connection) -> None:
        """Wait for the end of the connection, and raise NodeError with its reason."""
        why = await asyncio.shield(connection.closed)
        raise NodeError(f"{self._address} closed the connection: {why}. Received posts are stored")
