"""Two nodes that reconcile over real sockets, and a connection between them that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from by_hand import assert_nothing_is_left
from peering import HOST, soon

from cablestore import CableStore
from cablestore.errors import NodeError
from cablestore.peers import Address, Node, NodeSettings, ReconcileReport
from cablestore.reconcile.errors import ReconcileError

ONLY: NodeSettings = NodeSettings(channels=frozenset({"no such channel"}), list_every_s=600)


@asynccontextmanager
async def two_nodes(
    *stores: CableStore, key: bytes | None = None, over_cable: bool = False, settings: NodeSettings | None = None
) -> AsyncIterator[tuple[Node, Node, Address]]:
    """Run two nodes; the first one listens.

    When both have stopped, they must not leave any state, and both stores are valid.
    """
    chosen = replace(settings or NodeSettings(), cabal_key=key)
    async with Node(stores[0], chosen) as one, Node(stores[1], chosen) as other:
        running = (one.parts, other.parts)
        listens = one.listen if over_cable else one.reconcile_port.listen
        yield one, other, await listens(Address(HOST, 0))
    for parts in running:
        assert_nothing_is_left(parts)
    for store in stores:
        report = await asyncio.to_thread(store.check)
        assert report.is_clean, [str(problem) for problem in report.problems]
        store.close()


def are_alike(*nodes: Node) -> bool:
    return len({node.store.dump_digest() for node in nodes}) == 1


async def once(node: Node, address: Address, **named: Any) -> ReconcileReport:
    return await soon(node.reconcile_once(address, **named))


class Cutter:
    """Wire to a node that breaks after N bytes in either direction."""

    def __init__(self, to: Address) -> None:
        self.to = to
        self.left = 2**60
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Address:
        self._server = await asyncio.start_server(self._taken, HOST, 0)
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(*self.to)
        writers = (writer, there[1])
        for source, target in ((reader, there[1]), (there[0], writer)):
            task = asyncio.ensure_future(self._pump(source, target, writers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, writers: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        try:
            while self.left > 0 and (data := await source.read(4096)):
                target.write(data[: max(0, self.left)])
                self.left -= len(data)
        except OSError:
            pass
        finally:
            for writer in writers:
                writer.transport.abort() if self.left <= 0 else writer.close()


async def is_complete(node: Node, address: Address, over_cable: bool) -> bool:
    try:
        await once(node, address, over_cable=over_cable)
    except (NodeError, ReconcileError):
        return False
    return True
