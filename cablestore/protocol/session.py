"""The session with one peer: the requests of both sides, from the first byte to the last, without I/O.

Its inputs are bytes and the time. Its outputs are events and bytes. The owner of the session answers `PeerRequest`
events with `answer_hashes`, `answer_posts`, `answer_names` and `finish`. The owner also sends requests with
`send_request`, and sends the result of `output` to the peer.

Either side may send many requests at a time, each with an id. `exchange` describes the states of a request. The peer
sent late responses to a concluded request before it knew the end. They are discarded and are not faults.

The session starts in the dialect of its owner. If the peer's first messages show the other dialect, the session changes
once: ids get another size, and open requests are sent again. Constants in `limits` bound the memory of a session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cablestore import limits
from cablestore.errors import DecodeError
from cablestore.protocol.dialect import LEGACY, Dialect
from cablestore.protocol.exchange import (
    TRANSITIONS,
    Concluded,
    Dropped,
    Event,
    Exchange,
    Extra,
    Fault,
    Hashes,
    Names,
    PeerRequest,
    Posts,
    Requester,
    RequestRole,
    State,
    Step,
    Violation,
)
from cablestore.protocol.message import (
    CancelRequest,
    FrameReader,
    HashResponse,
    ListResponse,
    Message,
    PostRequest,
    PostResponse,
    Request,
    Response,
    decode_message,
    encode_extra,
    encode_message,
    extra_of,
    posts_of_incomplete,
    read_head,
)
from cablestore.protocol.recognition import GreetingDetector
from cablestore.protocol.responses import conclusion, fault_of, hash_responses, list_response, response_type


class Session:
    """The session with one peer. `new_id` returns random request ids of a given size.

    It uses `dialect` until the peer's first message shows the peer's dialect. Then open requests are sent again in that
    dialect. If both sides sent first in different dialects, and each changed to the other dialect, legacy wins: once a
    side has received a legacy message, it keeps legacy. It ignores messages of draft 8, which the peer sends again.

    Without `speaks_first`, nothing is sent before the first message of the peer or a call of `speak`, because some
    existing clients exit when they receive an unknown dialect. With `spares`, the peer may be cable.js.
    """

    def __init__(
        self,
        dialect: Dialect,
        new_id: Callable[[int], bytes],
        *,
        speaks_first: bool = True,
        spares: bool = False,
        max_requests_alive: int = limits.MAX_REQUESTS_ALIVE,
        answer_timeout_s: float = limits.ANSWER_TIMEOUT_S,
    ) -> None:
        self.dialect = dialect
        self.is_recognised = False
        self.is_understood = False
        """True if a message of the peer was decoded. Encrypted bytes may look like the start of a message."""
        self.reads_everything = False
        """True if the peer is known to handle posts that crash cable.js, because it sent such posts itself."""
        self._spares = spares
        self.open_requests: Final[dict[bytes, Exchange]] = {}
        """Open requests of this side, by id."""
        self.to_answer: Final[dict[bytes, Exchange]] = {}
        """Open requests of the peer, by id."""
        self._new_id = new_id
        self._max_requests_alive = max_requests_alive
        self._answer_timeout_s = answer_timeout_s
        self._frames = FrameReader()
        self._complete_s = 0.0
        """Time when the peer's last message was complete."""
        self._out: list[bytes] = []
        self._may_speak = speaks_first
        self._unsent: list[Exchange] = []
        self._over: OrderedDict[bytes, None] = OrderedDict()
        """Ids of concluded requests of this side. Responses to them are late and not invalid."""
        self._left: list[bytes] = []
        """Ids of this side's requests in the previous dialect."""
        self._peer_greeting, self._own_greeting = GreetingDetector(), GreetingDetector()
        """Detectors of the greeting of a cablestore: the peer's greeting, and this side's."""

    # --- bytes ---------------------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Process bytes of the peer, and return their events.

        Empty `data` means that bytes arrived that cannot be decrypted yet. If bytes arrive without a complete message
        for longer than SLOW_MESSAGE_S, they belong to a long message on a slow link. Then all timeouts restart. Raises
        DecodeError if the rest of the stream cannot be read.
        """
        events: list[Event] = []
        frames = self._frames.feed(data)
        if frames:
            self._complete_s = now_s
        elif now_s - self._complete_s > limits.SLOW_MESSAGE_S:
            self.postpone_all(now_s)
        for frame in frames:
            try:
                head = read_head(frame)
                spoken = head.dialect
                if not self.is_recognised or (spoken is LEGACY and self.dialect is not LEGACY):
                    self._recognise(spoken, now_s, events)
                if spoken is not self.dialect:
                    continue  # the peer sent this before it knew this side's dialect, and sends it again
                message = decode_message(frame, self.dialect, head)
            except DecodeError as error:
                events.append(Violation(Fault.MALFORMED, str(error)))
                continue
            self.is_understood |= message is not None
            if message is None:
                extra = extra_of(frame) if self.is_cablestore and self.has_greeted else None
                if extra is not None:
                    events.append(Extra(extra))
                continue
            if isinstance(message, HashResponse | PostResponse | ListResponse):
                self._response(message, now_s, events)
            else:
                self._request(message, events)
        return events

    @property
    def held_size_bytes(self) -> int:
        """The size of the peer's incomplete message so far."""
        return self._frames.held_size_bytes

    @property
    def messages(self) -> int:
        """Number of complete messages of the peer."""
        return self._frames.messages

    def output(self) -> list[bytes]:
        """Remove and return the messages that must be sent now."""
        out, self._out = self._out, []
        return out

    def speak(self, now_s: float) -> None:
        """Send the waiting requests of this side. Before the peer's first message, use this side's dialect."""
        self._may_speak = True
        unsaid, self._unsent = self._unsent, []
        for exchange in unsaid:
            if not exchange.is_over:
                self._send_request(exchange, now_s)

    def _recognise(self, dialect: Dialect, now_s: float, events: list[Event]) -> None:
        """Change to the peer's dialect, and send the open requests again in it: the peer did not understand them."""
        self.is_recognised = True
        if dialect is not self.dialect:
            self._out.clear()  # unsent messages, which crash some existing clients
            for exchange in self.to_answer.values():
                self._step(exchange, Step.CANCELLED)
                events.append(Dropped(exchange))
            self.to_answer.clear()
            self._unsent += self.open_requests.values()
            left, self._left = self._left, list(self.open_requests)
            for request_id in self.open_requests:
                self._remember(request_id)
            self.open_requests.clear()
            self.dialect = dialect
            self._peer_greeting, self._own_greeting = (
                GreetingDetector(),
                GreetingDetector(),
            )  # earlier messages are not part of a greeting
            for request_id in left:  # sent earlier in this dialect: the peer may answer them, and they are repeated
                self._send(CancelRequest(self._unused_id(dialect.request_id_size_bytes), request_id))
        self.speak(now_s)

    def _send(self, message: Message) -> None:
        if not (
            self._own_greeting.is_detected
            or isinstance(message, HashResponse | PostResponse | ListResponse)
            or message.ttl
        ):
            self._own_greeting.add(message.request_id)
        self._out.append(encode_message(message, self.dialect))

    # --- beside Cable --------------------------------------------------------------------------

    @property
    def is_cablestore(self) -> bool:
        """True if the peer has sent the greeting of a cablestore (`cablestore.protocol.recognition`)."""
        return self._peer_greeting.is_detected

    @property
    def has_greeted(self) -> bool:
        """True if this side has sent its greeting, in the present dialect."""
        return self._own_greeting.is_detected

    @property
    def first_ids(self) -> tuple[bytes, bytes]:
        """The random ids of this side's and the peer's first request without a ttl, b"" for a side that sent none."""
        return self._own_greeting.first, self._peer_greeting.first

    @property
    def may_be_cable_js(self) -> bool:
        """True if the peer may be cable.js. Then do not send posts that crash it (`cable_js`)."""
        return (
            self._spares and self.dialect is LEGACY and not (self._peer_greeting.is_detected or self.reads_everything)
        )

    def send_extra(self, content: bytes) -> None:
        """Send content outside Cable. Raises ValueError unless both sides have recognized each other."""
        if not (self.is_cablestore and self.has_greeted):
            raise ValueError(
                "the peer has not been recognized as cablestore. Wait for the recognition before you send frames"
            )
        self._out.append(encode_extra(content, self.dialect))

    # --- our requests --------------------------------------------------------------------------

    def send_request(
        self, request: Request, now_s: float, timeout_s: float | None = None, *, requester: Requester | None = None
    ) -> Exchange:
        """Send a request. An empty id is assigned; a forwarded request keeps its id (wire.md 6.3.1).

        The events of its answer contain the returned exchange, and so the `requester`.
        """
        exchange = Exchange.of(RequestRole.REQUESTER, request)
        exchange.requester = requester
        exchange.timeout_s = timeout_s or self._answer_timeout_s
        if self._may_speak:
            self._send_request(exchange, now_s)
        else:
            self._unsent.append(exchange)
        return exchange

    def _send_request(self, exchange: Exchange, now_s: float) -> None:
        size_bytes = self.dialect.request_id_size_bytes
        if len(exchange.request.request_id) != size_bytes:
            exchange.request = exchange.request._replace(request_id=self._unused_id(size_bytes))
        if exchange.state is State.OPEN:
            exchange.deadline_s = now_s + exchange.timeout_s
        self.open_requests[exchange.request.request_id] = exchange
        self._send(exchange.request)

    def _unused_id(self, size_bytes: int) -> bytes:
        """Return an id that neither side uses: 4 random bytes repeat sooner or later (wire.md draft 1, 6.3.1)."""
        found = self._new_id(size_bytes)
        while self.has_requested(found) or found in self.to_answer:
            found = self._new_id(size_bytes)
        return found

    def has_requested(self, request_id: bytes) -> bool:
        """Return True if a request of this side has this id: an open request, or a remembered concluded request."""
        return request_id in self.open_requests or request_id in self._over

    def cancel(self, exchange: Exchange) -> None:
        """Cancel a request of this side (wire.md 6.3.2.2)."""
        self._withdraw(exchange, Step.CANCELLED)

    def _withdraw(self, exchange: Exchange, step: Step) -> None:
        """Cancel a request of this side. The CancelRequest has ttl 0, because existing clients reject other values."""
        if exchange.is_over:
            return
        was_said = self.open_requests.get(exchange.request.request_id) is exchange
        self._conclude_own(exchange, step)
        if was_said:
            self._send(CancelRequest(self._unused_id(self.dialect.request_id_size_bytes), exchange.request.request_id))
        elif exchange in self._unsent:
            self._unsent.remove(exchange)

    def expire(self, now_s: float) -> list[Event]:
        """Expire the requests of this side whose timeouts have passed."""
        late = [
            exchange
            for exchange in self.open_requests.values()
            if exchange.deadline_s is not None and exchange.deadline_s <= now_s
        ]
        for exchange in late:
            self._withdraw(exchange, Step.TIMED_OUT)
        return [Concluded(exchange, Step.TIMED_OUT) for exchange in late]

    def postpone_all(self, now_s: float) -> None:
        """Restart the timeouts of all requests of this side, whose answers could not arrive until now."""
        for exchange in self.open_requests.values():
            exchange.postpone(now_s)

    def lose(self) -> list[Event]:
        """End all requests of a lost connection. The events contain complete posts of an interrupted response."""
        events: list[Event] = []
        broken = posts_of_incomplete(self._frames.incomplete, self.dialect)
        exchange = None if broken is None else self.open_requests.get(broken.request_id)
        if broken is not None and exchange is not None and isinstance(exchange.request, PostRequest):
            self._posts(exchange, broken.posts, 0.0, events)
        mine, others = [*self.open_requests.values(), *self._unsent], list(self.to_answer.values())
        for exchange in mine:
            self._conclude_own(exchange, Step.LOST)
        for exchange in others:
            self._step(exchange, Step.LOST)
        self.to_answer.clear()
        self._unsent.clear()
        self._out.clear()
        self._frames = FrameReader()
        events += [Concluded(exchange, Step.LOST) for exchange in mine]
        return [*events, *(Dropped(exchange) for exchange in others)]

    def _conclude_own(self, exchange: Exchange, step: Step) -> None:
        self._step(exchange, step)
        if self.open_requests.get(exchange.request.request_id) is exchange:
            del self.open_requests[exchange.request.request_id]
            self._remember(exchange.request.request_id)

    def _remember(self, request_id: bytes) -> None:
        """Remember a concluded request of this side."""
        self._over[request_id] = None
        if len(self._over) > limits.REQUESTS_REMEMBERED:
            self._over.popitem(last=False)

    @staticmethod
    def _step(exchange: Exchange, step: Step) -> None:
        exchange.state = TRANSITIONS[exchange.role, exchange.state, step]
        exchange.is_over = exchange.state is State.CONCLUDED

    def _response(self, response: Response, now_s: float, events: list[Event]) -> None:
        exchange = self.open_requests.get(response.request_id)
        if exchange is None:
            if response.request_id not in self._over:
                events.append(Violation(Fault.UNREQUESTED, f"request id {response.request_id.hex()}"))
            return
        if type(response) is not response_type(exchange.request):
            found = f"{type(response).__name__} to {type(exchange.request).__name__}"
            events.append(Violation(Fault.WRONG_TYPE, found))
            return
        if isinstance(response, PostResponse) and response.posts:
            self._posts(exchange, response.posts, now_s, events)
            return
        self._postpone_from(exchange, now_s)
        if isinstance(response, HashResponse) and response.hashes:
            self._hashes(exchange, response.hashes, events)
            return
        if isinstance(response, ListResponse):
            events.append(Names(exchange, response.channels))
        self._conclude_into(events, exchange, Step.FINISHED)

    def _postpone_from(self, exchange: Exchange, now_s: float) -> None:
        """Restart the timeouts of a request and of later requests after a useful part of its answer.

        A peer answers in order. A live answer does not end, so it does not delay others.
        """
        if exchange.deadline_s is None:
            return
        for later in reversed(self.open_requests.values()):
            later.postpone(now_s)
            if later is exchange:
                return

    def _hashes(self, exchange: Exchange, hashes: tuple[bytes, ...], events: list[Event]) -> None:
        hashes = tuple(exchange.within_limit(hashes))
        exchange.received += len(hashes)
        self._step(exchange, Step.PART)
        events.append(Hashes(exchange, hashes))
        if exchange.remaining == 0:
            self._end_into(events, exchange, Step.LIMIT)
        elif exchange.state is State.OPEN and exchange.received > limits.MAX_HASHES_PER_ANSWER:
            events.append(Violation(Fault.ENDLESS, f"{exchange.received} hashes"))
            self._end_into(events, exchange, Step.CANCELLED)

    def _end_into(self, events: list[Event], exchange: Exchange, step: Step) -> None:
        """End a request of this side that the peer may still answer: at its limit, or if the answer is endless.

        Add the event of its end to `events`.
        """
        if exchange.state is State.LIVE or step is Step.CANCELLED:
            self._withdraw(exchange, step)
            events.append(Concluded(exchange, step))
        else:
            self._conclude_into(events, exchange, step)

    def _posts(self, exchange: Exchange, posts: tuple[bytes, ...], now_s: float, events: list[Event]) -> None:
        wanted = exchange.take_missing(posts)
        self._step(exchange, Step.PART)
        if wanted:
            self._postpone_from(exchange, now_s)
            events.append(Posts(exchange, wanted))
        if len(wanted) < len(posts):
            events.append(Violation(Fault.UNREQUESTED_POSTS, f"{len(posts) - len(wanted)} of {len(posts)}"))
        if not exchange.missing:
            self._conclude_into(events, exchange, Step.SATISFIED)

    def _conclude_into(self, events: list[Event], exchange: Exchange, step: Step) -> None:
        self._conclude_own(exchange, step)
        events.append(Concluded(exchange, step))

    # --- the peer's requests -------------------------------------------------------------------

    def _request(self, request: Request, events: list[Event]) -> None:
        is_ours = self.has_requested(request.request_id)
        if not (self._peer_greeting.is_detected or request.ttl or is_ours):
            self._peer_greeting.add(request.request_id)
        if isinstance(request, CancelRequest):
            cancelled = self.to_answer.pop(request.cancel_id, None)
            if cancelled is not None:
                self._step(cancelled, Step.CANCELLED)
                events.append(Dropped(cancelled))
            return
        if is_ours:
            self._crossed(request)
            return
        if request.request_id in self.to_answer:
            events.append(Violation(Fault.DUPLICATE, f"request id {request.request_id.hex()}"))
            return
        exchange = Exchange.of(RequestRole.RESPONDER, request)
        self.to_answer[request.request_id] = exchange
        fault = Fault.TOO_MANY_REQUESTS if len(self.to_answer) > self._max_requests_alive else fault_of(request)
        if fault is not None:
            events.append(Violation(fault, f"request id {request.request_id.hex()}"))
            self.reject(exchange)
            return
        events.append(PeerRequest(exchange))

    def _crossed(self, request: Request) -> None:
        """Conclude a peer's request with the id of a request of this side, unless the peer only sent that request back.

        If both sides forward the same request, neither must wait for the other. A peer that forwards to everyone also
        sends back requests of this side, with a ttl that is one lower. They are not answered, because the peer would
        send the answer back too. Other cablestores do not send requests back.
        """
        own = self.open_requests.get(request.request_id)
        was_sent_back = own is None or own.request.ttl == 0 or request.ttl == own.request.ttl - 1
        if self.is_cablestore or not was_sent_back:
            self._send(conclusion(request))

    def answer_hashes(self, exchange: Exchange, hashes: Sequence[bytes]) -> None:
        """Send hashes up to the request's limit, at which the request is concluded (wire.md 5.2.2)."""
        if exchange.is_over or not hashes:
            return
        self._step(exchange, Step.PART)
        for response in hash_responses(exchange.request.request_id, exchange.within_limit(hashes)):
            self._send(response)
        if exchange.remaining == 0:
            self._conclude_theirs(exchange, Step.LIMIT)

    def answer_posts(self, exchange: Exchange, posts: Iterable[bytes]) -> None:
        """Add posts to the answer.

        They are sent in one response unless it gets too long, because some clients accept only one response. To another
        cablestore, short responses are sent immediately.
        """
        if exchange.is_over:
            return
        is_cablestore = self.is_cablestore
        most = limits.POST_RESPONSE_PIECE_SIZE_BYTES if is_cablestore else limits.MAX_POST_RESPONSE_SIZE_BYTES
        for post in posts:
            if exchange.posts_size_bytes + len(post) > most:
                self._flush_posts(exchange)
            exchange.posts.append(post)
            exchange.posts_size_bytes += len(post)
        if is_cablestore:
            self._flush_posts(exchange)

    def _flush_posts(self, exchange: Exchange) -> None:
        if exchange.posts:
            self._step(exchange, Step.PART)
            self._send(PostResponse(exchange.request.request_id, tuple(exchange.posts)))
            exchange.posts.clear()
            exchange.posts_size_bytes = 0

    def answer_names(self, exchange: Exchange, names: Iterable[str]) -> None:
        """Send the names of channels in one response. The peer requests names that do not fit by offset."""
        if exchange.is_over:
            return
        self._step(exchange, Step.FINISHED)
        del self.to_answer[exchange.request.request_id]
        self._send(list_response(exchange.request.request_id, names))

    def finish(self, exchange: Exchange) -> None:
        """Record that one source of the answer is complete.

        After the last source, a live request is caught up, and other requests end.
        """
        exchange.holds -= 1
        if exchange.is_over:
            return
        self._flush_posts(exchange)
        if exchange.holds > 0:
            return
        if exchange.is_live:
            if exchange.state is State.OPEN:
                self._step(exchange, Step.CAUGHT_UP)
        else:
            self._conclude_theirs(exchange, Step.FINISHED)

    def reject(self, exchange: Exchange) -> None:
        """Conclude the peer's request, even if its answer is incomplete."""
        if not exchange.is_over:
            self._conclude_theirs(exchange, Step.FINISHED)

    def _conclude_theirs(self, exchange: Exchange, step: Step) -> None:
        self._step(exchange, step)
        del self.to_answer[exchange.request.request_id]
        self._send(conclusion(exchange.request))
