"""Peers other than cablestore notice nothing: they get only Cable, for all requests and at all times."""

from __future__ import annotations

import asyncio
import random
import threading
import tracemalloc
from dataclasses import replace

import pytest
from by_hand import ALL, CABAL_KEY, LIVE, ByHand, on_loop
from peering import HOST, Keeper, logged, memory, raw_listener, until
from people import ANN, Person
from waiting import LIMIT_S

from cablestore import DRAFT8, LEGACY, Dialect, limits
from cablestore.peers import Address, Node, NodeSettings
from cablestore.protocol.message import (
    TYPE_IDS,
    FrameReader,
    ListRequest,
    ListResponse,
    Request,
    encode_extra,
    encode_message,
    extra_of,
)
from cablestore.protocol.recognition import REQUESTS, Greeter
from cablestore.protocol.varint import read_varint
from cablestore.reconcile.messages import (
    HELLO,
    NEW_CHANNEL,
    UNLISTED,
    VERSION,
    Accepted,
    ConversationMessage,
    Hello,
    Purpose,
    Terms,
    decode_frame,
    encode_frame,
)

HASTY = NodeSettings(reconcile_every_s=0.05, list_every_s=0.1)
DIALECTS = pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)


def types_in(frames: list[bytes]) -> set[int]:
    return {read_varint(frame, 0)[0] for frame in frames}


@pytest.mark.thorough("encrypted-draft8", "encrypted-legacy", "plain-draft8")
@DIALECTS
@pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "encrypted"])
@on_loop
async def test_a_stranger_that_connects_receives_only_cable(dialect: Dialect, key: bytes | None) -> None:
    """The stranger uses more random request ids than a greeting has, and is still not recognized as a store."""
    with memory("a", dialect, [Person("ann", dialect).text("default", "x")]) as store:
        async with Node(store, replace(HASTY, cabal_key=key)) as node:
            peer = await ByHand.connect(await node.listen(Address(HOST, 0)), dialect=dialect, cabal_key=key)
            ids = [random.randbytes(dialect.request_id_size_bytes) for _ in range(30)]
            requests: list[Request] = [ALL, LIVE, ListRequest(b"", 0, 1)]
            for number, each in enumerate(ids):
                peer.send(requests[number % 3]._replace(request_id=each))
            received = [await peer.receive() for _ in range(30)]
            await asyncio.sleep(0.5)
            [connection] = node.connections
            assert not connection.session.is_cablestore
            assert not connection.met.done()
            assert all(type(message) in TYPE_IDS for message in received)
            assert len([message for message in received if isinstance(message, ListResponse | ListRequest)]) >= 5
            await peer.close()


class Noting(Keeper):
    """Old client that keeps every received byte."""

    def __init__(self, *arguments: object, **options: object) -> None:
        self.wire_bytes = bytearray()
        super().__init__(*arguments, **options)  # type: ignore[arg-type]  # streams, as given
        self._frames = _Tee(self.wire_bytes)


class _Tee(FrameReader):
    def __init__(self, wire_bytes: bytearray) -> None:
        super().__init__()
        self._bytes = wire_bytes

    def feed(self, data: bytes) -> list[bytes]:
        self._bytes += data
        return super().feed(data)


@on_loop
async def test_an_old_client_that_is_dialled_receives_only_cable() -> None:
    """Every byte on the wire is a message in Cable's list of types, with request ids that look random."""
    async with raw_listener(Noting, posts=[ANN.text("default", f"{i}") for i in range(20)]) as (address, peers):
        with memory("a") as store:
            async with Node(store, HASTY) as node:
                node.keep_connected(address)
                await until(lambda: len(store.messages("default", 50).messages) == 20)
                await asyncio.sleep(0.5)
                [connection] = node.connections
                assert not connection.session.is_cablestore
                assert connection.session.has_greeted
                assert not len(node.parts.reconciler)
            [peer] = peers
            frames = FrameReader().feed(bytes(peer.wire_bytes))
            assert len(frames) > 8
            assert types_in(frames) <= set(TYPE_IDS.values())
            asked = [frame[1:9] for frame in frames]
            assert all(each.startswith(bytes(4)) for each in asked)
            assert len({each[4:6] for each in asked}) > len(set(asked)) - 3


