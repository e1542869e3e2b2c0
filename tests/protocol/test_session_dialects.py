"""Two sessions that may use different dialects: which one waits for the other, and what is requested again."""

from __future__ import annotations

import pytest
from conversation import (
    ALL_REQUESTS,
    DIALECTS,
    REQUESTS,
    Watched,
    asked,
    carry,
    faults,
    ids,
    is_live,
    pair,
    read,
    said,
)
from hypothesis import given
from hypothesis import strategies as st

from cablestore import DRAFT8, LEGACY, Dialect, limits
from cablestore.protocol.exchange import Concluded, Names, PeerRequest, Step
from cablestore.protocol.message import Request


@DIALECTS
@given(st.lists(st.sampled_from(list(REQUESTS.values())), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_requests_are_repeated_in_the_dialect_of_the_peer(
    dialect: Dialect, requests: list[Request], is_sent: bool, speaks_first: bool
) -> None:
    other = DRAFT8 if dialect is LEGACY else LEGACY
    a = Watched(dialect, ids(1), speaks_first=speaks_first)
    b = Watched(other, ids(10**6))
    mine = [a.send_request(request, 0) for request in requests]
    first = [exchange.request.request_id for exchange in mine]
    if is_sent:
        assert len(a.output()) == (len(mine) if speaks_first else 0)
    b.send_request(REQUESTS["list"], 0)
    carry(b, a, 3)
    assert a.dialect is other
    assert a.is_recognised
    data = b"".join(a.output())
    assert read(data, other) == [exchange.request for exchange in mine], "no request may use the earlier dialect"
    for exchange, request, before in zip(mine, requests, first, strict=True):
        found = exchange.request
        assert len(found.request_id) == other.request_id_size_bytes
        assert found == request._replace(request_id=found.request_id)
        assert not before or found.request_id != before
        assert exchange.deadline_s == (None if is_live(request) else 3 + limits.ANSWER_TIMEOUT_S)
    events = b.receive(data, 3)
    assert [type(event) for event in events] == [PeerRequest] * len(mine)
    for event in events:
        assert isinstance(event, PeerRequest)
        b.reject(event.exchange)
    ended = [event for event in carry(b, a) if not isinstance(event, Names)]
    assert ended == [Concluded(exchange, Step.FINISHED) for exchange in mine]


@ALL_REQUESTS
@pytest.mark.parametrize("is_answered", [False, True])
def test_peers_that_begin_in_two_dialects_agree_on_legacy(request_: Request, is_answered: bool) -> None:
    """Each follows the other's first message. Futile or duplicate requests leave no state."""
    a, b = Watched(LEGACY, ids(1)), Watched(DRAFT8, ids(10**6))
    mine, other = a.send_request(request_, 0), b.send_request(request_, 0)
    first, second = b"".join(a.output()), b"".join(b.output())
    events = [*a.receive(second, 0), *b.receive(first, 0)]
    taken = [event.exchange for event in events if isinstance(event, PeerRequest)]
    assert len(taken) == 2
    if is_answered:
        b.reject(taken[1])
    for _ in range(3):
        events += carry(b, a)
        events += carry(a, b)
    assert a.dialect is b.dialect is LEGACY
    assert not faults(events)
    assert list(a.open_requests.values()) == [mine]
    assert list(b.open_requests.values()) == [other]
    assert all(exchange.is_over for exchange in taken)
    for session, far in ((a, b), (b, a)):
        (theirs,) = far.to_answer.values()
        far.reject(theirs)
        assert carry(far, session)[-1] == Concluded(mine if session is a else other, Step.FINISHED)


@DIALECTS
def test_requests_are_not_repeated_to_a_peer_of_the_same_dialect(dialect: Dialect) -> None:
    a, b = pair(dialect)
    mine, _ = asked(a, b, REQUESTS["state"])
    b.send_request(REQUESTS["list"], 0)
    carry(b, a)
    assert a.is_recognised
    assert a.output() == []
    assert a.open_requests == {mine.request.request_id: mine}


@DIALECTS
@ALL_REQUESTS
def test_nothing_is_sent_before_speak(dialect: Dialect, request_: Request) -> None:
    a = Watched(dialect, ids(1), speaks_first=False)
    mine, other = a.send_request(request_, 0), a.send_request(request_, 0)
    assert a.output() == []
    assert a.expire(1e9) == [], "requests that were not sent do not time out"
    a.cancel(other)
    assert a.output() == [], "a request that was not sent needs no cancel request"
    a.speak(100)
    assert said(a) == [mine.request]
    assert mine.deadline_s == (None if is_live(request_) else 100 + limits.ANSWER_TIMEOUT_S)
    a.speak(200)
    assert a.output() == []
    third = a.send_request(request_, 300)
    assert said(a) == [third.request]


def test_a_request_that_was_not_sent_is_concluded_as_lost() -> None:
    a = Watched(LEGACY, ids(1), speaks_first=False)
    mine, cancelled = a.send_request(REQUESTS["state"], 0), a.send_request(REQUESTS["state"], 0)
    a.cancel(cancelled)
    assert a.lose() == [Concluded(mine, Step.LOST)]
    assert mine.is_over
    a.speak(0)
    assert a.output() == []
