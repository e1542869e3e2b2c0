"""A question to a peer that is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from cablestore.protocol.exchange import Asker, Exchange, Step


class Question(Asker):
    """A request whose hashes or names are collected; `done` when nothing more comes.

    With `hand_on`, hashes are handed on as they come instead.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, hand_on: Callable[[Sequence[bytes]], None] | None = None
    ) -> None:
        self.hashes: list[bytes] = []
        self.names: tuple[str, ...] = ()
        self.done: Final[asyncio.Future[Step]] = loop.create_future()
        self._hand_on = hand_on or self.hashes.extend

    def on_hashes(self, hashes: tuple[bytes, ...]) -> None:
        """Keep hashes, or hand them on."""
        self._hand_on(hashes)

    def on_names(self, names: tuple[str, ...]) -> None:
        """Keep names."""
        self.names = names

    def on_concluded(self, exchange: Exchange, step: Step) -> None:  # noqa: ARG002 - it has asked one thing only
        """Nothing more comes."""
        if not self.done.done():
            self.done.set_result(step)
