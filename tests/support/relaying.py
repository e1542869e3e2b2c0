"""A node between a peer with requests and one that it forwards them to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from peering import ANSWERS_ONLY, Keeper, Network, Raw, network, raw_peer, until

from cablestore import CableStore
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.message import (
    HashResponse,
    ListRequest,
    Message,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
)

RELAYS = replace(ANSWERS_ONLY, relays=True, spares_cable_js=True)


class DataPeer(Keeper):
    """Peer that sends its data, which need not be posts."""

    def __init__(self, *streams: Any, bytes_of: Iterable[bytes] = (), **options: Any) -> None:
        self.bytes_of = {post_hash(raw): raw for raw in bytes_of}
        super().__init__(*streams, **options)

    def answer(self, message: Message) -> None:
        match message:
            case PostRequest(request_id, hashes):
                found = tuple(self.bytes_of[digest] for digest in hashes if digest in self.bytes_of)
                self.say(PostResponse(request_id, found), PostResponse(request_id, ()))
            case TimeRangeRequest(request_id) | StateRequest(request_id):
                self.say(HashResponse(request_id, tuple(self.bytes_of)))
                if not message.is_live:
                    self.say(HashResponse(request_id, ()))
            case _:
                super().answer(message)


@asynccontextmanager
async def between(
    store: CableStore, *posts: bytes, may_complain: bool = False
) -> AsyncIterator[tuple[Network, Raw, DataPeer]]:
    """Run a node, a peer that sends it requests, and a peer that it forwards them to."""
    async with network(store, settings=RELAYS, may_complain=may_complain) as net:
        address = net.addresses[net.nodes[0]]
        requester, giver = await raw_peer(address), await raw_peer(address, DataPeer, bytes_of=posts)
        for peer in (requester, giver):
            said = peer.send_request(ListRequest(b"", 0, 0))
            await until(lambda peer=peer, said=said: peer.is_concluded(said))  # type: ignore[misc] # the argument has its default
        yield net, requester, giver
        await requester.close()
        await giver.close()
