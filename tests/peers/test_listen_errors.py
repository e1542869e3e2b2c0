"""Addresses at which a process cannot listen: the error says what to do."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cablestore import CableStore
from cablestore.errors import NodeError
from cablestore.peers import Address, Node
from cablestore.peers.status_pages import StatusPages

_NOT_HERE = Address("192.0.2.1", 0)
"""An address that is reserved for documentation."""


def test_errors_of_listening_suggest_a_remedy() -> None:
    async def listen(address: Address) -> None:
        async with Node(store) as node:
            await node.listen(address)

    with CableStore.in_memory() as store, socket.create_server(("127.0.0.1", 0)) as taken:
        busy = Address("127.0.0.1", taken.getsockname()[1])
        for address, advice in ((busy, "Choose another port"), (_NOT_HERE, "Choose an address of this machine")):
            expected = rf"cannot listen on {address}: .+\. {advice}"
            with pytest.raises(NodeError, match=expected):
                asyncio.run(listen(address))
            with pytest.raises(NodeError, match=expected):
                StatusPages(address)
