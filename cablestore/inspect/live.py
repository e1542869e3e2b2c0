"""Changes as server-sent events: entries of the arrival log, and changes of the node. An open page then reloads."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import web

from cablestore import limits
from cablestore.inspect.overview import event_fields
from cablestore.inspect.page import Inspected, plain
from cablestore.store.results import Event

_DIGITS = 16


class LiveEvents:
    """Connections of open pages, to which changes are sent."""

    def __init__(self, inspected: Inspected) -> None:
        self._inspected = inspected
        self._tasks: set[asyncio.Task[Any]] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send the events after the number in the request, then new events, until the page or the store is closed."""
        if len(self._tasks) >= limits.MAX_LIVE_PAGES:
            return web.Response(status=503, text=f"too many open pages: the maximum is {limits.MAX_LIVE_PAGES}\n")
        after = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        start = int(after) if after.isascii() and after.isdigit() and len(after) <= _DIGITS else None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        task = asyncio.ensure_future(self._send(response, start))
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):  # the browser disconnected, or the server stops
                await task
        finally:
            task.cancel()
            self._tasks.discard(task)
        return response

    def end(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()

    async def _send(self, response: web.StreamResponse, after: int | None) -> None:
        await response.write(b": open\n\n")
        watching = asyncio.ensure_future(self._send_node_changes(response))
        store = self._inspected.store
        try:
            feed = store.events(store.last_sequence if after is None else min(after, store.last_sequence))
            while found := await feed.next_items(limits.MAX_EVENTS_READ):
                await response.write(self._message(found))
        finally:
            watching.cancel()

    def _message(self, events: list[Event]) -> bytes:
        shown = [
            event_fields(each.sequence, each.kind.name, each.hash, each.post)
            for each in events
            if each.post is None or self._inspected.shows(each.post)
        ]
        return b"event: posts\nid: %d\ndata: %b\n\n" % (events[-1].sequence, json.dumps(plain(shown)).encode())

    async def _send_node_changes(self, response: web.StreamResponse) -> None:
        """Send an event after each change of the node's state, for example when a peer connects or disconnects."""
        node = self._inspected.node
        if node is None:
            return
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        unwatch = node.watch(partial(_set_on, loop, changed))
        try:
            while True:
                await changed.wait()
                changed.clear()
                await response.write(b"event: node\ndata: {}\n\n")
        finally:
            unwatch()


def _set_on(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(changed.set)
