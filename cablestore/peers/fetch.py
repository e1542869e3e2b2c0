"""Fetching: offered posts are requested from one of the peers that offer them, and stored.

Posts that are stored, known to be deleted, or already in transit are not requested. If a lost peer did not deliver a
post, it is requested from another peer that offered it, or from peers that connect later. All open requests to a peer
together have the length that the link transfers in about a second (`protocol.flow_window`). Requests begin as soon as
the first hashes arrive.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import CableStoreError
from cablestore.index.reader import Reader
from cablestore.index.verdict import FALSE_CLAIMS, Outcome, Verdict
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.context import PeerContext
from cablestore.peers.intake import PostIntake
from cablestore.peers.link import PeerLink
from cablestore.peers.pending_hashes import PendingHashes
from cablestore.peers.report import SyncReport
from cablestore.protocol import cable_js
from cablestore.protocol.body import INFO
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import Concluded, Exchange, Posts, ResponseEvent, Step
from cablestore.protocol.flow_window import BatchStart, FlowWindow
from cablestore.protocol.message import PostRequest
from cablestore.protocol.post import peek_type
from cablestore.store import answers

_SHARE_WAIT_S: Final = 0.05
"""Interval of checks whether the share of a peer allows looking up further hashes."""

_POST_SIZE_BYTES: Final = 256
"""Assumed mean size of posts before any posts have arrived."""
_MEAN_POSTS: Final = 64
"""Approximate number of the latest posts over which their mean size is computed."""

_USELESS: Final = frozenset({Verdict.MALFORMED, Verdict.UNKNOWN_TYPE, Verdict.BAD_SIGNATURE, Verdict.LOCAL_ONLY})
"""Verdicts of posts that are not requested again."""
_NOT_ADMITTED: Final = frozenset({Verdict.DROPPED, Verdict.BLOCKED})
"""Verdicts of posts that are not requested again until moderation admits them."""
_GENUINE: Final = frozenset({Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.DELETED, *_NOT_ADMITTED})


class Fetches:
    """The fetches from all peers, and the state that they share."""

    def __init__(self, context: PeerContext, intake: PostIntake) -> None:
        self.context: Final = context
        self.intake: Final = intake
        self.pending: Final[PendingHashes[Connection]] = PendingHashes()
        self.storing: Final[set[bytes]] = set()
        """Hashes of posts that have arrived and are not stored yet."""
        self.is_halted = False
        self.post_size_bytes: float = _POST_SIZE_BYTES
        """Mean size of the latest posts."""
        self._known: Final[OrderedDict[bytes, int]] = OrderedDict()
        """Hashes that lost peers did not deliver, with the number of later peers that did not have them."""
        self._of_peers: Final[dict[Connection, Fetch]] = {}
        self._useless: OrderedDict[bytes, None] = OrderedDict()
        self._not_admitted: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of peers from which posts are fetched."""
        return len(self._of_peers)

    def begin(self, connection: Connection, progress: Callable[[int], None] | None = None) -> Fetch:
        """Fetch from a peer until it is lost. `progress` is called with the number of posts that were just stored.

        The first requests fetch the posts that lost peers did not deliver.
        """
        fetch = self._of_peers[connection] = Fetch(self, connection, progress)
        fetch.request_again(list(self._known))
        return fetch

    async def requested_again(self, link: PeerLink) -> None:
        """Wait until the posts that `begin` requested again from the peer of `link` are stored, or will not arrive."""
        fetch = next((found for connection, found in self._of_peers.items() if connection is link), None)
        if fetch is not None:
            await fetch.requested_again()

    def lost(self, connection: Connection) -> None:
        """Stop fetching from a lost peer. Request the posts that it did not deliver from other peers."""
        fetch = self._of_peers.pop(connection, None)
        if fetch is not None:
            fetch.lose()
        self.intake.early.lose(connection)
        self.intake.postponed.lose(connection)
        busier, missing = self.pending.lose(connection)
        self.remember(missing)
        self.pass_on(busier, missing)

    def remember(self, hashes: Iterable[bytes]) -> None:
        """Remember posts that a lost peer announced, to request them from peers that connect later."""
        for digest in hashes:
            self._known.setdefault(digest, 0)
        while len(self._known) > limits.MAX_HASHES_REMEMBERED:
            self._known.popitem(last=False)

    def forget(self, hashes: Iterable[bytes]) -> None:
        """Forget remembered posts that have arrived or are not worth requesting."""
        for digest in hashes:
            self._known.pop(digest, None)

    def missed(self, hashes: Iterable[bytes]) -> None:
        """Record that a peer does not have these posts. A remembered post is forgotten after several such peers."""
        for digest in hashes:
            times = self._known.get(digest)
            if times is not None and times < limits.OFFERS_REMEMBERED:
                self._known[digest] = times + 1
            else:
                self._known.pop(digest, None)

    def note_received(self, link: PeerLink, post: bytes) -> None:
        """Record that a post of a peer is about to be stored. Call `settled` afterwards."""
        digest = post_hash(post)
        link.note_received(digest)
        self.pending.arrived(digest)
        self.storing.add(digest)
        self._known.pop(digest, None)
        self.post_size_bytes += (len(post) - self.post_size_bytes) / _MEAN_POSTS

    def offer_again(self, connection: Connection, hashes: Sequence[bytes]) -> None:
        """Fetch posts again that this peer sent earlier and this node rejected."""
        fetch = self._of_peers.get(connection)
        if fetch is not None:
            fetch.offer_soon(hashes)

    def pass_on(self, busier: Iterable[Connection], missing: Sequence[bytes]) -> None:
        """Continue after a peer did not deliver posts: request some of them from the `busier` peers instead.

        Give up the `missing` posts, which no other peer offers.
        """
        for connection in busier:
            fetch = self._of_peers.get(connection)
            if fetch is not None:
                fetch.advance()
        for digest in missing:
            self.settled(digest)

    def settled(self, digest: bytes, *, has_arrived: bool = False) -> None:
        """Notify the fetches that wait for this post. Without `has_arrived`, it was not received or not stored."""
        self.storing.discard(digest)
        for fetch in self._of_peers.values():
            fetch.settled(digest, has_arrived=has_arrived)

    def not_stored(self, posts: Iterable[bytes]) -> None:
        """Stop fetching until `resume`: the store failed to write these posts, and would fail again."""
        for post in posts:
            self.settled(post_hash(post))
        self.is_halted = True
        for connection, fetch in self._of_peers.items():
            _, missing = self.pending.lose(connection)
            self.pass_on((), missing)
            fetch.wake()

    def resume(self) -> None:
        """Allow fetching again after `not_stored`."""
        self.is_halted = False

    def is_on_its_way(self, digest: bytes) -> bool:
        """Return True if a post is requested from a peer, or is being stored."""
        return digest in self.pending or digest in self.storing

    def is_useless(self, digest: bytes) -> bool:
        """Return True if a post was rejected, so that it is not requested again for now."""
        is_rejected = self.intake.rejected.reason(digest) is not None
        return is_rejected or digest in self._useless or digest in self._not_admitted

    def reject(self, outcome: Outcome) -> None:
        """Remember that a post was rejected, so that it is not requested again."""
        refused = self._not_admitted if outcome.verdict in _NOT_ADMITTED else self._useless
        refused[outcome.hash] = None
        if len(refused) > limits.MAX_PENDING_HASHES_PER_PEER:
            refused.popitem(last=False)

    def admit_again(self) -> None:
        """Forget which posts moderation rejected, because it may admit them now."""
        self._not_admitted.clear()