@on_loop
async def test_a_node_without_reconciliation_is_a_stranger_to_a_store() -> None:
    """With --no-reconcile a node is like any other peer, and ignores a store's messages beside Cable."""
    with memory("a") as one_store, memory("b") as other_store:
        async with Node(one_store, HASTY) as one, Node(other_store, replace(HASTY, reconciles=False)) as other:
            link = await other.connect(await one.listen(Address(HOST, 0)))
            await until(lambda: link.session.is_cablestore)
            await asyncio.sleep(0.3)
            [back] = one.connections
            assert not back.session.is_cablestore
            assert not link.met.done()
            assert not back.met.done()


async def greeted(address: Address, extra: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, FrameReader]:
    """Connect like a store, and send `extra` immediately."""
    reader, writer = await asyncio.open_connection(*address)
    frames = FrameReader()
    while not frames.feed(await reader.read(4096)):
        pass  # its request follows its greeting
    greeter = Greeter(random.randbytes)
    asked = [encode_message(ListRequest(greeter(4), 0, 1), LEGACY) for _ in range(REQUESTS)]
    writer.write(b"".join([*asked, encode_extra(extra, LEGACY)]))
    return reader, writer, frames


async def heard_extra(reader: asyncio.StreamReader, frames: FrameReader) -> tuple[int, ConversationMessage]:
    """Return the next message of a conversation."""
    received: list[bytes] = []
    while not (extras := [extra for frame in received if (extra := extra_of(frame)) not in (None, UNLISTED)]):
        received += frames.feed(await asyncio.wait_for(reader.read(4096), LIMIT_S))
    return decode_frame(extras[0])


HELLO_7 = encode_frame(7, Hello(VERSION, Purpose.RECONCILE, LEGACY.name, Terms()))


@on_loop
async def test_a_hello_that_comes_together_with_the_greeting_is_answered() -> None:
    """A store that knows this peer already sends hello immediately, and TCP may deliver both in one piece."""
    with memory("a", posts=[ANN.text("default", "x")]) as store:
        async with Node(store, HASTY) as node:
            reader, writer, frames = await greeted(await node.listen(Address(HOST, 0)), HELLO_7)
            number, answer = await heard_extra(reader, frames)
            assert (number, type(answer)) == (7, Accepted)
            writer.close()


@pytest.mark.parametrize("first", [HELLO_7, b""], ids=["in a conversation", "as the first frame"])
@on_loop
async def test_a_too_large_frame_is_rejected_before_its_conversation_is_read(first: bytes) -> None:
    """MAX_TALK_FRAME_SIZE_BYTES: messages of Cable may be eight times as long."""
    large = encode_extra(HELLO + bytes(4 * limits.MAX_TALK_FRAME_SIZE_BYTES), LEGACY)
    if first:
        large = encode_extra(b"\xff" * limits.MAX_TALK_FRAME_SIZE_BYTES + b"\xff", LEGACY)
    with memory("a") as store, logged() as log:
        async with Node(store, HASTY) as node:
            busy = threading.Event()
            node.parts.reconciler._thread.submit(busy.wait, LIMIT_S)
            _, writer, _ = await greeted(await node.listen(Address(HOST, 0)), first or NEW_CHANNEL)
            [connection] = node.connections
            await until(connection.met.done)
            tracemalloc.start()
            try:
                for number in range(20):
                    writer.write(large)
                    await until(lambda: connection.received_size_bytes > (number + 1) * len(large))  # noqa: B023 - it is used at once
                await until(lambda: tracemalloc.get_traced_memory()[0] < 4 * limits.MAX_TALK_FRAME_SIZE_BYTES)
            finally:
                tracemalloc.stop()
                busy.set()
            await until(lambda: log.faults() and not len(node.parts.reconciler))
            assert set(log.faults()) == {"reconciliation"}
            writer.close()
