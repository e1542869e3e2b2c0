"""Sessions: the life of a request from its id to its end, and the division of answers into responses."""

from __future__ import annotations

import inspect
import itertools

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
    is_live,
    items,
    pair,
    read,
    said,
)
from hypothesis import given
from hypothesis import strategies as st

from cablestore import LEGACY, Dialect, limits
from cablestore.protocol.exchange import (
    TRANSITIONS,
    Concluded,
    Dropped,
    Exchange,
    Hashes,
    Names,
    PeerRequest,
    Posts,
    RequestRole,
    State,
    Step,
    Violation,
)
from cablestore.protocol.message import (
    HashResponse,
    ListRequest,
    ListResponse,
    PostRequest,
    PostResponse,
    Request,
    StateRequest,
    TimeRangeRequest,
    encode_message,
)
from cablestore.protocol.session import Session

# --- the life of a request -------------------------------------------------------------------------


def take_step(step: Step, a: Session, b: Session, mine: Exchange, theirs: Exchange) -> None:
    match step:
        case Step.PART:
            give(b, theirs, 1)
        case Step.LIMIT | Step.SATISFIED:
            give(b, theirs, 2)
            b.finish(theirs)
        case Step.CAUGHT_UP:
            b.finish(theirs)
        case Step.FINISHED:
            b.reject(theirs)
        case Step.CANCELLED:
            a.cancel(mine)
        case Step.TIMED_OUT:
            a.expire(limits.ANSWER_TIMEOUT_S)
        case Step.LOST:
            a.lose()
            b.lose()


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: "-".join(part.name.lower() for part in row))
@DIALECTS
def test_every_row_of_the_table_is_reached(dialect: Dialect, row: tuple[RequestRole, State, Step]) -> None:
    role, state, step = row
    a, b = pair(dialect)
    request: Request = TimeRangeRequest(b"", "a", 0, 0 if state is State.LIVE else 9, 2)
    if role is RequestRole.RESPONDER and step is Step.CAUGHT_UP:
        request = TimeRangeRequest(b"", "a", 0, 0, 2)
    if step is Step.SATISFIED:
        request = PostRequest(b"", HASHES[:2])
    mine, theirs = asked(a, b, request)
    if state is State.LIVE:
        b.finish(theirs)
    assert {mine.state, theirs.state} <= {State.OPEN, State.LIVE}
    take_step(step, a, b, mine, theirs)
    carry(a, b)
    carry(b, a)
    exchange, session = (mine, a) if role is RequestRole.REQUESTER else (theirs, b)
    assert row in session.rows
    assert exchange.state is TRANSITIONS[row]


def test_no_transition_leaves_the_end_and_every_end_is_reachable() -> None:
    assert not [row for row in TRANSITIONS if row[1] is State.CONCLUDED]
    for role in RequestRole:
        for state in (State.OPEN, State.LIVE):
            steps = {step for known, before, step in TRANSITIONS if (known, before) == (role, state)}
            assert {Step.PART, Step.FINISHED, Step.LIMIT, Step.CANCELLED, Step.LOST} <= steps


# --- ids -------------------------------------------------------------------------------------------


def test_a_forwarded_request_keeps_its_id() -> None:
    a, b = pair()
    mine, theirs = asked(a, b, StateRequest(b"keep", "a", 0, 4))
    assert mine.request.request_id == theirs.request.request_id == b"keep"
    assert theirs.request.ttl == 4


def test_ids_in_use_are_not_reused() -> None:
    """wire.md draft 1, 6.3.1: an id that collides with one in use is drawn again."""
    made = iter([b"1111", b"1111", b"2222", b"5555", b"2222", b"1111", b"3333", b"4444"])
    a = Watched(LEGACY, lambda _: next(made))
    first = a.send_request(REQUESTS["state"], 0)
    second = a.send_request(REQUESTS["state"], 0)
    a.receive(encode_message(StateRequest(b"5555", "a", 1), LEGACY), 0)
    a.receive(encode_message(HashResponse(b"1111", ()), LEGACY), 0)  # concluded, but its answers may still arrive
    third = a.send_request(REQUESTS["state"], 0)
    assert [exchange.request.request_id for exchange in (first, second, third)] == [b"1111", b"2222", b"3333"]
    assert a.open_requests == {b"2222": second, b"3333": third}


# --- concluding ------------------------------------------------------------------------------------


