"""Sessions: two of them talk through their bytes; the life of every request is held against a small model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cablestore import DRAFT8, LEGACY, DecodeError, Dialect, limits
from cablestore.crypto import post_hash
from cablestore.message import (
    CancelRequest,
    FrameReader,
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    ModerationRequest,
    PostRequest,
    PostResponse,
    Request,
    Response,
    StateRequest,
    TimeRangeRequest,
    decode_message,
    encode_message,
)
from cablestore.session import (
    TRANSITIONS,
    Asked,
    Concluded,
    Dropped,
    Event,
    Exchange,
    Fault,
    Hashes,
    Names,
    Posts,
    Role,
    Session,
    State,
    Step,
    Violation,
)

DIALECTS = pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
POSTS = {post_hash(post): post for post in (b"post %d" % number for number in range(40))}
HASHES = tuple(POSTS)
REQUESTS: dict[str, Request] = {
    "posts": PostRequest(b"", HASHES[:3]),
    "range": TimeRangeRequest(b"", "a", 0, 9, 0),
    "limited": TimeRangeRequest(b"", "a", 0, 9, 4),
    "state": StateRequest(b"", "a", 0),
    "list": ListRequest(b"", 0, 0),
    "moderation": ModerationRequest(b"", ("a",), 0, 0),
    "live range": TimeRangeRequest(b"", "a", 0, 0, 0),
    "limited live range": TimeRangeRequest(b"", "a", 0, 0, 4),
    "live state": StateRequest(b"", "a", 1),
    "live moderation": ModerationRequest(b"", (), 1, 0),
}
ALL_REQUESTS = pytest.mark.parametrize("request_", REQUESTS.values(), ids=list(REQUESTS))


class Nobody:
    """Asks, and does not listen: these tests read the events."""

    def on_hashes(self, exchange: Exchange, hashes: tuple[bytes, ...]) -> None: ...
    def on_posts(self, exchange: Exchange, posts: list[bytes]) -> None: ...
    def on_names(self, exchange: Exchange, names: tuple[str, ...]) -> None: ...
    def on_concluded(self, exchange: Exchange, step: Step) -> None: ...


NOBODY = Nobody()


class Watched(Session):
    """Notes every step that its requests take."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.steps: list[tuple[Exchange, State, Step]] = []

    def _step(self, exchange: Exchange, step: Step) -> None:  # type: ignore[override]
        self.steps.append((exchange, exchange.state, step))
        Session._step(exchange, step)

    @property
    def rows(self) -> list[tuple[Role, State, Step]]:
        return [(exchange.role, state, step) for exchange, state, step in self.steps]


def ids(seed: int = 1) -> Callable[[int], bytes]:
    numbers = itertools.count(seed)
    return lambda size_bytes: (next(numbers) << 8 | 0x77).to_bytes(size_bytes, "little")


def pair(dialect: Dialect = LEGACY, **named: Any) -> tuple[Watched, Watched]:
    return Watched(dialect, ids(1), **named), Watched(dialect, ids(1_000_000), **named)


def read(data: bytes, dialect: Dialect) -> list[Message]:
    found = [decode_message(frame, dialect) for frame in FrameReader().feed(data)]
    return [message for message in found if message is not None]


def said(session: Session) -> list[Message]:
    """What a session has to say now, decoded."""
    return read(b"".join(session.output()), session.dialect)


def carry(source: Session, target: Session, now_s: float = 0) -> list[Event]:
    return target.receive(b"".join(source.output()), now_s)


def asked(asker: Session, answerer: Session, request: Request, now_s: float = 0) -> tuple[Exchange, Exchange]:
    """Ask, and take the question up: both sides' views of it."""
    mine = asker.ask(request, now_s, NOBODY)
    events = carry(asker, answerer)
    assert [type(event) for event in events] == [Asked]
    assert isinstance(events[0], Asked)
    return mine, events[0].exchange


def give(session: Session, exchange: Exchange, count: int = 2) -> None:
    """Give a part of an answer of the right type."""
    match exchange.request:
        case PostRequest(_, hashes):
            session.answer_posts(exchange, [POSTS.get(digest, b"?") for digest in hashes[:count]])
        case ListRequest():
            session.answer_names(exchange, ["a", "b"][:count])
        case _:
            session.answer_hashes(exchange, HASHES[:count])


def is_live(request: Request) -> bool:
    return bool(getattr(request, "is_live", False))


