"""Relaying: small networks of sessions in memory, each node answering and forwarding by ttl as a node does."""

from __future__ import annotations

import gc
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cablestore import DRAFT8, LEGACY, Dialect, limits
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
    Request,
    StateRequest,
    TimeRangeRequest,
    decode_message,
    encode_message,
)
from cablestore.relay import Loops, Route
from cablestore.session import (
    Asked,
    Concluded,
    Dropped,
    Event,
    Exchange,
    Hashes,
    Names,
    Posts,
    Session,
    State,
    Step,
    Violation,
)
from cablestore.varint import MAX_VARINT

ORIGIN = 0


def post_of(node: int, number: int = 0) -> bytes:
    return b"post %d of %d" % (number, node)


def hash_of(node: int, number: int = 0) -> bytes:
    return post_hash(post_of(node, number))


class Question:
    """What the origin asked, and what came of it (an `Asker`)."""

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self.posts: list[bytes] = []
        self.names: list[tuple[str, ...]] = []
        self.ends: list[Step] = []

    def on_hashes(self, exchange: Exchange, hashes: tuple[bytes, ...]) -> None:
        self.hashes += hashes

    def on_posts(self, exchange: Exchange, posts: list[bytes]) -> None:
        self.posts += posts

    def on_names(self, exchange: Exchange, names: tuple[str, ...]) -> None:
        self.names.append(names)

    def on_concluded(self, exchange: Exchange, step: Step) -> None:
        self.ends.append(step)


