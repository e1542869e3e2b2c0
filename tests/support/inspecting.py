"""The page that shows a store, served by a thread of the test, and a store with hostile text in every field."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from people import ANN, BOB, CYD, raws
from waiting import LIMIT_S

from cablestore import CableStore, Identity, Info, Post, StoreOptions
from cablestore.aio import AsyncCableStore
from cablestore.inspect.server import InspectServer
from cablestore.inspect.settings import InspectSettings
from cablestore.moderation import UserRole
from cablestore.peers import Address
from cablestore.protocol.body import Role
from cablestore.remote.node import WatchedNode

TOKEN = "a-token-of-these-tests"
HOSTILE = "<script>x()</script><img src=x onerror=x()>'\"&\u202e\x07\u200f\x1b{{7919*7907}}"
"""Markup, script, direction marks, control characters and template syntax."""
FORBIDDEN = frozenset("\u202e\x07\u200f\x1b\x00\u200e\u2066\x7f")
"""Characters that no page contains: they control a terminal or change the direction of text."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Site(NamedTuple):
    """Page of a store. `link` has its token."""

    server: InspectServer

    @property
    def link(self) -> str:
        return self.server.link

    @property
    def url(self) -> str:
        return f"http://{self.server.address}"

    def get(self, path: str, /, *, token: str | None = TOKEN, method: str = "GET", **headers: str) -> Answer:
        """Request a page. Names of headers have underscores for hyphens."""
        return request(self.url + path, token=token, method=method, **headers)

    def json(self, path: str, /, **parameters: object) -> Any:
        """Return the data of a page with these parameters."""
        found = self.get(f"{path}?{urlencode({'format': 'json', **parameters})}")
        assert found.status == 200, found
        return found.json


def request(url: str, /, *, token: str | None = TOKEN, method: str = "GET", **headers: str) -> Answer:
    parts = urlsplit(url)
    assert parts.hostname is not None
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=LIMIT_S)
    try:
        connection.request(method, f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}", headers=sent)
        found = connection.getresponse()
        return Answer(found.status, dict(found.getheaders()), found.read().decode())
    finally:
        connection.close()


@contextmanager
def inspected(store: CableStore, node: WatchedNode | None = None, **settings: Any) -> Iterator[Site]:
    """Show a store, which may be one of another process, on a loop of another thread."""
    started: Future[tuple[InspectServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop, wrapped = asyncio.Event(), AsyncCableStore(store)
        chosen = InspectSettings(**{"address": Address("127.0.0.1", 0), "token": TOKEN} | settings)
        try:
            async with InspectServer(wrapped, chosen, node) as server:
                started.set_result((server, asyncio.get_running_loop(), stop))
                await stop.wait()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise
        finally:
            wrapped.detach()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="inspect")
    thread.start()
    server, loop, stop = started.result(LIMIT_S)
    try:
        yield Site(server)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@contextmanager
def events_of(site: Site, after: int | None = None) -> Iterator[Iterator[tuple[str, Any]]]:
    """Yield the server-sent events of a page as (name, data), from the moment at which the server sends them."""
    parts = urlsplit(site.url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=LIMIT_S)
    query = "" if after is None else f"?after={after}"
    connection.request("GET", f"/events{query}", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()

    def read() -> Iterator[tuple[str, Any]]:
        name = ""
        while line := answer.readline().decode().rstrip("\n"):
            if line.startswith(":"):
                answer.readline()
            elif line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                answer.readline()
                yield name, json.loads(line.removeprefix("data: "))

    assert answer.readline() == b": open\n"
    answer.readline()
    try:
        yield read()
    finally:
        answer.close()
        connection.close()


class Hostile(NamedTuple):
    """Store with hostile text in every field of every type of post, and its posts."""

    store: CableStore
    posts: list[Post]
    private: Post

    def paths(self) -> list[str]:
        """Return the addresses of all its pages."""
        channels = [name for name in dict.fromkeys(post.channel for post in self.posts) if name]
        users = [ANN.key, BOB.key, CYD.key]
        return [
            *("/", "/activity", "/activity?by=author", "/channels", "/users", "/roles", "/log", "/peers", "/archives"),
            *(f"/{page}?{urlencode({'name': name})}" for page in ("channel", "graph") for name in channels),
            *(f"/graph?{urlencode({'name': channels[0], 'axis': 'time', 'after': 1, 'before': 2**53 - 1})}",),
            *(f"/post?hash={post.hash.hex()}" for post in self.posts),
            *(f"/user?key={key.hex()}" for key in users),
            *(f"/roles?{urlencode({'context': name})}" for name in channels),
            *(f"/keys?{urlencode({'prefix': prefix})}" for prefix in ("", "!chat!", "!state!", "!local!", "!user!")),
            *(f"/search?{urlencode({'q': text})}" for text in ("script", HOSTILE, HOSTILE[:30], ANN.key.hex())),
            *(
                "/nowhere?x=%3Cscript%3E",
                f"/post?{urlencode({'hash': HOSTILE})}",
                f"/users?{urlencode({'sort': HOSTILE})}",
            ),
        ]


@contextmanager
def hostile_store(identity: Identity = ANN.identity) -> Iterator[Hostile]:
    channel, short = HOSTILE[:64], HOSTILE[:32]
    texts = [
        BOB.text(channel, HOSTILE),
        CYD.text(channel, f"words {HOSTILE}\nsecond line"),
        BOB.text(channel, "deleted"),
    ]
    gone = CYD.text(channel, "of a linked channel", links=(texts[0].hash, bytes(32)))
    info = Info((("name", short.encode()), (HOSTILE[:60], HOSTILE.encode())))
    posts = [
        *texts,
        gone,
        BOB.topic(channel, HOSTILE),
        BOB.join(HOSTILE[8:40]),
        BOB.leave(HOSTILE[8:40]),
        *(who.post(info) for who in (ANN, BOB, CYD)),
        BOB.delete(texts[2]),
        BOB.post(Role(HOSTILE, 0, channel, CYD.key, 1)),
    ]
    with CableStore.in_memory(identity=identity, options=StoreOptions(verify_threads=1)) as store:
        store.ingest(raws(*posts))
        acts = [
            store.moderation.set_role(BOB.key, UserRole.ADMIN, reason=HOSTILE),
            store.moderation.hide(posts=[texts[1].hash], reason=HOSTILE),
        ]
        private = store.moderation.block([CYD.key], reason=f"private {HOSTILE}", private=True)
        store.local.set_draft(channel, f"draft {HOSTILE}")
        yield Hostile(store, [*posts, *(post for act in acts for post in act.posts), *private.posts], private.posts[0])
