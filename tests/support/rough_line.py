"""A rough line to a peer: a proxy on this machine with a rate, a delay and breaks, which counts the bytes.

Its buffers are short, so that unsent data waits at the sender, as on a real line.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from peering import HOST

from cablestore import LEGACY
from cablestore.errors import DecodeError
from cablestore.peers import Address
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.message import (
    MESSAGE_NAMES,
    FrameReader,
    PostRequest,
    PostResponse,
    decode_message,
    extra_of,
)
from cablestore.reconcile.dialects import SPEC
from cablestore.reconcile.messages import PostsFrame, decode_frame
from cablestore.reconcile.transfer import decode_message as decode_transferred

Way = Literal["up", "down"]
"""Direction: from the side that connects, or to it."""
_PIECE_SIZE_BYTES: Final = 1_024
_BUFFER_SIZE_BYTES: Final = 8_192
_LATE_S: Final = 0.02
"""Maximum delay of a turn of the loop before the line is slower than its rate."""


@dataclass
class Passed:
    """Bytes over one connection of the line, by direction."""

    began_s: float
    ended_s: float = 0.0
    sizes_bytes: Counter[Way] = field(default_factory=Counter)
    posts_size_bytes: int = 0
    """Size of the posts that were received for the first time."""


class Tap:
    """Reader of one direction of a plain legacy connection: hashes of requested posts, and posts."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self.asked: list[bytes] = []
        self.posts: list[bytes] = []
        self.sizes_bytes: Counter[str] = Counter()
        """Sizes of complete messages by type."""

    def feed(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            content = extra_of(frame)
            name = self._reconciled(content) if content is not None else self._spoken(frame)
            self.sizes_bytes[name] += len(frame)

    def _spoken(self, frame: bytes) -> str:
        message = decode_message(frame, LEGACY)
        if isinstance(message, PostRequest):
            self.asked += message.hashes
        elif isinstance(message, PostResponse):
            self.posts += message.posts
        return "?" if message is None else MESSAGE_NAMES[type(message)]

    def _reconciled(self, content: bytes) -> str:
        try:
            _, message = decode_frame(content)
        except DecodeError:
            return "notice"
        except Exception:  # noqa: BLE001 - a notice cannot be read as a frame
            return "notice"
        if isinstance(message, PostsFrame):
            self.posts += [decode_transferred(each, SPEC).message.payload for each in message.contents]
        return type(message).__name__


class RoughLine:
    """A line to `to` with a rate, a delay and breaks.

    It passes `bytes_per_s` each way with a delay of `delay_s`, and breaks after `cut_s` or `cut_size_bytes`. 0 means no
    limit. With `taps`, plain legacy connections are read too.
    """

    def __init__(
        self,
        to: Address,
        *,
        bytes_per_s: float = 0,
        delay_s: float = 0,
        cut_s: float = 0,
        cut_size_bytes: int = 0,
        is_tapped: bool = False,
    ) -> None:
        self.to = to
        self.bytes_per_s = bytes_per_s
        self.delay_s = delay_s
        self.cut_s = cut_s
        self.cut_size_bytes = cut_size_bytes
        self.is_tapped = is_tapped
        self.passed: list[Passed] = []
        self.taps: list[dict[Way, Tap]] = []
        self._seen: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Address:
        listening = socket.create_server((HOST, 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_SIZE_BYTES)  # connections inherit it
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=_PIECE_SIZE_BYTES)
        return Address(*listening.getsockname()[:2])

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def total(self, way: Way) -> int:
        """Return the bytes in a direction, over all connections."""
        return sum(each.sizes_bytes[way] for each in self.passed)

    def asked(self) -> Counter[bytes]:
        """Return how often each post was requested."""
        return Counter(digest for taps in self.taps for tap in taps.values() for digest in tap.asked)

    def delivered(self, way: Way = "down") -> Counter[bytes]:
        """Return how often each post passed completely in a direction."""
        return Counter(post_hash(post) for taps in self.taps for post in taps[way].posts)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers = [writer]
        loop = asyncio.get_running_loop()
        passed = Passed(loop.time())
        try:
            there, to_there = await self._connect()
            writers.append(to_there)
            self.passed.append(passed)
            taps: dict[Way, Tap] = {"up": Tap(), "down": Tap()}
            self.taps.append(taps)
            ways = [
                asyncio.ensure_future(self._pump(reader, to_there, self._counting(passed, "up", taps["up"]))),
                asyncio.ensure_future(self._pump(there, writer, self._counting(passed, "down", taps["down"]))),
            ]
            try:
                await asyncio.wait(ways, timeout=self.cut_s or None, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):  # the streams of asyncio report a cancelled callback
            pass
        finally:
            passed.ended_s = loop.time()
            for each in writers:
                each.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_SIZE_BYTES)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, tuple(self.to))
        return await asyncio.open_connection(sock=peer, limit=_PIECE_SIZE_BYTES)

    def _counting(self, passed: Passed, way: Way, tap: Tap) -> Callable[[bytes], bool]:
        """Return a function that counts a piece, and returns whether the line breaks before it."""

        def count(data: bytes) -> bool:
            if self.cut_size_bytes and sum(passed.sizes_bytes.values()) + len(data) > self.cut_size_bytes:
                return True
            passed.sizes_bytes[way] += len(data)
            if self.is_tapped:
                known = len(tap.posts)
                tap.feed(data)
                for post in tap.posts[known:] if way == "down" else ():
                    if (digest := post_hash(post)) not in self._seen:
                        self._seen.add(digest)
                        passed.posts_size_bytes += len(post)
            return False

        return count

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, breaks: Callable[[bytes], bool]
    ) -> None:
        """Forward until the stream ends or the line breaks. Data in transit is lost then."""
        loop = asyncio.get_running_loop()
        under_way: deque[tuple[float, bytes]] = deque()
        more = asyncio.Event()
        free_s = 0.0

        async def take() -> None:
            nonlocal free_s
            while data := await reader.read(_PIECE_SIZE_BYTES):
                free_s = max(free_s, loop.time() - _LATE_S)
                if self.bytes_per_s:
                    free_s += len(data) / self.bytes_per_s
                    await asyncio.sleep(free_s - loop.time())
                under_way.append((loop.time() + self.delay_s, data))
                more.set()
            under_way.append((loop.time() + self.delay_s, b""))
            more.set()

        taking = asyncio.ensure_future(take())
        try:
            while True:
                while not under_way and not taking.done():
                    more.clear()
                    await more.wait()
                at_s, data = under_way.popleft()
                if at_s > loop.time():
                    await asyncio.sleep(at_s - loop.time())
                if not data or breaks(data):
                    return
                writer.write(data)
                await writer.drain()
        finally:
            taking.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await taking