class Node:
    """One host: the posts, hashes and names that it has, a session with each neighbour."""

    def __init__(self, network: Network, number: int, count: int) -> None:
        self.network = network
        self.number = number
        self.posts = {hash_of(number, at): post_of(number, at) for at in range(count)}
        self.names = [f"channel {number}"]
        self.sessions: dict[int, Session] = {}
        self.loops = Loops()
        self.routes: dict[Exchange, Route] = {}
        self.asked = 0
        self.is_silent = False

    def take(self, session: Session, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Asked(exchange):
                    self.asked += 1
                    self.answer(session, exchange)
                case Dropped(exchange):
                    route = self.routes.pop(exchange, None)
                    if route is not None:
                        route.end()
                case Violation():
                    self.network.violations.append(event)
                case Hashes(exchange, hashes):
                    assert exchange.owner is not None
                    exchange.owner.on_hashes(exchange, hashes)
                case Posts(exchange, posts):
                    assert exchange.owner is not None
                    exchange.owner.on_posts(exchange, posts)
                case Names(exchange, names):
                    assert exchange.owner is not None
                    exchange.owner.on_names(exchange, names)
                case Concluded(exchange, step):
                    assert exchange.owner is not None
                    exchange.owner.on_concluded(exchange, step)
        self.routes = {exchange: route for exchange, route in self.routes.items() if not exchange.is_over}

    def answer(self, session: Session, exchange: Exchange) -> None:
        request = exchange.request
        if self.is_silent:
            return
        if self.loops.is_loop(session, request, self.sessions.values()):
            session.refuse(exchange)
            return
        if request.ttl == 0:
            self.give(session, exchange, None)
            return
        route = self.routes[exchange] = Route(session, exchange)
        missing = None
        if isinstance(request, PostRequest):
            missing = tuple(digest for digest in request.hashes if digest not in self.posts)
        route.forward(self.sessions.values(), self.network.now_s, missing)
        self.give(session, exchange, route)

    def give(self, session: Session, exchange: Exchange, route: Route | None) -> None:
        match exchange.request:
            case PostRequest(_, hashes):
                found = [digest for digest in hashes if digest in self.posts]
                session.answer_posts(
                    exchange, [self.posts[digest] for digest in (route.fresh(found) if route else found)]
                )
            case ListRequest() if route is not None:
                route.names.update(self.names)
            case ListRequest(_, offset, limit):
                names = sorted(self.names, key=str.encode)
                session.answer_names(exchange, names[offset : offset + limit] if limit else names[offset:])
                return
            case _:
                session.answer_hashes(exchange, route.fresh(self.posts) if route else list(self.posts))
        if route is not None:
            route.finish()
        else:
            session.finish(exchange)


class Network:
    """Nodes and the wires between them. Node 0 is the one who asks."""

    def __init__(
        self,
        edges: Iterable[tuple[int, int]],
        *,
        posts: int = 1,
        dialects: dict[int, Dialect] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.now_s = 0.0
        self.violations: list[Violation] = []
        self.log: list[tuple[int, int, Message]] = []
        self.rng = rng
        self.nodes: dict[int, Node] = {}
        self.edges = set(edges)
        self._wires: dict[tuple[int, int], deque[bytes]] = {}
        numbers = itertools.count(1)
        dialects = dialects or {}

        def new_id(size_bytes: int) -> bytes:
            return (next(numbers) << 8 | 0x77).to_bytes(size_bytes, "little")

        for one, other in sorted(self.edges):
            for end in (one, other):
                self.nodes.setdefault(end, Node(self, end, posts))
            for end, far in ((one, other), (other, one)):
                dialect = dialects.get(one, dialects.get(other, LEGACY))
                session = self.nodes[end].sessions[far] = Session(dialect, new_id)
                self._wires[end, far] = deque()
                # They have spoken before: a word that means nothing.
                word = CancelRequest(new_id(dialect.request_id_size_bytes), new_id(dialect.request_id_size_bytes))
                assert session.receive(encode_message(word, dialect), 0) == []

    def ask(self, request: Request, via: int = 1) -> tuple[Exchange, Question]:
        question = Question()
        return self.nodes[ORIGIN].sessions[via].ask(request, self.now_s, question), question

    def flush(self) -> None:
        for node in self.nodes.values():
            for far, session in node.sessions.items():
                for data in session.output():
                    self._wires[node.number, far].append(data)
                    (frame,) = FrameReader().feed(data)
                    message = decode_message(frame, session.dialect)
                    assert message is not None
                    self.log.append((node.number, far, message))

    def run(self) -> None:
        """Carry messages until there are none: all wires in turn, or one message of a random wire at a time."""
        self.flush()
        steps = 0
        while busy := [wire for wire, queue in self._wires.items() if queue]:
            chosen = [self.rng.choice(busy)] if self.rng else busy
            batch = [(wire, self._wires[wire].popleft()) for wire in chosen]
            for (near, far), data in batch:
                node = self.nodes[far]
                node.take(node.sessions[near], node.sessions[near].receive(data, self.now_s))
            self.flush()
            steps += len(batch)
            assert steps < 5_000, "it goes on for ever"

    def wait(self, seconds: float) -> None:
        """Let time pass; nodes look at it ten times a second."""
        end_s = self.now_s + seconds
        while True:
            sessions = [session for node in self.nodes.values() for session in node.sessions.values()]
            asked = [exchange for session in sessions for exchange in session.asked.values()]
            deadlines = [exchange.deadline_s for exchange in asked if exchange.deadline_s is not None]
            if not deadlines or min(deadlines) > end_s:
                self.now_s = end_s
                return
            self.now_s = math.ceil(min(deadlines) * 10) / 10
            for node in self.nodes.values():
                for session in node.sessions.values():
                    node.take(session, session.expire(self.now_s))
            self.run()

    def cut(self, one: int, other: int) -> None:
        """Lose a connection."""
        for near, far in ((one, other), (other, one)):
            node = self.nodes[near]
            session = node.sessions.pop(far)
            del self._wires[near, far]
            node.take(session, session.lose())

    def within(self, hops: int, start: int = 1) -> set[int]:
        """Nodes that a request through `start` reaches with so many hops more, without the origin."""
        reached, edge = {start}, {start}
        for _ in range(hops):
            edge = {far for node in edge for far in self.nodes[node].sessions} - reached - {ORIGIN}
            reached |= edge
        return reached

    def assert_nothing_is_left(self) -> None:
        assert self.violations == []
        for node in self.nodes.values():
            for session in node.sessions.values():
                assert session.asked == {}
                assert session.to_answer == {}
            assert node.routes == {}


LINE = [(at, at + 1) for at in range(5)]
RING = [*LINE, (5, 0)]
STAR = [(0, 1), *((1, leaf) for leaf in range(2, 7))]
CLIQUE = list(itertools.combinations(range(5), 2))
SHAPES = {"line": LINE, "ring": RING, "star": STAR, "clique": CLIQUE}
FEWER = settings(max_examples=settings().max_examples // 6)
"""For tests of whole networks in four shapes."""
ALL_SHAPES = pytest.mark.parametrize("edges", SHAPES.values(), ids=list(SHAPES))
HASH_REQUESTS: dict[str, Callable[..., Request]] = {
    "range": lambda ttl, limit=0: TimeRangeRequest(b"", "a", 0, 9, limit, ttl),
    "live": lambda ttl, limit=0: TimeRangeRequest(b"", "a", 0, 0, limit, ttl),
    "state": lambda ttl: StateRequest(b"", "a", 0, ttl),
    "live state": lambda ttl: StateRequest(b"", "a", 1, ttl),
    "moderation": lambda ttl: ModerationRequest(b"", (), 0, 0, ttl),
}


def responses_beside(network: Network, request_id: bytes) -> list[Message]:
    """Responses under an id that nobody asked the sender for."""
    asked = {(far, near) for near, far, message in network.log if message.request_id == request_id}
    return [
        message
        for near, far, message in network.log
        if isinstance(message, HashResponse | ListResponse) and (near, far) not in asked
    ]


# --- who answers, and to whom ----------------------------------------------------------------------


@ALL_SHAPES
@pytest.mark.parametrize("kind", HASH_REQUESTS)
@pytest.mark.parametrize("ttl", [0, 1, 2, 4, 16])
def test_all_within_ttl_hops_answer_and_only_to_whom_they_were_asked_for(
    edges: list[tuple[int, int]], kind: str, ttl: int
) -> None:
    network = Network(edges, posts=2)
    mine, question = network.ask(HASH_REQUESTS[kind](ttl))
    network.run()
    reached = network.within(ttl)
    assert sorted(question.hashes) == sorted(hash_of(node, at) for node in reached for at in range(2))
    assert {node.number for node in network.nodes.values() if node.asked} - {ORIGIN} == reached
    is_live = "live" in kind
    if not is_live:
        network.wait(30)
        assert question.ends == [Step.FINISHED]
    else:
        assert question.ends == []
        network.nodes[ORIGIN].sessions[1].cancel(mine)
        network.run()
    assert len(question.hashes) == 2 * len(reached)
    assert responses_beside(network, mine.request.request_id) == []
    network.assert_nothing_is_left()


@ALL_SHAPES
def test_ids_are_kept_and_ttls_count_down(edges: list[tuple[int, int]]) -> None:
    network = Network(edges)
    mine, _ = network.ask(HASH_REQUESTS["state"](4))
    network.run()
    requests = [(near, message) for near, _, message in network.log if isinstance(message, StateRequest)]
    assert {message.request_id for _, message in requests} == {mine.request.request_id}
    hops = {near: hops for hops in range(4, -1, -1) for near in network.within(hops)}
    for near, message in requests:
        assert message.ttl == (4 if near == ORIGIN else 3 - hops[near])
        assert message.ttl >= 0


@ALL_SHAPES
@FEWER
@given(st.integers(0, 4), st.integers(1, 12), st.booleans(), st.randoms(use_true_random=False))
def test_the_limit_holds_over_all_sources(
    edges: list[tuple[int, int]], ttl: int, limit: int, is_live: bool, rng: random.Random
) -> None:
    network = Network(edges, posts=2, rng=rng)
    request = HASH_REQUESTS["live" if is_live else "range"](ttl, limit)
    _, question = network.ask(request)
    network.run()
    if not is_live:
        network.wait(30)
    sent = [m for near, far, m in network.log if isinstance(m, HashResponse) and (near, far) == (1, ORIGIN)]
    assert sum(len(message.hashes) for message in sent) <= limit
    assert len(question.hashes) == len(set(question.hashes)) <= limit
    if edges in (LINE, STAR):
        assert len(question.hashes) == min(limit, 2 * len(network.within(ttl)))
    assert ORIGIN not in {node for node in range(7) for at in range(2) if hash_of(node, at) in question.hashes}
    if len(question.hashes) == limit:
        assert question.ends == [Step.LIMIT]
        network.wait(30)
        network.assert_nothing_is_left()
    else:
        assert question.ends == ([] if is_live else [Step.FINISHED])


def test_a_live_request_that_is_full_at_once_is_not_kept_alive_elsewhere() -> None:
    network = Network(STAR, posts=3)
    _, question = network.ask(HASH_REQUESTS["live"](3, 3))
    network.run()
    assert question.ends == [Step.LIMIT]
    network.assert_nothing_is_left()


@given(
    st.sets(st.sampled_from(list(itertools.combinations(range(5), 2))), max_size=10),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_any_network_in_any_order(edges: set[tuple[int, int]], ttl: int, rng: random.Random) -> None:
    """Whatever comes first: it ends, each node answers once, and nobody hears what it did not ask."""
    network = Network({*edges, (0, 1)}, posts=2, rng=rng)
    mine, question = network.ask(HASH_REQUESTS["range"](ttl))
    network.run()
    network.wait(30)
    assert question.ends == [Step.FINISHED]
    heard = {node for node in network.nodes for at in range(2) if hash_of(node, at) in question.hashes}
    assert {1} <= heard <= network.within(ttl)
    assert len(question.hashes) == 2 * len(heard)
    if ttl == 5:
        assert heard == network.within(5)
    assert responses_beside(network, mine.request.request_id) == []
    network.assert_nothing_is_left()


# --- loops -----------------------------------------------------------------------------------------


@ALL_SHAPES
@FEWER
@given(st.randoms(use_true_random=False))
def test_loops_end(edges: list[tuple[int, int]], rng: random.Random) -> None:
    network = Network(edges, rng=rng)
    network.ask(HASH_REQUESTS["range"](limits.MAX_TTL))
    network.run()
    asked = [message for _, _, message in network.log if isinstance(message, TimeRangeRequest)]
    assert len(asked) <= 2 * len(edges), "no request goes over a wire twice in one direction"


def loop_sessions() -> tuple[Session, Session, Session]:
    one, two, three = (Session(LEGACY, partial(int.to_bytes, 7, byteorder="big")) for _ in range(3))
    return one, two, three


def test_a_request_that_comes_another_way_is_a_loop_while_the_first_is_connected() -> None:
    one, two, three = loop_sessions()
    loops, request = Loops(), StateRequest(b"abcd", "a", 0, 1)
    assert not loops.is_loop(one, request, [one, two])
    assert loops.is_loop(two, request, [one, two])
    assert not loops.is_loop(one, request, [one, two]), "the first may ask again"
    assert not loops.is_loop(three, request, [two, three]), "it came back as another connection"
    assert loops.is_loop(two, request, [two, three])


def test_what_we_asked_ourselves_is_a_loop() -> None:
    one, two, _ = loop_sessions()
    mine = one.ask(StateRequest(b"abcd", "a", 0, 3), 0, Question())
    assert Loops().is_loop(two, StateRequest(b"abcd", "a", 0, 1), [one, two])
    one.cancel(mine)
    assert Loops().is_loop(two, StateRequest(b"abcd", "a", 0, 1), [one, two]), "also when it comes late"
    assert not Loops().is_loop(two, StateRequest(b"abcd", "a", 0, 1), [two])


def test_what_was_forwarded_for_a_peer_may_be_asked_by_it_again() -> None:
    one, two, _ = loop_sessions()
    loops, request = Loops(), StateRequest(b"abcd", "a", 0, 3)
    assert not loops.is_loop(one, request, [one, two])
    two.cancel(two.ask(request, 0, Question()))
    assert not loops.is_loop(one, request, [one, two])


def test_loops_remember_so_many_and_keep_no_session_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTES_REMEMBERED", 3)
    one, two, three = loop_sessions()
    loops = Loops()
    requests = [StateRequest(bytes((number,)) * 4, "a", 0, 1) for number in range(4)]
    for request in requests:
        assert not loops.is_loop(one, request, [one, two])
    assert [loops.is_loop(two, request, [one, two]) for request in reversed(requests)] == [True] * 3 + [False]
    gone = ref(three)
    assert not loops.is_loop(three, StateRequest(b"abcd", "a", 0, 1), [three])
    del three
    gc.collect()
    assert gone() is None
    assert not loops.is_loop(two, StateRequest(b"abcd", "a", 0, 1), [one, two])


# --- cancel, loss, silence -------------------------------------------------------------------------


@ALL_SHAPES
@pytest.mark.parametrize("how", ["cancel", "loss"])
@FEWER
@given(st.randoms(use_true_random=False), st.integers(0, 5))
def test_a_cancel_and_a_loss_travel_along_the_route(
    edges: list[tuple[int, int]], how: str, rng: random.Random, ttl: int
) -> None:
    network = Network(edges, rng=rng)
    mine, question = network.ask(HASH_REQUESTS["live"](ttl))
    network.run()
    heard = len(question.hashes)
    if how == "cancel":
        network.nodes[ORIGIN].sessions[1].cancel(mine)
    else:
        network.cut(ORIGIN, 1)
    network.run()
    network.assert_nothing_is_left()
    assert len(question.hashes) == heard
    cancels = [message for _, _, message in network.log if isinstance(message, CancelRequest)]
    assert all(message.ttl == 0 and message.cancel_id == mine.request.request_id for message in cancels)


def test_news_of_a_live_request_travel_too() -> None:
    network = Network(LINE)
    network.ask(HASH_REQUESTS["live state"](4))
    network.run()
    for number in (1, 3, 5):
        node = network.nodes[number]
        ((session, exchange),) = [(s, found) for s in node.sessions.values() for found in s.to_answer.values()]
        assert exchange.state is State.LIVE, "others have no end that it could wait for"
        session.answer_hashes(exchange, [hash_of(99, number)])
    network.run()
    (asked,) = network.nodes[ORIGIN].sessions[1].asked.values()
    question = asked.owner
    assert isinstance(question, Question)
    assert sorted(question.hashes[-3:]) == sorted(hash_of(99, number) for number in (1, 3, 5))


def test_the_end_of_one_live_answer_is_not_that_of_all() -> None:
    network = Network(STAR)
    _, question = network.ask(HASH_REQUESTS["live state"](2))
    network.run()
    leaf = network.nodes[2].sessions[1]
    (exchange,) = leaf.to_answer.values()
    leaf.refuse(exchange)
    network.cut(1, 3)
    network.run()
    assert question.ends == []
    assert len(network.nodes[1].sessions[ORIGIN].to_answer) == 1


def requests_of_all_kinds(ttl: int) -> list[Request]:
    return [
        HASH_REQUESTS["range"](ttl),
        HASH_REQUESTS["state"](ttl),
        HASH_REQUESTS["moderation"](ttl),
        ListRequest(b"", 0, 0, ttl),
        PostRequest(b"", tuple(hash_of(node) for node in range(1, 9)), ttl),
    ]


KINDS = st.integers(0, len(requests_of_all_kinds(0)) - 1)


@ALL_SHAPES
@FEWER
@given(KINDS, st.integers(1, 5), st.sets(st.integers(2, 6)), st.booleans(), st.randoms(use_true_random=False))
def test_every_request_that_has_an_end_comes_to_it(
    edges: list[tuple[int, int]], kind: int, ttl: int, broken: set[int], is_lost: bool, rng: random.Random
) -> None:
    """Peers that were asked say nothing, or are lost at some moment."""
    network = Network(edges, rng=rng)
    silent = [node for number, node in network.nodes.items() if number in broken]
    for node in silent:
        node.is_silent = True
    _, question = network.ask(requests_of_all_kinds(ttl)[kind])
    network.run()
    if is_lost:
        for node in silent:
            for far in list(node.sessions):
                network.cut(node.number, far)
        network.run()
    network.wait(limits.ANSWER_TIMEOUT_S)
    assert len(question.ends) == 1
    if not silent or edges in (LINE, STAR):
        assert question.ends[0] in (Step.FINISHED, Step.SATISFIED)
    network.wait(limits.ANSWER_TIMEOUT_S)
    for node in network.nodes.values():
        for session in node.sessions.values():
            assert session.asked == {}
            assert node.is_silent or session.to_answer == {}
    assert network.violations == []


@given(st.integers(2, 5), st.integers(2, 5))
def test_what_lies_before_a_silent_peer_is_not_lost(silent: int, ttl: int) -> None:
    """Whoever is nearer to the origin waits longer; names come all at once, and come all the same."""
    network = Network(LINE)
    network.nodes[silent].is_silent = True
    _, question = network.ask(ListRequest(b"", 0, 0, ttl))
    network.run()
    network.wait(limits.ANSWER_TIMEOUT_S - 1)
    reached = range(1, min(silent, ttl + 2))
    assert question.names == [tuple(f"channel {node}" for node in reached)]
    assert question.ends == [Step.FINISHED]


@pytest.mark.parametrize("ttl", range(1, limits.MAX_TTL + 1))
def test_times_grow_towards_the_origin_and_stay_below_its_own(ttl: int) -> None:
    network = Network(LINE)
    _, theirs = asked_of_the_first(network, StateRequest(b"abcd", "a", 0, ttl))
    route = Route(network.nodes[1].sessions[0], theirs)
    route.forward(network.nodes[1].sessions.values(), 0)
    (forwarded,) = network.nodes[1].sessions[2].asked.values()
    assert forwarded.deadline_s is not None
    assert limits.RELAY_TIMEOUT_S <= forwarded.deadline_s < limits.ANSWER_TIMEOUT_S
    following = limits.RELAY_TIMEOUT_S / 8
    assert (forwarded.deadline_s - limits.RELAY_TIMEOUT_S) / following == pytest.approx(ttl - 1)


def asked_of_the_first(network: Network, request: Request) -> tuple[Session, Exchange]:
    """A request taken up by node 1, which does nothing about it yet."""
    session = network.nodes[1].sessions[ORIGIN]
    (event,) = session.receive(encode_message(request, LEGACY), 0)
    assert isinstance(event, Asked)
    return session, event.exchange


# --- posts and names -------------------------------------------------------------------------------


@ALL_SHAPES
@FEWER
@given(st.data())
def test_others_are_asked_only_for_posts_that_are_missing(edges: list[tuple[int, int]], data: st.DataObject) -> None:
    network = Network(edges, posts=0, rng=data.draw(st.randoms(use_true_random=False)))
    ttl = data.draw(st.integers(0, 5))
    known = {hash_of(0, at): post_of(0, at) for at in range(6)}
    for node in network.nodes.values():
        if node.number != ORIGIN:
            node.posts = {digest: known[digest] for digest in data.draw(st.sets(st.sampled_from(sorted(known))))}
    wanted = tuple(data.draw(st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True)))
    _, question = network.ask(PostRequest(b"", wanted, ttl))
    network.run()
    network.wait(30)
    for near, _, message in network.log:
        if isinstance(message, PostRequest) and near != ORIGIN:
            assert message.hashes
            assert not set(message.hashes) & set(network.nodes[near].posts)
            assert set(message.hashes) <= set(wanted)
    heard = [post_hash(post) for post in question.posts]
    assert len(heard) == len(set(heard))
    assert set(heard) <= set(wanted)
    reached = network.within(ttl)
    available = {digest for node in reached for digest in network.nodes[node].posts if digest in wanted}
    if edges in (LINE, STAR) or ttl == 5:
        assert set(heard) == available
    assert question.ends == [Step.SATISFIED if set(heard) == set(wanted) else Step.FINISHED]
    network.assert_nothing_is_left()


@ALL_SHAPES
@FEWER
@given(
    st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=5), min_size=7, max_size=7),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 5),
)
def test_names_of_all_are_one_sorted_page(
    edges: list[tuple[int, int]], names: list[set[str]], offset: int, limit: int, ttl: int
) -> None:
    network = Network(edges)
    for node in network.nodes.values():
        node.names = list(names[node.number])
    _, question = network.ask(ListRequest(b"", offset, limit, ttl))
    network.run()
    network.wait(30)
    everything = sorted({name for node in network.within(ttl) for name in names[node]})
    page = everything[offset : offset + limit] if limit else everything[offset:]
    assert question.names == [tuple(page)]
    assert question.ends == [Step.FINISHED]
    responses = [(near, far) for near, far, message in network.log if isinstance(message, ListResponse)]
    assert responses.count((1, ORIGIN)) == 1
    network.assert_nothing_is_left()