def empty_for(request: Request) -> Response:
    if isinstance(request, PostRequest):
        return PostResponse(request.request_id, ())
    if isinstance(request, ListRequest):
        return ListResponse(request.request_id, ())
    return HashResponse(request.request_id, ())


def items(message: Message) -> tuple[Any, ...]:
    """What a response brings."""
    assert isinstance(message, HashResponse | PostResponse | ListResponse)
    return message[1]


def faults(events: Iterable[Event]) -> list[Fault]:
    return [event.fault for event in events if isinstance(event, Violation)]


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
            b.refuse(theirs)
        case Step.CANCELLED:
            a.cancel(mine)
        case Step.TIMED_OUT:
            a.expire(limits.ANSWER_TIMEOUT_S)
        case Step.LOST:
            a.lose()
            b.lose()


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: "-".join(part.name.lower() for part in row))
@DIALECTS
def test_every_row_of_the_table_is_reached(dialect: Dialect, row: tuple[Role, State, Step]) -> None:
    role, state, step = row
    a, b = pair(dialect)
    request: Request = TimeRangeRequest(b"", "a", 0, 0 if state is State.LIVE else 9, 2)
    if role is Role.RESPONDER and step is Step.CAUGHT_UP:
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
    exchange, session = (mine, a) if role is Role.REQUESTER else (theirs, b)
    assert row in session.rows
    assert exchange.state is TRANSITIONS[row]


def test_nothing_leads_out_of_the_end_and_every_end_is_reached() -> None:
    assert not [row for row in TRANSITIONS if row[1] is State.CONCLUDED]
    for role in Role:
        for state in (State.OPEN, State.LIVE):
            steps = {step for known, before, step in TRANSITIONS if (known, before) == (role, state)}
            assert {Step.PART, Step.FINISHED, Step.LIMIT, Step.CANCELLED, Step.LOST} <= steps


class Record:
    """What a request should be, by both sides."""

    def __init__(self, asker: int, mine: Exchange) -> None:
        self.asker = asker
        self.mine = mine
        self.theirs: Exchange | None = None
        self.is_done = False  # the asker heard the end, or ended it
        self.is_answered = False  # the answerer may say nothing more
        self.given: list[Any] = []
        self.heard: list[Any] = []
        self.said: list[Response] = []
        self.requests: set[Request] = set()  # under all ids that it had

    @property
    def request(self) -> Request:
        return self.mine.request

    @property
    def due(self) -> list[Any]:
        limit = self.request.limit if isinstance(self.request, TimeRangeRequest) else 0
        return self.given[:limit] if limit else self.given


