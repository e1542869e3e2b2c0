"""A peer of a node that sends and reads messages as the test specifies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, wraps
from itertools import count
from typing import Any, ParamSpec

from clock import StandingLoop
from peering import HOST, memory, run, until
from people import ANN, START_MS
from waiting import LIMIT_S

from cablestore import LEGACY, CableStore, Dialect, Identity, Post
from cablestore.peers import Address, Node, NodeSettings
from cablestore.peers.connection import Connection
from cablestore.peers.parts import NodeParts
from cablestore.protocol.message import (
    FrameReader,
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    PostRequest,
    PostResponse,
    Request,
    StateRequest,
    TimeRangeRequest,
    decode_message,
    encode_message,
)
from cablestore.protocol.secure_channel import SecureChannel

CABAL_KEY = bytes(range(32))
ALL = TimeRangeRequest(b"", "default", 0, 2**50, 0)
LIVE = TimeRangeRequest(b"", "default", 0, 0, 0)
UNKNOWN = bytes(32)
MANY = 4_000

P = ParamSpec("P")


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Convert a test that is a coroutine function: `run` runs it in a separate loop."""

    @wraps(test)
    def in_loop(*arguments: P.args, **options: P.kwargs) -> None:
        run(test(*arguments, **options))

    return in_loop


def on_standing_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Do the same as `on_loop`, with a clock that only `pass_time` moves."""

    @wraps(test)
    def in_loop(*arguments: P.args, **options: P.kwargs) -> None:
        run(test(*arguments, **options), StandingLoop)

    return in_loop


@lru_cache
def texts(number: int, channel: str = "default") -> tuple[Post, ...]:
    """Return texts a second apart, 400 bytes each as posts."""
    return tuple(ANN.text(channel, f"text {i}".ljust(300, "."), at=START_MS + 1000 * i) for i in range(number))


@asynccontextmanager
async def running(store: CableStore, **settings: Any) -> AsyncIterator[tuple[Node, Address]]:
    """Run a node that listens. By default it does not follow channels or reconcile.

    After it has stopped, it must not leave any state.
    """
    tasks = asyncio.all_tasks()
    try:
        async with Node(store, NodeSettings(**{"channels": frozenset(), "reconciles": False, **settings})) as node:
            parts = node.parts
            yield node, await node.listen(Address(HOST, 0))
    finally:
        while _OPEN:
            await _OPEN.pop().close()
    assert_nothing_is_left(parts)
    assert not {task for task in asyncio.all_tasks() - tasks if not task.done()}


@asynccontextmanager
async def listening(
    posts: Iterable[Post] = (), *, dialect: Dialect = LEGACY, **settings: Any
) -> AsyncIterator[tuple[Node, Address]]:
    """Do the same as `running`, on a store in memory with these posts."""
    with memory(dialect=dialect, posts=posts) as store:
        async with running(store, **settings) as found:
            yield found


def only(node: Node) -> Connection:
    """Return the only connection of a node."""
    (found,) = node.connections
    return found


def assert_nothing_is_left(parts: NodeParts) -> None:
    """Check that connections have not left entries in the node's tables."""
    assert not list(parts.links)
    assert not parts.cable_port.by_network
    assert not parts.serving.by_session
    assert not parts.serving.routes
    assert parts.serving.live.count == 0
    assert not parts.serving.live._alike
    assert not parts.serving.live._tables
    assert not parts.intake.paused
    assert not parts.intake._turns
    assert not parts.intake._judged_size_bytes
    assert parts.context.writes.queued_size_bytes == 0
    assert len(parts.sync.fetches.pending) == 0
    assert not len(parts.sync)
    assert not parts.sync.fetches.storing
    assert not len(parts.reconciler)


_OPEN: list[ByHand] = []
"""The connected peers. They are closed when the node of `running` has stopped."""


