"""Moderation for asyncio: roles, and the moderation actions of the user."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from cablestore.aio.arrivals import Arrivals
from cablestore.aio.calls import Mirror, on_reader, on_worker, on_writer
from cablestore.aio.items import Feed
from cablestore.aio.threads import Threads, on_loop
from cablestore.arguments import check_given
from cablestore.errors import StoreClosedError
from cablestore.moderation import Decisions, Seed
from cablestore.remote.store import RemoteItems
from cablestore.store.differences import Difference, ModerationPosition
from cablestore.store.moderator import Moderator


class AsyncModerator(Mirror):
    """Roles and moderation actions. Use `AsyncCableStore.moderation`; the methods are those of `Moderator`."""

    _blocking: Moderator

    def __init__(self, blocking: Moderator, threads: Threads, arrivals: Arrivals) -> None:
        """Use `AsyncCableStore.moderation`."""
        super().__init__(blocking, threads)
        self._arrivals = arrivals

    set_role = on_writer(Moderator.set_role)
    hide = on_writer(Moderator.hide)
    unhide = on_writer(Moderator.unhide)
    drop = on_writer(Moderator.drop)
    undrop = on_writer(Moderator.undrop)
    block = on_writer(Moderator.block)
    unblock = on_writer(Moderator.unblock)
    join_with_seed = on_writer(Moderator.join_with_seed)
    revoke_seed = on_writer(Moderator.revoke_seed)
    sweep = on_worker(Moderator.sweep)

    in_force = on_reader(Moderator.in_force)
    history = on_reader(Moderator.history)
    own_acts = on_reader(Moderator.own_acts)
    user_drop = on_reader(Moderator.user_drop)
    dropped_post = on_reader(Moderator.dropped_post)
    contexts = on_reader(Moderator.contexts)
    since = on_reader(Moderator.since)

    @property
    def is_sweeping(self) -> bool:
        """True if dropped posts remain to be removed."""
        return self._blocking.is_sweeping

    @property
    def decisions(self) -> Decisions | None:
        """Decisions that apply now. The object does not change. None if the store is not moderated."""
        return self._blocking.decisions

    @property
    def seed(self) -> Seed | None:
        """Moderation seed with which the store joined, even if it was revoked. None if it joined without a seed."""
        return self._blocking.seed

    @property
    def position(self) -> ModerationPosition:
        """Current position, after which `since` returns the changes."""
        return self._blocking.position

    def follow(self, timeout_s: float | None = None) -> Feed[Difference, Any]:
        """Yield each later change of a role, or of hiding, dropping or blocking: see `Moderator.follow`."""
        check_given(timeout_s=timeout_s)
        coming = self._blocking.follow(timeout_s)
        if isinstance(coming, RemoteItems):
            return Feed(coming, _next_part)

        async def after(position: ModerationPosition) -> tuple[list[Difference], ModerationPosition] | None:
            if position.moderation is None or not await self._arrivals.wait(position.sequence, timeout_s):
                return None
            try:
                return await self.since(position)
            except StoreClosedError:
                return None

        return Feed(self.position, after)


async def _next_part(coming: RemoteItems[Difference]) -> tuple[list[Difference], RemoteItems[Difference]] | None:
    """Wait for the next items of `coming`, which another process yields. Return (items, `coming`), None at the end."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    coming.when_ready(partial(on_loop, loop, came.set))
    if not coming.is_ready:
        await came.wait()
    found = coming.next_part()
    return (found, coming) if found else None
