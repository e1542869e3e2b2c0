"""Sync of a node with all its peers: when it begins and ends, and which channels are new.

New channels do not wait until peers are asked again: when the store gets one, all peers are asked for it at once, and
those that reconcile are told that there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, Final

from cablestore import limits
from cablestore.errors import CableStoreError, NodeError
from cablestore.peers.address import Address
from cablestore.peers.connection import Connection
from cablestore.peers.context import PeerContext
from cablestore.peers.fetch import Fetches
from cablestore.peers.intake import PostIntake
from cablestore.peers.link import PeerLink
from cablestore.peers.news import News, Subject
from cablestore.peers.peer_sync import PeerSync, own_channels
from cablestore.peers.report import SyncReport
from cablestore.protocol.exchange import ResponseEvent
from cablestore.reconcile.messages import NEW_CHANNEL


class Sync:
    """The syncing of all peers."""

    def __init__(self, context: PeerContext, intake: PostIntake, connections: Collection[Connection]) -> None:
        self._context = context
        self._connections = connections
        self.fetches: Final = Fetches(context, intake)
        self._peers: Final[dict[Connection, PeerSync]] = {}
        self._channels: Final[set[str]] = set()
        """Channels that the store is known to have."""

    def __len__(self) -> int:
        """Return the number of peers that are synced."""
        return len(self._peers)

    def begin(self, connection: Connection) -> None:
        """Start to sync a peer that has connected, unless nothing is followed."""
        if self._context.settings.channels != frozenset() and not connection.is_once:
            self._begin(connection, is_live=True)

    def _begin(
        self, connection: Connection, *, is_live: bool, progress: Callable[[int], None] | None = None
    ) -> PeerSync:
        fetch = self.fetches.begin(connection, progress)
        peer = self._peers[connection] = PeerSync(self._context, connection, fetch, is_live=is_live)
        return peer

    # --- channels that are new ------------------------------------------------------------------

    async def look_at_channels(self) -> None:
        """Read which channels the store has, so that they do not count as new."""
        with suppress(CableStoreError):  # each sync reads them too, and tells the error
            self._channels.update(await self._context.reads.call(own_channels))

    def heard(self, news: Iterable[News]) -> None:
        """Notice a channel that is new to the store: ask all peers for it, and announce it to those that reconcile."""
        found = {item.channel for item in news if item.subject in (Subject.CHAT, Subject.STATE)} - self._channels
        if not found:
            return
        self._channels.update(found)
        for peer in self._peers.values():
            peer.look(asks=False)
        for connection in list(self._connections):
            connection.send_frames([NEW_CHANNEL])

    def announced_channel(self, link: PeerLink) -> None:
        """Ask a store that reconciles for its channels: it has got a new one."""
        for connection, peer in self._peers.items():
            if connection is link:
                peer.look(asks=True)

    def restricted(self, dropped: Collection[str], *, asks_again: bool) -> None:
        """Ask nobody for channels that were dropped. With `asks_again`, ask for all that was refused before."""
        self._channels.difference_update(dropped)
        if asks_again:
            self._context.marks.clear()
            self.fetches.welcome()
        for peer in self._peers.values():
            peer.unfollow(dropped)
            if asks_again:
                peer.look(asks=True, again=True)

    def ask_again(self) -> None:
        """Ask all peers for all channels once more, from where the last pass ended."""
        for peer in self._peers.values():
            peer.look(asks=True, again=True)

    def take(self, connection: Connection, event: ResponseEvent) -> None:
        """Take a part of the answer to a request, or its end."""
        peer = self._peers.get(connection)
        if peer is not None:
            peer.take(event)

    def lost(self, connection: Connection) -> None:
        """Ask others for what a lost peer has not delivered."""
        peer = self._peers.pop(connection, None)
        if peer is not None:
            peer.task.cancel()
        self.fetches.lost(connection)

    async def once(
        self,
        address: Address,
        connect: Callable[[Address], Awaitable[Connection]],
        progress: Callable[[int], None] | None,
    ) -> SyncReport:
        """Fetch what a peer has, once. Raises NodeError, and errors of the store that cannot be read."""
        began_s = self._context.loop.time()
        connection = await connect(address)
        connection.greet()  # the peer gives everything to a store that it recognises
        peer = self._begin(connection, is_live=False, progress=progress)
        try:
            ends: set[asyncio.Future[Any]] = {peer.task, connection.closed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not peer.task.done() or peer.task.cancelled():
                why = await asyncio.shield(connection.closed)
                raise NodeError(f"{address} ended the connection: {why}. What came is stored")
            await peer.task
            if peer.error is not None:
                raise peer.error
            if not peer.has_answered:
                waited_s = self._context.settings.answer_timeout_s
                raise NodeError(f"{address} answered nothing within {waited_s:g} s: it hangs, or is no peer. Try again")
        finally:
            peer.task.cancel()
            connection.end("synced")
            if connection.closed.done():  # maybe before its sync began, and then nobody forgets it later
                self.lost(connection)
        await asyncio.wait({connection.closed}, timeout=limits.HANDSHAKE_TIMEOUT_S)
        report = peer.report
        report.received_size_bytes = connection.received_size_bytes
        report.sent_size_bytes = connection.sent_size_bytes
        report.seconds = self._context.loop.time() - began_s
        await self._context.save_marks()
        return report
