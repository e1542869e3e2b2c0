"""The quota of a store: its maximum size, and the minimum free space on its disk.

Room is the number of bytes until the nearer of both limits. While it is larger than a margin, all posts are accepted.
Within the margin, a text is accepted if it is new and its channel is followed. At the limit, all texts are rejected.
Other posts are accepted until the limit is exceeded by the size of the margin. Peers at one address may use only a share
of the margin per day, unless this node connected to them. Posts of the local user and of moderators are always accepted.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import CableStoreError
from cablestore.files import disk_usage
from cablestore.index.folder import SEARCH_FILES
from cablestore.index.reader import Reader
from cablestore.peers.lifetime import Lifetime
from cablestore.peers.settings import NodeSettings
from cablestore.peers.threads import ReadThread, WriteThread, beside_loop
from cablestore.protocol.body import TEXT
from cablestore.protocol.post import Post
from cablestore.store import answers
from cablestore.store.store import CableStore
from cablestore.views import membership

_DAY_MS: Final = 86_400_000
_ROWS_SIZE_BYTES: Final = 1_000
"""Approximate size of the rows of one post, without the post itself."""
_PARTS: Final = 16
"""Divisor of the margin. The result is the growth after which the store is measured again, and the reserve that is
necessary to leave a state.
"""


class QuotaState(StrEnum):
    """State of the quota, by the room that is left."""

    OFF = "off"
    """The store has no quota."""
    OK = "ok"
    NEAR = "near"
    """Texts are accepted only if they are new and in a followed channel. Other posts are accepted."""
    FULL = "full"
    """Texts are rejected. Other posts are accepted."""
    EXCEEDED = "exceeded"
    """Only posts of the local user and of moderators are accepted."""


_ORDER: Final = (QuotaState.OFF, QuotaState.OK, QuotaState.NEAR, QuotaState.FULL, QuotaState.EXCEEDED)


class QuotaLimits(NamedTuple):
    """Maximum size of the store's folder, and minimum free space on its disk. 0 means unlimited."""

    max_store_size_bytes: int = 0
    min_free_space_bytes: int = 0

    @property
    def margin_bytes(self) -> int:
        """If less room than this is left, only some posts are accepted. It is a part of the smaller limit."""
        given = [each for each in self if each]
        return int(min(given, default=0) * limits.QUOTA_MARGIN)


def quota_limits(settings: NodeSettings) -> QuotaLimits:
    """Return the limits in the settings of a node."""
    return QuotaLimits(settings.max_store_size_bytes, settings.min_free_space_bytes)


