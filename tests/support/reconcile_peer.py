"""A peer at the port for reconciliation that sends frames of the test, and the node that it attacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from by_hand import assert_nothing_is_left
from peering import HOST, Log, logged, memory, soon
from people import ANN, START_MS

from cablestore import limits
from cablestore.peers import Address, Node, NodeSettings
from cablestore.protocol.fields import sized
from cablestore.reconcile.messages import (
    UNLISTED,
    ConversationMessage,
    ReconcileFrameReader,
    decode_frame,
    encode_frame,
)


class Peer:
    """Connection to a port for reconciliation, or from a node that connects."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = ReconcileFrameReader(limits.MAX_TALK_FRAME_SIZE_BYTES)
        self._heard: list[bytes] = []

    def say(self, *frames: bytes) -> None:
        self.writer.write(b"".join(map(sized, frames)))

    def tell(self, *messages: ConversationMessage) -> None:
        self.say(*(encode_frame(7, message) for message in messages))

    async def hear(self) -> tuple[int, ConversationMessage] | None:
        """Return the next frame that is not the notice UNLISTED, None if the connection is closed."""
        while not self._heard:
            data = b""
            with suppress(OSError):
                data = await soon(self.reader.read(65_536))
            if not data:
                return None
            self._heard += [frame for frame in self._frames.feed(data) if frame != UNLISTED]
        return decode_frame(self._heard.pop(0))

    async def rest(self) -> list[ConversationMessage]:
        found = []
        while (heard := await self.hear()) is not None:
            found.append(heard[1])
        return found

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await soon(self.writer.wait_closed())


@asynccontextmanager
async def attacked(**chosen: Any) -> AsyncIterator[tuple[Node, Address, Log]]:
    """Run a node with a port for reconciliation.

    When it has stopped, it must not leave any state or have logged an error of its own.
    """
    with (
        memory("victim", posts=[ANN.text("default", f"{i}", at=START_MS + i) for i in range(50)]) as store,
        logged() as log,
    ):
        async with Node(store, NodeSettings(**chosen)) as node:
            parts = node.parts
            yield node, await node.reconcile_port.listen(Address(HOST, 0)), log
        assert_nothing_is_left(parts)
        assert not [error for error in log.errors() if not error.startswith("the cabal keys probably differ")]
        assert store.check().is_clean
