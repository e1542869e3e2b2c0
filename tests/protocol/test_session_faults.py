"""Faults of peers: a session reports them, accepts only what it requested, and continues."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from conversation import (
    ALL_REQUESTS,
    DIALECTS,
    HASHES,
    POSTS,
    REQUESTS,
    Watched,
    asked,
    carry,
    empty_for,
    faults,
    give,
    ids,
    is_live,
    pair,
    said,
)
from hypothesis import given
from hypothesis import strategies as st

from cablestore import LEGACY, Dialect, limits
from cablestore.errors import DecodeError
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import (
    TRANSITIONS,
    Concluded,
    Dropped,
    Event,
    Fault,
    Hashes,
    PeerRequest,
    Posts,
    State,
    Step,
    Violation,
)
from cablestore.protocol.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    ListResponse,
    ModerationRequest,
    PostRequest,
    PostResponse,
    Request,
    Response,
    TimeRangeRequest,
    encode_message,
)

# --- requests --------------------------------------------------------------------------------------


@ALL_REQUESTS
@DIALECTS
def test_a_duplicate_request_is_a_fault(dialect: Dialect, request_: Request) -> None:
    a, b = pair(dialect)
    mine, theirs = asked(a, b, request_)
    again = encode_message(mine.request, dialect)
    assert faults(b.receive(again, 0)) == [Fault.DUPLICATE]
    assert b.output() == []
    assert b.to_answer == {mine.request.request_id: theirs}
    assert theirs.state is State.OPEN


@ALL_REQUESTS
@DIALECTS
def test_a_reflected_request_is_ignored(dialect: Dialect, request_: Request) -> None:
    """cable-core.js forwards to every peer, including the sender."""
    a, b = pair(dialect)
    mine, _ = asked(a, b, request_)
    reflected = encode_message(mine.request, dialect)
    assert a.receive(reflected, 0) == []
    assert a.open_requests == {mine.request.request_id: mine}
    a.cancel(mine)
    a.output()
    assert a.receive(reflected, 0) == [], "a reflected request is also ignored after its end"
    assert a.to_answer == {}
    assert a.output() == []


@pytest.mark.parametrize("theirs", range(6))
@ALL_REQUESTS
def test_a_request_that_crossed_an_own_one_is_concluded(request_: Request, theirs: int) -> None:
    """Both sides forward the same request. With a ttl of one less it may be the request of this side, sent back."""
    a, _ = pair(LEGACY)
    mine = a.send_request(request_._replace(ttl=4), 0)
    a.output()
    crossed = mine.request._replace(ttl=theirs)
    assert a.receive(encode_message(crossed, LEGACY), 0) == []
    assert len(a.output()) == (theirs != 3)
    assert a.open_requests == {mine.request.request_id: mine}


@ALL_REQUESTS
def test_cancelling_an_unknown_request_is_ignored(request_: Request) -> None:
    a, b = pair()
    asked(a, b, request_)
    assert b.receive(encode_message(CancelRequest(b"wxyz", b"none", 3), LEGACY), 0) == []
    assert b.output() == []
    assert len(b.to_answer) == 1


@given(st.integers(0, 5), st.lists(st.sampled_from(list(REQUESTS.values())), min_size=1, max_size=12))
def test_requests_above_the_limit_are_rejected_immediately(most: int, requests: list[Request]) -> None:
    a, b = Watched(LEGACY, ids(1)), Watched(LEGACY, ids(10**6), max_requests_alive=most)
    mine = [a.send_request(request, 0) for request in requests]
    events = carry(a, b)
    assert [event.exchange.request for event in events if isinstance(event, PeerRequest)] == [
        exchange.request for exchange in mine[:most]
    ]
    assert faults(events) == [Fault.TOO_MANY_REQUESTS] * len(mine[most:])
    assert said(b) == [empty_for(exchange.request) for exchange in mine[most:]]
    assert len(b.to_answer) == min(most, len(mine))
    if most:
        a.cancel(mine[0])
        a.send_request(requests[0], 0)
        assert not faults(carry(a, b))


def test_a_request_with_too_many_hashes_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HASHES_PER_REQUEST", 5)
    a, b = pair()
    asked(a, b, PostRequest(b"", HASHES[:5]))
    mine = a.send_request(PostRequest(b"", HASHES[:6]), 0)
    events = carry(a, b)
    assert faults(events) == [Fault.TOO_MANY_HASHES]
    assert len(events) == 1
    assert said(b) == [PostResponse(mine.request.request_id, ())]
    assert len(b.to_answer) == 1


def test_the_default_limit_on_hashes_applies() -> None:
    a, b = pair()
    hashes = tuple(number.to_bytes(32, "big") for number in range(limits.MAX_HASHES_PER_REQUEST + 1))
    asked(a, b, PostRequest(b"", hashes[:-1]))
    a.send_request(PostRequest(b"", hashes), 0)
    assert faults(carry(a, b)) == [Fault.TOO_MANY_HASHES]
    a.send_request(ModerationRequest(b"", tuple(map(bytes.hex, hashes)), 0, 0), 0)
    assert faults(carry(a, b)) == [Fault.TOO_MANY_HASHES]


# --- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HashResponse, PostResponse, ListResponse])
@pytest.mark.parametrize("items", [(), (bytes(32),)], ids=["empty", "not empty"])
def test_unrequested_answers_are_a_fault(kind: Callable[..., Response], items: tuple[bytes, ...]) -> None:
    a, _ = pair()
    mine = a.send_request(REQUESTS["range"], 0)
    found = kind(b"none", items if kind is not ListResponse else tuple("a" for _ in items))
    assert faults(a.receive(encode_message(found, LEGACY), 0)) == [Fault.UNREQUESTED]
    assert mine.state is State.OPEN


@ALL_REQUESTS
@pytest.mark.parametrize("kind", [HashResponse, PostResponse, ListResponse])
def test_answers_of_the_wrong_type_are_a_fault(request_: Request, kind: Callable[..., Response]) -> None:
    a, _ = pair()
    mine = a.send_request(request_, 0)
    response = kind(mine.request.request_id, ())
    events = a.receive(encode_message(response, LEGACY), 15)
    if type(response) is type(empty_for(request_)):
        assert events[-1] == Concluded(mine, Step.FINISHED)
    else:
        assert faults(events) == [Fault.WRONG_TYPE]
        assert len(events) == 1
        assert mine.state in (State.OPEN, State.LIVE)
        assert bool(a.expire(limits.ANSWER_TIMEOUT_S)) != is_live(request_), (
            "a response of the wrong type does not extend the timeout"
        )


@given(st.permutations(list(POSTS.values())[:6]), st.integers(1, 4), st.lists(st.integers(1, 6), max_size=4))
def test_only_requested_posts_are_accepted_each_once(posts: list[bytes], wanted: int, counts: list[int]) -> None:
    a, _ = pair()
    mine = a.send_request(PostRequest(b"", HASHES[:wanted]), 0)
    taken: list[bytes] = []
    missing = set(HASHES[:wanted])
    unasked = 0
    for count in [*counts, 6]:
        if not missing:
            break
        part = tuple(posts[:count])
        events = a.receive(encode_message(PostResponse(mine.request.request_id, part), LEGACY), 0)
        taken += [post for event in events if isinstance(event, Posts) for post in event.posts]
        unasked += len([post for post in part if post_hash(post) not in missing]) > 0
        missing -= set(map(post_hash, part))
        unasked -= faults(events).count(Fault.UNREQUESTED_POSTS)
        assert unasked == 0
        assert (events[-1] == Concluded(mine, Step.SATISFIED)) == (not missing)
    assert sorted(map(post_hash, taken)) == sorted(HASHES[:wanted])
    assert a.receive(encode_message(PostResponse(mine.request.request_id, ()), LEGACY), 0) == []


@given(st.integers(1, 5), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_hashes_beyond_the_requested_limit_are_ignored(limit: int, counts: list[int]) -> None:
    a, _ = pair()
    mine = a.send_request(TimeRangeRequest(b"", "a", 0, 0, limit), 0)
    parts = [tuple(HASHES[:count]) for count in counts]
    data = b"".join(encode_message(HashResponse(mine.request.request_id, part), LEGACY) for part in parts)
    events = a.receive(data, 0)
    heard = [digest for event in events if isinstance(event, Hashes) for digest in event.hashes]
    assert heard == [digest for part in parts for digest in part][:limit]
    assert not faults(events)
    assert mine.is_over == (sum(counts) >= limit)


def test_a_live_request_is_cancelled_at_its_limit() -> None:
    a, b = pair()
    mine, theirs = asked(a, b, REQUESTS["limited live range"])
    theirs.remaining = None  # a peer that does not count
    b.answer_hashes(theirs, HASHES[:9])
    seen = carry(b, a)
    assert [event.hashes for event in seen if isinstance(event, Hashes)] == [HASHES[:4]]
    assert seen[-1] == Concluded(mine, Step.LIMIT)
    assert carry(a, b) == [Dropped(theirs)]


def test_an_answer_without_an_end_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HASHES_PER_ANSWER", 5)
    a, b = pair()
    mine, theirs = asked(a, b, REQUESTS["range"])
    seen: list[Event] = []
    while not mine.is_over:
        b.answer_hashes(theirs, HASHES[:2])
        seen += carry(b, a)
    assert faults(seen) == [Fault.ENDLESS]
    assert seen[-1] == Concluded(mine, Step.CANCELLED)
    assert sum(len(event.hashes) for event in seen if isinstance(event, Hashes)) == 6
    assert carry(a, b) == [Dropped(theirs)]


@pytest.mark.parametrize("step", [Step.FINISHED, Step.LIMIT, Step.SATISFIED, Step.CANCELLED, Step.TIMED_OUT])
def test_a_late_response_is_not_a_violation(step: Step) -> None:
    a, b = pair()
    request = REQUESTS["posts"] if step is Step.SATISFIED else REQUESTS["limited"]
    mine, theirs = asked(a, b, request)
    give(b, theirs, 4)
    if step is Step.FINISHED:
        a.receive(encode_message(empty_for(mine.request), LEGACY), 0)
    elif step is Step.CANCELLED:
        a.cancel(mine)
    elif step is Step.TIMED_OUT:
        a.expire(limits.ANSWER_TIMEOUT_S)
    b.finish(theirs)
    data = b"".join(b.output())
    assert not faults(a.receive(data, 0))
    assert a.steps[-1][2] is step
    assert a.receive(data, 0) == [], "a repeated answer is ignored too"
    for kind in (HashResponse, PostResponse, ListResponse):
        assert a.receive(encode_message(kind(mine.request.request_id, ()), LEGACY), 0) == []


def test_a_limited_number_of_ids_is_remembered() -> None:
    a, _ = pair()
    exchanges = [a.send_request(REQUESTS["state"], 0) for _ in range(limits.REQUESTS_REMEMBERED + 1)]
    for exchange in exchanges:
        a.cancel(exchange)
    late = [encode_message(HashResponse(exchange.request.request_id, ()), LEGACY) for exchange in exchanges]
    assert faults(a.receive(late[0], 0)) == [Fault.UNREQUESTED]
    assert a.receive(b"".join(late[1:]), 0) == []


# --- any input -------------------------------------------------------------------------------------


def test_a_malformed_message_does_not_end_the_stream() -> None:
    a, b = pair()
    good = encode_message(ListRequest(b"abcd", 0, 0), LEGACY)
    bad = good[:-1] + b"\x80"
    unknown = b"\x0a\x09" + bytes(4) + b"abcd!"
    events = b.receive(bad + b"\x01\x00" + unknown + good, 0)
    assert faults(events) == [Fault.MALFORMED] * 2
    assert [type(event) for event in events] == [Violation, Violation, PeerRequest]
    assert a.output() == []


@given(st.binary(max_size=80), st.randoms(use_true_random=False))
def test_any_messages_of_a_peer_result_in_events_or_an_error(noise: bytes, rng: random.Random) -> None:
    """The result is events, or a DecodeError that ends the stream. The number of erroneous requests is bounded."""
    a, b = Watched(LEGACY, ids(1)), Watched(LEGACY, ids(10**6), max_requests_alive=3)
    for request in rng.sample(list(REQUESTS.values()), 5):
        a.send_request(request, 0)
        b.send_request(request, 0)
    for exchange in list(b.open_requests.values())[:3]:
        a._send(empty_for(exchange.request))
    data = bytearray(b"".join(a.output()))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    try:
        for event in b.receive(bytes(data) + noise, 0):
            if isinstance(event, PeerRequest) and not event.exchange.is_over:
                give(b, event.exchange, 2)
                b.finish(event.exchange)
    except DecodeError:
        pass  # the node closes the connection
    assert len(b.to_answer) <= 3
    assert all(row in TRANSITIONS for row in b.rows)
    b.expire(limits.ANSWER_TIMEOUT_S)
    b.lose()
    assert b.open_requests == b.to_answer == {}