@ALL_REQUESTS
@DIALECTS
@pytest.mark.parametrize("count", [0, 1])
def test_the_end_is_an_empty_response_of_the_right_type(dialect: Dialect, request_: Request, count: int) -> None:
    a, b = pair(dialect)
    mine, theirs = asked(a, b, request_)
    if count or isinstance(request_, ListRequest):
        give(b, theirs, count)
    b.finish(theirs)
    messages = said(b)
    if is_live(request_):
        assert theirs.state is State.LIVE
        assert empty_for(mine.request) not in messages
        b.reject(theirs)
        messages = said(b)
    assert theirs.is_over
    assert b.to_answer == {}
    if not isinstance(request_, ListRequest):  # the one response is the end
        assert messages.count(empty_for(mine.request)) == 1
        assert messages[-1] == empty_for(mine.request)
    events = a.receive(b"".join(encode_message(message, dialect) for message in messages), 0)
    assert events[-1] == Concluded(mine, Step.FINISHED)
    assert a.open_requests == {}


@ALL_REQUESTS
def test_a_request_is_rejected_with_an_empty_response(request_: Request) -> None:
    a, b = pair()
    mine, theirs = asked(a, b, request_)
    b.reject(theirs)
    assert said(b) == [empty_for(mine.request)]


@given(
    st.integers(0, 12),
    st.lists(st.integers(0, 6), max_size=5),
    st.lists(st.integers(0, 6), max_size=5),
    st.sampled_from([0, 9]),
)
def test_history_and_live_hashes_share_the_limit(limit: int, history: list[int], news: list[int], end_ms: int) -> None:
    a, b = pair()
    mine, theirs = asked(a, b, TimeRangeRequest(b"", "a", 0, end_ms, limit))
    numbers = itertools.count()
    given_hashes: list[bytes] = []

    def answer(count: int) -> None:
        part = [next(numbers).to_bytes(32, "big") for _ in range(count)]
        given_hashes.extend(part)
        b.answer_hashes(theirs, part)

    for count in history:
        answer(count)
    b.finish(theirs)
    if end_ms:
        given_here = list(given_hashes)
    for count in news:
        answer(count)
    due = given_hashes if end_ms == 0 else given_here
    is_reached = bool(limit) and len(due) >= limit
    due = due[:limit] if limit else due
    messages = said(b)
    assert [digest for message in messages for digest in items(message)] == due
    ends = [at for at, message in enumerate(messages) if message == empty_for(mine.request)]
    assert ends == ([len(messages) - 1] if end_ms or is_reached else [])
    assert theirs.is_over == bool(end_ms or is_reached)
    events = a.receive(b"".join(encode_message(message, LEGACY) for message in messages), 0)
    assert [digest for event in events if isinstance(event, Hashes) for digest in event.hashes] == due
    step = Step.LIMIT if is_reached else Step.FINISHED
    assert [event for event in events if isinstance(event, Concluded)] == [Concluded(mine, step)] * len(ends)
    assert not faults(events)


@ALL_REQUESTS
@pytest.mark.parametrize("is_caught_up", [False, True])
def test_answers_after_a_cancel_send_nothing(request_: Request, is_caught_up: bool) -> None:
    a, b = pair()
    mine, theirs = asked(a, b, request_)
    if is_caught_up and is_live(request_):
        b.finish(theirs)
    a.cancel(mine)
    assert carry(a, b) == [Dropped(theirs)]
    give(b, theirs, 2)
    b.finish(theirs)
    b.reject(theirs)
    assert b.output() == []
    assert a.open_requests == b.to_answer == {}


@given(st.data())
def test_the_end_waits_for_all_sources(data: st.DataObject) -> None:
    a, b = pair()
    request = data.draw(st.sampled_from([found for found in REQUESTS.values() if not isinstance(found, ListRequest)]))
    _, theirs = asked(a, b, request)
    sources = data.draw(st.integers(1, 4))
    theirs.holds = sources
    for left in range(sources - 1, -1, -1):
        assert theirs.state is State.OPEN
        b.finish(theirs)
        assert theirs.holds == left
    assert theirs.state is (State.LIVE if is_live(request) else State.CONCLUDED)


def test_two_sessions_that_forward_one_request_to_each_other_do_not_deadlock() -> None:
    a, b = pair()
    request = TimeRangeRequest(b"same", "a", 0, 9, 0, ttl=3)
    exchanges = [session.send_request(request, 0) for session in (a, b)]
    for session in (a, b):
        session.speak(0)
    from_a, from_b = b"".join(a.output()), b"".join(b.output())
    assert not a.receive(from_b, 0)
    assert not b.receive(from_a, 0)
    from_a, from_b = b"".join(a.output()), b"".join(b.output())
    assert a.receive(from_b, 0) == [Concluded(exchanges[0], Step.FINISHED)]
    assert b.receive(from_a, 0) == [Concluded(exchanges[1], Step.FINISHED)]


