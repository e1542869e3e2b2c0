"""Coverage: the posts that reconciliation compares over one connection, which are then not requested over Cable.

A comparison covers one state of each store. Later posts are announced to live requests. So a live request for compared
posts needs no history. It is answered from the arrival log, from the entry at which the compared state was read. Each
side sends SNAPSHOT when it has read that state. Older versions do not send it, and exchange the history.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from cablestore.index.log_position import LogPosition
from cablestore.protocol.message import ModerationRequest, Request, StateRequest, TimeRangeRequest
from cablestore.reconcile.messages import SNAPSHOT, Terms


class Coverage:
    """Coverage of one connection, as one side knows it. Use it on the loop."""

    def __init__(self) -> None:
        self._terms: Terms | None = None
        """The terms of the present or last comparison. None before the first comparison, and after a failed
        comparison."""
        self._place: LogPosition | None = None
        """The position of the first compared state in the arrival log."""
        self._is_known_there = False
        self._is_under_way = False
        self._has_failed = False
        self._changed = asyncio.Event()

    # --- results of comparisons -----------------------------------------------------------------

    def begin(self) -> None:
        """Record the start of a comparison."""
        self._is_under_way = True
        self._changed.set()

    def read(self, terms: Terms, place: LogPosition) -> list[bytes]:
        """Record that the compared state was read at `place`. Return the frames that announce it to the peer.

        A comparison without an end time replaces the coverage. A comparison that ends where the coverage begins extends
        it. Other comparisons do not change it.
        """
        if terms.until_ms is None:
            self._terms, self._place, self._has_failed = terms, place, False
        elif self._terms is not None and terms.until_ms == self._terms.from_ms:
            self._terms = self._terms._replace(from_ms=terms.from_ms)
        else:
            return []
        self._changed.set()
        return [SNAPSHOT]

    def end(self, *, failed: bool) -> None:
        """Record the end of a comparison. If it failed, nothing is covered until the next comparison."""
        self._is_under_way = False
        if failed:
            self._terms, self._has_failed = None, True
        self._changed.set()

    def known_there(self) -> None:
        """Record that the peer has read its state, and answers live requests from that state."""
        self._is_known_there = True
        self._changed.set()

    # --- covered posts --------------------------------------------------------------------------

    def has(self, channel: str) -> bool:
        """Return True if posts of a channel are compared, and the peer answers live requests without history."""
        return self._is_known_there and self._terms is not None and _names(self._terms, [channel])

    def reaches(self, channel: str, start_ms: int) -> bool:
        """Return True if all posts of a channel since `start_ms` are compared."""
        return self._terms is not None and _names(self._terms, [channel]) and self._terms.from_ms <= start_ms

    @property
    def is_all(self) -> bool:
        """True if all posts of all channels are compared."""
        return self._terms is not None and self._terms.channels is None and not self._terms.from_ms

    @property
    def from_ms(self) -> int:
        """Start of the compared time range, 0 if nothing is covered."""
        return self._terms.from_ms if self._terms is not None else 0

    def since(self, request: Request) -> LogPosition | None:
        """Return the position in the arrival log from which to answer a live request, None to send the history."""
        if not request.is_live or not self._is_known_there or self._terms is None:
            return None
        match request:
            case TimeRangeRequest(_, channel, start_ms):
                channels = [channel]
            case StateRequest(_, channel):
                channels, start_ms = [channel], 0
            case ModerationRequest(_, names, _, start_ms):
                channels = list(names)
            case _:
                return None
        is_covered = _names(self._terms, channels) and self._terms.from_ms <= start_ms
        return self._place if is_covered else None

    # --- waiting --------------------------------------------------------------------------------

    async def shared(self, timeout_s: float) -> None:
        """Wait until both sides have read the compared state.

        Return earlier if a comparison fails, or if no comparison is under way for `timeout_s`.
        """
        while not self._has_failed and not (self._is_known_there and self._terms is not None):
            if not await self._change(timeout_s):
                return

    async def rest(self, timeout_s: float) -> None:
        """Wait until no comparison is under way for `timeout_s`, or until a comparison fails."""
        while not self._has_failed and await self._change(timeout_s):
            pass
        self._has_failed = False

    async def failure(self) -> None:
        """Wait until a comparison fails."""
        while not self._has_failed:
            await self._change(None)
        self._has_failed = False

    async def _change(self, timeout_s: float | None) -> bool:
        """Wait for a change of the coverage. Return False if none occurs for `timeout_s` without a comparison."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._is_under_way else timeout_s):
                await self._changed.wait()
        return self._changed.is_set()


def _names(terms: Terms, channels: list[str]) -> bool:
    return terms.channels is None or terms.channels.issuperset(channels)
