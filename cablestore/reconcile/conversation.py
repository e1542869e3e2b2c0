"""One conversation with one store: compare, transfer, confirm, or audit. Its inputs are frames and the time.

The initiator calls `begin`. The caller passes each received frame to `receive`, which returns posts. The caller stores
these posts, calls `stored`, and sends the result of `output`. Both sides continue until the conversation is finished:

    initiator                                responder
    hello             ->                                     terms: times and channels, and whether it accepts posts
                                      <-     accepted        the terms of both sides
    payload           ->
                      ... in turn ...        payload         until the comparison (`session`) is complete
    posts             ->              <-     posts           as soon as a payload found them; few unconfirmed batches
    stored            ->              <-     stored          confirms one batch
    given             ->              <-     given           all posts but deletions are sent and stored
    posts             ->              <-     posts           deletions
    done              ->              <-     done            all posts are sent and stored; it ends after both messages

Payloads and posts overlap: posts found by a payload are sent while the next payload is computed. Frames are processed
in order. A payload and later frames are held while too many posts wait to be sent. Payloads alternate, so at most one
side holds a payload. Deletions are sent last, because a deletion removes a post that the other side might still have to
send (`outgoing`).

Each side that accepts posts also sends the notice UNLISTED after its first message: it accepts posts whose ids were not
sent. So only one side sends its ids of a range. The other side answers with the posts that the first side lacks, and
with the ids that both sides have. An older version sends no UNLISTED, and receives all ids before the posts. In both
cases, a post is accepted only if it has the time of its id and is in the compared range.

An audit does not transfer posts. When the comparison is complete, the initiator requests sums over random ranges
(`audit`), then at most twice over the ranges that differ. Any error ends the conversation. Stored posts are kept, and
the next conversation finds the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cablestore.errors import DecodeError
from cablestore.limits import (
    MAX_TALK_BATCHES,
    MAX_TALK_DIFFERENCES,
    MAX_TALK_HELD_FRAMES,
    MAX_TALK_QUESTIONS,
    MAX_TALK_UNASKED,
    TALK_FIRST_PAYLOAD_SIZE_BYTES,
    TALK_PAYLOAD_SIZE_BYTES,
)
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.flow_window import BatchStart, FlowWindow
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.post import Post, decode_post
from cablestore.reconcile.audit import Audit, answer
from cablestore.reconcile.dialects import SPEC
from cablestore.reconcile.errors import PeerRefusedError, ReconcileError, ReconcileLimitError
from cablestore.reconcile.ids import END_NS, EVERYTHING, Range, SyncID, of_times, range_around
from cablestore.reconcile.messages import (
    END_MS,
    TRANSFERRING,
    UNLISTED,
    VERSION,
    Accepted,
    ConversationMessage,
    Done,
    Ended,
    EndReason,
    Hello,
    PayloadFrame,
    PostsFrame,
    PostsSent,
    Purpose,
    Stored,
    SumsRequest,
    SumsResponse,
    Terms,
    decode_frame,
    encode_frame,
)
from cablestore.reconcile.outgoing import OutgoingPosts
from cablestore.reconcile.session import ReconcileSession, SessionLimits
from cablestore.reconcile.sets import CorrectedSet, OrderedSet
from cablestore.reconcile.splitting import Splitting
from cablestore.reconcile.transfer import decode_message, post_id

_AUDIT_TURNS: Final = 3
_SEED_SIZE_BYTES: Final = 32
_NO_NUMBER: Final = -1
"""The number before the conversation begins."""
DEFAULT_SPLITTING: Final = Splitting(frame_size_bytes=TALK_PAYLOAD_SIZE_BYTES, skip_equal_sets=True, has_open_end=True)
DEFAULT_LIMITS: Final = SessionLimits(differences=MAX_TALK_DIFFERENCES)


class ArrivedPosts(NamedTuple):
    """Received posts. After storing them, call `ReconcileConversation.stored` with the batch."""

    batch: int
    posts: list[bytes]


@dataclass(slots=True)
class FrameSizes:
    """Total sizes of frames, by purpose."""

    comparing: int = 0
    transferring: int = 0

    def add(self, message: ConversationMessage, size_bytes: int) -> None:
        """Count a frame."""
        if isinstance(message, TRANSFERRING):
            self.transferring += size_bytes
        else:
            self.comparing += size_bytes


@dataclass(slots=True)
class Findings:
    """Results of a conversation so far.

    `here_only` and `there_only` count the posts that only this side had, or only the peer. `unasked` counts
    received posts that were not requested.
    """

    rounds: int = 0
    here_only: int = 0
    there_only: int = 0
    unasked: int = 0
    posts_sent: int = 0
    posts_received: int = 0
    sent: FrameSizes = field(default_factory=FrameSizes)
    received: FrameSizes = field(default_factory=FrameSizes)
    differing: list[Range] = field(default_factory=list)
    """For an audit: ranges in which the sides have different posts that the comparison did not find."""
    is_by_design: bool = False
    """For an audit: True if somebody prepared posts that deceive fingerprints. See `AuditResult`."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions of the store for a conversation. `items` returns a set of ids, always of the same state.

    `post` returns a post in the present state. `draw` returns the given number of random bytes.
    """

    items: Callable[[frozenset[str] | None], OrderedSet]
    post: Callable[[bytes], Post | None]
    draw: Callable[[int], bytes]


class ReconcileConversation:
    """One side of a conversation. `terms` and `dialect` are the terms of this side and the dialect of its store."""

    def __init__(
        self,
        terms: Terms,
        hooks: Hooks,
        dialect: Dialect,
        *,
        purpose: Purpose = Purpose.RECONCILE,
        splitting: Splitting = DEFAULT_SPLITTING,
        limits: SessionLimits = DEFAULT_LIMITS,
    ) -> None:
        self.purpose = purpose
        self.findings = Findings()
        self.is_initiator = False
        self._terms = terms
        self.compared: Terms | None = None
        """The terms that both sides agreed on, None before that."""
        self._hooks = hooks
        self._dialect = dialect
        self._splitting = splitting
        self._limits = limits
        self._number = _NO_NUMBER
        self._session: ReconcileSession | None = None
        self._items: OrderedSet | None = None
        self._window = EVERYTHING
        self._peer_accepts = self._peer_accepts_unlisted = False
        self._outgoing = OutgoingPosts(hooks.post)
        self._now_s = 0.0
        self._payload_flow = FlowWindow(splitting.frame_size_bytes, TALK_FIRST_PAYLOAD_SIZE_BYTES)
        self._payload_sent: tuple[BatchStart, int] | None = None
        self._expected: set[SyncID] = set()
        self._arrived: set[SyncID] = set()
        self._held: deque[bytes] = deque()  # encoded: decoded posts of two bytes would take 14 times the memory
        self._unstored: set[int] = set()
        self._batches = 0
        self._out: list[bytes] = []
        self._have: list[SyncID] = []
        self._need: list[SyncID] = []
        self._audit: Audit | None = None
        self._audits = 0
        self._is_audited = purpose is Purpose.RECONCILE
        self._has_sent_posts = self._is_done = False
        self._peer_has_sent_posts = self._peer_is_done = False

    # --- frames in and out ----------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """True if both sides have sent and stored all posts that were found."""
        return self._is_done and self._peer_is_done

    @property
    def missing(self) -> list[bytes]:
        """Hashes of the peer's posts that were found and have not arrived."""
        return [sync_id.hash for sync_id in self._expected]

    def output(self) -> list[bytes]:
        """Remove and return the frames that must be sent now."""
        out, self._out = self._out, []
        return out

    def begin(self) -> None:
        """Send the hello."""
        self.is_initiator = True
        self._number = max(1, int.from_bytes(self._hooks.draw(4), "big"))
        self._send(Hello(VERSION, self.purpose, self._dialect.name, self._terms))
        self._send_unlisted()

    def end(self, reason: EndReason, text: str) -> None:
        """Send the peer the reason why this side ends the conversation."""
        if self._number != _NO_NUMBER:
            self._send(Ended(reason, text))

    def receive(self, frame: bytes, *, at_s: float) -> list[ArrivedPosts]:
        """Process a frame of the peer; return the posts that must be stored. `at_s` is the time of any clock.

        Raises ReconcileError if the conversation cannot continue: ReconcileLimitError if there are too many
        differences, PeerRefusedError if the peer ended the conversation.
        """
        if frame == UNLISTED:
            self.findings.received.comparing += len(frame)
            self._peer_accepts_unlisted = True
            return []
        number, message = decode_frame(frame)
        if self._number == _NO_NUMBER and isinstance(message, Hello):
            self._number = number
        elif number != self._number:
            return []  # left over from an interrupted conversation
        self.findings.received.add(message, len(frame))
        if isinstance(message, PayloadFrame):
            self._measure(len(frame), at_s)
        if isinstance(message, Stored):
            self._outgoing.stored(message.batch, at_s)
        elif len(self._held) < MAX_TALK_HELD_FRAMES:
            self._held.append(frame)
        else:
            raise ReconcileError(
                f"too many frames of the peer wait: the maximum is {MAX_TALK_HELD_FRAMES}. The peer must first confirm "
                "the received posts"
            )
        return self._advance(at_s)

    def stored(self, batch: int, *, at_s: float) -> list[ArrivedPosts]:
        """Confirm that the received batch number `batch` is stored. Return further posts that must be stored."""
        self._unstored.discard(batch)
        self._send(Stored(batch))
        return self._advance(at_s)

    # --- the course of a conversation -----------------------------------------------------------

    def _send(self, message: ConversationMessage) -> None:
        frame = encode_frame(self._number, message)
        self.findings.sent.add(message, len(frame))
        self._out.append(frame)

    def _advance(self, at_s: float) -> list[ArrivedPosts]:
        """Process the held frames in order. Return the posts that must be stored.

        A payload, and the frames after it, remain held while too many posts wait to be sent. Nothing else waits for
        posts to be sent. Otherwise two sides could wait for each other's confirmations.
        """
        arrived: list[ArrivedPosts] = []
        self._now_s = at_s
        self._send_posts()
        while self._held:
            _, message = decode_frame(self._held[0])
            if isinstance(message, PayloadFrame) and self._outgoing.is_behind:
                break
            self._held.popleft()
            self._handle(message, at_s, arrived)
            self._send_posts()
        return arrived

    def _handle(self, message: ConversationMessage, at_s: float, arrived: list[ArrivedPosts]) -> None:
        match message:
            case Ended(reason, text):
                raise PeerRefusedError(reason.name.lower(), f"the peer ended the reconciliation: {text}")
            case Hello() if not self.is_initiator and self._session is None:
                self._accept(message)
            case Accepted(terms) if self.is_initiator and self._session is None:
                self._compare(terms, peer_accepts=terms.accepts_posts, at_s=at_s)
            case PayloadFrame(data) if self._session is not None:
                self._payload(self._session, data, at_s)
            case PostsFrame() if self._session is not None:
                arrived.append(self._posts(message))
            case PostsSent() if self._session is not None:
                self._peer_has_sent_posts = True
            case Done() if self._peer_has_sent_posts:
                self._peer_is_done = True
            case SumsRequest(data) if (
                self._items is not None and self.purpose is Purpose.AUDIT and not self.is_initiator
            ):
                self._answer(self._items, data)
            case SumsResponse(data) if self._audit is not None:
                self._evaluate(self._audit, data)
            case _:
                raise ReconcileError(f"the peer sent an unexpected {type(message).__name__}")

    def _accept(self, hello: Hello) -> None:
        reason = self._objection(hello)
        if reason is not None:
            self._send(reason)
            raise PeerRefusedError(reason.reason.name.lower(), reason.text)
        self.purpose = hello.purpose
        self._is_audited = True  # only the initiator requests sums
        both = self._terms.narrowed(hello.terms)
        self._send_unlisted()
        self._send(Accepted(both))
        self._compare(both, peer_accepts=hello.terms.accepts_posts, at_s=None)

    def _objection(self, hello: Hello) -> Ended | None:
        if hello.version != VERSION:
            return Ended(EndReason.VERSION, f"version {hello.version} was requested, expected version {VERSION}")
        ours = self._dialect.name
        if hello.dialect != ours:
            said = f"the dialects differ: {hello.dialect} was requested, this store has {ours}"
            return Ended(EndReason.DIALECT, said)
        both = self._terms.narrowed(hello.terms)
        if both.until_ms is not None and both.until_ms <= both.from_ms:
            return Ended(EndReason.NOTHING, "this store does not reconcile posts of the requested time range")
        return None

    def _compare(self, terms: Terms, *, peer_accepts: bool, at_s: float | None) -> None:
        """Start to compare on the agreed `terms`. If `at_s` is given, send the first payload."""
        if self.is_initiator and not terms.is_within(self._terms):
            raise ReconcileError("the peer accepted terms that were not requested")
        self.compared = terms
        if self.purpose is Purpose.AUDIT:
            self._terms, peer_accepts = self._terms._replace(accepts_posts=False), False
        self._peer_accepts = peer_accepts
        until_ns = END_NS if terms.until_ms is None else min(terms.until_ms, END_MS) * NS_PER_MS
        window = of_times(terms.from_ms * NS_PER_MS, until_ns)
        items = self._items = self._hooks.items(terms.channels)
        session = self._session = ReconcileSession(
            lambda _: items, SPEC, window=window, splitting=self._splitting, limits=self._limits
        )
        self._window = window
        if at_s is not None:
            is_empty = not items.count(window)  # sending an empty set of ids saves a round trip
            self._send_payload(session.initiate(window, at_s=at_s, whole=is_empty))

    def _send_unlisted(self) -> None:
        """Announce that this side accepts posts whose ids were not sent. An audit needs all ids."""
        if self._accepts_unlisted:
            self.findings.sent.comparing += len(UNLISTED)
            self._out.append(UNLISTED)

    @property
    def _accepts_unlisted(self) -> bool:
        return self._terms.accepts_posts and self.purpose is Purpose.RECONCILE

    def _send_payload(self, data: bytes) -> None:
        self._payload_sent = self._payload_flow.began(len(data), self._now_s), len(data)
        self._send(PayloadFrame(data))

    def _measure(self, size_bytes: int, at_s: float) -> None:
        """Measure the link when a payload arrives: this determines the size of this side's next payload."""
        self._payload_flow.arrived(size_bytes)
        if self._payload_sent is not None:
            start, sent_size_bytes = self._payload_sent
            self._payload_flow.ended(start, sent_size_bytes, at_s)
            self._payload_sent = None

    def _payload(self, session: ReconcileSession, data: bytes, at_s: float) -> None:
        findings = self.findings
        self._check_differences()
        size_bytes = self._outgoing.payload_size_bytes(self._payload_flow.window_size_bytes)
        lists_missing = not (self._peer_accepts_unlisted and self._peer_accepts)
        step = session.receive(data, at_s=at_s, frame_size_bytes=size_bytes, lists_missing=lists_missing)
        findings.rounds += 1
        findings.here_only += len(step.have)
        findings.there_only += len(step.need)
        if step.reply is not None:
            self._send_payload(step.reply)
        if self.purpose is Purpose.AUDIT:
            self._have += step.have
            self._need += step.need
        if self._terms.accepts_posts:
            self._expected.update(step.need)
        if self._peer_accepts:
            self._outgoing.add(step.have)

    def _check_differences(self) -> None:
        """Raise ReconcileLimitError if the conversation found more differences than allowed."""
        found = self.findings.here_only + self.findings.there_only
        if found > self._limits.differences:
            raise ReconcileLimitError(
                f"{found} differences were found, the maximum is {self._limits.differences}. Reconcile again to find "
                "the rest"
            )

    # --- posts ----------------------------------------------------------------------------------

    def _send_posts(self) -> None:
        """Send the posts that may be sent now. When the peer has stored them, go on: sums, deletions, done."""
        self._send_batches()
        if self._session is None or not self._session.is_done or not self._outgoing.is_idle:
            return
        if not self._is_audited:
            self._request_sums()
            return
        if not self._has_sent_posts:
            self._has_sent_posts = True
            self._send(PostsSent())
        if self._peer_has_sent_posts and not self._outgoing.is_deleting:
            self._outgoing.turn_to_deletions()
            self._send_batches()
        if self._outgoing.is_deleting and self._outgoing.is_idle and not self._is_done:
            self._is_done = True
            self._send(Done(self.findings.posts_sent))

    def _send_batches(self) -> None:
        for batch in self._outgoing.batches(self._now_s):
            self._send(batch)
            self.findings.posts_sent += len(batch.contents)

    def _posts(self, message: PostsFrame) -> ArrivedPosts:
        if message.batch != self._batches:
            raise ReconcileError(f"the peer sent batch {message.batch}, expected batch {self._batches}")
        if len(self._unstored) >= MAX_TALK_BATCHES:
            raise ReconcileError(f"the peer sent too many unconfirmed batches: the maximum is {MAX_TALK_BATCHES}")
        self._batches += 1
        self._unstored.add(message.batch)
        posts = []
        for content in message.contents:
            transferred = decode_message(content, SPEC)
            claimed, raw = transferred.post_id, transferred.message.payload
            is_listed = claimed in self._expected
            self._expected.discard(claimed)
            if not ((is_listed or self._may_arrive_unlisted(claimed)) and self._is_compared(claimed, raw)):
                self.findings.unasked += 1
                continue
            self.findings.there_only += not is_listed
            self._arrived.add(claimed)
            posts.append(raw)
        if self.findings.unasked > MAX_TALK_UNASKED:
            raise ReconcileError(
                f"the peer sent {self.findings.unasked} posts that were not requested, the maximum is "
                f"{MAX_TALK_UNASKED}"
            )
        self._check_differences()
        self.findings.posts_received += len(posts)
        return ArrivedPosts(message.batch, posts)

    def _may_arrive_unlisted(self, claimed: SyncID) -> bool:
        """Return True if a post with the id `claimed` may arrive although the peer did not send the id.

        The id must be in the compared times, not in this side's set, and not the id of an arrived post.
        """
        is_compared = self._accepts_unlisted and self._window.lower <= claimed < self._window.upper
        if not is_compared or claimed in self._arrived or self._items is None:
            return False
        return claimed not in self._items.items(range_around(claimed))

    def _is_compared(self, claimed: SyncID, raw: bytes) -> bool:
        """Return True if the post `raw` has the id `claimed`, and has a compared channel or no channel.

        Also return True for bytes that are not a post: the store rejects them as invalid.
        """
        try:
            post = decode_post(raw, self._dialect, claimed.hash)
        except DecodeError:
            return True
        channels = None if self.compared is None else self.compared.channels
        is_in_channel = channels is None or not post.channel or post.channel in channels
        return is_in_channel and post_id(post.hash, post.timestamp_ms) == claimed

    # --- auditing -------------------------------------------------------------------------------

    def _request_sums(self) -> None:
        """Request sums: over the whole compared range, then over the ranges that differed."""
        if self._audit is not None or self._items is None:
            return
        expected = CorrectedSet(self._items, self._have, self._need)
        ranges = self.findings.differing or [self._window]  # few enough: each audit adds at most 64 cuts
        self._audit = Audit(expected, *ranges, seed=self._hooks.draw(_SEED_SIZE_BYTES))
        self._send(SumsRequest(self._audit.request()))

    def _evaluate(self, audit: Audit, data: bytes) -> None:
        result = audit.evaluate(data)
        self._audit = None
        self._audits += 1
        findings = self.findings
        findings.is_by_design |= result.is_by_design
        if result.differing:
            findings.differing = result.differing
        self._is_audited = not result.differing or self._audits == _AUDIT_TURNS

    def _answer(self, items: OrderedSet, data: bytes) -> None:
        self._audits += 1
        if self._audits > MAX_TALK_QUESTIONS:
            raise ReconcileError(f"the peer sent too many sums requests: the maximum is {MAX_TALK_QUESTIONS}")
        self._send(SumsResponse(answer(items, data)))
