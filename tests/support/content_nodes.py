"""Nodes with Codex' REST API for tests: the server in a thread or a process, and a scripted one on a real socket."""

from __future__ import annotations

import asyncio
import http.client
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from content_child import OWN_HOST, OWN_NAME
from folders import SUPPORT
from waiting import LIMIT_S

from cablestore.archive.content.api import PREFIX, item_json, read_manifest_of
from cablestore.archive.content.client import ContentClient, UploadReport
from cablestore.archive.content.server import ContentServer
from cablestore.archive.content.store import ContentStore
from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_TREE,
    Cid,
    DatasetManifest,
    RootHasher,
    leaf_of,
    manifest_cid,
)

CHILD = SUPPORT / "content_child.py"
_LINK_SIZE_BYTES = 16_384
Body = Callable[[web.StreamResponse], Awaitable[None]]


@dataclass
class ContentNode:
    """A node at a URL."""

    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


class ServedContent(ContentNode):
    """The server of this package in a separate process."""

    def __init__(self, folder: Path, *upstream: str) -> None:
        command = [sys.executable, str(CHILD), "serve", str(folder), *upstream]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        super().__init__(self.process.stdout.readline().strip())
        assert self.url, "it did not start"

    def highest_memory_mb(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/status").read_text().split("VmHWM:")[1]
        return int(fields.split()[0]) / 1000

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def stop(self) -> None:
        self.process.terminate()
        self._ended()

    def _ended(self) -> None:
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def served(folder: Path, *upstream: str) -> Iterator[ServedContent]:
    node = ServedContent(folder, *upstream)
    try:
        yield node
    finally:
        node.stop()


@contextmanager
def served_in_thread(folder: Path) -> Iterator[ContentNode]:
    """Serve a store in a thread of this process, under the same names as a process does."""
    started: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        async with ContentServer(store, names=[OWN_NAME, f"{OWN_HOST}:81"]) as server:
            started.set_result((server.url, lambda: loop.call_soon_threadsafe(ended.set)))
            await ended.wait()

    with ContentStore.open(folder) as store, ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, serve())
        url, end = started.result(LIMIT_S)
        try:
            yield ContentNode(url)
        finally:
            end()
            running.result(LIMIT_S)


@asynccontextmanager
async def slow_link(address: tuple[str, int], bytes_per_s: int) -> AsyncIterator[tuple[str, int]]:
    """Forward data to an address at this rate, and its answers. Buffers on the way are small."""

    async def flow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError), closing(writer):
            while data := await reader.read(_LINK_SIZE_BYTES):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(len(data) / bytes_per_s)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = _little_waits(socket.socket())
        there.setblocking(False)
        await asyncio.get_running_loop().sock_connect(there, address)
        far_reader, far_writer = await asyncio.open_connection(sock=there, limit=_LINK_SIZE_BYTES)
        await asyncio.gather(flow(reader, far_writer), flow(far_reader, writer))

    here = _little_waits(socket.socket())
    here.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(pass_on, sock=here, limit=_LINK_SIZE_BYTES)
    async with server:
        yield here.getsockname()


def _little_waits(end: socket.socket) -> socket.socket:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LINK_SIZE_BYTES)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LINK_SIZE_BYTES)
    return end


async def request_fetch(client: ContentClient, cid: Cid) -> DatasetManifest:
    """Request that a client's node fetches a dataset from others, in the background. Return its manifest."""
    async with client._request("POST", f"/data/{cid}/network") as response:
        return read_manifest_of(cid, await response.read())


def tree_cid(leaves: Iterable[bytes]) -> Cid:
    """Return the id of the dataset whose blocks have these leaves."""
    hasher = RootHasher()
    for leaf in leaves:
        hasher.add(leaf)
    return Cid(CODEC_TREE, hasher.root())


def described(
    data: bytes, filename: str | None = "a", mimetype: str | None = None
) -> tuple[Cid, DatasetManifest, bytes]:
    """Return a dataset's id, manifest and leaves, joined."""
    blocks = [data[at : at + BLOCK_SIZE_BYTES] for at in range(0, len(data), BLOCK_SIZE_BYTES)]
    leaves = [leaf_of(block) for block in blocks]
    manifest = DatasetManifest(tree_cid(leaves), len(data), filename, mimetype)
    return manifest_cid(manifest), manifest, b"".join(leaves)


