"""Client of any node with Codex' REST API. It verifies all data against the content id.

The manifest is verified against the id, and the bytes against the manifest's tree. Nodes with cablestore also serve the
leaves. With them, each block is verified on arrival, and an interrupted download resumes after the last valid block.
Otherwise the whole dataset is verified before it gets its name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from cablestore import limits
from cablestore.archive.content.api import (
    LEAVES_ROUTE,
    PREFIX,
    VERIFY,
    VIA,
    Item,
    disposition,
    in_parts,
    read_answer,
    read_item,
    read_list,
    read_manifest_of,
)
from cablestore.archive.content.dataset import PART_SIZE_BYTES
from cablestore.archive.content.pacing import in_pieces, limit_unsent
from cablestore.archive.content.partial import PartialDownload
from cablestore.archive.content.store import IncomingDataset, Space
from cablestore.archive.errors import NoRoomError, NoSuchContentError, UnreachableError
from cablestore.archive.format.cid import (
    Cid,
    DatasetHasher,
    DatasetManifest,
    check_filename,
    check_media_type,
    manifest_of,
)
from cablestore.errors import ArchiveError
from cablestore.resolution import RESOLVER

_MAX_TEXT_SIZE_BYTES: Final = 2_048
"""Maximum number of bytes to read of a short answer, such as a content id or an error message."""
_CONNECT_TIMEOUT_S: Final = 10.0
"""Timeout for connecting to a node."""
_WINDOW_SIZE_BYTES: Final = 524_288
"""Maximum number of received bytes that wait for the disk. Up to twice as many are held in memory."""


class UploadReport(NamedTuple):
    """Result of an upload."""

    cid: Cid
    tree: Cid
    size_bytes: int
    manifest: DatasetManifest | None
    """None if the node's manifest has an unknown format. Then only the node's answer shows that the id belongs to the
    tree."""


class ContentClient:
    """Client that uploads datasets to one node and downloads them. Calls may run concurrently.

    With `network`, the node fetches missing data from other nodes. With `is_relay`, a header marks the requests as sent
    by a node on behalf of its client. A call fails after `stall_timeout_s` without progress, or after
    `total_timeout_s`.

    >>> async with ContentClient("http://127.0.0.1:8080") as client:
    ...     uploaded = await client.upload_file(Path("archive"), filename="archive-data.bin")
    ...     await client.download(uploaded.cid, Path("copy"))

    All calls raise ArchiveError: UnreachableError if the node does not answer or stops during a transfer,
    NoSuchContentError, NoRoomError, and ArchiveError itself for rejected requests and invalid answers.
    """

    def __init__(
        self,
        url: str,
        *,
        network: bool = False,
        is_relay: bool = False,
        stall_timeout_s: float = limits.STALL_TIMEOUT_S,
        total_timeout_s: float | None = None,
    ) -> None:
        self.url: Final = url.rstrip("/")
        self._network = network
        self._stall_timeout_s = stall_timeout_s
        self._timeout = aiohttp.ClientTimeout(
            total=total_timeout_s, sock_connect=_CONNECT_TIMEOUT_S, sock_read=stall_timeout_s
        )
        # Compressed answers are rejected, because they could unpack to any size.
        self._headers = {"Accept-Encoding": "identity"} | ({VIA: "1.1 cablestore"} if is_relay else {})
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        if self._session is not None and not self._session.closed:
            raise ArchiveError(
                "the client is already open. Exit its `async with` block first, or create another client"
            )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=_paced_socket, resolver=_Names()),
            timeout=self._timeout,
            headers=self._headers,
            auto_decompress=False,
            read_bufsize=_WINDOW_SIZE_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- uploads -----------------------------------------------------------------------------------

    async def upload_bytes(
        self, data: bytes, *, filename: str | None = None, mimetype: str | None = None
    ) -> UploadReport:
        """Upload bytes: see `upload_file`."""
        parts = (data[at : at + PART_SIZE_BYTES] for at in range(0, len(data), PART_SIZE_BYTES))
        return await self._upload(parts, filename, mimetype)

    async def upload_file(
        self, path: Path, *, filename: str | None = None, mimetype: str | None = None
    ) -> UploadReport:
        """Upload a file. Return its content id, which is verified against the sent bytes.

        Raises ArchiveError if the node answers with another id, and OSError if the file cannot be read.
        """
        with path.open("rb") as file:
            return await self._upload(iter(lambda: file.read(PART_SIZE_BYTES), b""), filename, mimetype)

    async def _upload(self, parts: Iterator[bytes], filename: str | None, mimetype: str | None) -> UploadReport:
        headers = {}
        if filename is not None:
            check_filename(filename)
            headers["Content-Disposition"] = disposition(filename)
        if mimetype is not None:
            check_media_type(mimetype)
            headers["Content-Type"] = mimetype
        hasher = DatasetHasher()
        try:
            text = await self._send(parts, hasher, headers)
        except TimeoutError:
            raise UnreachableError(
                f"upload timed out: {self.url} accepted no data for {self._stall_timeout_s:g} s. Try again later, or "
                "use another node"
            ) from None
        cid = Cid.parse(text.decode("ascii", errors="replace").strip())
        tree, _ = hasher.finish()
        return await self._recognised(cid, tree, hasher.size_bytes, filename, mimetype)

    async def _send(self, parts: Iterator[bytes], hasher: DatasetHasher, headers: dict[str, str]) -> bytes:
        """Upload `parts`, add them to `hasher`, return the answer. Raises TimeoutError if the node accepts no data."""
        async with asyncio.timeout(self._stall_timeout_s) as limit:

            async def body() -> AsyncIterator[bytes]:
                while part := await asyncio.to_thread(next, parts, b""):
                    await asyncio.to_thread(hasher.update, part)
                    for piece in in_pieces(part):
                        limit.reschedule(asyncio.get_running_loop().time() + self._stall_timeout_s)
                        yield piece

            options = {"data": body(), "headers": headers, "skip_auto_headers": ["Content-Type"]}
            async with self._request("POST", "/data", **options) as response:
                return await _read(response, _MAX_TEXT_SIZE_BYTES)

    async def _recognised(
        self, cid: Cid, tree: Cid, size_bytes: int, filename: str | None, mimetype: str | None
    ) -> UploadReport:
        """Return the report of an upload. Raises ArchiveError unless `cid`, from the node, matches the sent bytes.

        `tree` and `size_bytes` describe the sent bytes. If no known manifest format gives `cid`, the node's manifest is
        requested and compared with them.
        """
        manifest = manifest_of(cid, tree, size_bytes, filename, mimetype)
        if manifest is not None:
            return UploadReport(cid, tree, size_bytes, manifest)
        item = read_answer(await self._manifest_answer(cid), Item, "a dataset")
        if (item.manifest.tree_cid, item.manifest.dataset_size) != (str(tree), size_bytes):
            raise ArchiveError(
                f"{self.url} returned the wrong content id {cid} for {size_bytes} bytes with the tree {tree}. Use "
                "another node"
            )
        try:
            return UploadReport(cid, tree, size_bytes, read_item(item)[1])
        except ArchiveError:
            return UploadReport(cid, tree, size_bytes, None)

    # --- downloads ---------------------------------------------------------------------------------

    async def manifest(self, cid: Cid) -> DatasetManifest:
        """Return the manifest with this id. Raises ArchiveError if the node returns another manifest."""
        return read_manifest_of(cid, await self._manifest_answer(cid))

    async def _manifest_answer(self, cid: Cid) -> bytes:
        async with self._request("GET", f"/data/{cid}/network/manifest") as response:
            return await _read(response, limits.MAX_MANIFEST_SIZE_BYTES)

    async def download(
        self,
        cid: Cid,
        target: Path,
        *,
        manifest: DatasetManifest | None = None,
        max_size_bytes: int = limits.MAX_DATASET_SIZE_BYTES,
    ) -> DatasetManifest:
        """Download a dataset into a file and return its manifest.

        The file is created or replaced after all bytes are verified.

        The next call resumes an interrupted download, from the same or another node. Received bytes are kept in
        hidden files beside the target, and removed if the node sent wrong bytes. Pass a known `manifest` to save a
        request. A dataset of more than `max_size_bytes` is rejected.
        """
        if manifest is None:
            manifest = await self.manifest(cid)
        if manifest.dataset_size_bytes > max_size_bytes:
            raise ArchiveError(f"{cid} has {manifest.dataset_size_bytes} bytes, expected at most {max_size_bytes}")
        with PartialDownload(target, manifest) as partial:
            try:
                await self._fill(cid, partial, manifest)
                await asyncio.to_thread(partial.finish)
            except (UnreachableError, NoSuchContentError, NoRoomError):
                raise
            except ArchiveError:
                partial.remove()
                raise
        return manifest

    async def _fill(self, cid: Cid, partial: PartialDownload, manifest: DatasetManifest) -> None:
        if not partial.has_leaves:
            await self._get_leaves(cid, partial)
        start = await asyncio.to_thread(partial.resume)
        if start == manifest.dataset_size_bytes:
            return
        async with self._data(cid, manifest, start) as (response, begins):
            if begins != start:
                partial.restart()
            async for part in in_parts(response.content.iter_any()):
                await asyncio.to_thread(partial.write, part)

    async def _get_leaves(self, cid: Cid, partial: PartialDownload) -> None:
        """Download the leaves into `partial` and verify them. Do nothing if the node does not serve leaves."""
        at = 0
        try:
            async with self._request("GET", f"/data/{cid}/{LEAVES_ROUTE}") as response:
                async for part in in_parts(response.content.iter_any()):
                    partial.add_leaves(part, at)
                    at += len(part)
        except NoSuchContentError:
            return
        await asyncio.to_thread(partial.check_leaves)

    async def fetch_into(self, cid: Cid, incoming: IncomingDataset) -> DatasetManifest:
        """Download a dataset into `incoming`, verify and commit it, and return its manifest."""
        manifest = await self.manifest(cid)
        async with self._data(cid, manifest, 0) as (response, _):
            size_bytes = 0
            async for part in in_parts(response.content.iter_any()):
                size_bytes += len(part)
                if size_bytes > manifest.dataset_size_bytes:
                    raise ArchiveError(f"{self.url} sent more than the {manifest.dataset_size_bytes} bytes of {cid}")
                await asyncio.to_thread(incoming.write, part)
        await asyncio.to_thread(incoming.commit_as, manifest)
        return manifest

    @asynccontextmanager
    async def _data(
        self, cid: Cid, manifest: DatasetManifest, start: int
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, int]]:
        """Request a dataset's bytes from `start`.

        Yields the response and the offset of its first byte: `start`, or 0 if the node sends the whole dataset.
        """
        route = f"/data/{cid}/network/stream" if self._network else f"/data/{cid}"
        headers = {"Range": f"bytes={start}-"} if start else {}
        async with self._request("GET", route, headers=headers) as response:
            size_bytes = manifest.dataset_size_bytes
            begins = start if response.status == 206 else 0
            if begins and response.headers.get("Content-Range") != f"bytes {start}-{size_bytes - 1}/{size_bytes}":
                raise ArchiveError(f"{self.url} returned the wrong range of {cid}: requested from byte {start}")
            if response.content_length not in (None, size_bytes - begins):
                raise ArchiveError(
                    f"{self.url} announces {response.content_length} bytes of {cid}, expected {size_bytes - begins}"
                )
            yield response, begins

    # --- other requests ----------------------------------------------------------------------------

    async def datasets(self) -> tuple[list[tuple[Cid, DatasetManifest]], list[str]]:
        """Return the node's datasets with verified manifests, and the errors of all other listed datasets."""
        async with self._request("GET", "/data") as response:
            return read_list(await _read(response, limits.MAX_DATASET_LIST_SIZE_BYTES))

    async def exists(self, cid: Cid, *, verify: bool = False) -> bool:
        """Return True if the node claims to have a dataset. It may have only the manifest, or the claim may be false.

        With `verify`, a node with cablestore first reads all blocks.
        """
        query = f"?{VERIFY}=1" if verify else ""
        try:
            async with self._request("GET", f"/data/{cid}/exists{query}") as response:
                answer = await _read(response, _MAX_TEXT_SIZE_BYTES)
        except NoSuchContentError:
            return False
        told = read_answer(answer, dict[str, Any], f"whether it has {cid}")
        return told.get(str(cid), told.get("has")) is True

    async def space(self) -> Space:
        """Return the used space and the quota of the node."""
        async with self._request("GET", "/space") as response:
            return read_answer(await _read(response, _MAX_TEXT_SIZE_BYTES), Space, "the space of a node")

    async def delete(self, cid: Cid) -> None:
        """Delete a dataset on the node. Do nothing if the node does not have it."""
        async with self._request("DELETE", f"/data/{cid}"):
            return

    @asynccontextmanager
    async def _request(self, method: str, route: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the response, whose body is not read yet. Raises ArchiveError for any failure."""
        if self._session is None:
            raise ArchiveError("the client is not open. Use it in an `async with` block")
        try:
            async with self._session.request(
                method, f"{self.url}{PREFIX}{route}", allow_redirects=False, **options
            ) as response:
                if response.status not in (200, 204, 206):
                    raise await _rejection(response, self.url)
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise ArchiveError(f"{self.url} answered with a content encoding that was not requested")
                yield response
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"{self.url} does not answer, or closed the connection: {reason}") from None


class _Names(AbstractResolver):
    """Resolver that looks up host names in threads. The shutdown of the event loop does not wait for these threads."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host. Raises OSError, also if the name server does not answer within 10 seconds."""
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            texts = await RESOLVER.texts(host)
        families = [(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for text in texts]
        flags = socket.AI_NUMERICHOST
        return [
            ResolveResult(hostname=host, host=text, port=port, family=found, proto=0, flags=flags)
            for found, text in families
            if family in (socket.AF_UNSPEC, found)
        ]

    async def close(self) -> None:
        """Do nothing: the resolver belongs to the process."""


def _paced_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    connection = socket.socket(family, kind, protocol)
    limit_unsent(connection)
    return connection


async def _rejection(response: aiohttp.ClientResponse, url: str) -> ArchiveError:
    """Return the error for an answer with an error status."""
    text = (await response.content.read(_MAX_TEXT_SIZE_BYTES)).decode(errors="replace").strip()
    reason = f"{url} answered {response.status} {response.reason}: {text[:300]!r}"
    if response.status == 404:
        return NoSuchContentError(reason)
    if response.status in (413, 507):
        return NoRoomError(reason)
    return UnreachableError(reason) if response.status >= 500 else ArchiveError(reason)


async def _read(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """Read a whole answer. Raises ArchiveError if it exceeds the limit."""
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > limit_bytes:
            raise ArchiveError(f"answer too large: {response.url} sent more than {limit_bytes} bytes. Use another node")
    return bytes(data)
