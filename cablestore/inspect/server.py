"""The HTTP server of the page: routes, JSON and HTML, errors."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlencode

import jinja2
from aiohttp import web

from cablestore.aio import AsyncCableStore
from cablestore.archive.content.http import error_log
from cablestore.errors import ArgumentError, CableStoreError, CursorError, NotFoundError
from cablestore.inspect import channels, charts, graph, keyspace, overview, peers, posts, search, users
from cablestore.inspect.access import HEADERS, Access
from cablestore.inspect.live import LiveEvents
from cablestore.inspect.page import Inspected, Page, Query, plain
from cablestore.inspect.settings import InspectSettings
from cablestore.inspect.shown_text import shown, shown_plain
from cablestore.inspect.terms import term
from cablestore.peers import Address
from cablestore.peers.address import listen_error
from cablestore.remote.node import WatchedNode
from cablestore.resolution import RESOLVER

_LOG: Final = logging.getLogger("cablestore.inspect")
_HERE: Final = Path(__file__).parent
_TYPES: Final = {"style.css": "text/css", "page.js": "text/javascript"}
_STOP_TIMEOUT_S: Final = 2.0

_PAGES: Final[dict[str, Callable[[Inspected, Query], Awaitable[Page]]]] = {
    "/": overview.overview,
    "/activity": overview.activity,
    "/channels": channels.channels,
    "/channel": channels.channel,
    "/graph": channels.graph,
    "/post": posts.post,
    "/users": users.users,
    "/user": users.user,
    "/roles": users.roles,
    "/keys": keyspace.keyspace,
    "/log": overview.arrivals,
    "/peers": peers.peers,
    "/archives": peers.archives,
    "/search": search.search,
}
_MENU: Final = {
    "/": "Overview",
    "/activity": "Activity",
    "/channels": "Channels",
    "/users": "Users",
    "/roles": "Roles",
    "/keys": "Keys",
    "/log": "Log",
    "/peers": "Peers",
    "/archives": "Archives",
}


class InspectServer:
    """Server of the page of one store, for an `async with`.

    The store may be open in another process. `node` is the node that serves the store, if any. Raises NodeError if the
    server cannot listen at the address.
    """

    def __init__(self, store: AsyncCableStore, settings: InspectSettings, node: WatchedNode | None = None) -> None:
        self._settings = settings
        inspected = self._inspected = Inspected(store, node, settings.is_public, settings.archives)
        self._live = LiveEvents(inspected)
        self._store = store
        self._templates = _templates(store, is_public=settings.is_public)
        app = web.Application(middlewares=[Access(settings).guard])
        app.on_response_prepare.append(_add_headers)
        app.on_shutdown.append(self._end)
        app.router.add_get("/events", self._live.answer, allow_head=False)
        app.router.add_get("/static/{name}", _static)
        for path, make in _PAGES.items():
            app.router.add_get(path, partial(self._answer, partial(make, inspected)))
        # `_unknown` does not answer below /static/, which needs no token: its page shows the menu and the store's name.
        app.router.add_get("/{path:(?!static/).*}", partial(self._answer, _unknown))
        self._runner = web.AppRunner(
            app, access_log=None, logger=error_log(), handler_cancellation=True, shutdown_timeout=_STOP_TIMEOUT_S
        )
        self.address = settings.address
        """Address of the page. If its port is 0, it is replaced by the assigned port when the server starts."""

    @property
    def link(self) -> str:
        """Link for a browser, with the token."""
        return self._settings.link(self.address)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        wanted = self._settings.address
        try:
            host = (await RESOLVER.texts(wanted.host))[0]
            await web.TCPSite(self._runner, host, wanted.port).start()
        except (OSError, OverflowError, ValueError) as error:  # ValueError: not a valid host name
            await self._runner.cleanup()
            raise listen_error(wanted, error) from None
        self.address = Address(wanted.host, self._runner.addresses[0][1])
        await self._prepare()
        return self

    async def _prepare(self) -> None:
        """Create the first page once, so that the first request does not wait for modules, templates and caches."""
        with suppress(CableStoreError):  # reported on the page
            page = await overview.overview(self._inspected, Query({}))
            await asyncio.to_thread(self._render, page, "/", Query({}), 0)

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _end(self, _: web.Application) -> None:
        self._live.end()

    async def _answer(self, make: Callable[[Query], Awaitable[Page]], request: web.Request) -> web.Response:
        """Answer with a page as HTML or JSON. A thread renders it, so that other work of the loop does not wait."""
        sequence = self._store.last_sequence  # the page may lack later events
        query = Query(request.query)
        try:
            page = await make(query)
        except CableStoreError as error:
            page = Page("error", "Error", {"error": str(error)}, None, _status(error))
        if request.query.get("format") == "json":
            text = await asyncio.to_thread(lambda: json.dumps({"page": page.template} | plain(page.data)))
            return web.Response(text=text + "\n", status=page.status, content_type="application/json")
        render = partial(self._render, page, request.path, query, sequence)
        return web.Response(text=await asyncio.to_thread(render), status=page.status, content_type="text/html")

    def _render(self, page: Page, path: str, query: Query, sequence: int) -> str:
        def here(**changes: Any) -> str:
            """Return the address of this page with the parameters in `changes` replaced, or left out if None."""
            parameters = {name: value for name, value in (query.given | changes).items() if value is not None}
            return f"{path}?{urlencode(parameters)}" if parameters else path

        return self._templates.get_template(f"{page.template}.html").render(
            plain(page.data) | {"graph_nodes": page.data.get("nodes")},
            page=page,
            path=path,
            here=here,
            q=query.text("q"),
            sequence=sequence,
        )


async def _unknown(_: Query) -> Page:
    raise NotFoundError("page not found. Choose a page from the menu")


def _status(error: CableStoreError) -> int:
    if isinstance(error, ArgumentError | CursorError):
        return 400
    if isinstance(error, NotFoundError):
        return 404
    _LOG.warning("cannot show a page", extra={"reason": str(error)})
    return 503


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


async def _static(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    if name not in _TYPES:
        return web.Response(status=404, text="not found\n")
    body = await asyncio.to_thread((_HERE / "static" / name).read_bytes)
    return web.Response(body=body, content_type=_TYPES[name], charset="utf-8")


def _templates(store: AsyncCableStore, *, is_public: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": shown,
        "shown_plain": shown_plain,
        "size": _size,
        "number": lambda value: "-" if value is None else f"{value:,}",
        "address": urlencode,
    }
    environment.globals |= {
        "bars": charts.bars,
        "calendar": charts.calendar,
        "channel_picture": graph.channel_picture,
        "colour_of": graph.colour_of,
        "day_line": charts.day_line,
        "is_public": is_public,
        "menu": _MENU,
        "roles_picture": graph.roles_picture,
        "share": charts.share,
        "store_name": "store" if is_public or store.path is None else store.path.name,
        "term": term,
        "utc": charts.utc,
    }
    return environment


def _size(size_bytes: float | None) -> str:
    """Return a size with its unit, as commands print it."""
    if size_bytes is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000 or unit == "GB":
            break
        size_bytes /= 1000
    return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
