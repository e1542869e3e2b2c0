"""A cabal over a socket is like one in this process: the same results, errors and news; bad bytes and lost ends do no harm."""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest
from history import AUTHORS, CHANNELS, NOW_MS, histories
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from people import BOB, raws
from stores import scratch_folder
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, Dialect, Page, Post, limits
from cablestore.chat.cabal import Cabal, CabalNews
from cablestore.chat.hosting import WatchedNode
from cablestore.chat.open_cabal import OpenCabal
from cablestore.chat.remote_cabal import _SILENT_BEATS, RemoteCabal, _Link
from cablestore.chat.wire import CALLS, PROBLEM, RESULT, TOLD, VERSION
from cablestore.cli.control_client import begin_conversation
from cablestore.cli.control_socket import ControlReply, ControlRequest, ControlServer
from cablestore.cli.remote import control, talk
from cablestore.errors import CableStoreError, OwnerGoneError, StorageError
from cablestore.peers import Address
from cablestore.remote.unix_socket import connect

CabalCalls = tuple[str, tuple[Any, ...], dict[str, Any]]


def test_every_method_of_a_cabal_can_be_called() -> None:
    """And no other. What is not awaited is known here."""
    methods = {name for name, _ in inspect.getmembers(Cabal, inspect.iscoroutinefunction)}
    assert CALLS.keys() == methods
    for name in methods:
        assert inspect.signature(getattr(RemoteCabal, name)) == inspect.signature(getattr(Cabal, name))
        assert inspect.signature(getattr(OpenCabal, name)) == inspect.signature(getattr(Cabal, name))


# --- the same results -----------------------------------------------------------------------------


