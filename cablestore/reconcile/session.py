"""The comparison of two sets of ids, from its first payload to its last (WAKU-SYNC, "Message Flow").

Two stores have nearly the same posts. Each post has an id: its time and its hash. All ids have one order, so a *range*
(the ids between two bounds) is the same on both sides. Its *fingerprint* (the XOR of its hashes) shows in 32 bytes
whether both sides have the same ids in it. Ranges that differ are cut into smaller ranges. When a range contains few
ids, the ids are sent. With parts of three ids, where only one side has `k`:

    our ids        |a b c|d e f|g h i|j k l|
    we send        the fingerprint of everything
    the peer sends it differs: the fingerprints of 4 parts
    we send        3 are equal: Skip; of the 4th all our ids
    the peer sends all its ids of the 4th, "reconciled"; both sides know the difference now

Up to 16 ids are sent as ids; a larger range is cut into 8 parts with equally many ids (`splitting`). So the bytes grow
with the number of differences, times the logarithm of the size of the sets. A million equal ids cost one fingerprint.
The store keeps sums over ranges, so that a fingerprint needs few reads (`stored_set`).

    payload in -> decode -> ReconcileSession -> Replier -> encode -> payload out
                                 |                 |
                           limits, ids found     OrderedSet

Each side has a ReconcileSession over one state of its set. One side calls `initiate`. Each received payload is passed
to `receive`, which returns a `SessionStep` with the reply and the ids that only one side has. Both continue until they
are done. Found ids remain valid if a session is interrupted: transfer them, then a new session finds the rest.

A peer that chooses hashes can deceive XOR fingerprints. See `audit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from cablestore.limits import (
    MAX_RECONCILE_DIFFERENCES,
    MAX_RECONCILE_ROUNDS,
    MAX_RECONCILE_SESSION_SIZE_BYTES,
    RECONCILE_TIMEOUT_S,
)
from cablestore.reconcile.codec import decode, encode
from cablestore.reconcile.dialects import SyncDialect, agreed
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import EVERYTHING, Range, SyncID
from cablestore.reconcile.payload import Header, Payload
from cablestore.reconcile.sets import OrderedSet
from cablestore.reconcile.splitting import PayloadReply, Replier, Splitting


class SessionStep(NamedTuple):
    """Result of one received payload.

    `reply` is the payload for the peer, or None if the peer does not expect a reply. `have` lists local ids that the
    peer lacks, and `need` lists ids of the peer that are missing locally. Each id is returned once in a session.
    """

    reply: bytes | None
    have: list[SyncID]
    need: list[SyncID]


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of a session. A session that exceeds a limit raises ReconcileError. See `cablestore.limits`."""

    rounds: int = MAX_RECONCILE_ROUNDS
    size_bytes: int = MAX_RECONCILE_SESSION_SIZE_BYTES
    differences: int = MAX_RECONCILE_DIFFERENCES
    timeout_s: float = RECONCILE_TIMEOUT_S


DEFAULT_SPLITTING = Splitting()
DEFAULT_LIMITS = SessionLimits()


class ReconcileSession:
    """One side of one comparison.

    `items` is called with a header, and returns the set of its ids. All its results must be from one state. It is called
    again only if the peer keeps fewer topics. `window` limits the answers of the side that did not begin.
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
            raise ReconcileError(f"{dialect.name} has a header of type {dialect.header.__name__}, got {self._header}")
        self._check_bounds(window)

    def initiate(self, *ranges: Range, at_s: float, whole: bool = False) -> bytes:
        """Return the first payload, about these ranges in order, or about the whole window.

        With `whole`, it contains all ids of the ranges, which finds differences that fingerprints can hide. `at_s` is
        the time of any clock. Raises ReconcileError for ranges that are out of order or that the dialect cannot
        express, and for more ids than fit into a frame.
        """
        ranges = ranges or (self._window,)
        if any(lower.upper > upper.lower for lower, upper in pairwise(ranges)):
            raise ReconcileError("the ranges overlap or are out of order. Put them in order")
        self._check_bounds(*ranges)
        self._check(0, at_s)
        if self.rounds or self.sent_size_bytes:
            raise ReconcileError("the session has already begun. Create another session")
        self._window = Range(ranges[0].lower, ranges[-1].upper)
        return self._written(self._answering(self._header).opening(ranges, whole=whole))

    def receive(
        self, data: bytes, *, at_s: float, frame_size_bytes: int | None = None, lists_missing: bool = True
    ) -> SessionStep:
        """Process the peer's payload. `at_s` is the time of the same clock as at the beginning.

        The reply has about `frame_size_bytes`, at most the size in `splitting`. Without `lists_missing`, it omits ids
        that the peer lacks in the ranges for which the peer sent ids.

        Raises ReconcileError if `data` is not a payload of the dialect, or a limit is exceeded. Then the session is
        over.
        """
        self._check(len(data), at_s)
        self.rounds += 1
        try:
            return self._received(decode(data, self._dialect), data, frame_size_bytes, lists_missing=lists_missing)
        except ReconcileError:
            self.is_done = True
            raise

    def _received(
        self, payload: Payload, data: bytes, frame_size_bytes: int | None, *, lists_missing: bool
    ) -> SessionStep:
        both = self._header if payload.header is None else agreed(self._header, payload.header)
        if payload.is_final:
            self.is_done = True
            # In nwaku, one byte means that nothing is left, and zero bytes mean that nothing matches.
            self.is_mismatch = both is None or not (data or self._dialect.cuts_hashes)
            return SessionStep(None, [], [])
        if both is None:
            self.is_done = self.is_mismatch = True
            rejection = encode(Payload(self._header, []), self._dialect) if self._dialect.cuts_hashes else b""
            self.sent_size_bytes += len(rejection)
            return SessionStep(rejection, [], [])
        reply = self._answering(both).reply(payload.parts, frame_size_bytes, lists_missing=lists_missing)
        have = self._first_seen(reply.have, self._have)
        need = self._first_seen(reply.need, self._need)
        written = self._written(reply)
        self.is_done = not reply.parts
        return SessionStep(written, have, need)

    def _check_bounds(self, *ranges: Range) -> None:
        """Raise ReconcileError if the dialect cannot express a bound of these ranges."""
        if not self._dialect.cuts_hashes and any(bound.prefix for within in ranges for bound in within):
            raise ReconcileError(
                f"{self._dialect.name} cannot express bounds within one time. Choose ranges from one time to another"
            )

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
        """Count `size_bytes` received bytes. Raise ReconcileError if the session is over or a limit is exceeded."""
        if self.is_done:
            raise ReconcileError("the session has ended. Create another session")
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
                    f"the session reached {spent} {what}, the maximum is {allowed}. Transfer the found posts and "
                    "begin another session"
                )

    @staticmethod
    def _first_seen(ids: Sequence[SyncID], seen: set[SyncID]) -> list[SyncID]:
        """Return the ids that are not in `seen`, and add them to `seen`."""
        new = [sync_id for sync_id in ids if sync_id not in seen]
        seen.update(new)
        return new
