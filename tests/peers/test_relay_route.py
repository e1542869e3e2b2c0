"""Handling of a request by one node: loops, forwarding, and the returned answers."""

from __future__ import annotations

import gc
from functools import partial
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network import LINE, ORIGIN, Network, PassingInspector, hash_of

from cablestore import DRAFT8, LEGACY, Dialect, limits
from cablestore.peers.relay import Loops, Route
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import Exchange, PeerRequest, State
from cablestore.protocol.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    PostRequest,
    Request,
    StateRequest,
    encode_message,
)
from cablestore.protocol.session import Session
from cablestore.protocol.varint import MAX_VARINT

# --- loops -----------------------------------------------------------------------------------------


def loop_sessions() -> tuple[Session, Session, Session]:
    one, two, three = (Session(LEGACY, partial(int.to_bytes, 7, byteorder="big")) for _ in range(3))
    return one, two, three


def test_a_request_on_a_second_route_is_a_loop_while_the_first_is_connected() -> None:
    one, two, three = loop_sessions()
    loops, request = Loops(), StateRequest(b"abcd", "a", 0, 1)
    assert not loops.is_loop(one, request, [one, two])
    assert loops.is_loop(two, request, [one, two])
    assert not loops.is_loop(one, request, [one, two]), "the first may ask again"
    assert not loops.is_loop(three, request, [two, three]), "the peer reconnected"
    assert loops.is_loop(two, request, [two, three])


def test_an_own_request_that_returns_is_a_loop() -> None:
    one, two, _ = loop_sessions()
    mine = one.send_request(StateRequest(b"abcd", "a", 0, 3), 0)
    assert Loops().is_loop(two, StateRequest(b"abcd", "a", 0, 1), [one, two])
    one.cancel(mine)
    assert Loops().is_loop(two, StateRequest(b"abcd", "a", 0, 1), [one, two]), "a late request is a loop too"
    assert not Loops().is_loop(two, StateRequest(b"abcd", "a", 0, 1), [two])


def test_a_request_of_the_peer_that_it_was_forwarded_to_is_not_a_loop_after_a_cancel() -> None:
    one, two, _ = loop_sessions()
    loops, request = Loops(), StateRequest(b"abcd", "a", 0, 3)
    assert not loops.is_loop(one, request, [one, two])
    two.cancel(two.send_request(request, 0))
    assert not loops.is_loop(one, request, [one, two])


def test_loops_remember_a_limited_number_and_do_not_keep_sessions_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTES_REMEMBERED", 3)
    one, two, three = loop_sessions()
    loops = Loops()
    requests = [StateRequest(bytes((number,)) * 4, "a", 0, 1) for number in range(4)]
    for request in requests:
        assert not loops.is_loop(one, request, [one, two])
    assert [loops.is_loop(two, request, [one, two]) for request in reversed(requests)] == [True] * 3 + [False]
    repeated = Loops()
    for number in (0, 1, 2, 0, 3):  # a repeated request is remembered from then on
        assert not repeated.is_loop(one, requests[number], [one, two])
    assert repeated.is_loop(two, requests[0], [one, two])
    gone = ref(three)
    assert not loops.is_loop(three, StateRequest(b"abcd", "a", 0, 1), [three])
    del three
    gc.collect()
    assert gone() is None
    assert not loops.is_loop(two, StateRequest(b"abcd", "a", 0, 1), [one, two])


# --- forwarding ----------------------------------------------------------------------------------------


def asked_of_the_first(network: Network, request: Request) -> tuple[Session, Exchange]:
    """Return a request that node 1 has received and not handled."""
    session = network.nodes[1].sessions[ORIGIN]
    (event,) = session.receive(encode_message(request, LEGACY), 0)
    assert isinstance(event, PeerRequest)
    return session, event.exchange


@pytest.mark.parametrize("ttl", range(1, limits.MAX_TTL + 1))
def test_timeouts_grow_with_the_ttl_and_are_below_that_of_the_origin(ttl: int) -> None:
    network = Network(LINE)
    _, theirs = asked_of_the_first(network, StateRequest(b"abcd", "a", 0, ttl))
    route = Route(network.nodes[1].sessions[0], theirs, PassingInspector())
    route.forward(network.nodes[1].sessions.values(), 0)
    (forwarded,) = network.nodes[1].sessions[2].open_requests.values()
    assert forwarded.deadline_s is not None
    assert limits.RELAY_TIMEOUT_S <= forwarded.deadline_s < limits.ANSWER_TIMEOUT_S
    assert (forwarded.deadline_s - limits.RELAY_TIMEOUT_S) / limits.RELAY_STEP_S == pytest.approx(ttl - 1)


