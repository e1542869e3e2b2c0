"""Fuzz tests over real sockets: changed messages of real conversations never stop a node or store anything.

There are thousands of connections in a soak, hundreds in a normal run. The seed is printed with a failure.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pytest
from by_hand import CABAL_KEY, ByHand, running
from peering import HOST, Keeper, Network, logged, memory, network, raw_peer, run, until
from people import START_MS, Person, raws
from waiting import LIMIT_S

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Post
from cablestore.peers import Address
from cablestore.protocol.body import Role
from cablestore.protocol.fields import sized
from cablestore.protocol.message import FrameReader, ListRequest, Message, TimeRangeRequest, encode_message
from cablestore.protocol.varint import encode_varint

SOAK = bool(os.environ.get("CABLESTORE_SOAK"))
TIMES = 100 if SOAK else 1
HUGE = [encode_varint(n) for n in (127, 128, 2**31, 2**32, 2**53, 2**63, 2**64 - 1)] + [b"\x80\x00", b"\xff" * 10]
BOTH = pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)


@lru_cache
def some_posts(dialect: Dialect) -> tuple[Post, ...]:
    """Return some posts of each kind."""
    ann, bob = Person("ann", dialect), Person("bob", dialect)
    times = iter(range(START_MS, START_MS + 10**6, 1000))
    said = [ann.text("default", f"text {i}", at=next(times)) for i in range(40)]
    other = [bob.text(f"channel {i}", "x" * i, at=next(times)) for i in range(1, 6)]
    state = [ann.join("default", at=next(times)), bob.join("default", at=next(times)), ann.named("Ann", at=next(times))]
    state += [bob.topic("default", "a topic", at=next(times)), bob.leave("default", at=next(times))]
    acts = [ann.post(Role("", 0, "", bob.key, 1), at=next(times)), ann.delete(said[3], at=next(times))]
    return (*said, *other, *state, *acts)


async def recorded(dialect: Dialect) -> list[bytes]:
    """Return every message, without lengths, of two nodes that sync with each other and get changes."""
    first, second = memory("first", dialect, some_posts(dialect)), memory("second", dialect, some_posts(dialect)[40:45])
    received: list[bytes] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(65536):
            received.extend(frames.feed(data))
            writer.write(data)
        writer.close()

    async with network(first, second) as net:
        there = net.addresses[net.nodes[0]]

        async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward_reader, onward_writer = await asyncio.open_connection(*there)
            with suppress(OSError):
                await asyncio.gather(pump(reader, onward_writer), pump(onward_reader, writer))

        server = await asyncio.start_server(passed_on, HOST, 0)
        link = await net.nodes[1].connect(Address(*server.sockets[0].getsockname()[:2]))
        await heard_of(net, some_posts(dialect)[0])
        await changes(net, dialect)
        link.close("recorded")
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.05)
    return received


async def changes(net: Network, dialect: Dialect) -> None:
    """Store new posts on both, so that live requests get them."""
    cyd = Person("cyd", dialect)
    for number, node in enumerate(net.nodes):
        post = cyd.text("default", f"live {number}", at=START_MS + 10**7 + number)
        node.store.ingest(raws(post))
        await heard_of(net, post)


async def heard_of(net: Network, post: Post) -> None:
    await until(lambda: all(node.store.get(post.hash) is not None for node in net.nodes))


def changed(choice: random.Random, data: bytes) -> bytes:
    """Return bytes with one to three damages."""
    found = bytearray(data)
    for _ in range(choice.randrange(1, 4)):
        at, other = choice.randrange(len(found) + 1), choice.randrange(len(found) + 1)
        at, other = min(at, other), max(at, other)
        match choice.randrange(7):
            case 0 if found:
                found[at % len(found)] ^= 1 << choice.randrange(8)
            case 1:
                del found[at : at + choice.randrange(1, 40)]
            case 2:
                del found[at:]
            case 3:
                found[at:at] = found[at:other]
            case 4:
                found[at:at] = choice.randbytes(choice.randrange(1, 40))
            case 5:
                found[at : at + 1] = choice.choice(HUGE)
            case _:
                found[:] = found[at:] + found[:at]
    return bytes(found)


def conversation(choice: random.Random, frames: list[bytes]) -> list[bytes]:
    """Return some of the messages with their lengths: reordered, repeated, or damaged."""
    found = []
    for frame in choice.choices(frames, k=choice.randrange(1, 12)):
        match choice.randrange(4):
            case 0:
                found.append(sized(frame))
            case 1:
                found.append(changed(choice, sized(frame)))
            case _:
                found.append(sized(frame[:9] + changed(choice, frame[9:])))  # with valid ids the rest is decoded
    return found


async def many(connections: int, one: Callable[[random.Random], Awaitable[None]]) -> None:
    """Run this many conversations, a few concurrently, each with a separate seed."""
    first = int(time.time()) if SOAK else random.randrange(2**32)
    numbers = iter(range(first, first + connections))

    async def some() -> None:
        for number in numbers:
            try:
                async with asyncio.timeout(LIMIT_S):
                    await one(random.Random(number))
            except BaseException as error:
                error.add_note(f"random seed {number}")
                raise

    await asyncio.gather(*(some() for _ in range(8)))


async def assert_unharmed(
    store: CableStore, address: Address, known: set[bytes], cabal_key: bytes | None = None
) -> None:
    """Check that the node answers an honest peer, and that all posts of its store are signed and known."""
    honest = await ByHand.connect(address, store.dialect, cabal_key=cabal_key)
    assert {post.hash for post in some_posts(store.dialect)[:3]} <= set(await honest.hashes())
    names = await honest.answer(ListRequest(b"", 0, 0))
    assert "default" in names[0].channels  # type: ignore[union-attr]  # the answer to this request
    await honest.close()
    assert (await asyncio.to_thread(store.check, signatures=True)).is_clean
    assert {bytes.fromhex(key[6:].decode()) for key, _ in store.dump() if key.startswith(b"!data!")} <= known


def known_posts(dialect: Dialect) -> set[bytes]:
    return {post.hash for post in some_posts(dialect)}


async def fuzzed(dialect: Dialect, connections: int, talk: Callable[..., Awaitable[None]], **settings: Any) -> None:
    """Run conversations with a node that has half of the posts and fetches all announced ones."""
    posts = some_posts(dialect)
    with memory("fuzzed", dialect, posts[: len(posts) // 2]) as store, logged() as log:
        settings = {"channels": None, "list_every_s": 0.2, "answer_timeout_s": 0.5, "max_faults": 20, **settings}
        async with running(store, **settings) as (node, address):
            await many(connections, lambda choice: talk(address, choice))
            await until(lambda: not node.connections)
            await assert_unharmed(store, address, known_posts(dialect), node.settings.cabal_key)
        errors = [error for error in log.errors() if not error.startswith("the cabal keys probably differ")]
        assert not errors, errors[:3]


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@BOTH
def test_a_node_survives_changed_messages_of_a_real_exchange(dialect: Dialect) -> None:
    async def scenario() -> None:
        frames = await recorded(dialect)
        assert len({frame[0] for frame in frames}) >= 7  # of all types except cancel requests

        async def talk(address: Address, choice: random.Random) -> None:
            peer = await ByHand.connect(address, dialect)
            with suppress(OSError):
                for message in conversation(choice, frames):
                    peer.raw(message)
                    if choice.random() < 0.1:
                        await asyncio.sleep(0.001)
                peer.writer.write_eof()
            assert await peer.is_ended(), "the connection hangs"
            await peer.close()

        await fuzzed(dialect, 500 * TIMES, talk)

    run(scenario())


class Confused(Keeper):
    """Peer that answers requests, and damages some of its messages."""

    choice: random.Random
    damage = 0.3

    def say(self, *messages: Message) -> None:
        for message in messages:
            frame = encode_message(message, self.dialect)
            if self.choice.random() < self.damage:
                at = 1 + (frame[0] >= 0x80) + 9
                frame = sized(frame[at - 9 : at] + changed(self.choice, frame[at:]))
            self.write(frame)


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@BOTH
def test_a_node_survives_changed_answers_to_its_requests(dialect: Dialect) -> None:
    """The node requested these, so they are processed further. Invalid posts in them are never stored."""
    posts = some_posts(dialect)

    async def talk(address: Address, choice: random.Random) -> None:
        settings = {"choice": choice, "dialect": dialect, "posts": choice.sample(posts, 30)}
        peer = await raw_peer(address, Confused, **settings)
        peer.send_request(TimeRangeRequest(b"", "default", 0, 0, 0))
        await asyncio.sleep(choice.random() * 0.3)
        peer.cut()
        await peer.close()

    run(fuzzed(dialect, 100 * TIMES, talk, max_invalid_posts=1000))


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@BOTH
def test_a_node_survives_changed_messages_in_an_encrypted_channel(dialect: Dialect) -> None:
    async def scenario() -> None:
        frames = await recorded(dialect)

        async def talk(address: Address, choice: random.Random) -> None:
            peer = await ByHand.connect(address, dialect, cabal_key=CABAL_KEY)
            assert peer.channel is not None
            with suppress(OSError):
                for message in conversation(choice, frames):
                    if message:
                        peer.raw(message)
                if choice.random() < 0.5:
                    peer.writer.write(peer.channel.finish())
                else:
                    peer.writer.write_eof()
            assert await peer.is_ended(), "the connection hangs"
            await peer.close()

        await fuzzed(dialect, 100 * TIMES, talk, cabal_key=CABAL_KEY)

    run(scenario())


@pytest.mark.thorough
@pytest.mark.timeout(7200)
def test_changed_bytes_of_an_encrypted_connection_end_it() -> None:
    """The change is in the handshake or later. Any change closes the connection, and nothing is stored."""

    async def scenario() -> None:
        frames = await recorded(LEGACY)

        async def talk(address: Address, choice: random.Random) -> None:
            if choice.random() < 0.3:
                peer = await ByHand.connect(address)
                noise = choice.randbytes(choice.randrange(1, 300))
                peer.raw(noise)
                with suppress(OSError):
                    peer.writer.write_eof()
                assert await peer.is_ended()
                return
            peer = await ByHand.connect(address, cabal_key=CABAL_KEY)
            assert peer.channel is not None
            sent = b"".join(peer.channel.send(sized(frame)) for frame in choice.choices(frames, k=5))
            peer.writer.write(changed(choice, sent) + choice.randbytes(20))
            with suppress(OSError):
                peer.writer.write_eof()
            assert await peer.is_ended(), "the connection hangs"
            await peer.close()

        await fuzzed(LEGACY, 150 * TIMES, talk, cabal_key=CABAL_KEY, handshake_timeout_s=LIMIT_S)

    run(scenario())