class Quota:
    """The quota of a node. Use it on the loop."""

    def __init__(
        self,
        store: CableStore,
        reads: ReadThread,
        writes: WriteThread,
        life: Lifetime,
        given: QuotaLimits,
        followed: frozenset[str] | None,
        eased: Callable[[], None],
    ) -> None:
        """`followed` are the channels in the settings, if any. `eased` is called when more posts become acceptable."""
        self._store = store
        self._reads = reads
        self._writes = writes
        self._life = life
        self._folder: Path | None = store.path
        self._limits = given
        self._chosen = followed
        self._eased = eased
        self._joined: frozenset[str] = frozenset()
        self._joined_read_s = -math.inf
        self._used: OrderedDict[str, int] = OrderedDict()
        """Bytes of the margin that each address has used today."""
        self._day = 0
        self._accepted_bytes = 0
        """Approximate growth of the store since the last measurement."""
        self._measured_s = 0.0
        self._measuring: asyncio.Task[None] | None = None
        self.room_bytes: int | None = None
        """Bytes until the limit, negative beyond it. None without a limit."""
        self.state = QuotaState.OFF

    def change(self, given: QuotaLimits) -> None:
        """Change the limits. If they differ, measure at the next `check`."""
        if given != self._limits:
            self._limits, self._measured_s = given, -math.inf

    @property
    def is_limited(self) -> bool:
        """True if the store has a limit."""
        return self._folder is not None and any(self._limits)

    async def measure(self) -> None:
        """Measure the store and its disk, and set `state` and `room_bytes` accordingly."""
        self._measured_s, self._accepted_bytes = self._life.loop.time(), 0
        if not self.is_limited or self._folder is None:
            self._set(QuotaState.OFF, None)
            return
        folder, queued_size_bytes = self._folder, self._writes.queued_size_bytes
        usage = await beside_loop(
            lambda: disk_usage(folder, omitted=SEARCH_FILES)
        )  # the index grows when somebody searches
        if usage is None:  # the next write reports the error
            return
        most, least = self._limits
        rooms = [most - usage.store_size_bytes] if most else []
        rooms += [usage.free_size_bytes - least] if least else []
        # The measured size may lack posts that were waiting before, or were accepted meanwhile.
        room = min(rooms) - queued_size_bytes - self._accepted_bytes
        is_known = self._measured_s < self._joined_read_s + limits.QUOTA_MEASURED_EVERY_S
        if room <= self._limits.margin_bytes and self._chosen is None and not is_known:
            self._joined, self._joined_read_s = await self._joined_channels(), self._measured_s
        self._set(self._state_of(room), room)

    async def _joined_channels(self) -> frozenset[str]:
        key = self._store.public_key
        if key is None:
            return frozenset()
        try:
            return await self._reads.call(lambda reader: _joined(reader, key))
        except CableStoreError:  # the caller that needs the store reports it
            return self._joined

    def _state_of(self, room: int) -> QuotaState:
        """Return the state for `room` bytes. A state ends only when a reserve is free, so that states do not alternate."""
        margin = self._limits.margin_bytes
        reserve = margin // _PARTS
        for state, least in ((QuotaState.EXCEEDED, -margin), (QuotaState.FULL, 0), (QuotaState.NEAR, margin)):
            is_kept = _ORDER.index(self.state) >= _ORDER.index(state)
            if room <= least + (reserve if is_kept else 0):
                return state
        return QuotaState.OK

    def _set(self, state: QuotaState, room: int | None) -> None:
        before, self.state, self.room_bytes = self.state, state, room
        if _ORDER.index(state) < _ORDER.index(before):
            self._used.clear()
            self._eased()

    def check(self) -> None:
        """Measure again if enough was written, or if the last measurement is old."""
        if self._measuring is not None and not self._measuring.done():
            return
        now_s = self._life.loop.time()
        is_due = now_s >= self._measured_s + limits.QUOTA_MEASURED_EVERY_S
        if is_due or (self.is_limited and self._accepted_bytes > self._limits.margin_bytes // _PARTS):
            self._measuring = self._life.run(self.measure())

    def accept(self, posts: int, size_bytes: int) -> None:
        """Count `posts` posts that are going to be written, `size_bytes` in total. After many posts, measure again."""
        if self.room_bytes is None:
            return
        size_bytes += posts * _ROWS_SIZE_BYTES
        self._accepted_bytes += size_bytes
        self.room_bytes -= size_bytes
        state = self._state_of(self.room_bytes)
        if _ORDER.index(state) > _ORDER.index(self.state):
            self.state = state
        self.check()

    def rejects(self, post: Post, address: str | None, now_ms: int) -> bool:
        """Return True if a post of another user must not be stored now.

        Otherwise count its size. Near the limit, also charge it to the address, if one is given.
        """
        is_rejected = self._rejects(post, address, now_ms)
        if not is_rejected:
            self.accept(1, len(post.raw))
        return is_rejected

    def _rejects(self, post: Post, address: str | None, now_ms: int) -> bool:
        if self.state in (QuotaState.OFF, QuotaState.OK):
            return False
        decisions = self._store.moderation.decisions
        if decisions is not None and decisions.may_have_authority(post.author):
            return False
        is_text = post.type == TEXT
        if self.state is QuotaState.EXCEEDED or (is_text and not self._has_room_for_text(post, now_ms)):
            return True
        return address is not None and not self._has_share(address, len(post.raw), now_ms)

    def _has_share(self, address: str, size_bytes: int, now_ms: int) -> bool:
        """Charge `size_bytes` of the margin to the address. Return False, without a charge, if its share is too small."""
        if self._day != (day := now_ms // _DAY_MS):
            self._day = day
            self._used.clear()
        used = self._used.get(address, 0) + size_bytes
        if used > self._limits.margin_bytes * limits.QUOTA_SHARE:
            return False
        self._used[address] = used
        self._used.move_to_end(address)
        if len(self._used) > limits.MAX_RATES_REMEMBERED:
            self._used.popitem(last=False)
        return True

    def _has_room_for_text(self, post: Post, now_ms: int) -> bool:
        followed = self._chosen if self._chosen is not None else self._joined
        return (
            self.state is QuotaState.NEAR
            and post.timestamp_ms > now_ms - limits.QUOTA_NEWEST_MS
            and (not followed or post.channel in followed)
        )


def _joined(reader: Reader, key: bytes) -> frozenset[str]:
    """Return the channels that a user has joined."""
    found = ((name, membership.of_user(reader, name, key)) for name in answers.channel_list(reader))
    return frozenset(name for name, member in found if member is not None and member.is_member)