class Conversation(RuleBasedStateMachine):
    """Two sessions with a wire between them that delays and cuts what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.numbers = ids()

    @initialize(dialect=st.sampled_from([LEGACY, DRAFT8]), other=st.sampled_from([LEGACY, DRAFT8]))
    def connect(self, dialect: Dialect, other: Dialect) -> None:
        """The second one waits to hear how the first one speaks."""
        self.sides = [Watched(dialect, self.numbers), Watched(other, self.numbers, speaks_first=False)]
        self.wires = [b"", b""]
        self.records: list[Record] = []
        self.stale: set[Exchange] = set()  # asked once more meanwhile, in another dialect

    def by(self, exchange: Exchange) -> Record:
        return next(record for record in self.records if exchange in (record.mine, record.theirs))

    def alive(self, *, answerable: bool) -> list[Record]:
        if answerable:
            return [known for known in self.records if known.theirs is not None and not known.theirs.is_over]
        return [known for known in self.records if not known.is_done]

    def pick(self, data: st.DataObject, *, answerable: bool) -> Record | None:
        found = self.alive(answerable=answerable)
        return found[data.draw(st.integers(0, len(found) - 1))] if found else None

    @rule(side=st.integers(0, 1), request=st.sampled_from(list(REQUESTS.values())), arrives=st.booleans())
    def ask(self, side: int, request: Request, arrives: bool) -> None:
        self.records.append(Record(side, self.sides[side].ask(request, self.now_s, NOBODY)))
        if arrives:
            self.deliver_all()

    @precondition(lambda self: self.alive(answerable=True))
    @rule(data=st.data(), count=st.integers(0, 6))
    def answer_again(self, data: st.DataObject, count: int) -> None:
        self.answer(data, count)

    @precondition(lambda self: self.alive(answerable=True))
    @rule(data=st.data(), count=st.integers(0, 6))
    def answer(self, data: st.DataObject, count: int) -> None:
        record = self.pick(data, answerable=True)
        if record is None:
            return
        session, exchange = self.sides[1 - record.asker], record.theirs
        assert exchange is not None
        new: list[Any]
        match record.request:
            case PostRequest(_, hashes):
                new = [POSTS[digest] for digest in hashes[len(record.given) :][:count]]
                session.answer_posts(exchange, new)
            case ListRequest():
                new = ["a", "b", "c"][:count]
                session.answer_names(exchange, new)
            case _:
                new = list(HASHES[len(record.given) :][:count])
                session.answer_hashes(exchange, new)
        record.given += new

    @precondition(lambda self: self.alive(answerable=True))
    @rule(data=st.data(), refuses=st.booleans())
    def end(self, data: st.DataObject, refuses: bool) -> None:
        record = self.pick(data, answerable=True)
        if record is None or record.theirs is None:
            return
        if not refuses:
            self.sides[1 - record.asker].finish(record.theirs)
        elif not record.theirs.posts:  # posts that were given and not sent are not
            self.sides[1 - record.asker].refuse(record.theirs)

    @rule(data=st.data(), count=st.integers(0, 3))
    def answer_what_is_over(self, data: st.DataObject, count: int) -> None:
        over = [known for known in self.records if known.theirs is not None and known.theirs.is_over]
        if not over:
            return
        record = over[data.draw(st.integers(0, len(over) - 1))]
        assert record.theirs is not None
        session = self.sides[1 - record.asker]
        before = list(session._out)
        session.answer_hashes(record.theirs, HASHES[:count])
        session.answer_posts(record.theirs, list(POSTS.values())[:count])
        session.answer_names(record.theirs, ["a"])
        session.finish(record.theirs)
        session.refuse(record.theirs)
        assert session._out == before

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        record = self.pick(data, answerable=False)
        if record is not None:
            self.sides[record.asker].cancel(record.mine)
            record.is_done = True

    @precondition(lambda self: not self.sides[1]._may_speak)
    @rule()
    def speak(self) -> None:
        self.sides[1].speak(self.now_s)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 15.0, limits.ANSWER_TIMEOUT_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for side, session in enumerate(self.sides):
            late = {known.mine for known in self.alive(answerable=False) if known.asker == side} & {
                exchange for exchange in session.asked.values() if (exchange.deadline_s or self.now_s + 1) <= self.now_s
            }
            events = session.expire(self.now_s)
            assert all(isinstance(event, Concluded) and event.step is Step.TIMED_OUT for event in events)
            self.take(side, events)
            assert all(exchange.is_over for exchange in late)
            assert not [e for e in session.asked.values() if e.deadline_s is not None and e.deadline_s <= self.now_s]

    @rule(side=st.integers(0, 1), part=st.floats(0, 1), cuts=st.lists(st.floats(0, 1), max_size=3))
    def deliver(self, side: int, part: float, cuts: list[float]) -> None:
        self.say()
        size_bytes = round(part * len(self.wires[side]))
        data, self.wires[side] = self.wires[side][:size_bytes], self.wires[side][size_bytes:]
        edges = [0, *sorted(round(cut * size_bytes) for cut in cuts), size_bytes]
        for start, end in itertools.pairwise(edges):
            self.take(1 - side, self.sides[1 - side].receive(data[start:end], self.now_s))

    @rule()
    def deliver_all(self) -> None:
        for side in (0, 1) * 4:
            self.deliver(side, 1.0, [])

    @precondition(lambda self: len(self.records) > 5)
    @rule(dialect=st.sampled_from([LEGACY, DRAFT8]), other=st.sampled_from([LEGACY, DRAFT8]))
    def lose(self, dialect: Dialect, other: Dialect) -> None:
        for side, session in enumerate(self.sides):
            events = session.lose()
            assert not faults(events)
            self.take(side, events)
            assert session.lose() == []
            assert not session.asked
            assert not session.to_answer
        for record in self.records:
            assert record.mine.is_over
            assert record.theirs is None or record.theirs.is_over
        self.connect(dialect, other)

    def say(self) -> None:
        """Put on the wire what both have to say, and hold it against what may be said."""
        for side, session in enumerate(self.sides):
            for record in self.records:
                record.requests.add(record.request)
            data = b"".join(session.output())
            self.wires[side] += data
            for message in read(data, session.dialect):
                if isinstance(message, HashResponse | PostResponse | ListResponse):
                    self.check_response(side, message)

    def check_response(self, side: int, message: Response) -> None:
        record = next(
            known
            for known in self.records
            if known.asker != side and known.theirs and known.theirs.request.request_id == message.request_id
        )
        assert not record.is_answered, "nothing comes behind the end"
        assert type(message) is type(empty_for(record.request))
        record.said.append(message)
        record.is_answered = not items(message) or isinstance(message, ListResponse)

    def take(self, side: int, events: list[Event]) -> None:
        for event in events:
            assert not isinstance(event, Violation), event
            if isinstance(event, Asked):
                request = event.exchange.request
                record = next(known for known in self.records if known.asker != side and request in known.requests)
                if request == record.request:
                    self.forget_answer(record, request)
                    record.theirs = event.exchange
                else:
                    self.stale.add(event.exchange)
                continue
            if event.exchange in self.stale:
                assert isinstance(event, Dropped)
                self.stale.remove(event.exchange)
                continue
            record = self.by(event.exchange)
            if isinstance(event, Dropped):
                assert record.asker != side
                assert event.exchange.is_over
                if event.exchange.request != record.request:
                    self.forget_answer(record, record.request)
                continue
            assert record.asker == side
            assert not record.is_done, "a request that is over gets no events"
            self.hear(record, event)

    @staticmethod
    def hear(record: Record, event: Event) -> None:
        match event:
            case Hashes(_, found) | Posts(_, found) | Names(_, found):
                record.heard += found
            case Concluded(exchange, step):
                record.is_done = True
                assert exchange.is_over
                if step is Step.FINISHED:
                    assert record.heard == record.due
                if step is Step.LIMIT:
                    assert isinstance(record.request, TimeRangeRequest)
                    assert len(record.heard) == record.request.limit
                if step is Step.SATISFIED:
                    assert isinstance(record.request, PostRequest)
                    assert [post_hash(post) for post in record.heard] == list(record.request.hashes)

    @staticmethod
    def forget_answer(record: Record, request: Request) -> None:
        """It was asked again, in another dialect: what was answered before was not understood."""
        assert not record.heard
        assert record.theirs is None or (record.theirs.is_over and record.theirs.request != request)
        record.theirs, record.given, record.said, record.is_answered = None, [], [], False

    @invariant()
    def both_views_are_what_they_should_be(self) -> None:
        if not hasattr(self, "sides"):
            return
        self.say()
        for record in self.records:
            assert record.mine.is_over == record.is_done
            assert record.heard == record.due[: len(record.heard)]
            theirs = record.theirs
            if theirs is None:
                continue
            sent = [item for message in record.said for item in items(message)]
            assert sent == record.due[: len(sent)]
            if record.is_answered:
                assert theirs.is_over
                assert len(sent) == len(record.due)
            if isinstance(record.request, TimeRangeRequest) and len(sent) == record.request.limit != 0:
                assert record.is_answered, "an empty response follows the last that the limit allows"
            if theirs.state is State.LIVE:
                assert is_live(record.request)
        for session in self.sides:
            for exchange, before, step in session.steps:
                assert (exchange.role, before, step) in TRANSITIONS
            last = {exchange: TRANSITIONS[exchange.role, before, step] for exchange, before, step in session.steps}
            assert all(exchange.state is state for exchange, state in last.items()), "only steps change a state"
            assert all(not exchange.is_over for exchange in [*session.asked.values(), *session.to_answer.values()])

    def teardown(self) -> None:
        """Answered to the end, every request that has one is over on both sides, and nothing is left."""
        if not hasattr(self, "sides"):
            return
        self.sides[0].speak(self.now_s)
        self.sides[1].speak(self.now_s)
        for side in (0, 1):
            self.ask(side, REQUESTS["list"], arrives=False)
        self.deliver_all()
        assert not self.stale
        assert self.sides[0].dialect is self.sides[1].dialect
        for record in self.alive(answerable=True):
            assert record.theirs is not None
            self.sides[1 - record.asker].finish(record.theirs)
        self.deliver_all()
        for record in self.records:
            if not is_live(record.request):
                assert record.mine.is_over
                assert record.theirs is None or record.theirs.is_over


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=settings().max_examples, stateful_step_count=40)


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
        b.refuse(theirs)
        messages = said(b)
    assert theirs.is_over
    assert b.to_answer == {}
    if not isinstance(request_, ListRequest):  # the one response is the end
        assert messages.count(empty_for(mine.request)) == 1
        assert messages[-1] == empty_for(mine.request)
    events = a.receive(b"".join(encode_message(message, dialect) for message in messages), 0)
    assert events[-1] == Concluded(mine, Step.FINISHED)
    assert a.asked == {}


@ALL_REQUESTS
def test_a_request_is_refused_with_an_empty_response(request_: Request) -> None:
    a, b = pair()
    mine, theirs = asked(a, b, request_)
    b.refuse(theirs)
    assert said(b) == [empty_for(mine.request)]


@given(
    st.integers(0, 12),
    st.lists(st.integers(0, 6), max_size=5),
    st.lists(st.integers(0, 6), max_size=5),
    st.sampled_from([0, 9]),
)
def test_history_and_news_share_the_limit(limit: int, history: list[int], news: list[int], end_ms: int) -> None:
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


@given(st.integers(1, 5), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_a_peer_that_ignores_the_limit_is_not_listened_to_beyond_it(limit: int, counts: list[int]) -> None:
    a, _ = pair()
    mine = a.ask(TimeRangeRequest(b"", "a", 0, 0, limit), 0, NOBODY)
    parts = [tuple(HASHES[:count]) for count in counts]
    data = b"".join(encode_message(HashResponse(mine.request.request_id, part), LEGACY) for part in parts)
    events = a.receive(data, 0)
    heard = [digest for event in events if isinstance(event, Hashes) for digest in event.hashes]
    assert heard == [digest for part in parts for digest in part][:limit]
    assert not faults(events)
    assert mine.is_over == (sum(counts) >= limit)


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
    b.refuse(theirs)
    assert b.output() == []
    assert a.asked == b.to_answer == {}


@given(st.data())
def test_several_sources_hold_the_end_back(data: st.DataObject) -> None:
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


# --- what peers should not do ----------------------------------------------------------------------


@ALL_REQUESTS
@DIALECTS
def test_the_same_request_twice(dialect: Dialect, request_: Request) -> None:
    a, b = pair(dialect)
    mine, theirs = asked(a, b, request_)
    again = encode_message(mine.request, dialect)
    assert faults(b.receive(again, 0)) == [Fault.DUPLICATE]
    assert b.output() == []
    assert b.to_answer == {mine.request.request_id: theirs}
    assert theirs.state is State.OPEN


@ALL_REQUESTS
@DIALECTS
def test_our_own_request_sent_back_to_us(dialect: Dialect, request_: Request) -> None:
    """cable-core.js forwards to everyone, also to whom it heard it from."""
    a, b = pair(dialect)
    mine, _ = asked(a, b, request_)
    reflected = encode_message(mine.request, dialect)
    assert a.receive(reflected, 0) == []
    assert a.asked == {mine.request.request_id: mine}
    a.cancel(mine)
    a.output()
    assert a.receive(reflected, 0) == [], "nor when it is over by then"
    assert a.to_answer == {}
    assert a.output() == []


@ALL_REQUESTS
def test_cancelling_what_is_not_known(request_: Request) -> None:
    a, b = pair()
    asked(a, b, request_)
    assert b.receive(encode_message(CancelRequest(b"wxyz", b"none", 3), LEGACY), 0) == []
    assert b.output() == []
    assert len(b.to_answer) == 1


@given(st.integers(0, 5), st.lists(st.sampled_from(list(REQUESTS.values())), min_size=1, max_size=12))
def test_more_requests_than_allowed_end_at_once(most: int, requests: list[Request]) -> None:
    a, b = Watched(LEGACY, ids(1)), Watched(LEGACY, ids(10**6), max_requests_alive=most)
    mine = [a.ask(request, 0, NOBODY) for request in requests]
    events = carry(a, b)
    assert [event.exchange.request for event in events if isinstance(event, Asked)] == [
        exchange.request for exchange in mine[:most]
    ]
    assert faults(events) == [Fault.TOO_MANY_REQUESTS] * len(mine[most:])
    assert said(b) == [empty_for(exchange.request) for exchange in mine[most:]]
    assert len(b.to_answer) == min(most, len(mine))
    if most:
        a.cancel(mine[0])
        a.ask(requests[0], 0, NOBODY)
        assert not faults(carry(a, b))


def test_more_hashes_than_allowed_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_HASHES_PER_REQUEST", 5)
    a, b = pair()
    asked(a, b, PostRequest(b"", HASHES[:5]))
    mine = a.ask(PostRequest(b"", HASHES[:6]), 0, NOBODY)
    events = carry(a, b)
    assert faults(events) == [Fault.TOO_MANY_HASHES]
    assert len(events) == 1
    assert said(b) == [PostResponse(mine.request.request_id, ())]
    assert len(b.to_answer) == 1


def test_the_limit_on_hashes_is_that_of_limits() -> None:
    a, b = pair()
    hashes = tuple(number.to_bytes(32, "big") for number in range(limits.MAX_HASHES_PER_REQUEST + 1))
    asked(a, b, PostRequest(b"", hashes[:-1]))
    a.ask(PostRequest(b"", hashes), 0, NOBODY)
    assert faults(carry(a, b)) == [Fault.TOO_MANY_HASHES]


@pytest.mark.parametrize("kind", [HashResponse, PostResponse, ListResponse])
@pytest.mark.parametrize("items", [(), (bytes(32),)], ids=["empty", "not empty"])
def test_answers_to_nothing(kind: Callable[..., Response], items: tuple[bytes, ...]) -> None:
    a, _ = pair()
    mine = a.ask(REQUESTS["range"], 0, NOBODY)
    found = kind(b"none", items if kind is not ListResponse else tuple("a" for _ in items))
    assert faults(a.receive(encode_message(found, LEGACY), 0)) == [Fault.UNASKED]
    assert mine.state is State.OPEN


@ALL_REQUESTS
@pytest.mark.parametrize("kind", [HashResponse, PostResponse, ListResponse])
def test_answers_of_the_wrong_type(request_: Request, kind: Callable[..., Response]) -> None:
    a, _ = pair()
    mine = a.ask(request_, 0, NOBODY)
    response = kind(mine.request.request_id, ())
    events = a.receive(encode_message(response, LEGACY), 15)
    if type(response) is type(empty_for(request_)):
        assert events[-1] == Concluded(mine, Step.FINISHED)
    else:
        assert faults(events) == [Fault.WRONG_TYPE]
        assert len(events) == 1
        assert mine.state in (State.OPEN, State.LIVE)
        assert bool(a.expire(limits.ANSWER_TIMEOUT_S)) != is_live(request_), "it is no word of answer"


@given(st.permutations(list(POSTS.values())[:6]), st.integers(1, 4), st.lists(st.integers(1, 6), max_size=4))
def test_only_posts_that_were_asked_for_are_taken_each_once(posts: list[bytes], wanted: int, counts: list[int]) -> None:
    a, _ = pair()
    mine = a.ask(PostRequest(b"", HASHES[:wanted]), 0, NOBODY)
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
        unasked -= faults(events).count(Fault.UNASKED_POSTS)
        assert unasked == 0
        assert (events[-1] == Concluded(mine, Step.SATISFIED)) == (not missing)
    assert sorted(map(post_hash, taken)) == sorted(HASHES[:wanted])
    assert a.receive(encode_message(PostResponse(mine.request.request_id, ()), LEGACY), 0) == []


@pytest.mark.parametrize("step", [Step.FINISHED, Step.LIMIT, Step.SATISFIED, Step.CANCELLED, Step.TIMED_OUT])
def test_what_comes_late_is_no_violation(step: Step) -> None:
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
    assert a.receive(data, 0) == [], "nor the whole answer a second time"
    for kind in (HashResponse, PostResponse, ListResponse):
        assert a.receive(encode_message(kind(mine.request.request_id, ()), LEGACY), 0) == []


def test_only_so_many_ids_are_remembered() -> None:
    a, _ = pair()
    exchanges = [a.ask(REQUESTS["state"], 0, NOBODY) for _ in range(limits.REQUESTS_REMEMBERED + 1)]
    for exchange in exchanges:
        a.cancel(exchange)
    late = [encode_message(HashResponse(exchange.request.request_id, ()), LEGACY) for exchange in exchanges]
    assert faults(a.receive(late[0], 0)) == [Fault.UNASKED]
    assert a.receive(b"".join(late[1:]), 0) == []


def test_a_malformed_message_does_not_end_the_stream() -> None:
    a, b = pair()
    good = encode_message(ListRequest(b"abcd", 0, 0), LEGACY)
    bad = good[:-1] + b"\x80"
    unknown = b"\x0a\x09" + bytes(4) + b"abcd!"
    events = b.receive(bad + b"\x00" + unknown + good, 0)
    assert faults(events) == [Fault.MALFORMED] * 2
    assert [type(event) for event in events] == [Violation, Violation, Asked]
    assert a.output() == []


@given(st.binary(max_size=80), st.randoms(use_true_random=False))
def test_whatever_a_peer_says(noise: bytes, rng: random.Random) -> None:
    """Events, or a DecodeError that ends the stream; and what is asked by mistake is bounded."""
    a, b = Watched(LEGACY, ids(1)), Watched(LEGACY, ids(10**6), max_requests_alive=3)
    for request in rng.sample(list(REQUESTS.values()), 5):
        a.ask(request, 0, NOBODY)
        b.ask(request, 0, NOBODY)
    for exchange in list(b.asked.values())[:3]:
        a._send(empty_for(exchange.request))
    data = bytearray(b"".join(a.output()))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    try:
        for event in b.receive(bytes(data) + noise, 0):
            if isinstance(event, Asked) and not event.exchange.is_over:
                give(b, event.exchange, 2)
                b.finish(event.exchange)
    except DecodeError:
        pass  # the node closes the connection
    assert len(b.to_answer) <= 3
    assert all(row in TRANSITIONS for row in b.rows)
    b.expire(limits.ANSWER_TIMEOUT_S)
    b.lose()
    assert b.asked == b.to_answer == {}


# --- long answers ----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), max_size=6))
def test_posts_go_out_in_one_response(counts: list[int]) -> None:
    """cable.rs takes the first response alone; cable-core.js needs the empty one."""
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
def test_as_many_names_as_fit_in_one_response(names: list[str], most: int) -> None:
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


# --- dialects --------------------------------------------------------------------------------------


@DIALECTS
@given(st.lists(st.sampled_from(list(REQUESTS.values())), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_a_peer_of_the_other_dialect_is_asked_again_in_its_own(
    dialect: Dialect, requests: list[Request], is_sent: bool, speaks_first: bool
) -> None:
    other = DRAFT8 if dialect is LEGACY else LEGACY
    a = Watched(dialect, ids(1), speaks_first=speaks_first)
    b = Watched(other, ids(10**6))
    mine = [a.ask(request, 0, NOBODY) for request in requests]
    first = [exchange.request.request_id for exchange in mine]
    if is_sent:
        assert len(a.output()) == (len(mine) if speaks_first else 0)
    b.ask(REQUESTS["list"], 0, NOBODY)
    carry(b, a, 3)
    assert a.dialect is other
    assert a.is_recognised
    data = b"".join(a.output())
    assert read(data, other) == [exchange.request for exchange in mine], "and nothing in the dialect of before"
    for exchange, request, before in zip(mine, requests, first, strict=True):
        found = exchange.request
        assert len(found.request_id) == other.request_id_size_bytes
        assert found == request._replace(request_id=found.request_id)
        assert not before or found.request_id != before
        assert exchange.deadline_s == (None if is_live(request) else 3 + limits.ANSWER_TIMEOUT_S)
    events = b.receive(data, 3)
    assert [type(event) for event in events] == [Asked] * len(mine)
    for event in events:
        assert isinstance(event, Asked)
        b.refuse(event.exchange)
    ended = [event for event in carry(b, a) if not isinstance(event, Names)]
    assert ended == [Concluded(exchange, Step.FINISHED) for exchange in mine]


@ALL_REQUESTS
@pytest.mark.parametrize("is_answered", [False, True])
def test_two_that_speak_at_once_in_two_dialects_meet_in_legacy(request_: Request, is_answered: bool) -> None:
    """Each follows the other's first word; what was asked in vain, or twice, leaves nothing behind."""
    a, b = Watched(LEGACY, ids(1)), Watched(DRAFT8, ids(10**6))
    mine, other = a.ask(request_, 0, NOBODY), b.ask(request_, 0, NOBODY)
    first, second = b"".join(a.output()), b"".join(b.output())
    events = [*a.receive(second, 0), *b.receive(first, 0)]
    taken = [event.exchange for event in events if isinstance(event, Asked)]
    assert len(taken) == 2
    if is_answered:
        b.refuse(taken[1])
    for _ in range(3):
        events += carry(b, a)
        events += carry(a, b)
    assert a.dialect is b.dialect is LEGACY
    assert not faults(events)
    assert list(a.asked.values()) == [mine]
    assert list(b.asked.values()) == [other]
    assert all(exchange.is_over for exchange in taken)
    for session, far in ((a, b), (b, a)):
        (theirs,) = far.to_answer.values()
        far.refuse(theirs)
        assert carry(far, session)[-1] == Concluded(mine if session is a else other, Step.FINISHED)