# --- long answers ----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), max_size=6))
def test_posts_are_sent_in_one_response(counts: list[int]) -> None:
    """cable.rs accepts only the first response; cable-core.js needs the empty one."""
    a, b = pair()
    wanted = HASHES[: sum(counts)]
    mine, theirs = asked(a, b, PostRequest(b"", wanted))
    left = iter([POSTS[digest] for digest in wanted])
    for count in counts:
        b.answer_posts(theirs, itertools.islice(left, count))
        assert b.output() == []
    b.finish(theirs)
    posts = tuple(POSTS[digest] for digest in wanted)
    expected = [PostResponse(mine.request.request_id, posts)] if posts else []
    assert said(b) == [*expected, PostResponse(mine.request.request_id, ())]


@given(st.lists(st.integers(1, 120), max_size=30), st.integers(1, 100))
def test_posts_are_split_only_where_they_become_too_long(sizes: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAX_POST_RESPONSE_SIZE_BYTES", most)
        a, b = pair()
        mine, theirs = asked(a, b, REQUESTS["posts"])
        posts = [bytes((number,)) * size for number, size in enumerate(sizes, 1)]
        b.answer_posts(theirs, posts)
        b.finish(theirs)
    *parts, end = [items(message) for message in said(b)]
    assert end == ()
    assert [post for part in parts for post in part] == posts
    assert all(sum(map(len, part)) <= most or len(part) == 1 for part in parts)
    assert all(sum(map(len, part)) + len(following[0]) > most for part, following in itertools.pairwise(parts))
    assert mine.state is State.OPEN


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 30))
def test_long_hash_responses_are_split(count: int, most: int, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAX_HASHES_PER_RESPONSE", most)
        a, b = pair()
        _, theirs = asked(a, b, TimeRangeRequest(b"", "a", 0, 9, limit))
        b.answer_hashes(theirs, HASHES[:count])
        b.finish(theirs)
    *parts, end = [items(message) for message in said(b)]
    assert end == ()
    assert tuple(digest for part in parts for digest in part) == (HASHES[:count][:limit] if limit else HASHES[:count])
    assert all(len(part) == most for part in parts[:-1])
    assert all(0 < len(part) <= most for part in parts)


@given(st.lists(st.text("aü\U0001f600", min_size=1, max_size=64), max_size=40), st.integers(40, 400))
def test_a_response_has_as_many_names_as_fit(names: list[str], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAX_MESSAGE_SIZE_BYTES", most)
        a, b = pair()
        mine, theirs = asked(a, b, REQUESTS["list"])
        b.answer_names(theirs, iter(names))
        (data,) = b.output()
    (response,) = read(data, LEGACY)
    assert isinstance(response, ListResponse)
    assert response.channels == tuple(names[: len(response.channels)])
    assert len(data) <= most
    if len(response.channels) < len(names):
        assert sum(len(name.encode()) + 2 for name in names[: len(response.channels) + 1]) > most // 2
    assert theirs.is_over
    events = a.receive(data, 0)
    assert events == [Names(mine, response.channels), Concluded(mine, Step.FINISHED)]


def test_a_session_returns_events_and_takes_no_callbacks() -> None:
    given = {
        name: str(parameter.annotation)
        for _, method in inspect.getmembers(Session, inspect.isfunction)
        for name, parameter in inspect.signature(method).parameters.items()
    }
    assert given["request"] == "Request"
    assert [name for name, type_name in given.items() if "Callable" in type_name] == ["new_id"]
    kept = {
        (kind.__name__, name): str(type_name)
        for kind in (Exchange, Concluded, Dropped, Hashes, Names)
        for name, type_name in kind.__annotations__.items()
    }
    assert kept["Exchange", "role"] == "RequestRole"
    assert [place for place, type_name in kept.items() if "Callable" in type_name] == []


@DIALECTS
@given(data=st.data())
def test_complete_posts_of_an_interrupted_response_are_accepted(dialect: Dialect, data: st.DataObject) -> None:
    """The connection ends at any byte. Complete posts are accepted."""
    a, b = pair(dialect)
    exchange = a.send_request(PostRequest(b"", HASHES[:5]), 0.0)
    [asked] = [event.exchange for event in b.receive(b"".join(a.output()), 0.0) if isinstance(event, PeerRequest)]
    b.answer_posts(asked, [POSTS[digest] for digest in HASHES[:5]])
    b.finish(asked)
    response = b"".join(b.output())
    cut = data.draw(st.integers(0, len(response)))
    events = [*a.receive(response[:cut], 0.0), *a.lose()]
    came = [post for event in events if isinstance(event, Posts) for post in event.posts]
    whole = [POSTS[digest] for digest in HASHES[:5] if response.find(POSTS[digest]) + len(POSTS[digest]) <= cut]
    assert came == whole
    assert exchange.is_over
    assert not any(isinstance(event, Violation) for event in events)
