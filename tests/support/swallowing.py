"""A wire between two nodes that can drop all bytes while both of its connections stay open."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from peering import HOST

from cablestore.peers import Address


class SwallowingWire:
    """Wire to an address, like a tunnel or a router whose far side has lost its network."""

    def __init__(self, to: Address) -> None:
        self._to = to
        self.swallows = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, HOST, 0)
        self.address = Address(*self._server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection(*self._to)
        self._writers += [writer, to_there]
        for source, sink in ((reader, to_there), (there, writer)):
            self._tasks.add(asyncio.ensure_future(self._pass_on(source, sink)))

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if not self.swallows:
                    sink.write(data)
            if not self.swallows:
                sink.close()