@DIALECTS
def test_a_peer_of_our_dialect_is_not_asked_twice(dialect: Dialect) -> None:
    a, b = pair(dialect)
    mine, _ = asked(a, b, REQUESTS["state"])
    b.ask(REQUESTS["list"], 0, NOBODY)
    carry(b, a)
    assert a.is_recognised
    assert a.output() == []
    assert a.asked == {mine.request.request_id: mine}


@DIALECTS
@ALL_REQUESTS
def test_nothing_goes_out_before_speak(dialect: Dialect, request_: Request) -> None:
    a = Watched(dialect, ids(1), speaks_first=False)
    mine, other = a.ask(request_, 0, NOBODY), a.ask(request_, 0, NOBODY)
    assert a.output() == []
    assert a.expire(1e9) == [], "it waits for nothing yet"
    a.cancel(other)
    assert a.output() == [], "nor that what was never asked is not wanted"
    a.speak(100)
    assert said(a) == [mine.request]
    assert mine.deadline_s == (None if is_live(request_) else 100 + limits.ANSWER_TIMEOUT_S)
    a.speak(200)
    assert a.output() == []
    third = a.ask(request_, 300, NOBODY)
    assert said(a) == [third.request]


def test_losing_what_was_never_said() -> None:
    a = Watched(LEGACY, ids(1), speaks_first=False)
    mine, cancelled = a.ask(REQUESTS["state"], 0, NOBODY), a.ask(REQUESTS["state"], 0, NOBODY)
    a.cancel(cancelled)
    assert a.lose() == [Concluded(mine, Step.LOST)]
    assert mine.is_over
    a.speak(0)
    assert a.output() == []