@given(st.integers(0, MAX_VARINT), st.integers(0, MAX_VARINT))
def test_any_offset_and_limit_can_be_forwarded(offset: int, limit: int) -> None:
    network = Network([(0, 1), (1, 2)])
    session, theirs = asked_of_the_first(network, ListRequest(b"abcd", offset, limit, 2))
    Route(session, theirs, PassingInspector()).forward(network.nodes[1].sessions.values(), 0)
    network.flush()
    (request,) = [message for near, _, message in network.log if near == 1 and isinstance(message, ListRequest)]
    assert (request.offset, request.ttl) == (0, 1)
    assert request.limit == 0 if limit == 0 else request.limit >= min(offset + limit, MAX_VARINT)


@pytest.mark.parametrize("speaks_first", [False, True])
@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
def test_nothing_is_forwarded_to_a_silent_peer(dialect: Dialect, speaks_first: bool) -> None:
    """The peer may turn out to use draft 8. A request that is never sent never times out."""
    network = Network([(0, 1)])
    session, theirs = asked_of_the_first(network, StateRequest(b"abcd", "a", 0, 2))
    stranger = Session(dialect, lambda size_bytes: b"\x01" * size_bytes, speaks_first=speaks_first)
    route = Route(session, theirs, PassingInspector())
    route.forward([session, stranger], 0)
    route.finish()
    assert theirs.is_over
    word = CancelRequest(b"\x02" * 8, b"\x03" * 8)
    assert stranger.receive(encode_message(word, DRAFT8), 0) == []
    assert stranger.output() == []


def test_half_of_a_peers_capacity_is_left_for_own_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS_ALIVE", 6)
    network = Network([(0, 1), (1, 2)])
    for number in range(5):
        session, theirs = asked_of_the_first(network, StateRequest(bytes((number,)) * 4, "a", 1, 2))
        Route(session, theirs, PassingInspector()).forward(network.nodes[1].sessions.values(), 0)
    assert len(network.nodes[1].sessions[2].open_requests) == 3


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_peer_that_knows_the_request_is_not_asked_it_again(is_asked: bool) -> None:
    network = Network([(0, 1), (1, 2)])
    request = StateRequest(b"abcd", "a", 0, 2)
    session, theirs = asked_of_the_first(network, request)
    far = network.nodes[1].sessions[2]
    if is_asked:
        known = far.send_request(request, 0)
    else:
        far.receive(encode_message(request, LEGACY), 0)
    far.output()
    Route(session, theirs, PassingInspector()).forward([session, far], 0)
    assert far.output() == session.output() == []
    assert theirs.holds == 1
    assert far.open_requests == ({b"abcd": known} if is_asked else {})


# --- returned answers ----------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6), st.integers(0, 10))
def test_a_remembered_hash_is_forwarded_once(parts: list[list[int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ROUTE_HASHES_REMEMBERED", most)
        network = Network([(0, 1)])
        route = Route(*asked_of_the_first(network, StateRequest(b"abcd", "a", 0, 2)), PassingInspector())
        kept: list[bytes] = []
        for part in parts:
            hashes = [hash_of(0, number) for number in part]
            found = route.fresh(hashes)
            assert found == [digest for digest in dict.fromkeys(hashes) if digest not in kept]
            kept += found[: most - len(kept)]


def test_a_live_request_is_caught_up_when_the_store_is_and_not_before() -> None:
    network = Network([(0, 1), (1, 2)])
    session, theirs = asked_of_the_first(network, StateRequest(b"abcd", "a", 1, 2))
    route = Route(session, theirs, PassingInspector())
    far = network.nodes[1].sessions[2]
    route.forward([far], 0)
    network.nodes[1].handle(far, far.receive(encode_message(HashResponse(b"abcd", ()), LEGACY), 0))
    assert far.open_requests == {}
    states = [theirs.state]
    route.finish()
    assert [*states, theirs.state] == [State.OPEN, State.LIVE]


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("kind", ["hashes", "posts"])
def test_an_answer_that_is_still_being_inspected_is_waited_for(kind: str, is_lost: bool) -> None:
    """The peer with the answer is done before the check. The requesting peer may be gone by then."""
    network = Network([(0, 1), (1, 2)])
    node = network.nodes[1]
    node.inspector.later = True
    digest = hash_of(2)
    request: Request = StateRequest(b"", "a", 0, 1) if kind == "hashes" else PostRequest(b"", (digest,), 1)
    _, question = network.send_request(request)
    network.run()
    assert question.ends == []
    assert (question.hashes, question.posts) == ([hash_of(1)] if kind == "hashes" else [], [])
    if is_lost:
        network.cut(ORIGIN, 1)
    assert node.inspector.release()
    node.handle(node.sessions[2], [])
    network.run()
    if not is_lost:
        assert [*question.hashes, *map(post_hash, question.posts)][-1:] == [digest]
        assert len(question.ends) == 1
    network.assert_nothing_is_left()
    assert not node.inspector.release()
