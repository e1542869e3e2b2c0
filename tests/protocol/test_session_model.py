"""The life of every request between two sessions is compared with a small model."""

from __future__ import annotations

import itertools
from typing import Any

from conversation import HASHES, POSTS, REQUESTS, Watched, empty_for, faults, ids, is_live, items, read
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cablestore import DRAFT8, LEGACY, Dialect, limits
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import (
    TRANSITIONS,
    Concluded,
    Dropped,
    Event,
    Exchange,
    Extra,
    Hashes,
    Names,
    PeerRequest,
    Posts,
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
    Response,
    TimeRangeRequest,
)


class Record:
    """A request as both sides should see it."""

    def __init__(self, requester: int, mine: Exchange) -> None:
        self.requester = requester
        self.mine = mine
        self.theirs: Exchange | None = None
        self.is_done = False  # the requester got the end, or ended it
        self.is_answered = False  # the answerer may send nothing more
        self.given: list[Any] = []
        self.heard: list[Any] = []
        self.said: list[Response] = []
        self.requests: set[Request] = set()  # with all its ids

    @property
    def request(self) -> Request:
        return self.mine.request

    @property
    def due(self) -> list[Any]:
        limit = self.request.limit if isinstance(self.request, TimeRangeRequest) else 0
        return self.given[:limit] if limit else self.given


class Conversation(RuleBasedStateMachine):
    """Two sessions with a wire between them that delays and splits their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.numbers = ids()

    @initialize(dialect=st.sampled_from([LEGACY, DRAFT8]), other=st.sampled_from([LEGACY, DRAFT8]))
    def connect(self, dialect: Dialect, other: Dialect) -> None:
        """Create the second session, which waits for the dialect of the first one."""
        self.sides = [Watched(dialect, self.numbers), Watched(other, self.numbers, speaks_first=False)]
        self.wires = [b"", b""]
        self.records: list[Record] = []
        self.stale: set[Exchange] = set()  # requested again meanwhile, in another dialect

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
    def send_request(self, side: int, request: Request, arrives: bool) -> None:
        self.records.append(Record(side, self.sides[side].send_request(request, self.now_s)))
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
        session, exchange = self.sides[1 - record.requester], record.theirs
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
            self.sides[1 - record.requester].finish(record.theirs)
        elif not record.theirs.posts:  # queued posts that were not sent are not
            self.sides[1 - record.requester].reject(record.theirs)

    @rule(data=st.data(), count=st.integers(0, 3))
    def answer_what_is_over(self, data: st.DataObject, count: int) -> None:
        over = [known for known in self.records if known.theirs is not None and known.theirs.is_over]
        if not over:
            return
        record = over[data.draw(st.integers(0, len(over) - 1))]
        assert record.theirs is not None
        session = self.sides[1 - record.requester]
        before = list(session._out)
        session.answer_hashes(record.theirs, HASHES[:count])
        session.answer_posts(record.theirs, list(POSTS.values())[:count])
        session.answer_names(record.theirs, ["a"])
        session.finish(record.theirs)
        session.reject(record.theirs)
        assert session._out == before

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        record = self.pick(data, answerable=False)
        if record is not None:
            self.sides[record.requester].cancel(record.mine)
            record.is_done = True

    @precondition(lambda self: not self.sides[1]._may_speak)
    @rule()
    def speak(self) -> None:
        self.sides[1].speak(self.now_s)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 15.0, limits.ANSWER_TIMEOUT_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for side, session in enumerate(self.sides):
            late = {known.mine for known in self.alive(answerable=False) if known.requester == side} & {
                exchange
                for exchange in session.open_requests.values()
                if (exchange.deadline_s or self.now_s + 1) <= self.now_s
            }
            events = session.expire(self.now_s)
            assert all(isinstance(event, Concluded) and event.step is Step.TIMED_OUT for event in events)
            self.take(side, events)
            assert all(exchange.is_over for exchange in late)
            assert not [
                e for e in session.open_requests.values() if e.deadline_s is not None and e.deadline_s <= self.now_s
            ]

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
            assert not session.open_requests
            assert not session.to_answer
        for record in self.records:
            assert record.mine.is_over
            assert record.theirs is None or record.theirs.is_over
        self.connect(dialect, other)

    def say(self) -> None:
        """Put the output of both on the wire, and compare it with the allowed messages."""
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
            if known.requester != side and known.theirs and known.theirs.request.request_id == message.request_id
        )
        assert not record.is_answered, "no response follows the end"
        assert type(message) is type(empty_for(record.request))
        record.said.append(message)
        record.is_answered = not items(message) or isinstance(message, ListResponse)

    def take(self, side: int, events: list[Event]) -> None:
        for event in events:
            assert not isinstance(event, Violation), event
            if isinstance(event, PeerRequest):
                request = event.exchange.request
                record = next(known for known in self.records if known.requester != side and request in known.requests)
                if request == record.request:
                    self.forget_answer(record, request)
                    record.theirs = event.exchange
                else:
                    self.stale.add(event.exchange)
                continue
            assert not isinstance(event, Extra)
            if event.exchange in self.stale:
                assert isinstance(event, Dropped)
                self.stale.remove(event.exchange)
                continue
            record = self.by(event.exchange)
            if isinstance(event, Dropped):
                assert record.requester != side
                assert event.exchange.is_over
                if event.exchange.request != record.request:
                    self.forget_answer(record, record.request)
                continue
            assert record.requester == side
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
        """Request again in another dialect, because the earlier answer was not understood."""
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
            assert all(
                not exchange.is_over for exchange in [*session.open_requests.values(), *session.to_answer.values()]
            )

    def teardown(self) -> None:
        """Check that requests are answered and over on both sides, and that no state is left."""
        if not hasattr(self, "sides"):
            return
        self.sides[0].speak(self.now_s)
        self.sides[1].speak(self.now_s)
        for side in (0, 1):
            self.send_request(side, REQUESTS["list"], arrives=False)
        self.deliver_all()
        assert not self.stale
        assert self.sides[0].dialect is self.sides[1].dialect
        for record in self.alive(answerable=True):
            assert record.theirs is not None
            self.sides[1 - record.requester].finish(record.theirs)
        self.deliver_all()
        for record in self.records:
            if not is_live(record.request):
                assert record.mine.is_over
                assert record.theirs is None or record.theirs.is_over


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=settings().max_examples, stateful_step_count=40)
