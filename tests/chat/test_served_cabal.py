"""Equivalence: a cabal whose store another process has open has the same results, errors and changes as a local one.

That process may end, hang and return.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chatting import served_cabal
from history import AUTHORS, CHANNELS, NOW_MS, histories
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from people import BOB, raws
from remote_stores import served_in
from stores import scratch_folder
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, Dialect, Page, Post, StoreOptions
from cablestore.chat.cabal import Cabal
from cablestore.chat.changes import CabalChanges
from cablestore.chat.keeper import OpenStore
from cablestore.errors import CableStoreError, OwnerGoneError, StorageError
from cablestore.peers import Address
from cablestore.remote.node import NodeState, PeerFailure, PeerState, WatchedNode
from cablestore.serving import offer
from cablestore.store.cursor import ChangesCursor

CabalCalls = tuple[str, tuple[Any, ...], dict[str, Any]]


# --- the same results -----------------------------------------------------------------------------


def cabal_call(draft: tuple[int, int, int, list[int]], posts: list[Post]) -> CabalCalls:
    kind, place, person, numbers = draft
    channel, author, word = CHANNELS[place], AUTHORS[person].public_key, ("", "a word", "x" * 5000)[person]
    hashes = [posts[number % len(posts)].hash for number in numbers]
    place_in_time = posts[place % len(posts)].sort_time.decode()
    made: list[CabalCalls] = [
        ("page", (channel, place), {}),
        ("page", (channel, 2, place_in_time), {"newest_first": bool(person)}),
        ("page", (channel, 2, word), {}),
        ("channels", (), {}),
        ("members", (channel,), {}),
        ("details", (channel, [author]), {}),
        ("search", ("hello",), {}),
        ("search", (word,), {}),
        ("own_name", (), {}),
        ("find_users", (("x", "hello", author.hex()[:6])[person],), {}),
        ("post", (channel, word), {}),
        ("post", (channel, "hello hello"), {}),
        ("mark_seen", (channel, [place_in_time], None), {}),
        ("mark_seen", (channel, [], word), {}),
        ("read_state", (channel,), {}),
        ("set_draft", (channel, word), {}),
        ("draft", (channel,), {}),
        ("join", (channel,), {}),
        ("join", (word,), {}),
        ("leave", (channel,), {}),
        ("set_topic", (channel, word), {}),
        ("set_name", (word,), {}),
        ("delete", (hashes[0] if hashes else bytes(32),), {}),
        ("delete", (b"too short",), {}),
        ("moderate", (("hide", "unhide", "block")[person],), {"users": [author]}),
        ("moderate", ("hide",), {"posts": tuple(hashes)}),
        ("moderate", ("unblock", [author]), {}),
        ("invitation", (), {}),
    ]
    return made[kind]


KINDS = 27


async def result(cabal: Cabal, call: CabalCalls) -> Any:
    name, args, more = call
    try:
        found = await getattr(cabal, name)(*args, **more)
    except CableStoreError as error:
        return isinstance(error, StorageError), str(error)
    return found._replace(changes_cursor=ChangesCursor("")) if isinstance(found, Page) else found


@pytest.mark.thorough
@given(
    history=histories(max_posts=12),
    chosen=st.lists(
        st.tuples(
            st.integers(0, KINDS - 1), st.integers(0, 2), st.integers(0, 2), st.lists(st.integers(0, 15), max_size=3)
        ),
        max_size=25,
    ),
)
@settings(max_examples=40, phases=[Phase.generate])
def test_the_same_calls_have_the_same_results_over_a_socket(
    history: tuple[Dialect, list[Post]], chosen: list[tuple[int, int, int, list[int]]]
) -> None:
    """The two stores are equal at the start and at the end."""
    dialect, posts = history
    node = WatchedNode(NodeState(bytes(32), ("192.0.2.7:13333",), ("0.0.0.0:1", "127.0.0.1:2")))
    every = [(kind, 0, 0, [0]) for kind in range(KINDS)]

    def store() -> CableStore:
        options: dict[str, Any] = {"dialect": dialect, "identity": AUTHORS[0]}
        made = CableStore.in_memory(options=StoreOptions(clock=lambda: NOW_MS, verify_threads=1), **options)
        made.ingest(raws(*posts))
        return made

    async def compare(own: Cabal, remote: Cabal) -> None:
        for draft in [*chosen, *every]:
            call = cabal_call(draft, posts)
            assert await result(remote, call) == await result(own, call), call
        assert (remote.own_key, remote.connection, remote.is_connected, remote.listening) == (
            own.own_key,
            own.connection,
            own.is_connected,
            own.listening,
        )
        while remote.is_busy or own.is_busy:
            remote.take_changes()
            own.take_changes()
            await asyncio.sleep(0.01)

    with scratch_folder() as folder, store() as first, store() as second, ExitStack() as stack:
        for each in (first, second):
            each.find_mentions()
        stack.enter_context(served_in(folder, second, node))
        own, remote = Cabal(OpenStore(first, node), "here"), served_cabal(folder)
        stack.callback(own.close)
        stack.callback(remote.close)
        asyncio.run(compare(own, remote))
        assert list(first.dump()) == list(second.dump())


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_invitation_omits_an_unspecified_address(tmp_path: Path, host: str) -> None:
    """The user adds a better one to the line."""
    node = WatchedNode(NodeState(bytes(32), listening=(str(Address(host, 13333)), "192.0.2.7:13333")))
    with CableStore.in_memory() as store, served_in(tmp_path, store, node):
        client = served_cabal(tmp_path)
        assert asyncio.run(client.invitation()) == f"cable:{'00' * 32}?peer=192.0.2.7:13333"
        client.close()
    node = WatchedNode(NodeState(None, listening=(str(Address(host, 13333)),)))
    with CableStore.in_memory() as store, served_in(tmp_path, store, node):
        client = served_cabal(tmp_path)
        with pytest.raises(CableStoreError, match="neither a cabal key nor a peer"):
            asyncio.run(client.invitation())
        client.close()


# --- changes --------------------------------------------------------------------------------------


def changes_of(*cabals: Cabal) -> list[CabalChanges]:
    """Return the next changes of each cabal."""

    def take(cabal: Cabal) -> CabalChanges | None:
        found = cabal.take_changes()
        return None if found.is_empty else found

    found = [wait_until(partial(take, cabal)) for cabal in cabals]
    return [each for each in found if each is not None]


@contextmanager
def served(store: CableStore, folder: Path, number: int) -> Iterator[list[Cabal]]:
    """Yield clients of one store that have received all earlier changes."""
    with served_in(folder, store):
        found = [served_cabal(folder) for _ in range(number)]
        assert all(changes.is_all for changes in changes_of(*found)), (
            "at the beginning, all texts were searched for mentions"
        )
        yield found
        for each in found:
            each.close()


def test_several_clients_are_notified_of_each_other_and_of_peers(tmp_path: Path) -> None:
    with CableStore.in_memory() as store, served(store, tmp_path, 3) as clients:
        asyncio.run(clients[0].post("garden", "hello"))
        assert [list(changes.channels) for changes in changes_of(*clients)] == [["garden"]] * 3
        store.ingest(raws(BOB.text("default", "from a peer")))
        assert [list(changes.channels) for changes in changes_of(*clients)] == [["default"]] * 3
        store.ingest(raws(BOB.named("bob")))
        assert all(changes.is_all for changes in changes_of(*clients))


def test_a_client_reconnects_and_keeps_drafts(tmp_path: Path) -> None:
    with CableStore.in_memory() as store:
        server = served_in(tmp_path, store)
        client = served_cabal(tmp_path)
        asyncio.run(client.set_draft("garden", "half"))
        server.close()
        wait_until(lambda: client.connection.startswith("not connected: `serve` has exited"))
        with pytest.raises(OwnerGoneError, match="not connected"):
            asyncio.run(client.post("garden", "lost"))
        asyncio.run(client.set_draft("garden", "half a"))
        assert asyncio.run(client.draft("garden")) == "half a"
        assert client.unsent_drafts == {"garden": "half a"}
        assert store.local.draft("garden") == "half"
        client.take_changes()
        store.post("garden", "meanwhile")
        with served_in(tmp_path, store):
            wait_until(lambda: client.take_changes().is_all)
            wait_until(lambda: client.connection == "offline")
            wait_until(lambda: store.local.draft("garden") == "half a")
            wait_until(lambda: client.unsent_drafts == {})
            assert [m.text for m in asyncio.run(client.page("garden", 5)).messages] == ["meanwhile"]
            client.close()


def test_a_call_without_an_answer_raises_an_error(tmp_path: Path) -> None:
    """The process ends in the middle of a call."""
    with CableStore.in_memory() as store:
        server = served_in(tmp_path, store)
        client = served_cabal(tmp_path)
        failures: list[str] = []

        async def ask() -> None:
            try:
                while True:
                    await client.page("default", 5)
            except OwnerGoneError as error:
                failures.append(str(error))

        asking = threading.Thread(target=lambda: asyncio.run(ask()))
        asking.start()
        server.close()
        asking.join(LIMIT_S)
        assert failures
        client.close()


@pytest.mark.thorough
def test_a_long_call_is_not_treated_as_a_hanging_process(tmp_path: Path) -> None:
    """The process answers pings at the same time."""
    is_held, may_write = threading.Event(), threading.Event()

    def clock() -> int:
        assert not is_held.is_set() or may_write.wait(LIMIT_S)
        return NOW_MS

    silence_s = 3.0
    with (
        CableStore.in_memory(options=StoreOptions(clock=clock)) as store,
        served_in(tmp_path, store),
        ThreadPoolExecutor(1) as pool,
    ):
        client = served_cabal(tmp_path, silence_s=silence_s)
        is_held.set()
        writing = pool.submit(lambda: asyncio.run(client.post("default", "slowly")))
        with pytest.raises(TimeoutError):
            writing.result(2 * silence_s)
        assert client.connection == "offline"
        may_write.set()
        writing.result(LIMIT_S)
        assert [message.text for message in store.messages("default").messages] == ["slowly"]
        client.close()


def test_changes_of_the_connections_of_the_process_are_shown(tmp_path: Path) -> None:
    node = WatchedNode(NodeState(None, ("192.0.2.7:13333",)))
    with CableStore.in_memory() as store, served_in(tmp_path, store, node):
        client = served_cabal(tmp_path)
        woken = threading.Event()
        client.notify(lambda: None, woken.set)

        def shows(connection: str, *, is_connected: bool = False, listening: tuple[str, ...] = ()) -> None:
            def is_so() -> bool:
                found = (client.connection, client.is_connected, tuple(client.listening))
                return found == (connection, is_connected, listening)

            while not is_so():
                assert woken.wait(LIMIT_S)
                woken.clear()

        shows("connecting, not encrypted")
        node.change(failures=(PeerFailure("192.0.2.7:13333", "it does not answer"),))
        shows("not connected: no answer from 192.0.2.7:13333, not encrypted")
        here = ("127.0.0.1:1",)
        node.change(peers=(PeerState("192.0.2.7:13333", is_in_step=True, no_answer_s=0),), listening=here)
        shows("1 peer, in step, not encrypted", is_connected=True, listening=here)
        client.close()


def test_own_messages_are_recognized_in_a_store_that_had_no_key(tmp_path: Path) -> None:
    """A program serves a store without posts."""
    with CableStore.open(tmp_path / "store") as store, offer(store):
        client = served_cabal(tmp_path / "store")
        asyncio.run(client.post("default", "the first"))
        assert client.own_key == store.identity.public_key
        client.close()
