"""Nodes and raw peers over real sockets in one event loop, for tests."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from inspect import isawaitable
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import pytest
from clock import StandingLoop
from history import NOW_MS
from hypothesis import strategies as st
from people import ANN, START_MS, raws
from waiting import LIMIT_S, pause_s

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Identity, Post, StoreOptions
from cablestore.errors import DecodeError, NodeError
from cablestore.peers import Address, Node, NodeSettings, parts
from cablestore.peers.connection import Connection
from cablestore.peers.threads import Stopwatch
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.message import (
    CancelRequest,
    FrameReader,
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    PostRequest,
    PostResponse,
    Request,
    TimeRangeRequest,
    decode_message,
    encode_message,
)
from cablestore.store.options import system_clock_ms

HOST: Final = "127.0.0.1"
QUICK: Final = NodeSettings(list_every_s=0.1, relays=False, reconciles=False, spares_cable_js=False)
"""Settings with which new channels are found immediately. Without forwarding and reconciling, a node has only fetched
posts.

Such nodes do not recognize each other as cablestore, so they send everything to all peers.
"""
UNHURRIED: Final = replace(QUICK, list_every_s=600)
"""Settings without further requests for channels, and without full passes in the background."""
ANSWERS_ONLY: Final = NodeSettings(channels=frozenset(), reconciles=False, spares_cable_js=False)
FOREVER_MS: Final = 2**50

T = TypeVar("T")
randoms = st.builds(random.Random, st.integers(0, 2**32))
"""These are separate from hypothesis' generators, because the time of drawing varies."""


# --- running -----------------------------------------------------------------------------------

_RUNS: Final = count(1)
_COLLECT_ALL_EVERY: Final = 200
"""Number of runs between two collections of all objects, each of which takes half a second in a long session."""


def run(main: Coroutine[Any, Any, T], loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> T:
    """Run a test. It fails if the loop reports an error, or if a resource is unclosed or an exception unread."""
    complaints: list[str] = []

    async def watched() -> T:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(f"{context}"))
        try:
            return await main
        finally:
            for peer in list(Raw.connected):  # left by a failed test
                peer.cut()
                await peer.close()
            await asyncio.sleep(0)
            gc.collect()  # unread exceptions are reported when their futures are deleted

    if next(_RUNS) % _COLLECT_ALL_EVERY == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()  # so that the collection at the end visits only the objects of this test
    with asyncio.Runner(loop_factory=loop) as runner, pytest.MonkeyPatch.context() as changed:
        standing = runner.get_loop()
        if isinstance(standing, StandingLoop):  # a pause for used processor time would never end
            changed.setattr(parts, "Stopwatch", lambda: Stopwatch(standing.time, standing.time))
        try:
            found = runner.run(watched())
        except BaseException:
            if isinstance(standing, StandingLoop):
                standing.release()
            raise
    assert not complaints, complaints
    return found


async def until(is_so: Callable[[], object], otherwise: Callable[[], object] = str) -> None:
    """Wait for a condition, like `wait_until` outside of a loop, also if the test moves the loop's clock."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        begin_s = time.monotonic()
        found = is_so()
        if await found if isawaitable(found) else found:
            return
        assert begin_s < end_s, f"nothing after {LIMIT_S} s\n{otherwise()}"
        await asyncio.to_thread(time.sleep, pause_s(begin_s))


async def every(things: Iterable[T], is_so: Callable[[T], object]) -> None:
    """Wait until a condition is true for all things."""
    await until(lambda: all(map(is_so, things)), lambda: [thing for thing in things if not is_so(thing)])


async def soon(awaited: Awaitable[T]) -> T:
    async with asyncio.timeout(LIMIT_S):
        return await awaited


class Log(logging.Handler):
    """Log of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def reasons(self) -> list[str]:
        """Return why connections ended."""
        return [vars(record)["reason"] for record in self.records if record.getMessage() == "disconnected"]

    def faults(self) -> list[str]:
        return [vars(record)["what"] for record in self.records if record.getMessage() == "fault"]

    def errors(self) -> list[str]:
        """Return warnings and errors, except those about clocks: the posts of tests are ahead of the clocks of stores."""
        errors = [record for record in self.records if record.levelno > logging.INFO]
        return [
            f"{record.getMessage()} {vars(record)}"
            for record in errors
            if not record.getMessage().startswith("the clock differs from the clocks of other users")
        ]


