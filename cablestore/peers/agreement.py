"""Agreement of two stores: both sides know whether their stores are in step, until either store changes.

The side that connected compares all common posts. If its store did not change meanwhile, it sends EQUAL. The other side
answers EQUAL if its store did not change either, else CHANGED. A side that sent EQUAL sends CHANGED when its posts
change. So both sides always know if the result of the last complete comparison still holds.

Versions before 0.13 ignore these frames. When such a peer announces a new post, storing the post ends the agreement.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cablestore.index.log_position import LogPosition
from cablestore.reconcile.messages import CHANGED, EQUAL


class Agreement:
    """Agreement over one connection, as one side knows it. It does no I/O. Only `ended` belongs to an event loop."""

    def __init__(self) -> None:
        self._place: LogPosition | None = None
        """The log position of the store when it was compared. None before a comparison and after a change."""
        self._is_claimed = False
        """True if this side has sent EQUAL and the agreement has not ended since."""
        self._is_in_step: bool | None = None
        self.ended: Final = asyncio.Event()
        """Set when the agreement ends, or when a comparison does not lead to an agreement."""

    @property
    def has_place(self) -> bool:
        """True if the store was compared and no later change is known."""
        return self._place is not None

    def is_in_step(self, place: LogPosition) -> bool | None:
        """Return `Peer.is_in_step` for a store at this log position: None before the first comparison."""
        return self._is_in_step and self._place == place

    def compared(self, compared: LogPosition | None, place: LogPosition) -> list[bytes]:
        """Record a comparison of the state at `compared`. The store is at `place` now. Return the frames for the peer.

        An earlier agreement ends if the store has changed since: this comparison may cover only the recent posts.
        """
        if compared != place:
            return self._end()
        frames = self.changed(place)
        self._place = place
        return frames

    def claim(self, *, is_certain: bool) -> list[bytes]:
        """Return the frame that states that the stores are equal, or [] if this store has changed.

        `is_certain` is True if no posts were sent to the peer. Then the stores are in step at once.
        """
        if self._place is None:
            return []
        self._is_claimed = True
        if is_certain:
            self._is_in_step = True
        return [EQUAL]

    def peer_is_equal(self, place: LogPosition, *, answers: bool) -> list[bytes]:
        """Record that the peer found the stores equal. Return the frame that answers the peer, [] without `answers`."""
        if self._place != place:
            return [CHANGED] if answers else []
        self._is_in_step = True
        self._is_claimed |= answers
        return [EQUAL] if answers else []

    def peer_changed(self) -> None:
        """Record that the peer's store changed since the comparison."""
        self._place, self._is_claimed = None, False
        self._is_in_step = self._is_in_step and False
        self.ended.set()

    def changed(self, place: LogPosition) -> list[bytes]:
        """End the agreement if the store was compared at a log position other than `place`. Return frames to send."""
        return [] if self._place in (None, place) else self._end()

    def failed(self) -> list[bytes]:
        """Record that a comparison failed. Return the frames for the peer."""
        frames = self._end()
        self._is_in_step = False
        return frames

    def _end(self) -> list[bytes]:
        frames = [CHANGED] if self._is_claimed else []
        self.peer_changed()
        return frames