def cabal_call(draft: tuple[int, int, int, list[int]], posts: list[Post]) -> CabalCalls:
    kind, place, person, numbers = draft
    channel, who, word = CHANNELS[place], AUTHORS[person].public_key, ("", "a word", "x" * 5000)[person]
    hashes = [posts[number % len(posts)].hash for number in numbers]
    place_in_time = posts[place % len(posts)].sort_time.decode()
    made: list[CabalCalls] = [
        ("page", (channel, place), {}),
        ("page", (channel, 2, place_in_time), {"newest_first": bool(person)}),
        ("page", (channel, 2, word), {}),
        ("channels", (), {}),
        ("members", (channel,), {}),
        ("details", (channel, [who]), {}),
        ("search", ("hello",), {}),
        ("search", (word,), {}),
        ("own_name", (), {}),
        ("users_named", (("x", "hello", who.hex()[:6])[person],), {}),
        ("text", (channel, word), {}),
        ("text", (channel, "hello hello"), {}),
        ("mark_seen", (channel, [place_in_time], None), {}),
        ("mark_seen", (channel, [], word), {}),
        ("read_state", (channel,), {}),
        ("set_draft", (channel, word), {}),
        ("draft", (channel,), {}),
        ("join", (channel,), {}),
        ("join", (word,), {}),
        ("leave", (channel,), {}),
        ("topic", (channel, word), {}),
        ("set_name", (word,), {}),
        ("delete", (hashes[0] if hashes else bytes(32),), {}),
        ("delete", (b"too short",), {}),
        ("moderate", (("hide", "unhide", "block")[person],), {"users": [who]}),
        ("moderate", ("hide",), {"posts": tuple(hashes)}),
        ("moderate", ("unblock", [who]), {}),
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
    return found._replace(changes_cursor="") if isinstance(found, Page) else found


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
    """On two stores that are equal at first, and equal in the end."""
    dialect, posts = history
    node = WatchedNode(bytes(32), (Address("192.0.2.7", 13333),))
    node.listening = (Address("0.0.0.0", 1), Address("127.0.0.1", 2))
    every = [(kind, 0, 0, [0]) for kind in range(KINDS)]

    def store() -> CableStore:
        options: dict[str, Any] = {"dialect": dialect, "identity": AUTHORS[0], "verify_threads": 1}
        made = CableStore.in_memory(clock=lambda: NOW_MS, **options)
        made.ingest(raws(*posts))
        return made

    async def compare(own: OpenCabal, remote: RemoteCabal) -> None:
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
            remote.take_news()
            own.take_news()
            await asyncio.sleep(0.01)

    with scratch_folder() as folder, store() as first, store() as second, ExitStack() as stack:
        for each in (first, second):
            each.find_mentions()
        stack.enter_context(control(second, folder, node))
        own, remote = OpenCabal(first, "here", node), RemoteCabal(partial(talk, folder), "there")
        stack.callback(own.stop)
        stack.callback(remote.close)
        asyncio.run(compare(own, remote))
        assert list(first.dump()) == list(second.dump())


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_invitation_leaves_out_an_address_that_names_no_host(tmp_path: Path, host: str) -> None:
    """The user writes a better one into the line."""
    node = WatchedNode(bytes(32))
    node.listening = (Address(host, 13333), Address("192.0.2.7", 13333))
    with CableStore.in_memory() as store, control(store, tmp_path, node):
        client = RemoteCabal(partial(talk, tmp_path), "client")
        assert asyncio.run(client.invitation()) == f"cable:{'00' * 32}?peer=192.0.2.7:13333"
        client.close()
    node = WatchedNode(None)
    node.listening = (Address(host, 13333),)
    with CableStore.in_memory() as store, control(store, tmp_path, node):
        client = RemoteCabal(partial(talk, tmp_path), "client")
        with pytest.raises(CableStoreError, match="neither a cabal key nor a peer"):
            asyncio.run(client.invitation())
        client.close()


# --- news -----------------------------------------------------------------------------------------


def told(*cabals: Cabal) -> list[CabalNews]:
    """Return what each tells, when it tells something."""

    def take(cabal: Cabal) -> CabalNews | None:
        found = cabal.take_news()
        return None if found.is_empty else found

    found = [wait_until(partial(take, cabal)) for cabal in cabals]
    return [each for each in found if each is not None]


@contextmanager
def served(store: CableStore, folder: Path, number: int) -> Iterator[list[RemoteCabal]]:
    """Yield clients of one store that have heard all that happened before."""
    with control(store, folder):
        found = [RemoteCabal(partial(talk, folder), f"client {at}") for at in range(number)]
        assert all(news.is_all for news in told(*found)), "at the beginning, all texts were searched for mentions"
        yield found
        for each in found:
            each.close()


@pytest.mark.thorough
def test_several_clients_hear_of_each_other_and_of_peers(tmp_path: Path) -> None:
    with CableStore.in_memory() as store, served(store, tmp_path, 3) as clients:
        asyncio.run(clients[0].text("garden", "hello"))
        assert [list(news.channels) for news in told(*clients)] == [["garden"]] * 3
        store.ingest(raws(BOB.text("default", "from a peer")))
        assert [list(news.channels) for news in told(*clients)] == [["default"]] * 3
        store.ingest(raws(BOB.named("bob")))
        assert all(news.is_all for news in told(*clients))


@pytest.mark.thorough
def test_a_client_comes_back_and_keeps_drafts_meanwhile(tmp_path: Path) -> None:
    with CableStore.in_memory() as store:
        server = control(store, tmp_path)
        client = RemoteCabal(partial(talk, tmp_path), "client")
        asyncio.run(client.set_draft("garden", "half"))
        server.close()
        wait_until(lambda: client.connection.startswith("not connected: `serve` has ended"))
        with pytest.raises(OwnerGoneError, match="not connected"):
            asyncio.run(client.text("garden", "lost"))
        asyncio.run(client.set_draft("garden", "half a"))
        assert asyncio.run(client.draft("garden")) == "half a"
        assert client.unsent_drafts == {"garden": "half a"}
        assert store.local.draft("garden") == "half"
        client.take_news()
        store.text("garden", "meanwhile")
        with control(store, tmp_path):
            wait_until(lambda: client.take_news().is_all)
            assert client.connection == "offline"
            wait_until(lambda: store.local.draft("garden") == "half a")
            wait_until(lambda: client.unsent_drafts == {})
            assert [m.text for m in asyncio.run(client.page("garden", 5)).messages] == ["meanwhile"]
            client.close()


@pytest.mark.thorough
def test_an_answer_that_does_not_come_is_an_error(tmp_path: Path) -> None:
    """The process ends in the middle of a call."""
    with CableStore.in_memory() as store:
        server = control(store, tmp_path)
        client = RemoteCabal(partial(talk, tmp_path), "client")
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
def test_a_call_that_takes_long_is_not_a_process_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process gives signs of life meanwhile."""
    heard, may_read = count(1), threading.Event()
    signs = 0
    hear = _Link._hear

    def counted(link: _Link) -> None:
        nonlocal signs
        signs = next(heard)
        hear(link)

    def slow(*_: object) -> list[Any]:
        assert may_read.wait(LIMIT_S)
        return []

    monkeypatch.setattr(_Link, "_hear", counted)
    monkeypatch.setattr(OpenCabal, "_members", slow)
    with CableStore.in_memory() as store, served(store, tmp_path, 1) as [client], ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: asyncio.run(client.members("default")))
        before = signs
        wait_until(lambda: found.done() or signs > before + _SILENT_BEATS + 1)
        assert not found.done()
        assert client.connection == "offline"
        may_read.set()
        assert found.result(LIMIT_S) == []


# --- bytes of no client ---------------------------------------------------------------------------


class RawClient:
    """A conversation in bytes."""

    def __init__(self, folder: Path) -> None:
        self.socket = talk(folder).connection
        self.socket.settimeout(LIMIT_S)
        self._file = self.socket.makefile("rb")

    def send(self, body: bytes) -> None:
        self.socket.sendall(struct.pack(">I", len(body)) + body)

    def next(self) -> Any:
        """Return the next frame that was asked for, None at the end."""
        while head := self._file.read(4):
            found = msgpack.unpackb(self._file.read(struct.unpack(">I", head)[0]))
            if found[0] != TOLD:
                return found
        return None

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@contextmanager
def raw_client(store: CableStore, folder: Path) -> Iterator[RawClient]:
    with control(store, folder):
        client = RawClient(folder)
        yield client
        client.close()


LATER = 2**40


@pytest.mark.thorough
@pytest.mark.parametrize(
    "call",
    [
        [1, "page", [], LATER],
        [1, "page", ["default", 5, None], LATER],
        [1, "page", ["default", "5", None, True], LATER],
        [1, "page", ["default", True, None, True], LATER],
        [1, "page", [b"default", 5, None, True], LATER],
        [1, "page", {"channel": "default"}, LATER],
        [1, "page", None, LATER],
        [1, "read", [], LATER],
        [1, "close", [], LATER],
        [1, "__class__", [], LATER],
        [1, "_members", ["default"], LATER],
        [1, 5, [], LATER],
        [1, ["page"], [], LATER],
        [1, "moderate", ["set_role", [], []], LATER],
        [1, "moderate", [["hide"], [], []], LATER],
        [1, "moderate", ["hide", ["text"], []], LATER],
        [1, "delete", ["text"], LATER],
        [1],
        [1, "channels", [], LATER, 1],
        [1, "channels", []],
        [1, "channels", [], "LATER"],
        [1, "channels", [], None],
    ],
    ids=repr,
)
def test_calls_that_no_client_makes_have_an_error_each(tmp_path: Path, call: list[Any]) -> None:
    with CableStore.in_memory() as store, raw_client(store, tmp_path) as client:
        before = store.dump_digest()
        client.send(msgpack.packb(call))
        kind, number, text, _ = client.next()
        assert (kind, number) == (PROBLEM, 1)
        assert "version of cablestore" in text
        client.send(msgpack.packb([2, "channels", [], LATER]))
        assert client.next()[:3] == [RESULT, 2, []]
        assert store.dump_digest() == before


def test_a_call_that_is_read_after_its_deadline_is_not_run(tmp_path: Path) -> None:
    with CableStore.in_memory() as store, raw_client(store, tmp_path) as client:
        client.send(msgpack.packb([1, "text", ["default", "late"], time.monotonic() - 0.001]))
        kind, number, text, _ = client.next()
        assert (kind, number) == (PROBLEM, 1)
        assert "did not do this" in text
        assert store.last_sequence == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x01\x91",
        b"\x00\x00\x00\x01\x05",
        b"\x00\x00\x00\x01\x90",
        b"\x00\x00\x00\x02\xa1\xff",
        struct.pack(">I", 100_000) + b"\x91" * 100_000,
        struct.pack(">I", limits.MAX_CONTROL_REQUEST_SIZE_BYTES + 1),
        b"\xff" * 1000,
        b'{"command": "channels"}\n',
    ],
    ids=lambda sent: repr(sent[:20]),
)
def test_bytes_that_are_no_frame_end_a_conversation(tmp_path: Path, sent: bytes) -> None:
    with CableStore.in_memory() as store, raw_client(store, tmp_path) as client:
        client.socket.sendall(sent)
        kind, number, text, _ = client.next()
        assert (kind, number) == (PROBLEM, 0)
        assert "frame" in text
        assert client.next() is None
        other = RawClient(tmp_path)
        other.send(msgpack.packb([1, "channels", [], LATER]))
        assert other.next()[:2] == [RESULT, 1]
        other.close()


def threads_of_clients() -> list[str]:
    names = ("control client", "chat-")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


@pytest.mark.thorough
@pytest.mark.parametrize("is_abrupt", [False, True])
def test_nothing_remains_of_a_client_that_is_gone(tmp_path: Path, is_abrupt: bool) -> None:
    """It may have asked for more than it reads."""
    with CableStore.in_memory() as store:
        store.ingest(raws(*(BOB.text("default", f"{at} " + "x" * 4000) for at in range(200))))
        with control(store, tmp_path):
            client = RawClient(tmp_path)
            for number in range(1, 200):
                client.send(msgpack.packb([number, "page", ["default", 200, None, True], LATER]))
            assert client.next()[:2] == [RESULT, 1]
            assert threads_of_clients()
            if is_abrupt:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            wait_until(lambda: not threads_of_clients(), threads_of_clients)


@pytest.mark.thorough
def test_a_server_ends_with_clients_that_read_nothing(tmp_path: Path) -> None:
    with CableStore.in_memory() as store:
        store.ingest(raws(*(BOB.text("default", f"{at} " + "x" * 4000) for at in range(200))))
        server = control(store, tmp_path)
        client = RawClient(tmp_path)
        for number in range(1, 50):
            client.send(msgpack.packb([number, "page", ["default", 200, None, True], LATER]))
        client.next()
        server.close()
        assert not threads_of_clients()
        client.close()


@pytest.mark.thorough
def test_a_store_that_is_closed_ends_the_conversation(tmp_path: Path) -> None:
    store = CableStore.in_memory()
    with raw_client(store, tmp_path) as client:
        store.close()
        assert client.next() is None


# --- other versions -------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_process_of_an_earlier_version_is_named(tmp_path: Path) -> None:
    """It answers as to any command that it does not know."""

    def earlier(request: ControlRequest, reply: ControlReply) -> int:
        reply.write("err", f"cablestore: {request.command!r} cannot run while another process has the store open\n")
        return 2

    with ControlServer(tmp_path, earlier), pytest.raises(CableStoreError, match="is of an earlier version"):
        RemoteCabal(partial(talk, tmp_path), "client")
    assert not threads_of_clients()


@pytest.mark.thorough
def test_a_client_of_another_version_is_refused(tmp_path: Path) -> None:
    with CableStore.in_memory() as store, control(store, tmp_path):
        for params in ({"version": VERSION + 1}, {}, {"version": VERSION, "more": 1}):
            connection = connect(tmp_path)
            assert connection is not None
            request = ControlRequest("chat", params, json=True, width=1, terminal=False)  # type: ignore[arg-type] # what a client of another version sends
            with connection, pytest.raises(CableStoreError, match="of another version of cablestore"):
                begin_conversation(connection, request)


@pytest.mark.thorough
def test_what_is_no_answer_of_this_version_is_told(tmp_path: Path) -> None:
    def other(_: ControlRequest, reply: ControlReply) -> int:
        body = msgpack.packb([TOLD, ["another", "state"], [{}, False, False], 0])
        reply.begin_conversation("serve").sendall(struct.pack(">I", len(body)) + body)
        return 0

    with ControlServer(tmp_path, other), pytest.raises(CableStoreError, match="another version of cablestore"):
        RemoteCabal(partial(talk, tmp_path), "client")
    assert not threads_of_clients()
