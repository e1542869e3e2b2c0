"""A node in a thread and on an event loop of its own, so that the posts of peers never wait in front of a key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from cablestore.errors import CableStoreError
from cablestore.peers import Address, Node, NodeSettings, Peer
from cablestore.store.store import CableStore


class Hosting(NamedTuple):
    """How a node is run: its settings, where it listens, and the peers that it stays connected to."""

    settings: NodeSettings
    listen: tuple[Address, ...] = ()
    connect: tuple[Address, ...] = ()


class HostedNode:
    """The node of a store that is open. `close` it before the store."""

    def __init__(self, store: CableStore, hosting: Hosting) -> None:
        """Start the node. Raises NodeError if an address cannot be listened on."""
        self._store = store
        self.hosting: Final = hosting
        self._peers: list[Peer] = []
        self._started: Future[tuple[Node, Sequence[Address], asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="chat-node", daemon=True)
        self._thread.start()
        try:
            self._node, self.listening, self._loop, self._stop = self._started.result()
        except CableStoreError:
            self._thread.join()
            raise

    @property
    def peers(self) -> list[Peer]:
        """Who is connected, as it was at the last change. In any thread."""
        return self._peers

    def connect(self, address: Address) -> None:
        """Stay connected to a peer from now on."""
        self._loop.call_soon_threadsafe(self._node.keep_connected, address)

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
        async with Node(self._store, self.hosting.settings) as node:
            listening = [await node.listen(address) for address in self.hosting.listen]
            for address in self.hosting.connect:
                node.keep_connected(address)
            watching = asyncio.create_task(self._watch(node))
            self._started.set_result((node, listening, asyncio.get_running_loop(), stop))
            await stop.wait()
            watching.cancel()

    async def _watch(self, node: Node) -> None:
        """Keep the list of peers, which must be read on the loop of the node."""
        events = node.peer_events()
        self._peers = node.peers()
        async for _ in events:
            self._peers = node.peers()
