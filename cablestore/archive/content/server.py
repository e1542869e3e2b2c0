"""Codex' REST API `/api/codex/v1` for a content store, compatible with Codex' clients.

It serves the routes that do not need Codex' network: data, manifests, space. The `network` routes return datasets of
the store and, if configured, verified datasets of upstream nodes. The API does not support authentication, so by
default the server listens only on this machine. It rejects requests of web pages, which can reach any host that the
browser reaches.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, Self

from aiohttp import web
from msgspec import to_builtins

from cablestore import limits
from cablestore.archive.content.api import (
    LEAVES_ROUTE,
    PREFIX,
    VERIFY,
    VIA,
    disposition,
    in_parts,
    item_json,
)
from cablestore.archive.content.http import check_name, error_log, is_own_host, one_content_type
from cablestore.archive.content.pacing import in_pieces, limit_unsent
from cablestore.archive.content.store import ContentStore
from cablestore.archive.content.upstream import Upstream
from cablestore.archive.errors import NoRoomError, NoSuchContentError
from cablestore.archive.format.cid import (
    Cid,
    DatasetManifest,
    ManifestFormat,
    check_filename,
    check_media_type,
    manifest_cid,
)
from cablestore.errors import ArchiveError, CableStoreError, NodeError, StorageError
from cablestore.resolution import RESOLVER
from cablestore.thread_contexts import entered_in_thread

_LOG: Final = logging.getLogger("cablestore.content")
_STATUS: Final[tuple[tuple[type[CableStoreError], HTTPStatus], ...]] = (
    (NoSuchContentError, HTTPStatus.NOT_FOUND),
    (NoRoomError, HTTPStatus.INSUFFICIENT_STORAGE),
    (StorageError, HTTPStatus.INSUFFICIENT_STORAGE),
    (CableStoreError, HTTPStatus.INTERNAL_SERVER_ERROR),
)
_FILENAME: Final = re.compile(r'filename="([^"]*)"?')
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ContentServer:
    """Server of the REST API for an open store. It listens at `address` within `async with`, and does not close the store.

    `upstream` lists URLs of nodes with the same API, from which missing datasets are fetched. `names` lists further
    host names of the server, NAME or NAME:PORT, for example behind a proxy. `manifest_format` is the format of
    manifests of uploads. Raises NodeError for an invalid name, and if it cannot listen at the address.
    """

    def __init__(
        self,
        store: ContentStore,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        upstream: Sequence[str] = (),
        names: Sequence[str] = (),
        manifest_format: ManifestFormat = ManifestFormat.CODEX,
        stall_timeout_s: float = limits.STALL_TIMEOUT_S,
        stop_timeout_s: float = 5.0,
    ) -> None:
        self._store = store
        self._where = (host, port)
        self._manifest_format = manifest_format
        self._stall_timeout_s = stall_timeout_s
        self._uploads = 0
        self._upstream = Upstream(store, upstream)
        self._names = frozenset(map(check_name, names))
        app = web.Application(middlewares=[self._own_alone, _in_words])
        app.add_routes(self._routes())
        self._runner = web.AppRunner(app, access_log=None, logger=error_log(), shutdown_timeout=stop_timeout_s)
        self._server: asyncio.Server | None = None
        self.address: tuple[str, int] = self._where

    @property
    def url(self) -> str:
        """URL for clients, without the API's prefix."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        make = self._runner.server
        assert make is not None  # noqa: S101 - `setup` created it
        host, port = self._where
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: one_content_type(make()), await RESOLVER.texts(host), port
            )
        except (OSError, OverflowError, ValueError) as error:  # ValueError: not a valid host name
            await self._runner.cleanup()
            raise NodeError(f"cannot listen on {self._where[0]}:{self._where[1]}: {error}") from None
        self.address = self._server.sockets[0].getsockname()[:2]
        await self._upstream.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop accepting requests, wait `stop_timeout_s` for running requests, then cancel them."""
        if self._server is not None:
            self._server.close()
        await self._upstream.stop()
        await self._runner.cleanup()

    def _routes(self) -> list[web.RouteDef]:
        data = f"{PREFIX}/data"
        return [
            web.post(data, self._upload),
            web.get(data, self._list, allow_head=False),
            web.get(f"{data}/{{cid}}", self._download, allow_head=False),
            web.delete(f"{data}/{{cid}}", self._delete),
            web.post(f"{data}/{{cid}}/network", self._fetch),
            web.get(f"{data}/{{cid}}/network/stream", self._network_stream, allow_head=False),
            web.get(f"{data}/{{cid}}/network/manifest", self._network_manifest, allow_head=False),
            web.get(f"{data}/{{cid}}/exists", self._exists, allow_head=False),
            web.get(f"{data}/{{cid}}/{LEAVES_ROUTE}", self._leaves, allow_head=False),
            web.get(f"{PREFIX}/space", self._space, allow_head=False),
            web.get(f"{PREFIX}/debug/info", self._info, allow_head=False),
            *(web.get(f"{PREFIX}/{route}", _no_network, allow_head=False) for route in ("spr", "peerid")),
            web.get(f"{PREFIX}/connect/{{peer}}", _no_network, allow_head=False),
        ]

    @web.middleware
    async def _own_alone(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Reject a request for an unknown host name: see `is_own_host`."""
        if not is_own_host(request, self._names):
            raise web.HTTPForbidden(text="unknown host name. Add the name with --name of `cablestore archive content`")
        return await handler(request)

    # --- uploads -----------------------------------------------------------------------------------

    async def _upload(self, request: web.Request) -> web.Response:
        filename, mimetype = _names(request)
        if (request.content_length or 0) > limits.MAX_DATASET_SIZE_BYTES:
            raise web.HTTPRequestEntityTooLarge(limits.MAX_DATASET_SIZE_BYTES, request.content_length or 0)
        if self._uploads >= limits.MAX_UPLOADS_AT_ONCE:
            raise web.HTTPServiceUnavailable(text=f"too many uploads: {self._uploads} are running. Try again later")
        self._uploads += 1
        try:
            manifest = await self._store_body(request, filename, mimetype)
        finally:
            self._uploads -= 1
        return web.Response(text=str(manifest_cid(manifest)))

    async def _store_body(self, request: web.Request, filename: str | None, mimetype: str | None) -> DatasetManifest:
        with self._store.incoming() as incoming:
            async for part in in_parts(self._body(request)):
                await asyncio.to_thread(incoming.write, part)
            if not incoming.size_bytes:
                raise web.HTTPUnprocessableEntity(text="empty body: a dataset has at least one byte")
            return await asyncio.to_thread(
                lambda: incoming.commit(filename=filename, mimetype=mimetype, manifest_format=self._manifest_format)
            )

    async def _body(self, request: web.Request) -> AsyncIterator[bytes]:
        try:
            while True:
                async with asyncio.timeout(self._stall_timeout_s):
                    data = await request.content.readany()
                if not data:
                    return
                yield data
        except TimeoutError:
            raise web.HTTPRequestTimeout(
                text=f"upload timed out: no data received for {self._stall_timeout_s:g} s. Upload again"
            ) from None

    # --- downloads ---------------------------------------------------------------------------------

    async def _list(self, _: web.Request) -> web.Response:
        datasets = await asyncio.to_thread(self._store.datasets)
        return web.json_response({"content": [item_json(cid, manifest) for cid, manifest in datasets]})

    async def _download(self, request: web.Request) -> web.StreamResponse:
        return await self._stream(request, _cid(request))

    async def _network_stream(self, request: web.Request) -> web.StreamResponse:
        cid = _cid(request)
        await self._upstream.fetch(cid, is_asked_by_node=VIA in request.headers)
        return await self._stream(request, cid)

    async def _stream(self, request: web.Request, cid: Cid) -> web.StreamResponse:
        manifest = self._store.manifest(cid)
        size_bytes = manifest.dataset_size_bytes
        start = _start(request, size_bytes)
        async with entered_in_thread(lambda: self._store.reader(cid, start)) as reader:
            first = await asyncio.to_thread(reader.read)  # if the beginning is damaged, the answer is an error
            response = web.StreamResponse(status=206 if start else 200)
            response.content_type = manifest.mimetype or "application/octet-stream"
            response.content_length = size_bytes - start
            response.headers["Accept-Ranges"] = "bytes"
            if manifest.filename is not None:
                response.headers["Content-Disposition"] = disposition(manifest.filename)
            if start:
                response.headers["Content-Range"] = f"bytes {start}-{size_bytes - 1}/{size_bytes}"
            await response.prepare(request)
            await self._send(request, response, reader.read, first)
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, read: Callable[[], bytes], part: bytes
    ) -> None:
        """Send `part`, then all parts that `read` returns until it returns b"".

        If this fails, the connection is aborted, so that the client gets an error.
        """
        if request.transport is not None:
            limit_unsent(request.transport.get_extra_info("socket"))
        try:
            while part:
                for piece in in_pieces(part):
                    async with asyncio.timeout(self._stall_timeout_s):
                        await response.write(piece)
                part = await asyncio.to_thread(read)
            await response.write_eof()
        except (CableStoreError, TimeoutError) as error:
            _LOG.warning(
                "download aborted", extra={"path": request.path, "reason": str(error) or "the client did not read"}
            )
            if request.transport is not None:
                request.transport.abort()

    async def _leaves(self, request: web.Request) -> web.StreamResponse:
        async with entered_in_thread(lambda: self._store.reader(_cid(request))) as reader:
            response = web.StreamResponse()
            response.content_type = "application/octet-stream"
            response.content_length = reader.leaves_size_bytes
            await response.prepare(request)
            await self._send(request, response, reader.read_leaves, await asyncio.to_thread(reader.read_leaves))
            return response

    # --- other requests ----------------------------------------------------------------------------

    async def _fetch(self, request: web.Request) -> web.Response:
        answer = await self._network_manifest(request)
        if VIA not in request.headers:
            self._upstream.begin(_cid(request))
        return answer

    async def _network_manifest(self, request: web.Request) -> web.Response:
        cid = _cid(request)
        manifest = await self._upstream.manifest(cid, is_asked_by_node=VIA in request.headers)
        return web.json_response(item_json(cid, manifest))

    async def _exists(self, request: web.Request) -> web.Response:
        cid = _cid(request)
        has = await asyncio.to_thread(self._store.is_intact if VERIFY in request.query else self._store.exists, cid)
        # Nim-codex uses the first key, its openapi.yaml the second.
        return web.json_response({str(cid): has, "has": has})

    async def _delete(self, request: web.Request) -> web.Response:
        await asyncio.to_thread(self._store.delete, _cid(request))
        return web.Response(status=204)

    async def _space(self, _: web.Request) -> web.Response:
        space = await asyncio.to_thread(self._store.space)
        return web.json_response(to_builtins(space))

    async def _info(self, _: web.Request) -> web.Response:
        """Answer that this is not a node of Codex' network: all fields that identify a node are empty."""
        node = {"nodeId": "", "peerId": "", "record": "", "address": "", "seen": False}
        fields: dict[str, Any] = {"id": "", "addrs": [], "repo": "", "spr": "", "announceAddresses": []}
        fields |= {"table": {"localNode": node, "nodes": []}, "codex": {"version": "cablestore", "revision": ""}}
        return web.json_response(fields)