@given(st.integers(0, MAX_VARINT), st.integers(0, MAX_VARINT))
def test_any_offset_and_limit_can_be_forwarded(offset: int, limit: int) -> None:
    network = Network([(0, 1), (1, 2)])
    session, theirs = asked_of_the_first(network, ListRequest(b"abcd", offset, limit, 2))
    Route(session, theirs).forward(network.nodes[1].sessions.values(), 0)
    network.flush()
    (request,) = [message for near, _, message in network.log if near == 1 and isinstance(message, ListRequest)]
    assert (request.offset, request.ttl) == (0, 1)
    assert request.limit == 0 if limit == 0 else request.limit >= min(offset + limit, MAX_VARINT)


# --- who is asked ----------------------------------------------------------------------------------


@given(KINDS, st.sets(st.integers(2, 6)), st.randoms(use_true_random=False))
def test_draft8_peers_are_never_forwarded_to(kind: int, modern: set[int], rng: random.Random) -> None:
    network = Network(STAR, dialects=dict.fromkeys(modern, DRAFT8), rng=rng)
    _, question = network.ask(requests_of_all_kinds(3)[kind])
    network.run()
    assert not [message for near, far, message in network.log if far in modern]
    assert all(network.nodes[leaf].asked == (leaf not in modern) for leaf in range(2, 7))
    assert len(question.ends) == 1
    network.assert_nothing_is_left()


