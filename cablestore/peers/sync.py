"""Sync of a node with all its peers: its start and end, and new channels.

New channels do not wait for the next round. When the store receives the first post of a channel, all peers are
requested to send the channel. Peers that reconcile are notified of the channel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from cablestore.errors import CableStoreError
from cablestore.peers.connection import Connection
from cablestore.peers.context import PeerContext
from cablestore.peers.fetch import Fetches
from cablestore.peers.intake import PostIntake
from cablestore.peers.link import PeerLink
from cablestore.peers.live_changes import LiveChange, Subject
from cablestore.peers.peer_sync import PeerSync, own_channels
from cablestore.reconcile.messages import NEW_CHANNEL


class Sync:
    """The syncs with all peers."""

    def __init__(self, context: PeerContext, intake: PostIntake, connections: Collection[Connection]) -> None:
        self._context = context
        self._connections = connections
        self.fetches: Final = Fetches(context, intake)
        self._peers: Final[dict[Connection, PeerSync]] = {}
        self._channels: Final[set[str]] = set()
        """Known channels of the store."""

    def __len__(self) -> int:
        """Return the number of peers in sync."""
        return len(self._peers)

    def begin(self, connection: Connection) -> None:
        """Start to sync a connected peer, unless the node follows no channels."""
        if self._context.settings.channels != frozenset() and not connection.is_once:
            self._begin(connection, is_live=True)

    def begin_once(self, connection: Connection, progress: Callable[[int], None] | None) -> PeerSync:
        """Start to request a peer's posts once. `progress` is called with the number of posts that were just stored."""
        return self._begin(connection, is_live=False, progress=progress)

    def _begin(
        self, connection: Connection, *, is_live: bool, progress: Callable[[int], None] | None = None
    ) -> PeerSync:
        fetch = self.fetches.begin(connection, progress)
        peer = self._peers[connection] = PeerSync(self._context, connection, fetch, is_live=is_live)
        return peer

    # --- channels that are new ------------------------------------------------------------------

    async def read_channels(self) -> None:
        """Read the channels of the store, so that they are not reported as new."""
        with suppress(CableStoreError):  # each sync reads them too, and reports the error
            self._channels.update(await self._context.reads.call(own_channels))

    def on_changes(self, changes: Iterable[LiveChange]) -> None:
        """Request a channel that is new to the store from all peers, and announce it to peers that reconcile."""
        found = {item.channel for item in changes if item.subject in (Subject.CHAT, Subject.STATE)} - self._channels
        if not found:
            return
        self._channels.update(found)
        for peer in self._peers.values():
            peer.check(requests_channels=False)
        for connection in list(self._connections):
            connection.send_frames([NEW_CHANNEL])

    def announced_channel(self, link: PeerLink) -> None:
        """Request the channels of a peer that reconciles and announced a new channel."""
        for connection, peer in self._peers.items():
            if connection is link:
                peer.check(requests_channels=True)

    def restricted(self, dropped: Collection[str], *, requests_again: bool) -> None:
        """Stop requesting dropped channels. With `requests_again`, request all posts again that were rejected before."""
        self._channels.difference_update(dropped)
        if requests_again:
            self._context.marks.clear()
            self.fetches.admit_again()
        for peer in self._peers.values():
            peer.unfollow(dropped)
            if requests_again:
                peer.check(requests_channels=True, again=True)

    def request_again(self) -> None:
        """Request all channels from all peers again, from the safe point of the last pass (`history`)."""
        for peer in self._peers.values():
            peer.check(requests_channels=True, again=True)

    def lost(self, connection: Connection) -> None:
        """End the sync with a lost peer. Request the posts that it did not deliver from other peers."""
        peer = self._peers.pop(connection, None)
        if peer is not None:
            peer.task.cancel()
        self.fetches.lost(connection)