class ByHand:
    """Connection of a test to a node. It is encrypted if it has a `channel`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dialect: Dialect,
        channel: SecureChannel | None,
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.dialect = dialect
        self.channel = channel
        self.frames: list[bytes] = []
        self._cutter = FrameReader()
        self._ids = count(1)
        _OPEN.append(self)

    @classmethod
    async def connect(
        cls,
        address: Address,
        dialect: Dialect = LEGACY,
        *,
        cabal_key: bytes | None = None,
        receive_size_bytes: int = 0,
        host: str = HOST,
    ) -> ByHand:
        """Connect, with a handshake if there is a cabal key.

        A small `receive_size_bytes` makes the peer a slow reader soon.
        """
        sock = socket.socket()
        sock.setblocking(False)
        if receive_size_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_size_bytes)
        sock.bind((host, 0))
        await asyncio.get_running_loop().sock_connect(sock, tuple(address))
        reader, writer = await asyncio.open_connection(sock=sock, limit=2**14 if receive_size_bytes else 2**20)
        channel = None
        if cabal_key is not None:
            secret = Identity.derive("raw", "peer").exchange_secret
            channel = SecureChannel(
                cabal_key=cabal_key, static_secret=secret, is_initiator=True, max_message_size_bytes=2**24
            )
        peer = cls(reader, writer, dialect, channel)
        if channel is not None:
            writer.write(channel.start())
            while not channel.is_established:
                peer._take(await asyncio.wait_for(reader.read(2**16), LIMIT_S))
        return peer

    def new_id(self) -> bytes:
        """Return an unused id."""
        return b"\xee" + next(self._ids).to_bytes(self.dialect.request_id_size_bytes - 1, "big")

    def send(self, *messages: Message) -> None:
        """Send messages. A message with an empty id gets a new one."""
        self.raw(b"".join(encode_message(self._with_id(message), self.dialect) for message in messages))

    def _with_id(self, message: Message) -> Message:
        return message if message.request_id else message._replace(request_id=self.new_id())

    def raw(self, data: bytes) -> None:
        """Send any bytes, encrypted if the connection is."""
        self.writer.write(data if self.channel is None else self.channel.send(data))

    def _take(self, data: bytes) -> None:
        if self.channel is None:
            self.frames += self._cutter.feed(data)
            return
        messages, reply = self.channel.receive(data)
        if reply:
            self.writer.write(reply)
        for message in messages:
            self.frames += self._cutter.feed(message)

    async def receive(self, within_s: float = LIMIT_S) -> Message | None:
        """Return the next message, None if the connection has ended."""
        while not self.frames:
            try:
                data = await asyncio.wait_for(self.reader.read(2**16), within_s)
            except ConnectionError:
                return None
            if not data:
                return None
            self._take(data)
        return decode_message(self.frames.pop(0), self.dialect)

    async def is_silent(self, for_s: float = 0.05) -> bool:
        """Return True if nothing arrives for a while."""
        try:
            return await self.receive(for_s) is None and False
        except TimeoutError:
            return True

    async def answer(self, request: Request) -> list[Message]:
        """Send a request, and return all messages until it is concluded.

        Raises ConnectionError if the connection ends first.
        """
        request = request._replace(request_id=request.request_id or self.new_id())
        self.send(request)
        return await self.concluded(request.request_id)

    async def concluded(self, request_id: bytes) -> list[Message]:
        """Return all messages for a request until it is concluded."""
        found: list[Message] = []
        while True:
            message = await self.receive()
            if message is None:
                raise ConnectionError("the node ended the connection")
            if message.request_id == request_id:
                found.append(message)
                if is_last(message):
                    return found

    async def hashes(self, channel: str = "default", limit: int = 0) -> list[bytes]:
        """Return the hashes of a channel's texts."""
        parts = await self.answer(TimeRangeRequest(b"", channel, 0, 2**50, limit))
        found = [digest for part in parts if isinstance(part, HashResponse) for digest in part.hashes]
        assert not limit or len(found) <= limit
        return found

    async def known_to(self, node: Node) -> Connection:
        """Return the node's connection to this peer, after the node has accepted it."""
        own = self.writer.get_extra_info("sockname")
        await until(lambda: own in [each.ends[1] for each in node.connections])
        [connection] = [each for each in node.connections if each.ends[1] == own]
        return connection

    async def is_ended(self, within_s: float = LIMIT_S) -> bool:
        """Return True if the node closes the connection. Messages before that are discarded."""
        try:
            async with asyncio.timeout(within_s):
                while await self.reader.read(2**16):
                    pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close the connection."""
        self.writer.transport.abort()
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def offered(peer: ByHand, hashes: tuple[bytes, ...]) -> TimeRangeRequest:
    """Wait for a request for the channels and one for a history. Offer these hashes, as state if they fill a page."""
    state = b""
    while True:
        request = await peer.receive()
        if isinstance(request, ListRequest):
            peer.send(ListResponse(request.request_id, ("default",)))
        elif isinstance(request, StateRequest):
            state = request.request_id
        elif isinstance(request, TimeRangeRequest):
            is_page = len(hashes) < request.limit
            peer.send(HashResponse(request.request_id if is_page else state, hashes))
            peer.send(HashResponse(request.request_id, ()))
            return request


async def post_request(peer: ByHand) -> PostRequest:
    """Return the next request for posts. Other requests are not answered."""
    while not isinstance(request := await peer.receive(), PostRequest):
        assert request is not None
    return request


async def deliver(peer: ByHand, posts: dict[bytes, Post]) -> None:
    """Send the posts of the next request."""
    request = await post_request(peer)
    raws = tuple(posts[digest].raw for digest in request.hashes)
    peer.send(PostResponse(request.request_id, raws), PostResponse(request.request_id, ()))


def is_last(message: Message) -> bool:
    """Return True if a response concludes its request."""
    if isinstance(message, HashResponse):
        return not message.hashes
    return isinstance(message, ListResponse) or (isinstance(message, PostResponse) and not message.posts)


async def slow_reader(address: Any, *, asks: int = 60) -> ByHand:
    """Request everything repeatedly and read nothing. The peer's buffers are small."""
    peer = await ByHand.connect(address, receive_size_bytes=4096)
    peer.send(*[ALL] * asks)
    return peer


def peer_id(peer: ByHand, number: int) -> bytes:
    return b"\xee" + number.to_bytes(peer.dialect.request_id_size_bytes - 1, "big")


def sizes_of(answers: list[Message]) -> list[int]:
    """Return the number of hashes or posts in each response."""
    return [len(found[1]) for found in answers if isinstance(found, HashResponse | PostResponse)]