class FetchRequest(NamedTuple):
    """An open request for posts, and their approximate size."""

    start: BatchStart
    size_bytes: float


class Fetch:
    """The fetching of posts from one peer."""

    def __init__(self, fetches: Fetches, connection: Connection, progress: Callable[[int], None] | None) -> None:
        self._context = fetches.context
        self._all = fetches
        self._connection = connection
        self._progress = progress
        self.report: Final = SyncReport()
        self._requests: Final[dict[Exchange, FetchRequest]] = {}
        self._flow: Final = FlowWindow(limits.FETCH_POSTS * limits.FETCHES_OPEN * _POST_SIZE_BYTES)
        self._again: list[bytes] = []
        self._storing = 0
        self._offers: deque[Sequence[bytes]] = deque()
        self._offered = 0
        """Hashes that wait for their lookup."""
        self._elsewhere: set[bytes] = set()
        """Hashes that the peer offered while their posts were already in transit, possibly from other peers."""
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()
        self._failed = 0
        self._has_overflowed = False
        self._has_ended = False
        """True if no further posts are fetched from the peer. A peer that the local user blocks may still be connected."""
        self._error: CableStoreError | None = None
        """The error of the last failed lookup of offered hashes, None once it was raised."""

    def take_failed(self) -> int:
        """Return the number of offered posts that did not arrive or were not stored since the last call."""
        failed, self._failed = self._failed, 0
        return failed

    @property
    def has_failed(self) -> bool:
        """True if an offered post did not arrive or was not stored since `take_failed` was called."""
        return bool(self._failed)

    def take_overflow(self) -> bool:
        """Return True if an offered post was skipped since the last call.

        Posts are skipped if too many wait, or if the store cannot be read.
        """
        has_overflowed, self._has_overflowed = self._has_overflowed, False
        return has_overflowed

    # --- offered posts -------------------------------------------------------------------------

    def request_again(self, hashes: list[bytes]) -> None:
        """Request posts that lost peers did not deliver."""
        self._again = hashes
        if hashes:
            self.offer_soon(hashes)

    async def requested_again(self) -> None:
        """Wait until the posts of `request_again` are stored, or will not arrive."""
        requested_again, self._again = self._again, []
        if requested_again:
            while self._offered and not self._is_at_end:
                await self._change()
            await self.landed(requested_again)

    def offer_soon(self, hashes: Sequence[bytes]) -> None:
        """Queue offered hashes to look them up in the store. While many wait, reading from the peer is paused."""
        if self._has_ended:
            return
        self._offers.append(hashes)
        self._offered += len(hashes)
        if self._offered > limits.MAX_PENDING_HASHES_PER_PEER:
            self._connection.pause(PauseReason.OFFERS)
        if len(self._offers) == 1:
            self._context.life.run(self._offer_all())

    async def _offer_all(self) -> None:
        try:
            while self._offers and not self._is_lost:
                try:
                    await self._offer(self._offers[0])
                except CableStoreError as error:  # other offers may be readable
                    self._error = error
                    self._failed += len(self._offers[0])
                    self._has_overflowed = True
                self._offered -= len(self._offers.popleft())
                if self._offered <= limits.MAX_PENDING_HASHES_PER_PEER // 2:
                    self._connection.resume(PauseReason.OFFERS)
        finally:
            self._offers.clear()
            self._offered = 0
            self._connection.resume(PauseReason.OFFERS)
            self._changed.set()

    async def _offer(self, hashes: Sequence[bytes]) -> None:
        """Look up offered hashes, and request the posts that the store lacks and that are not in transit yet.

        Posts that do not fit are skipped. The next pass offers them again.
        """
        for at in range(0, len(hashes), limits.PART_ROWS_ANSWERED):
            part = hashes[at : at + limits.PART_ROWS_ANSWERED]
            while not self._connection.share.is_left() and not self._is_lost:  # noqa: ASYNC110 - time changes it
                await asyncio.sleep(_SHARE_WAIT_S)
            self._connection.share.charge(2 * len(part))
            found = await self._context.reads.begin(partial(_worth_requesting, hashes=part))
            if len(found) < len(part):
                self._all.forget(set(part).difference(found))
            left = self._want(found)
            if left:
                self._failed += len(left)
                self._has_overflowed = not self._is_at_end

    def _want(self, found: Sequence[bytes]) -> list[bytes]:
        """Request the posts of `found` that are new and not rejected. Return the hashes for which there was no room."""
        if self._is_at_end:
            return list(found)
        intake, connection, new = self._all.intake, self._connection, []
        for digest in found:
            if self._all.is_on_its_way(digest):
                self._elsewhere.add(digest)
            is_refused = digest in self._all.storing or self._all.is_useless(digest)
            is_late = intake.early.is_early(digest, connection) or intake.postponed.is_early(digest, connection)
            if not (is_refused or is_late):
                new.append(digest)
        left = self._all.pending.offer(self._connection, new)
        self.advance()
        return left

    def advance(self) -> None:
        """Request posts, a few requests at a time, as many as the link can transfer."""
        pending = self._all.pending
        while len(self._requests) < limits.FETCHES_OPEN and pending.waiting(self._connection) and not self._is_at_end:
            count = self._share_of_window
            if self._requests and self._flow.room_size_bytes < count * self._all.post_size_bytes:
                return
            hashes = pending.take(self._connection, count)
            size_bytes = len(hashes) * self._all.post_size_bytes
            start = self._flow.began(size_bytes, self._context.loop.time())
            exchange = self._connection.send_request(PostRequest(b"", tuple(hashes)), self)
            self._requests[exchange] = FetchRequest(start, size_bytes)

    @property
    def _share_of_window(self) -> int:
        """The number of posts in one request: its share of the bytes that the link transfers in about a second."""
        posts = self._flow.window_size_bytes / self._all.post_size_bytes / limits.FETCHES_OPEN
        return max(limits.FETCH_POSTS_LEAST, min(int(posts), limits.FETCH_POSTS))

    @property
    def page_hashes(self) -> int:
        """The number of hashes in one page: enough for twice as many post requests as may be open."""
        return max(limits.PAGE_HASHES_LEAST, 2 * limits.FETCHES_OPEN * self._share_of_window)

    # --- received posts ------------------------------------------------------------------------

    def handle(self, event: ResponseEvent) -> None:
        """Store requested posts. At the end of a request, request missing posts from other peers."""
        match event:
            case Posts(exchange, posts) if exchange in self._requests:
                self._store(posts)
            case Concluded(exchange, step) if exchange in self._requests:
                self._conclude(exchange, step)

    def _store(self, posts: list[bytes]) -> None:
        for post in posts:
            self._all.note_received(self._connection, post)
        self._flow.arrived(sum(map(len, posts)))
        self._storing += 1
        stored = self._all.intake.store(self._connection, posts, self._connection)
        # A callback, not a task: it also runs after the tasks of a stopping node have ended.
        stored.add_done_callback(partial(self._stored, posts))

    def _conclude(self, exchange: Exchange, step: Step) -> None:
        request = self._requests.pop(exchange)
        self._flow.ended(request.start, request.size_bytes, self._context.loop.time())
        if exchange.missing:
            busier, missing = self._all.pending.failed(self._connection, exchange.missing)
            (self._all.remember if step is Step.LOST else self._all.missed)(missing)
            self.report.missing += len(missing)
            self._failed += len(missing)
            self._all.pass_on(busier, missing)
        self.advance()
        self._changed.set()

    def _stored(self, posts: list[bytes], stored: asyncio.Future[list[Outcome]]) -> None:
        self._storing -= 1
        if stored.exception() is not None:
            self._failed += len(posts)
            self.report.unstored += len(posts)
            self._all.not_stored(posts)
        else:
            is_ours = self._connection.session.dialect is self._context.dialect
            for post, outcome in zip(posts, stored.result(), strict=True):
                self._count(post, outcome, is_ours=is_ours)
                self._all.settled(outcome.hash, has_arrived=True)
        if self._progress is not None:
            self._progress(len(posts))
        self._changed.set()

    def _count(self, post: bytes, outcome: Outcome, *, is_ours: bool) -> None:
        self.report.posts += outcome.verdict is Verdict.ACCEPTED
        if outcome.verdict in _USELESS or outcome.verdict in _NOT_ADMITTED:
            self.report.refused += 1
            self._all.reject(outcome)
        elif outcome.verdict is Verdict.TOO_FAR_AHEAD:
            self.report.refused += 1
            self.report.early += 1
        elif outcome.verdict in (Verdict.REJECTED, Verdict.POSTPONED):
            self.report.refused += 1
            self._failed += outcome.verdict is Verdict.POSTPONED  # the next pass offers it again
        session = self._connection.session
        if session.may_be_cable_js and outcome.verdict in _GENUINE and not cable_js.handles_post(post):
            session.reads_everything = True
        # post/info of the other dialect cannot be decoded here, so it is not a false claim.
        if outcome.verdict in FALSE_CLAIMS and (is_ours or peek_type(post) != INFO):
            self._connection.count_invalid_posts(1, outcome.reason)

    # --- waiting -------------------------------------------------------------------------------

    @property
    def _is_lost(self) -> bool:
        return self._has_ended or self._connection.closed.done()

    @property
    def _is_at_end(self) -> bool:
        return self._all.is_halted or self._has_ended or self._connection.closed.done()

    def wake(self) -> None:
        """Let the waiting coroutines check their conditions again."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def drained(self) -> None:
        """Wait until all offered posts are stored, or will not arrive.

        Raises CableStoreError if the store could not be read to look up hashes.
        """
        waiting = self._all.pending.waiting
        while not self._is_lost and (
            self._requests or self._storing or self._offered or self._elsewhere or waiting(self._connection)
        ):
            await self._change()
        self._raise_error()

    async def looked_up(self) -> None:
        """Wait until all offered hashes are looked up. Raises CableStoreError if the store could not be read."""
        while self._offered and not self._is_at_end:
            await self._change()
        self._raise_error()

    async def has_room(self) -> None:
        """Wait until so few posts wait to be requested from this peer that further hashes are useful."""
        while not self._is_at_end and (
            self._all.pending.waiting(self._connection) > limits.FETCHES_OPEN * self._share_of_window
        ):
            await self._change()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def landed(self, hashes: Sequence[bytes]) -> None:
        """Request these posts before others. Wait until those in transit are stored, or will not arrive.

        Return earlier if the peer is lost.
        """
        self._all.pending.hurry(hashes)
        for digest in hashes:
            if self._is_lost:
                return
            if self._all.is_on_its_way(digest):
                await self._waiting.setdefault(digest, self._context.loop.create_future())

    def settled(self, digest: bytes, *, has_arrived: bool) -> None:
        """End the waits for this post. Without `has_arrived`, it counts as failed if it was in transit when offered."""
        if digest in self._elsewhere:
            self._elsewhere.remove(digest)
            self._failed += not has_arrived
            self._changed.set()
        future = self._waiting.pop(digest, None)
        if future is not None and not future.done():
            future.set_result(None)

    def lose(self) -> None:
        """End all waits, and accept no more posts: the peer is lost."""
        self._has_ended = True
        self._requests.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
        self._changed.set()


def _worth_requesting(reader: Reader, hashes: Sequence[bytes]) -> list[bytes]:
    return list(answers.worth_requesting(reader, hashes))