@contextmanager
def logged() -> Iterator[Log]:
    log, logger = Log(), logging.getLogger("cablestore.node")
    level = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    try:
        yield log
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)


# --- nodes -------------------------------------------------------------------------------------


def memory(
    name: object = "peer",
    dialect: Dialect = LEGACY,
    posts: Iterable[Post] = (),
    clock: Callable[[], int] = lambda: NOW_MS + 1,
) -> CableStore:
    identity = Identity.derive("node", str(name))
    store = CableStore.in_memory(
        dialect=dialect, identity=identity, options=StoreOptions(verify_threads=1, clock=clock)
    )
    store.ingest(raws(*posts), verify=False)
    return store


class Network:
    """Nodes that listen, and the links between them."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.nodes: list[Node] = []
        self.addresses: dict[Node, Address] = {}
        self.links: list[Connection] = []
        self.dialers: dict[Connection, Node] = {}
        """Nodes that began the links."""

    async def add(self, store: CableStore, settings: NodeSettings = QUICK) -> Node:
        node = Node(store, settings)
        await node.__aenter__()
        self.nodes.append(node)
        self.addresses[node] = await node.listen(Address(HOST, 0))
        return node

    async def stop(self, node: Node) -> None:
        self.nodes.remove(node)
        await soon(node.__aexit__())

    async def link(self, one: Node, other: Node) -> Connection:
        connection = await one.connect(self.addresses[other])
        self.links.append(connection)
        self.dialers[connection] = one
        return connection

    async def ring(self) -> None:
        for index, node in enumerate(self.nodes):
            await self.link(node, self.nodes[index - 1])

    async def star(self) -> None:
        for node in self.nodes[1:]:
            await self.link(node, self.nodes[0])

    async def line(self) -> None:
        for one, other in zip(self.nodes, self.nodes[1:], strict=False):
            await self.link(one, other)

    async def are_alike(self) -> None:
        await until(lambda: len({node.store.dump_digest() for node in self.nodes}) == 1, self.differences)

    def differences(self) -> str:
        """Return the rows that not all nodes have."""
        dumps = [
            {row for row in node.store.dump() if row[0].startswith((b"!data!", b"!chat!deleted!"))}
            for node in self.nodes
        ]
        everywhere = set.intersection(*dumps)
        return "\n".join(f"{number}: {row}" for number, dump in enumerate(dumps) for row in sorted(dump - everywhere))


@asynccontextmanager
async def network(
    *stores: CableStore, settings: NodeSettings = QUICK, may_complain: bool = False
) -> AsyncIterator[Network]:
    """Run nodes over these stores.

    At the end all stop in order, every store is valid, and no error was logged.
    """
    with logged() as log:
        net = Network(log)
        try:
            for store in stores:
                await net.add(store, settings)
            yield net
        finally:
            await asyncio.gather(*(net.stop(node) for node in list(net.nodes)))
        for store in stores:
            report = await asyncio.to_thread(store.check)
            assert report.is_clean, [str(problem) for problem in report.problems]
            store.close()
        assert may_complain or not log.errors(), log.errors()


async def cut_and_mend(net: Network, choice: random.Random, times: int) -> None:
    """Cut links at random moments, and connect them again."""
    for _ in range(times):
        await asyncio.sleep(choice.random() * 0.05)
        index = choice.randrange(len(net.links))
        link = net.links[index]
        link.close("cut by the test")
        await soon(asyncio.shield(link.closed))
        assert link.dialed is not None
        node = net.dialers.pop(link)
        net.links[index] = await node.connect(link.dialed)
        net.dialers[net.links[index]] = node


def with_key(settings: NodeSettings, key: bytes | None, *, separate: bool = False) -> NodeSettings:
    return replace(settings, cabal_key=key, has_separate_static_key=separate)


# --- raw peers ---------------------------------------------------------------------------------


class Raw:
    """Peer that sends messages of the test. It keeps received ones in `received`; `answer` answers them."""

    connected: ClassVar[set[Raw]] = set()

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dialect: Dialect = LEGACY) -> None:
        self.connected.add(self)
        self.dialect = dialect
        self.received: list[Message] = []
        self.is_over = False
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._next_id = random.randrange(2**20) << 8
        self._listening = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        with suppress(OSError):
            while data := await self._reader.read(65536):
                for frame in self._frames.feed(data):
                    with suppress(DecodeError):  # the other dialect, before it received this one
                        message = decode_message(frame, self.dialect)
                        if message is not None:
                            self.received.append(message)
                            self.answer(message)
        self.is_over = True

    def answer(self, message: Message) -> None:
        """Do nothing. Subclasses may override this."""

    def say(self, *messages: Message) -> None:
        self.write(b"".join(encode_message(message, self.dialect) for message in messages))

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    def send_request(self, request: Request) -> bytes:
        """Send a request under a new id. Return the id."""
        self._next_id += 1
        size = self.dialect.request_id_size_bytes
        request_id = (1 << 8 * size - 8 | self._next_id).to_bytes(size, "big")
        self.say(request._replace(request_id=request_id))
        return request_id

    def answers_to(self, request_id: bytes) -> list[Message]:
        kinds = HashResponse | PostResponse | ListResponse
        return [m for m in self.received if isinstance(m, kinds) and m.request_id == request_id]

    def hashes(self, request_id: bytes) -> list[bytes]:
        found = [m.hashes for m in self.answers_to(request_id) if isinstance(m, HashResponse)]
        return [digest for part in found for digest in part]

    def is_concluded(self, request_id: bytes) -> bool:
        answers = self.answers_to(request_id)
        return bool(answers) and (isinstance(answers[-1], ListResponse) or not answers[-1][1])

    def requests_of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.received if isinstance(message, kind)]

    async def close(self) -> None:
        self.connected.discard(self)
        self._writer.close()
        with suppress(OSError):
            await soon(self._writer.wait_closed())
        await soon(self._listening)

    def cut(self) -> None:
        self._writer.transport.abort()


class Keeper(Raw):
    """Old client with posts. Its attributes control its answers, which are honest."""

    oldest_first = False
    cap = 0
    """Maximum number of hashes of one answer, 0 for no limit."""
    concludes = True
    """If False, like cable.rs: the ends of time ranges and of posts are never announced."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, posts: Iterable[Post] = (), **options: Any
    ) -> None:
        self.posts = {post.hash: post for post in posts}
        vars(self).update(options)
        super().__init__(reader, writer, options.get("dialect", LEGACY))

    def answer(self, message: Message) -> None:
        match message:
            case ListRequest(request_id):
                names = sorted({post.channel for post in self.posts.values() if post.channel})
                self.say(ListResponse(request_id, tuple(names)))
            case TimeRangeRequest(request_id):
                self.tell(request_id, self.range_of(message), ends=self.concludes and not message.is_live)
            case PostRequest(request_id, hashes):
                self.give(request_id, hashes)
            case HashResponse() | PostResponse() | ListResponse() | CancelRequest():
                pass
            case _ if not getattr(message, "is_live", False):
                self.say(HashResponse(message.request_id, ()))

    def range_of(self, asked: TimeRangeRequest) -> tuple[bytes, ...]:
        end_ms = asked.time_end_ms or FOREVER_MS
        found = [p for p in self.posts.values() if p.channel == asked.channel]
        found = [p for p in found if asked.time_start_ms <= p.timestamp_ms < end_ms]
        found.sort(key=lambda post: (post.timestamp_ms, post.hash), reverse=not self.oldest_first)
        limit = min(asked.limit or len(found), self.cap or len(found))
        return tuple(post.hash for post in found[:limit])

    def tell(self, request_id: bytes, hashes: tuple[bytes, ...], *, ends: bool) -> None:
        if hashes:
            self.say(HashResponse(request_id, hashes))
        if ends:
            self.say(HashResponse(request_id, ()))

    def give(self, request_id: bytes, hashes: Iterable[bytes]) -> None:
        found = tuple(self.posts[digest].raw for digest in hashes if digest in self.posts)
        if found:
            self.say(PostResponse(request_id, found))
        if self.concludes:
            self.say(PostResponse(request_id, ()))