@pytest.mark.parametrize("speaks_first", [False, True])
@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
def test_a_peer_that_has_said_nothing_is_not_forwarded_to(dialect: Dialect, speaks_first: bool) -> None:
    """It may turn out to speak draft 8; and what is never said is never given up."""
    network = Network([(0, 1)])
    session, theirs = asked_of_the_first(network, StateRequest(b"abcd", "a", 0, 2))
    stranger = Session(dialect, lambda size_bytes: b"\x01" * size_bytes, speaks_first=speaks_first)
    route = Route(session, theirs)
    route.forward([session, stranger], 0)
    route.finish()
    assert theirs.is_over
    word = CancelRequest(b"\x02" * 8, b"\x03" * 8)
    assert stranger.receive(encode_message(word, DRAFT8), 0) == []
    assert stranger.output() == []


def test_half_of_what_a_peer_takes_is_left_for_our_own_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS_ALIVE", 6)
    network = Network([(0, 1), (1, 2)])
    for number in range(5):
        session, theirs = asked_of_the_first(network, StateRequest(bytes((number,)) * 4, "a", 1, 2))
        Route(session, theirs).forward(network.nodes[1].sessions.values(), 0)
    assert len(network.nodes[1].sessions[2].asked) == 3


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6), st.integers(0, 10))
def test_a_hash_is_passed_on_once_as_far_as_memory_goes(parts: list[list[int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ROUTE_HASHES_REMEMBERED", most)
        network = Network([(0, 1)])
        route = Route(*asked_of_the_first(network, StateRequest(b"abcd", "a", 0, 2)))
        kept: list[bytes] = []
        for part in parts:
            hashes = [hash_of(0, number) for number in part]
            found = route.fresh(hashes)
            assert found == [digest for digest in dict.fromkeys(hashes) if digest not in kept]
            kept += found[: most - len(kept)]


def test_names_of_one_peer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTE_HASHES_REMEMBERED", 4)
    network = Network([(0, 1), (1, 2)])
    network.nodes[2].names = [f"c{number}" for number in range(9)]
    _, question = network.ask(ListRequest(b"", 0, 0, 1))
    network.run()
    assert question.names == [("c0", "c1", "c2", "c3", "channel 1")]


def test_a_live_request_is_caught_up_when_the_store_is_and_not_before() -> None:
    network = Network([(0, 1), (1, 2)])
    session, theirs = asked_of_the_first(network, StateRequest(b"abcd", "a", 1, 2))
    route = Route(session, theirs)
    far = network.nodes[1].sessions[2]
    route.forward([far], 0)
    network.nodes[1].take(far, far.receive(encode_message(HashResponse(b"abcd", ()), LEGACY), 0))
    assert far.asked == {}
    states = [theirs.state]
    route.finish()
    assert [*states, theirs.state] == [State.OPEN, State.LIVE]


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_peer_that_knows_the_request_is_not_asked_it_again(is_asked: bool) -> None:
    network = Network([(0, 1), (1, 2)])
    request = StateRequest(b"abcd", "a", 0, 2)
    session, theirs = asked_of_the_first(network, request)
    far = network.nodes[1].sessions[2]
    if is_asked:
        known = far.ask(request, 0, Question())
    else:
        far.receive(encode_message(request, LEGACY), 0)
    far.output()
    Route(session, theirs).forward([session, far], 0)
    assert far.output() == session.output() == []
    assert theirs.holds == 1
    assert far.asked == ({b"abcd": known} if is_asked else {})
