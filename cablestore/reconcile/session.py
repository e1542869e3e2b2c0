"""A reconciliation with one peer, from its first payload to its last, without I/O (WAKU-SYNC, "Message Flow"). Pure.

Both sides have a ReconcileSession over one state of their set. One calls `initiate`; what the other sends goes into `receive`,
what comes out of it goes to the other, until both are done. What a step found stays found when a session breaks off: a
new one, over sets that have what was transferred, finds the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from cablestore.errors import ReconcileError
from cablestore.index.collector import without_collector
from cablestore.limits import (
    MAX_RECONCILE_DIFFERENCES,
    MAX_RECONCILE_ROUNDS,
    MAX_RECONCILE_SESSION_SIZE_BYTES,
    RECONCILE_TIMEOUT_S,
)
from cablestore.reconcile.codec import decode, encode
from cablestore.reconcile.dialects import SyncDialect, agreed
from cablestore.reconcile.ids import EVERYTHING, Range, SyncID
from cablestore.reconcile.payload import Header, Payload
from cablestore.reconcile.sets import OrderedSet
from cablestore.reconcile.splitting import PayloadReply, Replier, Splitting


class SessionStep(NamedTuple):
    """What one payload came to.

    `reply` goes to the peer, None where it expects none. `have` are ids that we have and the peer lacks, `need` those
    that it has and we lack; each id comes once in a session.
    """

    reply: bytes | None
    have: list[SyncID]
    need: list[SyncID]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What a session may cost before it ends in an error. See `cablestore.limits`."""

    rounds: int = MAX_RECONCILE_ROUNDS
    size_bytes: int = MAX_RECONCILE_SESSION_SIZE_BYTES
    differences: int = MAX_RECONCILE_DIFFERENCES
    timeout_s: float = RECONCILE_TIMEOUT_S


DEFAULT_SPLITTING = Splitting()
DEFAULT_LIMITS = SessionLimits()


class ReconcileSession:
    """One side of one reconciliation.

    `items` gives one state of the set, of what the header says that both sides keep: it is asked again only when the
    peer's topics turn out to be fewer. `window` is what a side that did not begin lets itself be asked about.
    """

    def __init__(
        self,
        items: Callable[[Header], OrderedSet],
        dialect: SyncDialect,
        header: Header | None = None,
        *,
        window: Range = EVERYTHING,
        splitting: Splitting = DEFAULT_SPLITTING,
        limits: SessionLimits = DEFAULT_LIMITS,
    ) -> None:
        self._items = items
        self._dialect = dialect
        self._header = dialect.header() if header is None else header
        self._window = window
        self._splitting = splitting
        self._limits = limits
        self._agreed = self._header
        self._replier: Replier | None = None
        self._started_at_s: float | None = None
        self._have: set[SyncID] = set()
        self._need: set[SyncID] = set()
        self.rounds = 0
        self.received_size_bytes = 0
        self.sent_size_bytes = 0
        self.is_done = False
        self.is_mismatch = False
        if not isinstance(self._header, dialect.header):
            raise ReconcileError(f"{dialect.name} has {dialect.header.__name__} in its headers, not {self._header}")
        if not dialect.cuts_hashes and (window.lower.prefix or window.upper.prefix):
            raise ReconcileError(f"{dialect.name} has no bounds within one time: reconcile from time to time")

    def initiate(self, *ranges: Range, at_s: float, whole: bool = False) -> bytes:
        """Return the first payload, about ranges that follow each other; about everything when none is given.

        With `whole` it has all ids of the ranges, which finds what fingerprints can hide. `at_s` is the time, of any clock.
        Raises ReconcileError for ranges out of order or that the dialect cannot say, and for ids that fill more than a frame.
        """
        ranges = ranges or (self._window,)
        if any(lower.upper > upper.lower for lower, upper in pairwise(ranges)):
            raise ReconcileError("the ranges overlap or are out of order. Put them in order")
        if not self._dialect.cuts_hashes and any(bound.prefix for within in ranges for bound in within):
            raise ReconcileError(f"{self._dialect.name} has no bounds within one time: reconcile from time to time")
        self._check(0, at_s)
        if self.rounds or self.sent_size_bytes:
            raise ReconcileError("the session has begun already. Make another one")
        self._window = Range(ranges[0].lower, ranges[-1].upper)
        return self._written(self._answering(self._header).opening(ranges, whole=whole))

    def receive(self, data: bytes, *, at_s: float) -> SessionStep:
        """Take the peer's payload. `at_s` is the time, of the same clock as at the beginning.

        Raises ReconcileError for what is no payload of the dialect, and where a limit is reached; the session is over then.
        """
        self._check(len(data), at_s)
        self.rounds += 1
        try:
            with without_collector():
                return self._received(decode(data, self._dialect), data)
        except ReconcileError:
            self.is_done = True
            raise

    def _received(self, payload: Payload, data: bytes) -> SessionStep:
        both = self._header if payload.header is None else agreed(self._header, payload.header)
        if payload.is_final:
            self.is_done = True
            # Nwaku says that nothing is left with one byte, and that nothing matches with none.
            self.is_mismatch = both is None or not (data or self._dialect.cuts_hashes)
            return SessionStep(None, [], [])
        if both is None:
            self.is_done = self.is_mismatch = True
            refusal = encode(Payload(self._header, []), self._dialect) if self._dialect.cuts_hashes else b""
            self.sent_size_bytes += len(refusal)
            return SessionStep(refusal, [], [])
        reply = self._answering(both).reply(payload.parts)
        have = self._first_seen(reply.have, self._have)
        need = self._first_seen(reply.need, self._need)
        written = self._written(reply)
        self.is_done = not reply.parts
        return SessionStep(written, have, need)

    def _answering(self, both: Header) -> Replier:
        if self._replier is None or both != self._agreed:
            self._agreed = both
            self._replier = Replier(self._items(both), self._window, self._dialect, self._splitting)
        return self._replier

    def _written(self, reply: PayloadReply) -> bytes:
        data = encode(Payload(self._header, reply.parts), self._dialect)
        self.sent_size_bytes += len(data)
        return data

    def _check(self, size_bytes: int, at_s: float) -> None:
        """Raise ReconcileError where the session is over, or may not go on."""
        if self.is_done:
            raise ReconcileError("the session is over. Make another one")
        if self._started_at_s is None:
            self._started_at_s = at_s
        self.received_size_bytes += size_bytes
        moved_bytes = self.received_size_bytes + self.sent_size_bytes
        found = len(self._have) + len(self._need)
        for spent, allowed, what in (
            (self.rounds + 1, self._limits.rounds, "rounds"),
            (moved_bytes, self._limits.size_bytes, "bytes"),
            (found, self._limits.differences, "differences"),
            (at_s - self._started_at_s, self._limits.timeout_s, "seconds"),
        ):
            if spent > allowed:
                self.is_done = True
                raise ReconcileError(
                    f"the session came to {spent} {what}, allowed are {allowed}. Transfer what was found and begin another"
                )

    @staticmethod
    def _first_seen(ids: Sequence[SyncID], seen: set[SyncID]) -> list[SyncID]:
        """Those of the ids that no step before had."""
        new = [sync_id for sync_id in ids if sync_id not in seen]
        seen.update(new)
        return new
