"""Connections of a node to itself, and several to one peer: they are detected for any address, with and without a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from by_hand import CABAL_KEY, on_loop
from peering import HOST, QUICK, Network, memory, network, until, with_key
from people import ANN

from cablestore.peers import Address, Node
from cablestore.peers.link import ITSELF
from cablestore.peers.node_ids import TWICE

MEETING = replace(QUICK, reconciles=True)
keys = pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "encrypted"])


@asynccontextmanager
async def forwarded(address: Address) -> AsyncIterator[Address]:
    """Yield a port that forwards to another one, like a router or a proxy. At the end its connections are closed."""
    writers: set[asyncio.StreamWriter] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*address)
            writers.update((writer, far_writer))
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async with await asyncio.start_server(accept, HOST, 0) as server:
        yield Address(*server.sockets[0].getsockname()[:2])
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@keys
@pytest.mark.parametrize("reconciles", [True, False])
@on_loop
async def test_a_node_recognises_itself_at_a_forwarded_port(key: bytes | None, *, reconciles: bool) -> None:
    settings = with_key(replace(MEETING, reconciles=reconciles), key)
    async with network(memory(posts=(ANN.text("default", "x"),)), settings=settings) as net:
        [node] = net.nodes
        async with forwarded(net.addresses[node]) as address:
            node.keep_connected(address)
            await until(lambda: len(net.log.reasons()) == 2)
            assert net.log.reasons() == [ITSELF, ITSELF]
            assert not node.connections


@keys
@on_loop
async def test_a_node_recognises_itself_at_a_forwarded_reconciliation_port(key: bytes | None) -> None:
    async with network(memory(), settings=with_key(MEETING, key)) as net:
        port = net.nodes[0].reconcile_port
        async with forwarded(await port.listen(Address(HOST, 0))) as address:
            port.keep_connected(address)
            await until(lambda: len(net.log.reasons()) == 2)
            assert net.log.reasons() == [ITSELF, ITSELF]


def number_of_links(node: Node) -> int:
    return sum(link.is_established for link in node.connections)


async def are_linked_once(net: Network) -> None:
    """Wait until the peers have one connection between them, after another one ended."""
    await until(lambda: TWICE in net.log.reasons())
    await until(lambda: all(number_of_links(node) == 1 for node in net.nodes), lambda: str(net.log.reasons()))


@keys
@on_loop
async def test_a_peer_under_two_addresses_has_one_connection(key: bytes | None) -> None:
    """If that connection is lost, the other address is used."""
    stores = memory("one"), memory("other", posts=(ANN.text("default", "x"),))
    async with network(*stores, settings=with_key(MEETING, key)) as net:
        one, other = net.nodes
        async with forwarded(net.addresses[other]) as address:
            one.keep_connected(address)
            await until(lambda: number_of_links(one) == 1)
            one.keep_connected(net.addresses[other])
            await are_linked_once(net)
            assert {peer.address for peer in one.peers()} == {address}
            await net.are_alike()
        await until(lambda: {peer.address for peer in one.peers()} == {net.addresses[other]})


@keys
@on_loop
async def test_peers_that_connect_to_each_other_have_one_connection(key: bytes | None) -> None:
    async with network(memory("one"), memory("other"), settings=with_key(MEETING, key)) as net:
        for one, other in (net.nodes, net.nodes[::-1]):
            one.keep_connected(net.addresses[other])
        await are_linked_once(net)
        net.nodes[0].store.post("default", "x")
        await net.are_alike()
        assert sum(peer.is_outgoing for node in net.nodes for peer in node.peers()) == 1


@on_loop
async def test_two_names_of_one_address_have_one_connection_to_any_peer() -> None:
    """The rule applies also to peers of other programs. The addresses are equal after they are resolved."""
    async with network(memory("one"), memory("other"), settings=QUICK) as net:
        one, other = net.nodes
        address = net.addresses[other]
        one.keep_connected(address)
        await until(lambda: number_of_links(one) == 1)
        one.keep_connected(Address("localhost", address.port))
        await are_linked_once(net)


@on_loop
async def test_peers_with_one_identity_are_not_one_peer() -> None:
    """A store that was copied to another machine has the same key and other posts."""
    async with network(
        memory("hub"),
        memory("copy", posts=(ANN.text("a", "1"),)),
        memory("copy"),
        settings=with_key(MEETING, CABAL_KEY),
    ) as net:
        for node in net.nodes[1:]:
            net.nodes[0].keep_connected(net.addresses[node])
        await net.are_alike()
        assert number_of_links(net.nodes[0]) == 2
        assert TWICE not in net.log.reasons()


@on_loop
async def test_a_connection_for_one_purpose_does_not_end_others() -> None:
    async with network(memory("one"), memory("other"), settings=MEETING) as net:
        one, other = net.nodes
        one.keep_connected(net.addresses[other])
        await until(lambda: number_of_links(one) == 1)
        await other.sync_once(net.addresses[one])
        await one.connect(net.addresses[other])
        await until(lambda: number_of_links(one) == 2)
        assert TWICE not in net.log.reasons()