@web.middleware
async def _in_words(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Convert errors of `handler` to responses with a status and a message. Reject requests of web pages."""
    if "Origin" in request.headers:
        raise web.HTTPForbidden(text="requests of web pages in browsers are not allowed")
    try:
        return await handler(request)
    except CableStoreError as error:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            _LOG.warning("request failed", extra={"path": request.path, "reason": str(error)})
        return web.Response(status=status, text=str(error))


async def _no_network(_: web.Request) -> web.Response:
    raise web.HTTPNotImplemented(
        text="not supported: this content store is not a node of the Codex network and does not have peers"
    )


def _cid(request: web.Request) -> Cid:
    try:
        return Cid.parse(request.match_info["cid"])
    except ArchiveError as error:
        raise web.HTTPBadRequest(text=str(error)) from None


def _start(request: web.Request, size_bytes: int) -> int:
    """Return the offset at which a download begins.

    Only ranges that extend to the end are supported. For other ranges, the whole dataset is sent, as RFC 9110 allows.
    """
    match = re.fullmatch(r"bytes=([0-9]{1,19})-", request.headers.get("Range", ""))
    start = int(match[1]) if match else 0
    if start >= size_bytes:
        raise web.HTTPRequestRangeNotSatisfiable(
            text=f"the dataset has {size_bytes} bytes", headers={"Content-Range": f"bytes */{size_bytes}"}
        )
    return start


def _names(request: web.Request) -> tuple[str | None, str | None]:
    """Return the filename and media type of an upload.

    Answers with status 422 if either is invalid, and with 415 if the body is compressed.
    """
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise web.HTTPUnsupportedMediaType(text="compressed body not supported. Send the body uncompressed")
    found = _FILENAME.search(request.headers.get("Content-Disposition", ""))
    filename = found[1] if found else None
    mimetype = request.headers.get("Content-Type", "").partition(";")[0].strip() or None
    try:
        if filename is not None:
            check_filename(filename)
        if mimetype is not None:
            check_media_type(mimetype)
    except ArchiveError as error:
        raise web.HTTPUnprocessableEntity(text=str(error)) from None
    return filename, mimetype
