"""Hostile programs: malformed or unread messages do not affect other programs."""

from __future__ import annotations

import inspect
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN
from remote_stores import RawProgram, call, connected
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, StoreOptions, limits
from cablestore.errors import CableStoreError
from cablestore.remote import RemoteStore, messages
from cablestore.remote.link import Link
from cablestore.remote.messages import (
    HEADER,
    Call,
    Cancel,
    Changed,
    Error,
    Hello,
    Items,
    More,
    Offer,
    Ping,
    Pong,
    Result,
)
from cablestore.remote.methods import names
from cablestore.serving import StoreServer


@pytest.fixture(scope="module")
def store() -> Iterator[CableStore]:
    with CableStore.in_memory(identity=ANN.identity, options=StoreOptions(verify_threads=1)) as store:
        for number in range(600):
            store.post("c", f"text {number} {'x' * 500}", sync=False)
        yield store


@pytest.fixture
def server(store: CableStore) -> Iterator[StoreServer]:
    with StoreServer(store) as server:
        yield server
        with connected(server) as other:
            assert other.messages("c", 1).messages  # other programs are still served


@pytest.mark.parametrize(
    "first", [b"\n", b"garbage\n", b"{}\n", b"[" * 3000 + b"\n", b'{"cablestore": "1", "versions": [1]}\n', b"\xff\n"]
)
def test_an_invalid_first_line_is_answered_with_one_line_of_error(server: StoreServer, first: bytes) -> None:
    program = RawProgram(server, first)
    assert program.offer is not None
    assert program.offer.err.startswith("invalid first line: expected JSON")
    assert program.receive() is None
    program.close()


@pytest.mark.parametrize("first", [b"x" * 2 * limits.MAX_REMOTE_HELLO_SIZE_BYTES])
def test_a_first_line_without_an_end_is_not_read(server: StoreServer, first: bytes) -> None:
    program = RawProgram(server, first)
    assert program.offer is None
    program.close()


def test_a_silent_program_is_disconnected(store: CableStore) -> None:
    with StoreServer(store, hello_timeout_s=0.05) as server:
        program = RawProgram(server, b"")
        assert program.offer is None
        program.close()


@pytest.mark.parametrize(
    "sent",
    [
        HEADER.pack(0xFFFFFFFF),
        HEADER.pack(limits.MAX_REMOTE_REQUEST_SIZE_BYTES + 1),
        HEADER.pack(1) + b"\xc1",
        HEADER.pack(0),
        HEADER.pack(100_000) + b"\x91" * 100_000,
        HEADER.pack(7) + msgspec.msgpack.encode(["calls"]),
    ],
    ids=["longest", "too long", "not msgpack", "empty", "nested", "not a message"],
)
def test_a_frame_that_is_not_a_message_ends_the_connection(server: StoreServer, sent: bytes) -> None:
    program = RawProgram(server)
    program.socket.sendall(sent)
    found = program.answer()
    assert isinstance(found, Error)
    assert found.number == 0
    assert program.receive() is None
    program.close()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
HARMLESS = sorted(names() - {"export", "import_exports", "rebuild", "compact", "dump"})


@given(name=st.sampled_from(HARMLESS) | st.text(max_size=20), given=VALUES | st.lists(VALUES, max_size=5))
@settings(deadline=None, max_examples=30)
def test_any_arguments_have_a_result_or_an_error(name: str, given: object) -> None:
    with (
        CableStore.in_memory(identity=ANN.identity, options=StoreOptions(verify_threads=1)) as store,
        StoreServer(store) as server,
    ):
        program = RawProgram(server)
        program.send(Call(1, name, msgspec.Raw(msgspec.msgpack.encode(given)), 1e12), Cancel(1), Ping(2))
        while not isinstance(found := program.answer(), Pong):
            assert isinstance(found, Error | Result | Items)
        program.close()
        with connected(server) as other:
            assert other.stats().channels == 0


def test_deep_arguments_are_rejected(server: StoreServer) -> None:
    program = RawProgram(server)
    program.send(Call(1, "messages", msgspec.Raw(b"\x91" * 50_000 + b"\xc0"), 1e12))
    found = program.answer()
    assert isinstance(found, Error)
    program.close()


def test_a_call_after_its_deadline_is_not_run(server: StoreServer, store: CableStore) -> None:
    program, latest = RawProgram(server), store.last_sequence
    program.send(call(1, "post", "c", "late", False, deadline_s=0.0))
    found = program.answer()
    assert isinstance(found, Error)
    assert (found.kind, store.last_sequence) == ("OwnerGoneError", latest)
    program.close()


