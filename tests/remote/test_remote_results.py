"""Equivalence: calls to a store of another process return the same results and leave the same store."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from history import AUTHORS, NOW_MS, histories
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from people import ANN
from remote_stores import remote_of
from store_calls import READS, blocking_result, call_of, comparable, drafts, method_of

from cablestore import CableStore, Dialect, Post, StoreOptions, Text
from cablestore.aio import AsyncCableStore
from cablestore.errors import ArgumentError, CableStoreError, CursorError, StorageError
from cablestore.files import MissingFileError
from cablestore.index.database import Row
from cablestore.index.view import View
from cablestore.protocol.body import TEXT
from cablestore.remote import RemoteStore
from cablestore.remote.methods import FUNCTIONS, OF_PROGRAM, OWNER_ONLY, SPACES, names, public
from cablestore.remote.methods import method_of as remote_method
from cablestore.store.cursor import MessageCursor
from cablestore.store.queries import Queries, Snapshot
from cablestore.views import CATALOG

WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("messages", (5,), {}),
    ("messages", ("c", 0), {}),
    ("messages", ("c",), {"cursor": "no cursor"}),
    ("messages", ("c",), {"hidden": "never"}),
    ("get", (b"short",), {}),
    ("get", ("text",), {}),
    ("post", ("c", 5), {}),
    ("post", ("c", "x" * 5000), {}),
    ("write", ("no body",), {}),
    ("resolve", ("no post",), {}),
    ("delete", ([b"short"],), {}),
    ("delete", ("text",), {}),
    ("ingest", (5,), {}),
    ("ingest", (["text"],), {}),
    ("ingest", ([b"x"],), {"batch_posts": 0}),
    ("next_changes", ("no cursor",), {}),
    ("moderation.hide", (), {"users": [b"short"]}),
    ("moderation.hide", (), {}),
    ("moderation.set_role", (bytes(32), "admin"), {}),
    ("local.put", ("", "key", b""), {}),
    ("local.put", ("name", "key", "text"), {}),
    ("local.put_json", ("name", "key", {1, 2}), {}),
    ("search", ("",), {}),
    ("channels", (), {"order": "size"}),
]


def compare(history: tuple[Dialect, list[Post]], chosen: list[tuple[int, int, int, list[int]]]) -> None:
    dialect, posts = history
    options = StoreOptions(clock=lambda: NOW_MS, verify_threads=1)
    plain = CableStore.in_memory(dialect=dialect, identity=AUTHORS[0], options=options)
    served = CableStore.in_memory(dialect=dialect, identity=AUTHORS[0], options=options)
    with plain, served, remote_of(served) as remote:
        for call in [*(call_of(draft, posts) for draft in chosen), *READS, *WRONG]:
            assert (call, blocking_result(remote, call)) == (call, blocking_result(plain, call))
            assert remote.last_sequence == plain.last_sequence
        with plain.snapshot() as ours, remote.snapshot() as theirs:
            for call in (each for each in READS if hasattr(Queries, each[0])):
                assert (call, blocking_result(theirs, call)) == (call, blocking_result(ours, call))


HISTORY = histories(max_posts=12)
CHOSEN = st.lists(drafts, max_size=12)


@given(history=HISTORY, chosen=CHOSEN)
@settings(max_examples=3, phases=[Phase.generate], deadline=None)
def test_calls_have_the_results_and_errors_of_the_store_itself(history: Any, chosen: Any) -> None:
    compare(history, chosen)


@pytest.mark.thorough
@given(history=HISTORY, chosen=CHOSEN)
@settings(max_examples=50, phases=[Phase.generate], deadline=None)
def test_many_histories_have_the_results_of_the_store_itself(history: Any, chosen: Any) -> None:
    compare(history, chosen)


@pytest.mark.thorough
@given(history=HISTORY, chosen=CHOSEN)
@settings(max_examples=5, phases=[Phase.generate], deadline=None)
def test_the_asyncio_store_works_over_a_connection(history: tuple[Dialect, list[Post]], chosen: Any) -> None:
    dialect, posts = history
    options: dict[str, Any] = {"dialect": dialect, "identity": AUTHORS[0]}

    async def run(remote: RemoteStore, plain: CableStore) -> None:
        async with AsyncCableStore(remote) as store:
            for call in [*(call_of(draft, posts) for draft in chosen), *READS]:
                assert (call, await awaited(store, call)) == (call, blocking_result(plain, call))

    with (
        CableStore.in_memory(options=StoreOptions(clock=lambda: NOW_MS, verify_threads=1), **options) as plain,
        CableStore.in_memory(options=StoreOptions(clock=lambda: NOW_MS, verify_threads=1), **options) as served,
        remote_of(served) as remote,
    ):
        asyncio.run(run(remote, plain))


async def awaited(store: AsyncCableStore, call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
    name, args, more = call
    try:
        found = method_of(store, name)(*args, **more)
        return [each async for each in found] if isinstance(found, AsyncIterator) else comparable(await found)
    except CableStoreError as error:
        return type(error), str(error)


def test_every_public_name_is_remote_or_has_a_reason() -> None:
    listed = {f"{space}.{name}".lstrip(".") for space, kind in SPACES.items() for name in public(kind)}
    assert OWNER_ONLY.keys() | OF_PROGRAM <= listed
    with CableStore.in_memory() as store, remote_of(store) as remote:
        for name in sorted(names() | FUNCTIONS.keys()):
            method = remote_method(name, store.dialect)  # its types can be encoded
            with pytest.raises(ArgumentError):
                method.read(msgspec.Raw(b"\xc1"))
            with pytest.raises(ValueError, match="malformed"):
                method.result.decode(b"\xc1")
        for name in sorted(listed - {"open", "in_memory"}):
            space, _, member = name.rpartition(".")
            kind = type(getattr(remote, space) if space else remote)
            assert inspect.getattr_static(kind, member, None) is not None, name
        with remote.snapshot() as snapshot:
            assert set(public(Snapshot)) - set(public(type(snapshot))) == set()


@pytest.mark.parametrize("name", sorted(OWNER_ONLY.keys() - {"open", "in_memory"}))
def test_calls_that_only_the_owner_can_make_report_the_reason(name: str) -> None:
    with CableStore.in_memory() as store, remote_of(store) as remote, pytest.raises(CableStoreError, match="cannot be"):
        method_of(remote, name)()


def test_errors_keep_their_class_and_text() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store, remote_of(store) as remote:
        for each in (store, remote):
            with pytest.raises(CursorError, match="invalid message cursor"):
                each.messages("c", cursor=MessageCursor("no"))


def test_an_error_of_an_internal_class_arrives_as_its_nearest_public_base() -> None:
    def rows(post: Post) -> list[Row]:
        if isinstance(post.body, Text):
            raise MissingFileError("words.txt is missing")
        return []

    view = View("own", 1, (b"!x!own!",), "", types=frozenset({TEXT}), rows=rows)
    options = StoreOptions(catalog=CATALOG.extended([view]))
    with CableStore.in_memory(identity=ANN.identity, options=options) as store, remote_of(store) as remote:
        for each, kind in ((store, MissingFileError), (remote, StorageError)):
            with pytest.raises(StorageError, match=r"^words\.txt is missing$") as error:
                each.post("c", "text")
            assert type(error.value) is kind


def test_a_post_is_returned_completely() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store, remote_of(store) as remote:
        post = remote.write(Text("c", "a text"))
        stored = store.get(post.hash)
        assert stored is not None
        assert (post.raw, post.body, post.links) == (stored.raw, stored.body, stored.links)
        assert remote.public_key == store.public_key == ANN.identity.public_key


NEW_METHOD = """
from cablestore.store.queries import Queries

def words(self, channel: str, *, least: int = 2) -> dict[str, int]:
    return {channel: least}

Queries.words = words
from cablestore.aio import AsyncCableStore
from cablestore.aio.queries import AsyncQueries, on_reader

AsyncQueries.words = on_reader(words)

from remote_stores import remote_of
from cablestore import CableStore

with CableStore.in_memory() as store, remote_of(store) as remote, remote.snapshot() as snapshot:
    assert remote.words("c") == {"c": 2}
    assert snapshot.words("c", least=3) == {"c": 3}
"""


@pytest.mark.thorough
def test_a_new_method_is_remote_once_it_is_in_the_store_and_in_its_mirror_for_asyncio() -> None:
    support = str(Path(__file__).parent.parent / "support")
    command = [sys.executable, "-c", NEW_METHOD]
    environment = os.environ | {"PYTHONPATH": support}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
