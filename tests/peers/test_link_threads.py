"""Threads that use a connection: its docstring lists them, and real nodes use only these."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from by_hand import on_loop, texts
from peering import HOST, memory, network, soon, until

from cablestore.peers import Address, NodeSettings
from cablestore.peers.link import PeerLink
from cablestore.protocol.message import PostRequest

MAY_CALL = {
    "cablestore-read": {"audience"},
    "cablestore-reconcile": {"audience"},
    "any": {"queued_size_bytes", "_unread_size_bytes"},
}
"""Prefixes of the names that threads other than the loop's may call. These methods do not change state."""


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[defaultdict[str, set[str]], set[str]]]:
    """Record which methods of connections each new thread in the `with` block calls, and which threads modify one."""
    loop_thread = threading.get_ident()
    called: defaultdict[str, set[str]] = defaultdict(set)
    changing: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_argcount and code.co_varnames[0] == "self":
            owner = frame.f_locals.get("self")
            if isinstance(owner, PeerLink) and code.co_name in dir(type(owner)):
                called[threading.current_thread().name].add(code.co_name)

    def change(link: PeerLink, name: str, value: Any) -> None:
        if threading.get_ident() != loop_thread:
            changing.add(f"{threading.current_thread().name}: {name}")
        object.__setattr__(link, name, value)

    monkeypatch.setattr(PeerLink, "__setattr__", change)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield called, changing
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@on_loop
async def test_other_threads_call_only_permitted_methods_of_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    posts = texts(40)
    loop_thread = threading.current_thread().name
    with watched(monkeypatch) as (called, changing):
        stores = memory("a", posts=posts), memory("b", posts=posts[:20]), memory("c", posts=posts[20:])
        async with network(*stores, settings=NodeSettings()) as net:
            full, live, reconciling = net.nodes
            link = await net.link(live, full)
            await until(lambda: live.store.dump_digest() == full.store.dump_digest())
            await soon(reconciling.reconcile_once(await full.reconcile_port.listen(Address(HOST, 0))))
            asked = link.send_request(PostRequest(b"", tuple(post.hash for post in posts)))
            await until(lambda: asked.is_over)
            loads = threading.Thread(target=full.load, name="any")
            loads.start()
            await until(lambda: not loads.is_alive())
            await net.are_alike()
    assert {"data_received", "connection_lost", "tick"} & called.pop(loop_thread)
    assert not changing
    found = {kind: names for kind in MAY_CALL for thread, names in called.items() if thread.startswith(kind)}
    assert found == MAY_CALL, "each thread must call exactly the permitted methods"
    assert {thread for thread in called if not thread.startswith(tuple(MAY_CALL))} == set()
