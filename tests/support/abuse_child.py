"""A peer that sends as many requests as possible, in a separate process, until it is stopped.

Usage: `abuse_child.py HOST:PORT KIND`.
"""

from __future__ import annotations

import asyncio
import os
import sys

import uvloop
from by_hand import ByHand, is_last, texts

from cablestore import LEGACY
from cablestore.peers import Address
from cablestore.protocol.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    ModerationRequest,
    PostRequest,
    Request,
    TimeRangeRequest,
    encode_message,
)

AT_ONCE = 16


def request(kind: str) -> Request:
    """Return the request that is repeated."""
    match kind:
        case "history":
            return TimeRangeRequest(b"", "default", 0, 2**50, 0)
        case "posts":
            return PostRequest(b"", tuple(post.hash for post in texts(2_000)) * 5)
        case "unknown posts":
            return PostRequest(b"", tuple(i.to_bytes(32, "big") for i in range(10_000)))
        case "moderation":
            return ModerationRequest(b"", tuple(f"{i}" for i in range(10_000)), 0, 0)
    return ListRequest(b"", 2**60, 0)


async def request_without_end(address: Address, kind: str) -> None:
    """Keep a fixed number of requests open."""
    peer = await ByHand.connect(address)
    asked = request(kind)
    peer.send(*[asked] * AT_ONCE)
    print("begun", flush=True)
    while (message := await peer.receive(600)) is not None:
        if is_last(message):
            peer.send(asked)
    print("ended by the node", flush=True)


def flood_of(peer: ByHand, kind: str) -> bytes:
    """Return the bytes that are sent without waiting for an answer."""
    one, other = peer.new_id(), peer.new_id()
    if kind == "taken back":
        asked = encode_message(request("history")._replace(request_id=one), LEGACY)
        return asked + encode_message(CancelRequest(other, one), LEGACY)
    unknown = encode_message(HashResponse(one, ()), LEGACY)  # of an unknown type: it is skipped
    return unknown[:1] + b"\x63" + unknown[2:]


async def flood(address: Address, kind: str) -> None:
    """Send without waiting for answers, as fast as the node reads."""
    peer = await ByHand.connect(address)
    sent = flood_of(peer, kind)
    print("begun", flush=True)
    reading = asyncio.ensure_future(peer.is_ended(600))
    while not reading.done():
        peer.writer.write(sent * 2_000)
        await peer.writer.drain()
    print("ended by the node", flush=True)


if __name__ == "__main__":
    os.nice(10)  # keep the node busy instead of the machine
    work = flood if sys.argv[2] in ("taken back", "nonsense") else request_without_end
    uvloop.run(work(Address.parse(sys.argv[1]), sys.argv[2]))
