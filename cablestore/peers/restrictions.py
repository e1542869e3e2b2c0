"""Restrictions: what moderation forbids a node, as of the state of the store that was read last (moderation.md 4.6, 5.1).

Which peers are cut off or do not get everything follows from public acts alone, so that nobody learns of private ones.
What the node does not ask for follows from all acts: peers see missing requests at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cablestore.index.drops import Drops, stored_drops
from cablestore.index.reader import Reader
from cablestore.moderation import Decisions, ModerationAct, act_of, blocks_in_force
from cablestore.peers.audience import EVERYONE, Audience, BlockBook
from cablestore.peers.threads import ReadThread
from cablestore.protocol.body import BLOCK
from cablestore.store.store import CableStore
from cablestore.views import moderation

Readings = tuple["Restrictions", "Restrictions"]
"""The restrictions before a reading and after it."""


@dataclass(frozen=True, slots=True)
class Restrictions:
    """What moderation forbids at one moment."""

    book: BlockBook = field(default_factory=BlockBook)
    channels: frozenset[str] = frozenset()
    """Channels that are dropped: nobody is asked for them, and nobody is told their names."""
    refused: frozenset[tuple[bytes, bytes]] = frozenset()
    """What makes the store refuse posts: keys of drops with their acts, users who block the local one or are blocked."""

    def are_eased_by(self, later: Restrictions) -> bool:
        """Tell whether posts that were refused may be welcome later."""
        return not self.refused <= later.refused


class RestrictionKeeper:
    """The restrictions of a node. On the loop; any thread may look at them."""

    def __init__(
        self, store: CableStore, reads: ReadThread, changed: Callable[[Restrictions, Restrictions], None]
    ) -> None:
        """`changed` gets the restrictions before and after each reading."""
        self._store = store
        self._reads = reads
        self._changed = changed
        self._read_from: tuple[Decisions | None, ...] = ()
        """The decisions that the last two readings were made from."""
        self.now = Restrictions()

    def audience(self, static: bytes | None) -> Audience:
        """Return what the peer with this static key may get, None for a peer that is not known."""
        return EVERYONE if static is None else self.now.book.audience(static)

    def are_outdated(self) -> bool:
        """Tell whether other acts may apply than when the restrictions were read.

        Decisions are there just before the rows that belong to them: the first reading after a change may miss those.
        """
        now = self._store.moderation.decisions
        return self._read_from != (now, now)

    def read_soon(self) -> asyncio.Future[Readings]:
        """Read them. Requests that are answered after this call are answered by what is read."""
        future = self._reads.begin(self._read)
        future.add_done_callback(self._has_read)
        return future

    def _read(self, reader: Reader) -> Readings:
        """Read the restrictions, in the thread that reads: answers that it reads later keep to them."""
        decisions = self._store.moderation.decisions
        self._read_from = (*self._read_from[-1:], decisions)
        before, self.now = self.now, read_restrictions(reader, decisions)
        return before, self.now

    def _has_read(self, future: asyncio.Future[Readings]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._changed(*future.result())


def read_restrictions(reader: Reader, decisions: Decisions | None) -> Restrictions:
    """Read what moderation forbids a node: the decisions, the drops, and who blocks whom."""
    pairs = blocks_in_force(_public_blocks(reader))
    if decisions is None:
        return Restrictions(BlockBook(pairs))
    drops = dict(stored_drops(reader))
    own = {blocked: decisions.blocked_by(blocked, public=True) for _, blocked in pairs}
    refused = {(key, drop.act) for key, drop in drops.items()}
    refused |= {(judged.target, b"blocked") for judged in decisions.in_force() if judged.act.type == BLOCK}
    refused |= {(user, b"blocks us") for user in {by for by, _ in pairs} if decisions.blocks_own_user(user)}
    return Restrictions(
        BlockBook(pairs, {user: act.notifies for user, act in own.items() if act is not None}),
        frozenset(Drops.of_rows(drops).channels),
        frozenset(refused),
    )


def _public_blocks(reader: Reader) -> Iterator[ModerationAct]:
    for digest in moderation.blocks(reader):
        post = reader.post(digest)
        act = None if post is None else act_of(post)
        if act is not None:
            yield act
