"""Fetching: posts that peers offer are asked of one of them, and stored.

Posts that are here, that are known to be deleted, or that are on their way already are not asked for. What a peer has
not delivered when it is lost is asked of others that offered it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from cablestore import limits
from cablestore.errors import CableStoreError
from cablestore.index.reader import Reader
from cablestore.index.verdict import LIES, Outcome, Verdict
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.context import PeerContext
from cablestore.peers.intake import PostIntake
from cablestore.peers.report import SyncReport
from cablestore.peers.wanted import Wanted
from cablestore.protocol import cable_js
from cablestore.protocol.body import INFO
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import Concluded, Exchange, Posts, ResponseEvent
from cablestore.protocol.message import PostRequest
from cablestore.protocol.post import peek_type
from cablestore.store import answers

_SHARE_WAIT_S: Final = 0.05
"""How often a peer that offered more than its share allows is looked at again."""

_USELESS: Final = frozenset({Verdict.MALFORMED, Verdict.UNKNOWN_TYPE, Verdict.BAD_SIGNATURE, Verdict.LOCAL_ONLY})
"""Posts that are not asked for again."""
_UNWELCOME: Final = frozenset({Verdict.DROPPED, Verdict.BLOCKED})
"""Posts that are not asked for again until moderation lets them in."""
_GENUINE: Final = frozenset({Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.DELETED, *_UNWELCOME})


class Fetches:
    """The fetches of all peers."""

    def __init__(self, context: PeerContext, intake: PostIntake) -> None:
        self.context: Final = context
        self.intake: Final = intake
        self.wanted: Final[Wanted[Connection]] = Wanted()
        self.storing: Final[set[bytes]] = set()
        """Hashes of posts that have come and are not stored yet."""
        self.is_halted = False
        self._of_peers: Final[dict[Connection, Fetch]] = {}
        self._useless: OrderedDict[bytes, None] = OrderedDict()
        self._unwelcome: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of peers that posts are fetched from."""
        return len(self._of_peers)

    def begin(self, connection: Connection, progress: Callable[[int], None] | None = None) -> Fetch:
        """Fetch from a peer from now until it is lost. `progress` gets the number of posts as they are stored."""
        fetch = self._of_peers[connection] = Fetch(self, connection, progress)
        return fetch

    def lost(self, connection: Connection) -> None:
        """Ask others for what a lost peer has not delivered."""
        fetch = self._of_peers.pop(connection, None)
        if fetch is not None:
            fetch.lose()
        self.intake.early.lose(connection)
        self.pass_on(*self.wanted.lose(connection))

    def offer_again(self, connection: Connection, hashes: Sequence[bytes]) -> None:
        """Fetch posts from a peer that gave them before, when they were refused."""
        fetch = self._of_peers.get(connection)
        if fetch is not None:
            fetch.offer_soon(hashes)

    def pass_on(self, busier: Iterable[Connection], missing: Sequence[bytes]) -> None:
        """Fetch what was passed on to other peers, and give up what nobody else offers."""
        for connection in busier:
            fetch = self._of_peers.get(connection)
            if fetch is not None:
                fetch.go_on()
        for digest in missing:
            self.settled(digest)

    def settled(self, digest: bytes, *, has_come: bool = False) -> None:
        """Tell all fetches that wait for a post that it is here, or will not come."""
        for fetch in self._of_peers.values():
            fetch.settled(digest, has_come=has_come)

    def halt(self) -> None:
        """Fetch nothing more until `resume`: the store accepts nothing, and peers would offer the same."""
        self.is_halted = True
        for connection, fetch in self._of_peers.items():
            _, missing = self.wanted.lose(connection)
            self.pass_on((), missing)
            fetch.wake()

    def resume(self) -> None:
        """Fetch again."""
        self.is_halted = False

    def is_on_its_way(self, digest: bytes) -> bool:
        """Tell whether a post is asked of some peer, or is being stored."""
        return digest in self.wanted or digest in self.storing

    def is_useless(self, digest: bytes) -> bool:
        """Tell whether a post was refused before."""
        return digest in self._useless or digest in self._unwelcome

    def refuse(self, outcome: Outcome) -> None:
        """Remember a post that was refused."""
        refused = self._unwelcome if outcome.verdict in _UNWELCOME else self._useless
        refused[outcome.hash] = None
        if len(refused) > limits.MAX_WANTED_PER_PEER:
            refused.popitem(last=False)

    def welcome(self) -> None:
        """Forget which posts moderation did not let in: it may do so now."""
        self._unwelcome.clear()