def test_what_is_forwarded_keeps_its_id() -> None:
    a, b = pair()
    mine, theirs = asked(a, b, StateRequest(b"keep", "a", 0, 4))
    assert mine.request.request_id == theirs.request.request_id == b"keep"
    assert theirs.request.ttl == 4


def test_ids_do_not_meet() -> None:
    """wire.md draft 1, 6.3.1: an id that collides with one in use is made anew."""
    made = iter([b"1111", b"1111", b"2222", b"5555", b"2222", b"1111", b"3333", b"4444"])
    a = Watched(LEGACY, lambda _: next(made))
    first = a.ask(REQUESTS["state"], 0, NOBODY)
    second = a.ask(REQUESTS["state"], 0, NOBODY)
    a.receive(encode_message(StateRequest(b"5555", "a", 1), LEGACY), 0)
    a.receive(encode_message(HashResponse(b"1111", ()), LEGACY), 0)  # over, but its answers may still come
    third = a.ask(REQUESTS["state"], 0, NOBODY)
    assert [exchange.request.request_id for exchange in (first, second, third)] == [b"1111", b"2222", b"3333"]
    assert a.asked == {b"2222": second, b"3333": third}


# --- time and loss ---------------------------------------------------------------------------------


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


def test_a_request_may_have_a_time_of_its_own() -> None:
    a, _ = pair()
    mine = a.ask(REQUESTS["state"], 0, NOBODY, timeout_s=3)
    other = a.ask(REQUESTS["state"], 0, NOBODY)
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


