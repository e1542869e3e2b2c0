"""The node of a cabal: one that the client runs in a thread of its own, or one that runs elsewhere in this process.

On an event loop of its own, the posts of peers never wait in front of a key.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, NamedTuple

from cablestore.errors import CableStoreError
from cablestore.peers import Address, Node, NodeSettings, Peer
from cablestore.peers.dialling import DialState
from cablestore.store.lookup import find_channel
from cablestore.store.store import CableStore


class Hosting(NamedTuple):
    """Settings of a node, where it listens, and the peers that it stays connected to."""

    settings: NodeSettings
    listen: tuple[Address, ...] = ()
    connect: tuple[Address, ...] = ()


def with_stored_channels(store: CableStore, settings: NodeSettings) -> NodeSettings:
    """Return settings that name the followed channels as the store has them. Raises NotFoundError: see `find_channel`."""
    if not settings.channels:
        return settings
    known = [channel.name for channel in store.channels(with_reserved=True)]
    return replace(settings, channels=frozenset(find_channel(name, known) for name in settings.channels))


class WatchedNode:
    """State of a node that clients show: who is connected, and where it listens. It is read in any thread."""

    def __init__(self, cabal_key: bytes | None, connect: tuple[Address, ...] = ()) -> None:
        """Describe a node with this cabal key, which stays connected to these peers."""
        self.cabal_key: Final = cabal_key
        self.connect = connect
        self.listening: tuple[Address, ...] = ()
        """Where peers may connect."""
        self.peers: tuple[Peer, ...] = ()
        """Who is connected, as it was at the last change."""
        self._node: Node | None = None

    @property
    def dials(self) -> list[DialState]:
        """The state of each address that the node stays connected to."""
        node = self._node
        return [] if node is None else node.dials()

    async def watch(self, node: Node) -> None:
        """Keep the peers up to date until the node stops. On its loop."""
        self._node = node
        events = node.peer_events()
        self.peers = tuple(node.peers())
        try:
            async for _ in events:
                self.peers = tuple(node.peers())
        finally:
            self.peers = ()
            self._node = None


class HostedNode:
    """The node of a store that is open. `close` it before the store."""

    def __init__(self, store: CableStore, hosting: Hosting) -> None:
        """Start the node. Raises NodeError if an address cannot be listened on."""
        self._store = store
        self._hosting: Final = hosting
        self.watched: Final = WatchedNode(hosting.settings.cabal_key, hosting.connect)
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Node]] = Future()
        self._thread = threading.Thread(target=self._run, name="chat-node", daemon=True)
        self._thread.start()
        try:
            self.loop, self._stop, self.node = self._started.result()
        except CableStoreError:
            self._thread.join()
            raise

    def close(self) -> None:
        """End the node in good order: what was written goes out, what arrived is stored."""
        self.loop.call_soon_threadsafe(self._stop.set)
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
            for address in self._hosting.listen:
                self.watched.listening += (await node.listen(address),)
            for address in self._hosting.connect:
                node.keep_connected(address)
            watching = asyncio.create_task(self.watched.watch(node))
            self._started.set_result((asyncio.get_running_loop(), stop, node))
            await stop.wait()
            watching.cancel()
