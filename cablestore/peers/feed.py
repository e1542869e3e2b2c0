"""The feed of a node: it follows the arrival log, and passes changes to the live requests of peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from cablestore.aio.threads import on_loop
from cablestore.errors import CableStoreError, CorruptStoreError, StoreClosedError
from cablestore.peers.connection import Connection
from cablestore.peers.context import PeerContext
from cablestore.peers.live import LiveRequests
from cablestore.peers.live_changes import LiveChange, changes_of

_LOG: Final = logging.getLogger("cablestore.node")
_MAX_ENTRIES: Final = 200
"""Maximum number of log entries in one read, so that answers to peers do not wait long for the reading thread."""
_RETRY_S: Final = 1.0
"""Pause after a temporary failure to read changes, such as too many open files."""


class Feed:
    """Follower of the arrival log. Use it on the loop. Only `_wrote` runs in the thread that wrote.

    Entries are skipped while no peers are connected, or if damaged.
    """

    has_skipped = False
    """True if entries were skipped since this was last set to False."""

    def __init__(
        self,
        context: PeerContext,
        connections: Collection[Connection],
        live: LiveRequests,
        deliver: Callable[[list[LiveChange]], None],
    ) -> None:
        """`deliver` is called with the changes for the peers of `connections`."""
        self._context = context
        self._engine = context.store.parts.engine
        self._connections = connections
        self._live = live
        self._deliver = deliver
        self.reached = context.store.last_sequence
        """Last entry whose changes were passed to `deliver`, or skipped."""
        self.failure = ""
        """Why changes cannot be announced, or why some changes were skipped. Connected peers do not receive skipped
        changes."""
        self._has_lost = False
        self._woken = asyncio.Event()
        self._unwatch = context.store.watch(self._wrote)

    def close(self) -> None:
        """Stop watching the store. Callable in any thread."""
        self._unwatch()

    def _wrote(self) -> None:
        if not self._woken.is_set():
            on_loop(self._context.loop, self._woken.set)

    async def follow(self) -> None:
        """Pass changes to `deliver`, until the node stops or the store is closed."""
        while not self._engine.is_closed:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._catch_up()
            except StoreClosedError:
                return
            except CableStoreError as error:
                self._note(error)
                await asyncio.sleep(_RETRY_S)
                self._woken.set()

    async def _catch_up(self) -> None:
        until = 0
        """Entries up to this number are read one by one, because one of them cannot be read."""
        # The last entry is read before `connections`: a peer that connects later requests these posts itself.
        while self.reached < (last := self._engine.next_sequence - 1):
            if not self._connections:
                self.reached = last
                self.has_skipped = True
                return
            is_single = self.reached < until
            read = partial(
                changes_of,
                after=self.reached,
                state_channels=self._live.state_channels,
                own_key=self._context.store.public_key,
                most=1 if is_single else _MAX_ENTRIES,
            )
            try:
                found, self.reached = await self._context.reads.begin(read)
            except CorruptStoreError as error:
                until = last
                if is_single:
                    self._note(error)
                    self._has_lost = True
                    self.reached += 1
                continue
            if found:
                self._context.loop.call_soon(self._deliver, found)  # an error there does not end the task
            if not self._has_lost:
                self.failure = ""

    def _note(self, error: CableStoreError) -> None:
        """Log an error, unless it repeats the last error: each of a thousand entries may cause it."""
        if self.failure != str(error):
            self.failure = str(error)
            _LOG.error("cannot announce new posts to peers", extra={"reason": self.failure})
