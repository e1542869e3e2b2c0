"""A slow line to a peer: a proxy on this machine that forwards bytes at a steady rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from peering import HOST

from cablestore.peers import Address

_STEP_S: Final = 0.05


@asynccontextmanager
async def slow_line(target: Address, bytes_per_s: int) -> AsyncIterator[Address]:
    """Listen, and forward data to `target`, and its answers. Yields the address of the line."""
    lines: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection(*target, limit=1_024)
        for line in (_pass_on(reader, to_there, bytes_per_s), _pass_on(there, writer, bytes_per_s)):
            lines.add(asyncio.create_task(line))

    server = await asyncio.start_server(accept, HOST, 0, limit=1_024)
    try:
        yield Address(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()
        await asyncio.gather(*lines)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_per_s: int) -> None:
    with suppress(OSError):
        while data := await reader.read(int(bytes_per_s * _STEP_S)):
            writer.write(data)
            await asyncio.sleep(len(data) / bytes_per_s)
        writer.close()
        await writer.wait_closed()