def requests(number: int) -> memoryview:
    """Return the bytes of requests with large answers."""
    page = (call(each, "messages", "c", 500, True, None, 0, None, "omit") for each in range(number))
    return memoryview(b"".join(messages.frame(each, 1 << 20) for each in page))


def test_a_program_that_does_not_read_is_not_read(store: CableStore) -> None:
    waiting, sent, refusals = requests(20_000), 0, 0
    with StoreServer(store, slow_reader_s=LIMIT_S) as server, connected(server) as other:
        program = RawProgram(server)
        program.socket.setblocking(False)
        while refusals < 20:  # the server answers 20 calls of another program, and reads nothing of this one
            try:
                sent += program.socket.send(waiting[sent : sent + 65_536])
                refusals = 0
            except BlockingIOError:
                refusals += 1
                assert other.messages("c", 1).messages
            assert sent < len(waiting)
        program.close()


def test_a_program_that_does_not_read_is_disconnected(store: CableStore) -> None:
    with StoreServer(store, slow_reader_s=0.5) as server, connected(server) as other:
        program = RawProgram(server)
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            program.socket.sendall(requests(20_000))
        assert other.messages("c", 1).messages
        program.close()


def test_an_iterator_sends_at_most_two_parts_ahead(server: StoreServer) -> None:
    program = RawProgram(server)
    program.send(call(1, "posts_by", ANN.identity.public_key, None, None), Ping(2))
    counts: list[int] = []
    pongs = 0
    while len(counts) < 2 or not pongs:
        found = program.answer()
        pongs += isinstance(found, Pong)
        counts += [len(msgspec.msgpack.decode(found.values))] if isinstance(found, Items) else []
    assert sum(counts) <= 2 * limits.MAX_REMOTE_ITEMS
    program.send(Ping(3))
    assert isinstance(program.answer(), Pong)  # the server sent nothing else
    program.send(More(1))
    assert isinstance(program.answer(), Items)
    program.close()


def test_the_number_of_concurrent_calls_is_limited(server: StoreServer, store: CableStore) -> None:
    program = RawProgram(server)
    waits = [
        call(number, "next_changes", store.cursor, None, None, False) for number in range(limits.MAX_REMOTE_CALLS + 1)
    ]
    program.send(*waits)
    found = program.answer()
    assert isinstance(found, Error)
    assert (found.number, found.text) == (64, "too many running calls: the maximum is 64. Wait for one")
    program.send(Cancel(0), call(100, "clock_difference"))
    found = program.answer()
    assert isinstance(found, Result)
    program.close()


def test_a_number_in_use_is_rejected(server: StoreServer, store: CableStore) -> None:
    program = RawProgram(server)
    program.send(*[call(7, "next_changes", store.cursor, None, None, False)] * 2)
    found = program.answer()
    assert isinstance(found, Error)
    assert found.text == "the call number 7 is in use"
    program.close()


def test_the_number_of_concurrent_iterators_is_limited(server: StoreServer, store: CableStore) -> None:
    with connected(server) as program:
        opened = [program.events(store.last_sequence) for _ in range(limits.MAX_REMOTE_ITERATORS)]
        with pytest.raises(CableStoreError, match=r"too many open iterators: the maximum is 64\. Close an iterator"):
            next(program.events())
        del opened
        for _ in range(limits.MAX_REMOTE_ITERATORS + 10):
            wait_until(lambda: _begins(program.events()))  # the server closes abandoned ones


def _begins(events: Iterator[object]) -> bool:
    try:
        return bool(next(events))
    except CableStoreError:
        return False


def test_the_number_of_concurrent_snapshots_is_limited(server: StoreServer) -> None:
    with connected(server) as program:
        opened = [program.snapshot() for _ in range(limits.MAX_REMOTE_SNAPSHOTS)]
        with pytest.raises(CableStoreError, match=r"too many open snapshots: the maximum is 16\. Close a snapshot"):
            program.snapshot()
        opened.pop().close()
        program.snapshot().close()


def test_the_number_of_concurrent_programs_is_limited(server: StoreServer) -> None:
    programs = [connected(server) for _ in range(limits.MAX_REMOTE_CLIENTS)]
    with pytest.raises(
        CableStoreError, match=r"too many programs use this store: the maximum is 64\. Close a program, or wait"
    ):
        connected(server)
    for each in programs:
        each.close()
    wait_until(lambda: _is_served(server))


def _is_served(server: StoreServer) -> bool:
    program = RawProgram(server)
    program.close()
    return program.offer == Offer(messages.own_version(), messages.VERSIONS, dialect="legacy")


def test_the_size_of_a_request_is_limited(server: StoreServer) -> None:
    with connected(server) as program:
        with pytest.raises(CableStoreError, match="the maximum between a program and the process"):
            program.local.put("name", "key", bytes(limits.MAX_REMOTE_REQUEST_SIZE_BYTES))
        assert program.stats().channels == 1


