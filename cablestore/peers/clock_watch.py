"""Checks of the system clock: a node detects a clock that is wrong, or that was set while the node runs.

The clock of a machine without a battery starts in 1970, or at the time of the last shutdown. Then new posts are
rejected as too far ahead. When these posts become acceptable, they are requested again from the peers that have them.
The same applies to posts that the policy postponed. If no peer with such a post is known, all channels are requested
again from all peers. This also happens after the clock was set or the machine slept.

Smaller differences are detected from the texts of other users, and logged (`cablestore.store.clock_check`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Final

from cablestore import limits
from cablestore.errors import CableStoreError
from cablestore.index.reader import Reader
from cablestore.peers.context import PeerContext
from cablestore.peers.intake import PostIntake
from cablestore.peers.reconciler import Reconciler
from cablestore.peers.sync import Sync
from cablestore.store.clock_check import clock_difference
from cablestore.views import activity

_JUMP_S: Final = 60.0
"""Minimum change of the system clock, compared with the loop's time, that counts as a jump. Smaller changes do not
matter, because posts may be dated a week ahead.
"""
_REQUEST_EVERY_S: Final = 60.0
"""Minimum time between two requests for the channels of all peers."""
_COMPARE_EVERY_S: Final = 60.0
"""Minimum time between two comparisons of the clock with texts. Another comparison also requires a changed store."""
_WARN_EVERY_S: Final = 86_400.0
_MS_PER_S: Final = 1000
_LAST_DATE_MS: Final = 253_402_300_799_000
"""The last second of the year 9999, after which `datetime` has no dates."""


class ClockWatch:
    """Monitor of the clock of a node. Use it on the loop."""

    def __init__(self, context: PeerContext, intake: PostIntake, sync: Sync, reconciler: Reconciler) -> None:
        self._context = context
        self._early = intake.early
        self._postponed = intake.postponed
        self._sync = sync
        self._reconciler = reconciler
        self._offset_s: float | None = None
        """How much the clock is ahead of the loop's time."""
        self._compared = -1
        """Number of the last event of the store at the last comparison."""
        self._compares_at_s = self._warns_of_difference_at_s = 0.0
        self._requests_again = False
        self._requests_at_s = self._warns_at_s = 0.0
        self._stored = 0
        """Number of stored posts that would be rejected now."""

    def check(self, now_s: float) -> None:
        """Check the clock, and act on changes. `now_s` is the loop's time."""
        now_ms = self._context.store.parts.intake.clock()
        self._notice_jump(now_ms, now_s)
        for due in (self._early.take_due(now_ms), self._postponed.take_due(now_ms)):
            for connection, hashes in due.hashes.items():
                self._sync.fetches.offer_again(connection, hashes)
            self._requests_again |= not due.are_complete
        if self._requests_again and now_s >= self._requests_at_s:
            self._requests_again, self._requests_at_s = False, now_s + _REQUEST_EVERY_S
            self._sync.request_again()
            self._reconciler.compare_again()
        if (self._early or self._stored) and now_s >= self._warns_at_s:
            self._warns_at_s = now_s + _WARN_EVERY_S
            self._context.log.warning(
                "posts are dated in the future. Check the clock",
                extra={"clock": _utc(now_ms), "refused": len(self._early), "stored": self._stored},
            )
        if now_s >= self._compares_at_s and self._context.store.last_sequence != self._compared:
            self._compares_at_s, self._compared = now_s + _COMPARE_EVERY_S, self._context.store.last_sequence
            self._context.life.run(self._compare(now_ms, now_s))

    def _notice_jump(self, now_ms: int, now_s: float) -> None:
        before_s, self._offset_s = self._offset_s, now_ms / _MS_PER_S - now_s
        by_s = None if before_s is None else self._offset_s - before_s
        if by_s is not None and abs(by_s) < _JUMP_S:
            return
        self._context.life.run(self._check_store())
        if by_s is not None:
            self._context.log.warning(
                "the clock was set, or the machine slept", extra={"clock": _utc(now_ms), "by_s": round(by_s)}
            )
            self._requests_again = True
            self._requests_at_s = self._warns_at_s = self._warns_of_difference_at_s = 0.0
            self._compares_at_s, self._compared = 0.0, -1

    async def _compare(self, now_ms: int, now_s: float) -> None:
        """Warn if the texts of other users show that the clock is wrong."""
        ask = partial(clock_difference, own_key=self._context.store.public_key, now_ms=now_ms)
        try:
            found = await self._context.reads.call(ask)
        except CableStoreError:  # the caller that needs the store reports it
            return
        if found is not None and now_s >= self._warns_of_difference_at_s:
            self._warns_of_difference_at_s = now_s + _WARN_EVERY_S
            self._context.log.warning(
                "the clock differs from the clocks of other users. Check the clock",
                extra={"clock": _utc(now_ms), "ahead_s": found.ahead_ms // _MS_PER_S, "users": found.users},
            )

    async def _check_store(self) -> None:
        """Count the stored posts that would be rejected as too far ahead now."""

        def count(reader: Reader) -> int:
            first_ms = self._context.store.parts.intake.clock() + limits.MAX_FUTURE_MS + activity.DAY_MS
            return sum(activity.between(reader, first_ms, max(first_ms, limits.MAX_TIMESTAMP_MS) + 1))

        try:
            self._stored = await self._context.reads.call(count)
        except CableStoreError:  # the caller that needs the store reports it
            self._stored = 0


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(min(time_ms, _LAST_DATE_MS) / _MS_PER_S, UTC).isoformat(timespec="seconds")
