"""Encrypted nodes over real sockets: only a peer with the key completes the handshake, and no other leaves a trace."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from by_hand import CABAL_KEY, on_loop
from nacl.public import PrivateKey
from peering import HOST, QUICK, is_refused, memory, network, soon, until, with_key
from people import ANN
from waiting import LIMIT_S

from cablestore import LEGACY, Identity
from cablestore.errors import NodeError
from cablestore.peers import Address, Node
from cablestore.protocol.crypto import exchange_public_key
from cablestore.protocol.message import ListRequest, encode_message
from cablestore.protocol.secure_channel import SecureChannel


@pytest.mark.parametrize("separate", [False, True])
@on_loop
async def test_an_encrypted_connection_has_the_key_of_the_peer(separate: bool) -> None:
    stores = [memory("a", posts=[ANN.text("default", "x")]), memory("b")]
    async with network(*stores, settings=with_key(QUICK, CABAL_KEY, separate=separate)) as net:
        link = await net.link(*net.nodes)
        await net.are_alike()
        identity = stores[1].identity
        assert link.remote_static is not None
        known = exchange_public_key(identity.public_key)
        own = bytes(PrivateKey(identity.separate_exchange_secret).public_key)
        assert link.remote_static == (own if separate else known) != (known if separate else own)


@pytest.mark.usefixtures("quick_clock")
@on_loop
async def test_a_peer_with_a_wrong_cabal_key_is_rejected() -> None:
    stores = [memory("a", posts=[ANN.text("default", "x")]), memory("b"), memory("c")]
    settings = replace(with_key(QUICK, CABAL_KEY), handshake_timeout_s=LIMIT_S)
    async with network(*stores[:2], settings=settings, may_complain=True) as net:
        stranger = await net.add(stores[2], with_key(QUICK, bytes(32)))
        await is_refused(stranger, net.addresses[net.nodes[0]])
        await until(lambda: not net.nodes[0].connections)
        plain = Node(memory("d"), QUICK)
        async with plain:
            connection = await plain.connect(net.addresses[net.nodes[0]])
            await until(lambda: net.nodes[0].connections)
            [link] = net.nodes[0].connections
            link.began_s -= LIMIT_S
            await soon(asyncio.shield(connection.closed))
        plain.store.close()
        assert any("handshake message 1" in reason for reason in net.log.reasons())
        assert any("took too long" in reason for reason in net.log.reasons())
        await net.stop(stranger)
        await net.link(*net.nodes)
        await net.are_alike()
        assert not list(stores[2].channels())
    stores[2].close()


@on_loop
async def test_connecting_to_a_silent_peer_leaves_no_state() -> None:
    is_over = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        is_over.set()

    silent = await asyncio.start_server(say_nothing, HOST, 0)
    async with silent, network(memory("a"), settings=with_key(QUICK, CABAL_KEY), may_complain=True) as net:
        with pytest.raises(NodeError, match="does not answer"):
            await net.nodes[0].connect(Address(*silent.sockets[0].getsockname()), timeout_s=0.2)
        await until(lambda: not net.nodes[0].connections)
        await soon(is_over.wait())


def _tampered(kind: str, first: bytes, third: bytes, transport: bytes) -> bytes:
    match kind:
        case "flipped third":
            return third[:50] + bytes((third[50] ^ 1,)) + third[51:]
        case "first again":
            return first + bytes(16)
        case "reordered":
            return transport + third
        case "repeated":
            return third + transport + transport
        case "flipped":
            return third + transport[:5] + bytes((transport[5] ^ 1,)) + transport[6:]
    return third[:40]


@pytest.mark.parametrize("kind", ["flipped third", "first again", "reordered", "repeated", "flipped", "truncated"])
@on_loop
async def test_a_tampered_handshake_ends_the_connection(kind: str) -> None:
    """The connection ends with a reason, and the node continues to serve others."""
    stores = [memory("a", posts=[ANN.text("default", "x")]), memory("b")]
    async with network(*stores, settings=with_key(QUICK, CABAL_KEY)) as net:
        reader, writer = await asyncio.open_connection(*net.addresses[net.nodes[0]])
        channel = SecureChannel(
            cabal_key=CABAL_KEY,
            static_secret=Identity.derive("raw", "peer").exchange_secret,
            is_initiator=True,
            max_message_size_bytes=1000,
        )
        first = channel.start()
        writer.write(first)
        _, third = channel.receive(await soon(reader.readexactly(96)))
        writer.write(_tampered(kind, first, third, channel.send(encode_message(ListRequest(bytes(4), 0, 0), LEGACY))))
        if kind == "truncated":
            writer.write_eof()
        await soon(reader.read())
        writer.close()
        await until(net.log.reasons)
        expected = {
            "truncated": "",
            "flipped third": "message 3",
            "first again": "message 3",
            "reordered": "message 3",
        }
        assert expected.get(kind, "changed, repeated or cut") in net.log.reasons()[0]
        await net.link(*net.nodes)
        await net.are_alike()
