"""Sessions in time: a silent request times out, a part of an answer extends the timeout, and a loss ends all requests."""

from __future__ import annotations

from conversation import ALL_REQUESTS, DIALECTS, REQUESTS, Watched, asked, carry, give, ids, is_live, pair, said
from hypothesis import given
from hypothesis import strategies as st

from cablestore import LEGACY, Dialect
from cablestore.protocol.exchange import Concluded, Dropped, Event, Step
from cablestore.protocol.message import CancelRequest, ModerationRequest, PostResponse, Request, encode_message


@DIALECTS
@ALL_REQUESTS
def test_an_unanswered_request_times_out(dialect: Dialect, request_: Request) -> None:
    a, b = Watched(dialect, ids(1), answer_timeout_s=10), Watched(dialect, ids(10**6))
    mine, theirs = asked(a, b, request_, now_s=100)
    assert a.expire(109.9) == []
    events = a.expire(110)
    if is_live(request_):
        assert events == []
        return
    assert events == [Concluded(mine, Step.TIMED_OUT)]
    (cancel,) = said(a)
    assert isinstance(cancel, CancelRequest)
    assert (cancel.cancel_id, cancel.ttl) == (mine.request.request_id, 0)
    assert cancel.request_id != cancel.cancel_id
    assert b.receive(encode_message(cancel, dialect), 0) == [Dropped(theirs)]
    assert a.expire(1e9) == []


@given(st.lists(st.floats(0, 9.9), max_size=6), st.floats(10, 30))
def test_every_part_of_an_answer_extends_its_timeout(pauses: list[float], silence: float) -> None:
    a, b = Watched(LEGACY, ids(1), answer_timeout_s=10), Watched(LEGACY, ids(10**6))
    mine, theirs = asked(a, b, REQUESTS["state"])
    now_s = 0.0
    for pause in pauses:
        now_s += pause
        assert a.expire(now_s) == []
        give(b, theirs, 1)
        carry(b, a, now_s)
    assert a.expire(now_s + silence) == [Concluded(mine, Step.TIMED_OUT)]


def test_useless_posts_do_not_extend_the_timeout() -> None:
    a, b = pair(answer_timeout_s=10.0)
    mine, theirs = asked(a, b, REQUESTS["posts"])
    for now_s in (4, 8):
        b._send(PostResponse(theirs.request.request_id, (b"nobody asked for this",)))
        carry(b, a, now_s)
    assert a.expire(10) == [Concluded(mine, Step.TIMED_OUT)]


@given(st.lists(st.floats(0, 9.9), max_size=6), st.floats(0, 9.9))
def test_a_part_of_an_answer_extends_only_the_timeouts_of_later_requests(pauses: list[float], pause_s: float) -> None:
    """A peer answers in order. Requests do not wait for the end of a live answer."""
    a, b = Watched(LEGACY, ids(1), answer_timeout_s=10), Watched(LEGACY, ids(10**6))
    earlier, _ = asked(a, b, REQUESTS["state"])
    _, live = asked(a, b, REQUESTS["live range"])
    answered, theirs = asked(a, b, REQUESTS["range"])
    later, _ = asked(a, b, REQUESTS["posts"])
    given_up: list[Event] = []
    now_s = 0.0
    for pause in pauses:
        now_s += pause
        given_up += a.expire(now_s)
        give(b, theirs, 1)
        carry(b, a, now_s)
    give(b, live, 1)
    carry(b, a, now_s + pause_s)
    assert given_up == ([Concluded(earlier, Step.TIMED_OUT)] if now_s >= 10 else [])
    given_up += a.expire(now_s + 10)
    assert given_up == [Concluded(mine, Step.TIMED_OUT) for mine in (earlier, answered, later)]


@ALL_REQUESTS
def test_the_end_of_an_answer_extends_the_timeouts_of_later_requests(request_: Request) -> None:
    a, b = Watched(LEGACY, ids(1), answer_timeout_s=10), Watched(LEGACY, ids(10**6))
    mine, theirs = asked(a, b, request_)
    later, _ = asked(a, b, REQUESTS["state"])
    b.reject(theirs)
    carry(b, a, now_s=9)
    assert mine.is_over
    assert a.expire(18.9) == ([Concluded(later, Step.TIMED_OUT)] if is_live(request_) else [])
    assert later.is_over or a.expire(19) == [Concluded(later, Step.TIMED_OUT)]


@DIALECTS
@ALL_REQUESTS
def test_no_request_times_out_while_a_long_message_arrives(dialect: Dialect, request_: Request) -> None:
    """The message may be the answer, or precede it."""
    a, b = Watched(dialect, ids(1), answer_timeout_s=10), Watched(dialect, ids(10**6))
    b.send_request(ModerationRequest(b"", ("a",) * 300, 0, 0), 0)
    long = b"".join(b.output())
    mine, theirs = asked(a, b, request_)
    give(b, theirs)
    b.finish(theirs)
    for now_s, byte in enumerate(long[:-1]):
        a.receive(bytes([byte]), 9.0 * now_s)
        assert a.expire(9.0 * now_s + 9) == []
    end_s = 9.0 * (len(long) - 1)
    a.receive(long[-1:], end_s)
    assert all(event.exchange is mine for event in carry(b, a, end_s + 9))  # type: ignore[union-attr] # each event has one
    assert is_live(request_) or mine.is_over


def test_a_stalled_long_message_does_not_extend_timeouts() -> None:
    a, b = pair(answer_timeout_s=10.0)
    mine, theirs = asked(a, b, REQUESTS["posts"])
    give(b, theirs)
    b.finish(theirs)
    answer = b"".join(b.output())
    a.receive(answer[:9], 1)
    a.receive(answer[9:12], 5)
    assert a.expire(14.9) == []
    assert a.expire(15) == [Concluded(mine, Step.TIMED_OUT)]


def test_messages_in_pieces_do_not_extend_timeouts() -> None:
    """The pieces of a message arrive at once, as on a fast line."""
    a, b = pair(answer_timeout_s=10.0)
    mine, _ = asked(a, b, REQUESTS["posts"])
    for now_s in range(10):
        b.send_request(REQUESTS["state"], now_s)
        b.send_request(REQUESTS["state"], now_s)
        first, second = b.output()
        a.receive(first + second[:3], now_s)
        a.receive(second[3:], now_s)
    assert a.expire(10) == [Concluded(mine, Step.TIMED_OUT)]


def test_a_request_may_have_its_own_timeout() -> None:
    a, _ = pair()
    mine = a.send_request(REQUESTS["state"], 0, timeout_s=3)
    other = a.send_request(REQUESTS["state"], 0)
    assert a.expire(3) == [Concluded(mine, Step.TIMED_OUT)]
    assert a.open_requests == {other.request.request_id: other}


@DIALECTS
@given(st.lists(st.sampled_from(list(REQUESTS.values())), max_size=5), st.integers(0, 5))
def test_a_loss_ends_all_requests(dialect: Dialect, requests: list[Request], cancelled: int) -> None:
    a, b = pair(dialect)
    both = [asked(a, b, request) for request in requests]
    for mine, _ in both[:cancelled]:
        a.cancel(mine)
    assert a.lose() == [Concluded(mine, Step.LOST) for mine, _ in both[cancelled:]]
    assert b.lose() == [Dropped(theirs) for _, theirs in both]
    assert a.lose() == b.lose() == []
    for mine, theirs in both:
        assert mine.is_over
        assert theirs.is_over
        give(b, theirs, 2)
        b.finish(theirs)
        a.cancel(mine)
    assert a.output() == b.output() == []