async def raw_peer(address: Address, kind: Callable[..., Any] = Raw, **options: Any) -> Any:
    """Connect a raw peer to a node."""
    return kind(*await asyncio.open_connection(*address), **options)


@asynccontextmanager
async def raw_listener(kind: Callable[..., Any], **options: Any) -> AsyncIterator[tuple[Address, list[Any]]]:
    """Listen for raw peers."""
    peers: list[Any] = []
    server = await asyncio.start_server(lambda *streams: peers.append(kind(*streams, **options)), HOST, 0)
    try:
        yield Address(*server.sockets[0].getsockname()[:2]), peers
    finally:
        server.close()
        for peer in peers:
            await peer.close()


def spread(count: int, together: int = 1) -> list[Post]:
    """Return texts, `together` of them at each moment."""
    return [ANN.text("default", str(n), at=START_MS + n // together) for n in range(count)]


async def paired(
    folder: Path,
    source: CableStore,
    act: Callable[[Node, Address], Awaitable[Any]],
    settings: NodeSettings = UNHURRIED,
    key: bytes = bytes(32),
    *,
    is_complete: bool = True,
) -> Any:
    """Run an action with a node on a folder, and the address of a node with `source`."""
    async with Node(source, with_key(ANSWERS_ONLY, key)) as serving:
        address = await serving.listen(Address(HOST, 0))
        with CableStore.open(folder) as store:
            async with Node(store, with_key(settings, key)) as node:
                found = await act(node, address)
            report = store.check()
            assert report.is_clean or not is_complete, report.problems
        return found


class Visit(NamedTuple):
    """Connection to a peer until its channel is marked: the numbers of received posts and bytes."""

    posts: int
    received_size_bytes: int


async def visit(node: Node, address: Address, channel: str = "default") -> Visit:
    """Connect to a peer, and wait until a pass over a channel is complete and marked."""
    entries, began_ms = node.store.last_sequence, system_clock_ms()
    connection = await soon(node.connect(address))
    static = connection.remote_static
    name = str(address) if static is None else static.hex()
    marks = node.parts.context.marks
    before = marks.get(name, channel)

    def is_marked() -> bool:
        mark, window_ms = marks.get(name, channel), node.settings.window_ms
        if mark is None or mark == before or mark.until_ms < began_ms:
            return False
        return mark.from_ms <= (0 if window_ms is None else system_clock_ms() - window_ms)

    await until(is_marked)
    size_bytes = connection.received_size_bytes
    connection.close("visited")
    await connection.closed
    return Visit(node.store.last_sequence - entries, size_bytes)


async def sync_of(node: Node, address: Address) -> Any:
    return await soon(node.sync_once(address))


async def is_refused(node: Node, address: Address) -> str:
    """Make a connection that must fail. Return the reason."""
    try:
        await soon(node.connect(address))
    except NodeError as error:
        return str(error)
    raise AssertionError("there was a connection")


def foreign(dialect: Dialect) -> Dialect:
    return DRAFT8 if dialect is LEGACY else LEGACY


def hashes_of(posts: Iterable[bytes]) -> set[bytes]:
    return {post_hash(post) for post in posts}
