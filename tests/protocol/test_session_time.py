"""Sessions in time: a silent request is given up, a part of an answer gives more time, and a loss ends everything."""

from __future__ import annotations

from conversation import ALL_REQUESTS, DIALECTS, REQUESTS, Watched, asked, carry, give, ids, is_live, pair, said
from hypothesis import given
from hypothesis import strategies as st

from cablestore import LEGACY, Dialect
from cablestore.protocol.exchange import Concluded, Dropped, Step
from cablestore.protocol.message import CancelRequest, PostResponse, Request, encode_message


@DIALECTS
@ALL_REQUESTS
def test_silence_is_given_up(dialect: Dialect, request_: Request) -> None:
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
def test_every_part_of_an_answer_gives_more_time(pauses: list[float], silence: float) -> None:
    a, b = Watched(LEGACY, ids(1), answer_timeout_s=10), Watched(LEGACY, ids(10**6))
    mine, theirs = asked(a, b, REQUESTS["state"])
    now_s = 0.0
    for pause in pauses:
        now_s += pause
        assert a.expire(now_s) == []
        give(b, theirs, 1)
        carry(b, a, now_s)
    assert a.expire(now_s + silence) == [Concluded(mine, Step.TIMED_OUT)]


def test_posts_of_no_use_give_no_more_time() -> None:
    a, b = pair(answer_timeout_s=10.0)
    mine, theirs = asked(a, b, REQUESTS["posts"])
    for now_s in (4, 8):
        b._send(PostResponse(theirs.request.request_id, (b"nobody asked for this",)))
        carry(b, a, now_s)
    assert a.expire(10) == [Concluded(mine, Step.TIMED_OUT)]


def test_a_request_may_have_a_time_of_its_own() -> None:
    a, _ = pair()
    mine = a.ask(REQUESTS["state"], 0, timeout_s=3)
    other = a.ask(REQUESTS["state"], 0)
    assert a.expire(3) == [Concluded(mine, Step.TIMED_OUT)]
    assert a.asked == {other.request.request_id: other}


@DIALECTS
@given(st.lists(st.sampled_from(list(REQUESTS.values())), max_size=5), st.integers(0, 5))
def test_a_loss_ends_everything(dialect: Dialect, requests: list[Request], cancelled: int) -> None:
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
