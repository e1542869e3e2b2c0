"""A peer that signs and sends posts without end, in a separate process: `stranger_child.py HOST:PORT FROM_HOST`.

Each post has a new key. It prints the number of sent posts after each request, until it is stopped.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import uvloop
from by_hand import ByHand

from cablestore import LEGACY, Identity, Text, encode_post
from cablestore.peers import Address
from cablestore.protocol.message import (
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    ModerationRequest,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
)

CHANNEL = "default"
AT_ONCE = 256
TEXT_SIZE_BYTES = 2_000


class Stranger:
    """Writer of unwanted posts. It keeps only those that were not requested yet."""

    def __init__(self, peer: ByHand) -> None:
        self._peer = peer
        self._posts: dict[bytes, bytes] = {}
        self._live: bytes | None = None
        self.sent = 0

    def _new_hashes(self) -> tuple[bytes, ...]:
        fresh = {}
        now_ms = int(time.time() * 1000)
        for _ in range(AT_ONCE):
            identity = Identity.derive("stranger", os.urandom(16).hex())
            body = Text(CHANNEL, os.urandom(TEXT_SIZE_BYTES // 2).hex())
            post = encode_post(body, links=(), timestamp_ms=now_ms, identity=identity, dialect=LEGACY)
            fresh[post.hash] = post.raw
        self._posts |= fresh
        return tuple(fresh)

    def answer(self, message: Message) -> None:
        """Answer a request of the node. Offer as many new posts as it requests."""
        name = message.request_id
        match message:
            case ListRequest():
                self._peer.send(ListResponse(name, (CHANNEL,)))
            case TimeRangeRequest() if message.is_live:
                self._live = name
                self._peer.send(HashResponse(name, self._new_hashes()))
            case TimeRangeRequest():
                self._peer.send(HashResponse(name, self._new_hashes()), HashResponse(name, ()))
            case PostRequest():
                posts = tuple(raw for digest in message.hashes if (raw := self._posts.pop(digest, None)) is not None)
                self.sent += len(posts)
                self._peer.send(*(PostResponse(name, (raw,)) for raw in posts), PostResponse(name, ()))
                if self._live is not None and len(self._posts) < 4 * AT_ONCE:
                    self._peer.send(HashResponse(self._live, self._new_hashes()))
                print(self.sent, flush=True)
            case StateRequest() | ModerationRequest():
                if not message.is_live:
                    self._peer.send(HashResponse(name, ()))


async def send_without_end(address: Address, host: str) -> None:
    """Send posts until the node ends the connection. Connect again then."""
    while True:
        peer = await ByHand.connect(address, host=host)
        stranger = Stranger(peer)
        while (message := await peer.receive(3600)) is not None:
            stranger.answer(message)
            await peer.writer.drain()
        await peer.close()
        await asyncio.sleep(0.2)


if __name__ == "__main__":
    uvloop.run(send_without_end(Address.parse(sys.argv[1]), sys.argv[2]))