def test_two_that_forward_the_same_to_each_other_do_not_wait_for_each_other() -> None:
    a, b = pair()
    request = TimeRangeRequest(b"same", "a", 0, 9, 0, ttl=3)
    exchanges = [session.ask(request, 0, NOBODY) for session in (a, b)]
    for session in (a, b):
        session.speak(0)
    from_a, from_b = b"".join(a.output()), b"".join(b.output())
    assert not a.receive(from_b, 0)
    assert not b.receive(from_a, 0)
    from_a, from_b = b"".join(a.output()), b"".join(b.output())
    assert a.receive(from_b, 0) == [Concluded(exchanges[0], Step.FINISHED)]
    assert b.receive(from_a, 0) == [Concluded(exchanges[1], Step.FINISHED)]


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


def test_a_live_request_is_cancelled_at_its_limit() -> None:
    a, b = pair()
    mine, theirs = asked(a, b, REQUESTS["limited live range"])
    theirs.remaining = None  # a peer that does not count
    b.answer_hashes(theirs, HASHES[:9])
    seen = carry(b, a)
    assert [event.hashes for event in seen if isinstance(event, Hashes)] == [HASHES[:4]]
    assert seen[-1] == Concluded(mine, Step.LIMIT)
    assert carry(a, b) == [Dropped(theirs)]


def test_posts_of_no_use_give_no_more_time() -> None:
    a, b = pair(answer_timeout_s=10.0)
    mine, theirs = asked(a, b, REQUESTS["posts"])
    for now_s in (4, 8):
        b._send(PostResponse(theirs.request.request_id, (b"nobody asked for this",)))
        carry(b, a, now_s)
    assert a.expire(10) == [Concluded(mine, Step.TIMED_OUT)]
