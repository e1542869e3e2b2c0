"""Saving of marks while a node runs, for at most about one percent of the time."""

from __future__ import annotations

from typing import Final

from cablestore.peers.context import PeerContext

_PAUSE_PER_SAVE: Final = 100
"""Factor by which the pause after a save is longer than the save."""


class MarkSaver:
    """Saver of the marks of one node. It does not block the loop."""

    def __init__(self, context: PeerContext) -> None:
        self._context = context
        self._next_s = 0.0

    def check(self, now_s: float) -> None:
        """Save the marks if the pause has ended."""
        if now_s >= self._next_s:
            self._next_s = float("inf")
            self._context.life.run(self._save(now_s))

    async def _save(self, began_s: float) -> None:
        await self._context.save_marks()
        ended_s = self._context.loop.time()
        self._next_s = ended_s + _PAUSE_PER_SAVE * (ended_s - began_s)
