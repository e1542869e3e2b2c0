"""Small networks in memory for tests of relaying: nodes with a session for each neighbour, and wires between them."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from cablestore import LEGACY, Dialect
from cablestore.peers.relay import Loops, Route
from cablestore.peers.serving import FORWARDS_TICK_S as TICK_S
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import (
    Concluded,
    Dropped,
    Event,
    Exchange,
    Extra,
    Hashes,
    Names,
    PeerRequest,
    Posts,
    ResponseEvent,
    Step,
    Violation,
)
from cablestore.protocol.message import (
    CancelRequest,
    FrameReader,
    ListRequest,
    Message,
    PostRequest,
    Request,
    decode_message,
    encode_message,
)
from cablestore.protocol.recognition import REQUESTS, Greeter
from cablestore.protocol.session import Session

ORIGIN = 0
LINE = [(at, at + 1) for at in range(5)]
RING = [*LINE, (5, 0)]
STAR = [(0, 1), *((1, leaf) for leaf in range(2, 7))]
CLIQUE = list(itertools.combinations(range(5), 2))
SHAPES = {"line": LINE, "ring": RING, "star": STAR, "clique": CLIQUE}


def post_of(node: int, number: int = 0) -> bytes:
    return b"post %d of %d" % (number, node)


def hash_of(node: int, number: int = 0) -> bytes:
    return post_hash(post_of(node, number))


class Question:
    """The request of the origin, and the answers to it."""

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self.posts: list[bytes] = []
        self.names: list[tuple[str, ...]] = []
        self.ends: list[Step] = []

    def handle(self, event: ResponseEvent) -> None:
        match event:
            case Hashes(_, hashes):
                self.hashes += hashes
            case Posts(_, posts):
                self.posts += posts
            case Names(_, names):
                self.names.append(names)
            case Concluded(_, step):
                self.ends.append(step)


class PassingInspector:
    """Inspector that forwards posts immediately or, with `later`, when `release` is called."""

    def __init__(self) -> None:
        self.later = False
        self._waiting: list[Callable[[], None]] = []

    def allowed_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return names

    def send_on(self, route: Route) -> None:
        """Do nothing, because all sessions are flushed after each step."""

    def inspect_hashes(self, route: Route, giver: Session, hashes: tuple[bytes, ...]) -> None:
        self._do(lambda: route.pass_hashes(hashes))

    def inspect_posts(self, route: Route, giver: Session, posts: list[bytes]) -> None:
        self._do(lambda: route.pass_posts(posts))

    def _do(self, work: Callable[[], None]) -> None:
        if self.later:
            self._waiting.append(work)
        else:
            work()

    def release(self) -> bool:
        """Forward the waiting posts. Return True if there were any."""
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()
        return bool(waiting)


class Node:
    """Host with posts, hashes and names, and a session with each neighbour."""

    def __init__(self, network: Network, number: int, count: int, phase_s: float) -> None:
        self.network = network
        self.number = number
        self.phase_s = phase_s
        self.posts = {hash_of(number, at): post_of(number, at) for at in range(count)}
        self.names = [f"channel {number}"]
        self.sessions: dict[int, Session] = {}
        self.loops = Loops()
        self.inspector = PassingInspector()
        self.routes: dict[Exchange, Route] = {}
        self.asked = 0
        self.is_silent = False

    def next_look_s(self) -> float | None:
        """Return when it notices that an answer is late, None if it does not wait for one."""
        asked = [exchange for session in self.sessions.values() for exchange in session.open_requests.values()]
        deadlines = [exchange.deadline_s for exchange in asked if exchange.deadline_s is not None]
        if not deadlines:
            return None
        return self.phase_s + math.ceil((min(deadlines) - self.phase_s) / TICK_S) * TICK_S

    def handle(self, session: Session, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case PeerRequest(exchange):
                    self.asked += 1
                    self.answer(session, exchange)
                case Dropped(exchange):
                    route = self.routes.pop(exchange, None)
                    if route is not None:
                        route.end()
                case Violation() | Extra():
                    assert isinstance(event, Violation)
                    self.network.violations.append(event)
                case _ if event.exchange.requester is not None:
                    event.exchange.requester.handle(event)
        self.routes = {exchange: route for exchange, route in self.routes.items() if not exchange.is_over}

    def answer(self, session: Session, exchange: Exchange) -> None:
        request = exchange.request
        if self.is_silent:
            return
        if self.loops.is_loop(session, request, self.sessions.values()):
            session.reject(exchange)
            return
        if request.ttl == 0:
            self.give(session, exchange, None)
            return
        route = self.routes[exchange] = Route(session, exchange, self.inspector)
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
    """Nodes and the wires between them. Node 0 sends the requests."""

    def __init__(
        self,
        edges: Iterable[tuple[int, int]],
        *,
        posts: int = 1,
        dialects: dict[int, Dialect] | None = None,
        rng: random.Random | None = None,
        greets: bool = False,
        phases_s: Sequence[float] = (0.0,),
    ) -> None:
        """Create the nodes.

        With `greets` all recognize each other. Nodes check the time at these phases of a tick, in turn.
        """
        self.now_s = 0.0
        self.violations: list[Violation] = []
        self.log: list[tuple[int, int, Message]] = []
        self.rng = rng
        self.nodes: dict[int, Node] = {}
        self.edges = set(edges)
        self._wires: dict[tuple[int, int], deque[bytes]] = {}
        self._phases_s = itertools.cycle(phases_s)
        numbers = itertools.count(1)
        dialects = dialects or {}

        def new_id(size_bytes: int) -> bytes:
            return (next(numbers) << 8 | 0x77).to_bytes(size_bytes, "little")

        for one, other in sorted(self.edges):
            for end in (one, other):
                if end not in self.nodes:
                    self.nodes[end] = Node(self, end, posts, next(self._phases_s))
            for end, far in ((one, other), (other, one)):
                dialect = dialects.get(one, dialects.get(other, LEGACY))
                session = self.nodes[end].sessions[far] = Session(dialect, new_id)
                self._wires[end, far] = deque()
                # They have exchanged messages before, which have no effect.
                size_bytes, ids = dialect.request_id_size_bytes, Greeter(new_id)
                for _ in range(REQUESTS if greets else 1):
                    word = CancelRequest(ids(size_bytes), new_id(size_bytes))
                    assert session.receive(encode_message(word, dialect), 0) == []
                assert session.is_cablestore == greets

    def send_request(self, request: Request, via: int = 1) -> tuple[Exchange, Question]:
        origin = self.nodes[ORIGIN]
        question = Question()
        return origin.sessions[via].send_request(request, self.now_s, requester=question), question

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
        """Carry messages until none is left: all wires in turn, or one message of a random wire at a time."""
        self.flush()
        steps = 0
        while busy := [wire for wire, queue in self._wires.items() if queue]:
            chosen = [self.rng.choice(busy)] if self.rng else busy
            batch = [(wire, self._wires[wire].popleft()) for wire in chosen]
            for (near, far), data in batch:
                node = self.nodes[far]
                node.handle(node.sessions[near], node.sessions[near].receive(data, self.now_s))
            self.flush()
            steps += len(batch)
            assert steps < 5_000, "the network does not come to rest"

    def wait(self, seconds: float) -> None:
        """Advance the time. Each node checks it in its own ticks."""
        end_s = self.now_s + seconds
        while due := {node: at_s for node in self.nodes.values() if (at_s := node.next_look_s()) is not None}:
            if min(due.values()) > end_s:
                break
            self.now_s = max(self.now_s, min(due.values()))
            for node in [node for node, at_s in due.items() if at_s <= self.now_s]:
                for session in node.sessions.values():
                    node.handle(session, session.expire(self.now_s))
            self.run()
        self.now_s = end_s

    def cut(self, one: int, other: int) -> None:
        """Lose a connection."""
        for near, far in ((one, other), (other, one)):
            node = self.nodes[near]
            session = node.sessions.pop(far)
            del self._wires[near, far]
            node.handle(session, session.lose())

    def within(self, hops: int, start: int = 1) -> set[int]:
        """Return the nodes that a request through `start` reaches with N more hops, without the origin."""
        reached, edge = {start}, {start}
        for _ in range(hops):
            edge = {far for node in edge for far in self.nodes[node].sessions} - reached - {ORIGIN}
            reached |= edge
        return reached

    def assert_nothing_is_left(self) -> None:
        assert self.violations == []
        for node in self.nodes.values():
            for session in node.sessions.values():
                assert session.open_requests == {}
                assert session.to_answer == {}
            assert node.routes == {}