def test_the_size_of_a_reply_is_limited() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(messages.line(Offer("0.14.0", messages.VERSIONS, dialect="legacy")))
        theirs.sendall(HEADER.pack(limits.MAX_REMOTE_REPLY_SIZE_BYTES + 1))
        with RemoteStore(Link.over(ours)) as program:
            wait_until(lambda: program.is_closed)
    with pytest.raises(CableStoreError, match="the message has 1,0"):
        messages.frame(Result(1, msgspec.Raw(msgspec.msgpack.encode(bytes(1000))), 0), 1000)


def test_a_result_after_a_later_report_does_not_lower_the_last_sequence() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(messages.line(Offer("0.15.0", messages.VERSIONS, dialect="legacy")))
        for message in (
            Changed(1, 5, "", 0, is_closed=False),
            Result(1, msgspec.Raw(msgspec.msgpack.encode(None)), 4),
        ):
            theirs.sendall(messages.frame(message, limits.MAX_REMOTE_REPLY_SIZE_BYTES))
        program = RemoteStore(Link.over(ours))
    with program:
        wait_until(lambda: program.is_closed)
        assert program.last_sequence == 5


@pytest.mark.parametrize(("versions", "age"), [((0, 0), "an older"), ((2, 9), "a newer")])
def test_a_program_of_another_version_is_rejected_with_one_line(
    server: StoreServer, versions: tuple[int, int], age: str
) -> None:
    program = RawProgram(server, messages.line(Hello("9.9", versions)))
    assert program.offer is not None
    assert program.offer.err.startswith(f"the program runs {age} version of cablestore: 9.9 with protocol")
    program.close()


def test_a_newer_program_that_supports_this_version_is_served(server: StoreServer) -> None:
    program = RawProgram(server, messages.line(Hello("9.9", (1, 7))))
    program.send(call(1, "clock_difference"))
    assert isinstance(program.answer(), Result)
    program.close()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (messages.line(Offer("9.9", (2, 3))), "runs a newer version of cablestore: 9.9 with protocol 2 to 3"),
        (messages.line(Offer("0.1", (0, 0))), "runs an older version of cablestore: 0.1 with protocol 0 to 0"),
        (
            b'{"err": "cablestore: a request is one line of JSON"}\n{"exit": 2}\n',
            "runs an earlier version of cablestore",
        ),
        (b"garbage\n", "ended before it answered"),
    ],
    ids=["newer", "older", "earlier", "garbage"],
)
def test_a_store_of_another_version_is_rejected_with_one_line(line: bytes, text: str) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(line)
        with pytest.raises(CableStoreError, match=text):
            Link.over(ours)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_disconnected_program_leaves_nothing_open(server: StoreServer) -> None:
    before = open_descriptors()
    for _ in range(20):
        with connected(server) as program:
            program.snapshot()
            program.events()
    wait_until(lambda: open_descriptors() <= before)


def test_a_burst_of_writes_is_reported_together(store: CableStore) -> None:
    with StoreServer(store) as server:
        program, reports = RawProgram(server), 0
        began_s = time.monotonic()
        for number in range(300):
            store.local.put("name", str(number), b"value")
        while not (isinstance(found := program.receive(), Changed) and found.last_sequence == store.last_sequence):
            reports += isinstance(found, Changed)
        assert reports <= 2 + (time.monotonic() - began_s) / limits.REMOTE_CHANGE_WINDOW_S
        program.close()


def test_posts_are_sent_in_parts(store: CableStore) -> None:
    posts = [post.raw for post in store.posts_by(ANN.identity.public_key)]
    stored: list[int] = []

    with (
        CableStore.in_memory(options=StoreOptions(verify_threads=1)) as empty,
        StoreServer(empty) as server,
        connected(server) as program,
    ):

        def given() -> Iterator[bytes]:
            for _ in range(3 * limits.REMOTE_INGEST_SIZE_BYTES // sum(map(len, posts)) + 1):
                stored.append(empty.last_sequence)
                yield from posts

        outcomes = program.ingest(given())
        assert len(outcomes) == len(posts) * len(stored)
        assert stored[0] == 0 < stored[-1]  # a part was stored while the next one was produced


def test_the_limits_are_the_defaults() -> None:
    server = inspect.signature(StoreServer).parameters
    assert server["hello_timeout_s"].default == limits.REMOTE_HELLO_TIMEOUT_S
    assert server["slow_reader_s"].default == limits.REMOTE_SLOW_READER_S
    assert inspect.signature(Link.reach).parameters["timeout_s"].default == limits.REMOTE_TIMEOUT_S
