"""The life of a request: its states, the steps between them, and the events of a session.

On both sides a request is in one of three states. `TRANSITIONS` contains every step between them. Any other step is a
fault of the peer and changes nothing:

            parts of the answer          changes
                  +---+                   +---+
                  v   |     caught up     v   |
    asked ------> OPEN ----------------> LIVE
                   |                       |
                   | finished, limit,      | limit, cancelled,
                   | cancelled, lost       | lost
                   v                       v
                  CONCLUDED <--------------+

A requester's request also ends after a timeout, and when all requested posts have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol, Self

from cablestore.protocol.crypto import post_hash
from cablestore.protocol.message import PostRequest, Request, TimeRangeRequest


class RequestRole(Enum):
    """Role of this side in a request (wire.md 5.2.1)."""

    __hash__ = object.__hash__

    REQUESTER = "requester"
    RESPONDER = "responder"


class State(Enum):
    """State of a request."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash takes longer than the rest of a look-up

    OPEN = "open"
    """The existing posts are being sent."""
    LIVE = "live"
    """Open for later posts."""
    CONCLUDED = "concluded"
    """The request has ended."""


class Step(Enum):
    """Event in the life of a request."""

    __hash__ = object.__hash__

    PART = "a part of the answer"
    CAUGHT_UP = "all known data is sent"
    FINISHED = "the concluding response"
    LIMIT = "its limit is reached"
    SATISFIED = "all requested posts are stored"
    CANCELLED = "cancel request"
    TIMED_OUT = "no answer in time"
    LOST = "the connection is lost"


_ALIVE: Final = (State.OPEN, State.LIVE)
_ENDS: Final = (Step.FINISHED, Step.LIMIT, Step.CANCELLED, Step.LOST)
TRANSITIONS: Final[dict[tuple[RequestRole, State, Step], State]] = {
    **{(role, state, Step.PART): state for role in RequestRole for state in _ALIVE},
    **{(role, state, step): State.CONCLUDED for role in RequestRole for state in _ALIVE for step in _ENDS},
    (RequestRole.RESPONDER, State.OPEN, Step.CAUGHT_UP): State.LIVE,
    (RequestRole.REQUESTER, State.OPEN, Step.SATISFIED): State.CONCLUDED,
    (RequestRole.REQUESTER, State.OPEN, Step.TIMED_OUT): State.CONCLUDED,
}
"""All steps. A live request of this side starts LIVE: its answer never ends, so the end is not awaited."""


class Fault(Enum):
    """Fault that an honest and working peer does not commit."""

    MALFORMED = "malformed message"
    DUPLICATE = "id of a running request"
    TOO_MANY_REQUESTS = "more running requests than allowed"
    TOO_MANY_HASHES = "more hashes in one request than allowed"
    UNREQUESTED = "response without a request"
    WRONG_TYPE = "response of the wrong type"
    UNREQUESTED_POSTS = "posts that were not requested"
    ENDLESS = "answer without an end"


class Requester(Protocol):
    """The code that sent a request."""

    def handle(self, event: ResponseEvent, /) -> None:
        """Handle a part of the answer, or its end."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and its state."""

    role: RequestRole
    request: Request
    state: State
    remaining: int | None
    """Number of hashes that may still be sent or received, or None if the number is unlimited."""
    timeout_s: float = 0.0
    received: int = 0
    """Number of received hashes."""
    deadline_s: float | None = None
    missing: set[bytes] = field(default_factory=set)
    """Hashes of this side's post request whose posts have not arrived."""
    holds: int = 1
    """Number of sources that may still add to the answer of a peer's request: the store, and peers that it was
    forwarded to.
    """
    posts: list[bytes] = field(default_factory=list)
    """Posts that wait to be sent in one response."""
    posts_size_bytes: int = 0
    requester: Requester | None = None
    """Handler of the answer to this side's request, or None to ignore the answer."""
    is_live: bool = False
    """True if the request remains open for later posts."""
    is_over: bool = False
    """True if the request is concluded."""

    @classmethod
    def of(cls, role: RequestRole, request: Request) -> Self:
        """Create the exchange of a request. A live request of this side is live immediately."""
        is_live = request.is_live
        state = State.LIVE if is_live and role is RequestRole.REQUESTER else State.OPEN
        limit = request.limit if isinstance(request, TimeRangeRequest) else 0
        exchange = cls(role, request, state, limit or None, is_live=is_live)
        if role is RequestRole.REQUESTER and isinstance(request, PostRequest):
            exchange.missing = set(request.hashes)
        return exchange

    def within_limit(self, hashes: Sequence[bytes]) -> Sequence[bytes]:
        """Return the first `hashes` up to the request's limit, and deduct them from `remaining` (wire.md 5.2.2)."""
        if self.remaining is not None:
            hashes = hashes[: self.remaining]
            self.remaining -= len(hashes)
        return hashes

    def take_missing(self, posts: Iterable[bytes]) -> list[bytes]:
        """Return those of `posts` whose hashes are in `missing`, and remove these hashes."""
        taken = []
        for post in posts:
            digest = post_hash(post)
            if digest in self.missing:
                self.missing.remove(digest)
                taken.append(post)
        return taken

    def postpone(self, now_s: float) -> None:
        """Restart the timeout of the answer, unless it is live."""
        if self.deadline_s is not None:
            self.deadline_s = now_s + self.timeout_s


class PeerRequest(NamedTuple):
    """A request of the peer."""

    exchange: Exchange


class Dropped(NamedTuple):
    """A request that the peer cancelled. Work on it can stop."""

    exchange: Exchange


class Hashes(NamedTuple):
    """Hashes that answer a request of this side."""

    exchange: Exchange
    hashes: tuple[bytes, ...]


class Posts(NamedTuple):
    """Posts that this side requested."""

    exchange: Exchange
    posts: list[bytes]


class Names(NamedTuple):
    """Channels that answer a request of this side."""

    exchange: Exchange
    channels: tuple[str, ...]


class Concluded(NamedTuple):
    """The end of a request of this side."""

    exchange: Exchange
    step: Step


class Violation(NamedTuple):
    """A violation by the peer, of the protocol or of a limit of this side."""

    fault: Fault
    detail: str


class Extra(NamedTuple):
    """Content that another cablestore sends outside Cable."""

    content: bytes


ResponseEvent = Hashes | Posts | Names | Concluded
"""Events of this side's requests."""
Event = PeerRequest | Dropped | ResponseEvent | Violation | Extra