@dataclass
class ScriptedNode:
    """Node with scripted answers. None means 404; a function writes the answer itself."""

    data: bytes | Body | None = None
    manifest: Any = None
    leaves: bytes | Body | None = None
    listed: Any = None
    exists: Any = None
    uploaded: bytes | Body | None = None
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200
    accepts_ranges: bool = False
    cut_at: int | None = None
    """Position at which the connection breaks, from the beginning of the dataset."""
    asked: list[str] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        route = request.path.removeprefix(PREFIX)
        self.asked.append(f"{request.method} {route.rpartition('/')[2]} {request.headers.get('Range', '')}".strip())
        if request.method == "POST":
            await request.content.read()
            return await self.give(request, self.uploaded)
        if route == "/data":
            return await self.give(request, self.listed)
        match route.split("/")[3:]:
            case ["network", "manifest"]:
                return await self.give(request, self.manifest)
            case ["leaves"]:
                return await self.give(request, self.leaves)
            case ["exists"]:
                return await self.give(request, self.exists)
            case [] | ["network", "stream"]:
                return await self.give_data(request)
        return web.Response(status=404)

    async def give(self, request: web.BaseRequest, what: Any) -> web.StreamResponse:
        if what is None:
            return web.Response(status=404, text="not found")
        if callable(what):
            response = web.StreamResponse(status=self.status, headers=self.headers)
            await response.prepare(request)
            await what(response)
            return response
        if isinstance(what, bytes):
            return web.Response(body=what)
        return web.json_response(what)

    async def give_data(self, request: web.BaseRequest) -> web.StreamResponse:
        if not isinstance(self.data, bytes):
            return await self.give(request, self.data)
        start = int(request.headers["Range"][6:-1]) if self.accepts_ranges and "Range" in request.headers else 0
        response = web.StreamResponse(status=206 if start else self.status, headers=self.headers)
        if "Content-Length" not in self.headers:
            response.content_length = len(self.data) - start
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        await response.prepare(request)
        await response.write(self.data[start : self.cut_at])
        if self.cut_at is not None or len(self.data) != int(response.headers["Content-Length"]) + start:
            assert request.transport is not None
            request.transport.close()  # written bytes are sent before
        return response


@asynccontextmanager
async def running(node: ScriptedNode) -> AsyncIterator[ScriptedNode]:
    """Run the node."""
    server = web.Server(node.answer)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        node.url = "http://{}:{}".format(*runner.addresses[0][:2])
        yield node
    finally:
        await runner.cleanup()


def honest(whole: bytes, **more: Any) -> tuple[Cid, ScriptedNode]:
    """Return a dataset's id, and a node that has it without leaves, like Codex' own datasets."""
    cid, manifest, _ = described(whole)
    return cid, ScriptedNode(**({"data": whole, "manifest": item_json(cid, manifest)} | more))


async def without_end(response: web.StreamResponse) -> None:
    """Write until the reader disconnects."""
    for _ in range(100_000):
        await response.write(b"\x7b\x20" * 100_000)


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@asynccontextmanager
async def all_running(*nodes: ScriptedNode) -> AsyncIterator[list[str]]:
    """Run several nodes. Yields their URLs."""
    async with AsyncExitStack() as stack:
        yield [(await stack.enter_async_context(running(node))).url for node in nodes]


def ask(
    node: ContentNode, method: str, route: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Send a request without the client. Return status, headers and body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(http.client.HTTPConnection("127.0.0.1", node.port, timeout=LIMIT_S)) as connection:
        connection.request(method, PREFIX + route, body, named)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()


def put(node: ContentNode, data: bytes, **headers: str) -> str:
    status, _, text = ask(node, "POST", "/data", data, **headers)
    assert status == 200, text
    return text.decode()


def with_server(folder: Path, work: Callable[[ContentServer, ContentClient], Awaitable[Any]], **options: Any) -> Any:
    """Serve a store in this process and run `work` with a client of it."""

    async def run() -> Any:
        with ContentStore.open(folder, quota_size_bytes=options.pop("quota_size_bytes", 2**30)) as store:
            async with ContentServer(store, **options) as server, ContentClient(server.url) as client:
                return await work(server, client)

    return asyncio.run(run())


# --- a client without an event loop --------------------------------------------------------------------


def upload_file(url: str, path: Path, *, filename: str | None = None, mimetype: str | None = None) -> UploadReport:
    async def work() -> UploadReport:
        async with ContentClient(url) as client:
            return await client.upload_file(path, filename=filename, mimetype=mimetype)

    return asyncio.run(work())


def download_file(url: str, cid: Cid, target: Path) -> DatasetManifest:
    async def work() -> DatasetManifest:
        async with ContentClient(url) as client:
            return await client.download(cid, target)

    return asyncio.run(work())
