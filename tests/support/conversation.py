"""Two sessions that exchange their bytes, and requests of all kinds, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from cablestore import DRAFT8, LEGACY, Dialect
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import Event, Exchange, Fault, PeerRequest, RequestRole, State, Step, Violation
from cablestore.protocol.message import (
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
)
from cablestore.protocol.session import Session

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


class Watched(Session):
    """Session that records every step of its requests."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.steps: list[tuple[Exchange, State, Step]] = []

    def _step(self, exchange: Exchange, step: Step) -> None:  # type: ignore[override] # it returns nothing
        self.steps.append((exchange, exchange.state, step))
        Session._step(exchange, step)

    @property
    def rows(self) -> list[tuple[RequestRole, State, Step]]:
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
    """Return the pending messages of a session, decoded."""
    return read(b"".join(session.output()), session.dialect)


def carry(source: Session, target: Session, now_s: float = 0) -> list[Event]:
    return target.receive(b"".join(source.output()), now_s)


def asked(requester: Session, answerer: Session, request: Request, now_s: float = 0) -> tuple[Exchange, Exchange]:
    """Send a request, and receive it on the other side. Return both sides' exchanges of it."""
    mine = requester.send_request(request, now_s)
    events = carry(requester, answerer)
    assert [type(event) for event in events] == [PeerRequest]
    assert isinstance(events[0], PeerRequest)
    return mine, events[0].exchange


def give(session: Session, exchange: Exchange, count: int = 2) -> None:
    """Send a part of an answer of the right type."""
    match exchange.request:
        case PostRequest(_, hashes):
            session.answer_posts(exchange, [POSTS.get(digest, b"?") for digest in hashes[:count]])
        case ListRequest():
            session.answer_names(exchange, ["a", "b"][:count])
        case _:
            session.answer_hashes(exchange, HASHES[:count])


def is_live(request: Request) -> bool:
    return bool(request.is_live)


def empty_for(request: Request) -> Response:
    if isinstance(request, PostRequest):
        return PostResponse(request.request_id, ())
    if isinstance(request, ListRequest):
        return ListResponse(request.request_id, ())
    return HashResponse(request.request_id, ())


def items(message: Message) -> tuple[Any, ...]:
    """Return the content of a response."""
    assert isinstance(message, HashResponse | PostResponse | ListResponse)
    return message[1]


def faults(events: Iterable[Event]) -> list[Fault]:
    return [event.fault for event in events if isinstance(event, Violation)]