class Fetch:
    """The fetching of posts from one peer."""

    def __init__(self, fetches: Fetches, connection: Connection, progress: Callable[[int], None] | None) -> None:
        self._context = fetches.context
        self._all = fetches
        self._connection = connection
        self._progress = progress
        self.report: Final = SyncReport()
        self._requests: Final[set[Exchange]] = set()
        self._storing = 0
        self._offers: deque[Sequence[bytes]] = deque()
        self._offered = 0
        """Hashes that wait to be looked up."""
        self._elsewhere: set[bytes] = set()
        """Hashes that the peer offered while they were on their way already, maybe from others."""
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()
        self._failed = 0
        self._has_overflowed = False
        self._error: CableStoreError | None = None
        """Why hashes that were offered live could not be looked up."""

    def take_failed(self) -> int:
        """Return how many of the offered posts did not come or were not stored since the last call."""
        failed, self._failed = self._failed, 0
        return failed

    def take_overflow(self) -> bool:
        """Tell whether a post that was offered live was passed over since the last call.

        There was no room for it, or the store could not be read.
        """
        has_overflowed, self._has_overflowed = self._has_overflowed, False
        return has_overflowed

    # --- what is offered -----------------------------------------------------------------------

    def offer_soon(self, hashes: Sequence[bytes]) -> None:
        """Look up hashes in the order of the offers. While many wait, nothing more is read from the peer."""
        self._offers.append(hashes)
        self._offered += len(hashes)
        if self._offered > limits.MAX_WANTED_PER_PEER:
            self._connection.pause(PauseReason.OFFERS)
        if len(self._offers) == 1:
            self._context.run(self._offer_all())

    async def _offer_all(self) -> None:
        try:
            while self._offers and not self._is_lost:
                await self.offer(self._offers[0], waits=False)
                self._offered -= len(self._offers.popleft())
                if self._offered <= limits.MAX_WANTED_PER_PEER // 2:
                    self._connection.resume(PauseReason.OFFERS)
        except CableStoreError as error:
            self._error = error
            self._failed += self._offered
            self._has_overflowed = True
        finally:
            self._offers.clear()
            self._offered = 0
            self._connection.resume(PauseReason.OFFERS)
            self._changed.set()

    async def offer(self, hashes: Sequence[bytes], *, waits: bool = True) -> None:
        """Fetch the posts that the store lacks and that nobody fetches yet.

        If there is no room for some, wait for room, or leave them to the next pass.
        """
        for at in range(0, len(hashes), limits.PART_ROWS_ANSWERED):
            part = hashes[at : at + limits.PART_ROWS_ANSWERED]
            while not self._connection.share.is_left() and not self._is_lost:  # noqa: ASYNC110 - time changes it
                await asyncio.sleep(_SHARE_WAIT_S)
            self._connection.share.charge(2 * len(part))
            found = await self._context.reads.call(partial(_worth_requesting, hashes=part))
            left = self._want(found)
            while left and waits and not self._is_at_end:
                await self._change()
                left = self._want(left)
            if left:
                self._failed += len(left)
                self._has_overflowed = not self._is_at_end

    def _want(self, found: Sequence[bytes]) -> list[bytes]:
        """Ask for posts that the store lacks. Returns those for which there was no room."""
        if self._is_at_end:
            return list(found)
        self._elsewhere.update(filter(self._all.is_on_its_way, found))
        left = [digest for digest in found if digest not in self._all.storing and not self._all.is_useless(digest)]
        left = [digest for digest in left if not self._all.intake.early.is_early(digest, self._connection)]
        left = self._all.wanted.offer(self._connection, left)
        self.go_on()
        return left

    def go_on(self) -> None:
        """Ask for posts, a few requests at a time."""
        while len(self._requests) < limits.FETCHES_OPEN and not self._is_at_end:
            hashes = self._all.wanted.take(self._connection, limits.FETCH_POSTS)
            if not hashes:
                return
            self._requests.add(self._connection.ask(PostRequest(b"", tuple(hashes))))

    # --- what comes ----------------------------------------------------------------------------

    def take(self, event: ResponseEvent) -> None:
        """Store posts that were asked for. At the end of a request, ask others for what did not come."""
        match event:
            case Posts(exchange, posts) if exchange in self._requests:
                self._store(posts)
            case Concluded(exchange, _) if exchange in self._requests:
                self._conclude(exchange)

    def _store(self, posts: list[bytes]) -> None:
        for post in posts:
            digest = post_hash(post)
            self._all.wanted.arrived(digest)
            self._all.storing.add(digest)
        self._storing += 1
        self._all.intake.store_posts_of(self._connection, posts, lambda outcomes: self._stored(posts, outcomes))

    def _conclude(self, exchange: Exchange) -> None:
        self._requests.remove(exchange)
        if exchange.missing:
            busier, missing = self._all.wanted.failed(self._connection, exchange.missing)
            self.report.missing += len(missing)
            self._failed += len(missing)
            self._all.pass_on(busier, missing)
        self.go_on()
        self._changed.set()

    def _stored(self, posts: list[bytes], outcomes: list[Outcome] | None) -> None:
        self._storing -= 1
        if outcomes is None:
            self._failed += len(posts)
            self.report.unstored += len(posts)
        is_ours = self._connection.session.dialect is self._context.dialect
        for index, post in enumerate(posts):
            digest = post_hash(post) if outcomes is None else outcomes[index].hash
            self._all.storing.discard(digest)
            if outcomes is not None:
                self._count(post, outcomes[index], is_ours=is_ours)
            self._all.settled(digest, has_come=outcomes is not None)
        if self._progress is not None:
            self._progress(len(posts))
        self._changed.set()

    def _count(self, post: bytes, outcome: Outcome, *, is_ours: bool) -> None:
        self.report.posts += outcome.verdict is Verdict.ACCEPTED
        if outcome.verdict in _USELESS or outcome.verdict in _UNWELCOME:
            self.report.refused += 1
            self._all.refuse(outcome)
        elif outcome.verdict is Verdict.TOO_FAR_AHEAD:
            self.report.refused += 1
            self.report.early += 1
        session = self._connection.session
        if session.is_spared and outcome.verdict in _GENUINE and not cable_js.bears_post(post):
            session.reads_everything = True
        # post/info of the other dialect cannot be read here, and is no lie.
        if outcome.verdict in LIES and (is_ours or peek_type(post) != INFO):
            self._connection.gave_invalid_posts(1, outcome.reason)

    # --- waiting -------------------------------------------------------------------------------

    @property
    def _is_lost(self) -> bool:
        return self._connection.closed.done()

    @property
    def _is_at_end(self) -> bool:
        return self._all.is_halted or self._is_lost

    def wake(self) -> None:
        """Check again what is waited for."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def drained(self) -> None:
        """Wait until all that was offered has come and is stored, or will not come.

        Raises CableStoreError if the store could not be read to look up what was offered.
        """
        waiting = self._all.wanted.waiting
        while not self._is_lost and (
            self._requests or self._storing or self._offered or self._elsewhere or waiting(self._connection)
        ):
            await self._change()
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def landed(self, hashes: Sequence[bytes]) -> None:
        """Wait until those of these posts that are on their way are stored, or will not come."""
        for digest in hashes:
            if self._all.is_on_its_way(digest):
                await self._waiting.setdefault(digest, self._context.loop.create_future())

    def settled(self, digest: bytes, *, has_come: bool) -> None:
        """Go on if this post was waited for."""
        if digest in self._elsewhere:
            self._elsewhere.remove(digest)
            self._failed += not has_come
            self._changed.set()
        future = self._waiting.pop(digest, None)
        if future is not None and not future.done():
            future.set_result(None)

    def lose(self) -> None:
        """End all waiting: the peer is lost."""
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
        self._changed.set()


def _worth_requesting(reader: Reader, hashes: Sequence[bytes]) -> list[bytes]:
    return list(answers.worth_requesting(reader, hashes))
