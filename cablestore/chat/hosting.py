"""The node of a cabal: one that the client runs in a thread of its own, or one that runs elsewhere in this process.

On an event loop of its own, the posts of peers never wait in front of a key.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Final, NamedTuple

from cablestore.errors import CableStoreError
from cablestore.peers import Address, Node, NodeSettings, Peer
from cablestore.store.store import CableStore


class Hosting(NamedTuple):
    """Settings of a node, where it listens, and the peers that it stays connected to."""

    settings: NodeSettings
    listen: tuple[Address, ...] = ()
    connect: tuple[Address, ...] = ()


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

    async def watch(self, node: Node) -> None:
        """Keep the peers up to date until the node stops. On its loop."""
        events = node.peer_events()
        self.peers = tuple(node.peers())
        try:
            async for _ in events:
                self.peers = tuple(node.peers())
        finally:
            self.peers = ()


class HostedNode:
    """The node of a store that is open. `close` it before the store."""

    def __init__(self, store: CableStore, hosting: Hosting) -> None:
        """Start the node. Raises NodeError if an address cannot be listened on."""
        self._store = store
        self._hosting: Final = hosting
        self.watched: Final = WatchedNode(hosting.settings.cabal_key, hosting.connect)
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="chat-node", daemon=True)
        self._thread.start()
        try:
            self._loop, self._stop = self._started.result()
        except CableStoreError:
            self._thread.join()
            raise

    def close(self) -> None:
        """End the node in good order: what was written goes out, what arrived is stored."""
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
        async with Node(self._store, self._hosting.settings) as node:
            for address in self._hosting.listen:
                self.watched.listening += (await node.listen(address),)
            for address in self._hosting.connect:
                node.keep_connected(address)
            watching = asyncio.create_task(self.watched.watch(node))
            self._started.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()
            watching.cancel()
