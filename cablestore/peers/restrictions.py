"""Restrictions: the prohibitions of moderation, as of the last read of the store (moderation.md 4.6, 5.1).

Only public actions disconnect and restrict peers, so that private actions are not disclosed. All actions determine the
channels that the node does not request, because peers can at most notice missing requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from cablestore.errors import StoreClosedError
from cablestore.index.drops import AppliedDrops, stored_drops
from cablestore.index.reader import Reader
from cablestore.moderation import Action, Decisions, ModerationAct, act_of, blocks_in_force
from cablestore.peers.audience import EVERYONE, Audience, BlockBook
from cablestore.peers.live_changes import LiveChange, Subject
from cablestore.peers.threads import ReadThread
from cablestore.protocol.body import BLOCK, MODERATION, UNBLOCK, Block
from cablestore.protocol.post import Post
from cablestore.store.store import CableStore
from cablestore.views import moderation

_LOG: Final = logging.getLogger("cablestore.node")
_ON_MODERATION: Final = frozenset({Subject.MODERATION, Subject.MODERATION_AGAIN, Subject.CONSENT, Subject.PRIVATE})

_SHARE: Final = 0.1
"""Maximum share of the reading thread's time for reading the restrictions, because anyone can write actions."""


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Prohibitions of moderation at one moment."""

    book: BlockBook = field(default_factory=BlockBook)
    channels: frozenset[str] = frozenset()
    """Dropped channels: they are not requested, and their names are not sent."""
    refused: frozenset[tuple[bytes, bytes]] = frozenset()
    """Causes of rejected posts, as pairs: a drop's key and its action, or a user and whether that user is blocked or
    blocks the local user.
    """


class RestrictionKeeper:
    """The restrictions of a node. Use it on the loop. `now` and `audience` are usable in any thread."""

    def __init__(self, store: CableStore, reads: ReadThread, changed: Callable[[frozenset[str], bool], None]) -> None:
        """`changed` is called with the newly dropped channels, and with True if rejected posts may be admitted now."""
        self._store = store
        self._reads = reads
        self._changed = changed
        self._read_from: tuple[Decisions | None, ...] = ()
        """The decisions that the last two reads used."""
        self.failure = ""
        """The error of the last read, or "". After an error, the earlier restrictions still apply."""
        self._is_eased = False
        self._newly_blocked: set[bytes] = set()
        """Users that the local user blocked while the node ran. A concurrent read may have missed them."""
        self._loop = asyncio.get_running_loop()
        self._waits: asyncio.TimerHandle | None = None
        self._not_before_s = 0.0
        self.now = Restrictions()

    def audience(self, static: bytes | None) -> Audience:
        """Return the rights of the peer with this static key, None for an unknown peer."""
        return EVERYONE if static is None else self.now.book.audience(static)

    def are_outdated(self) -> bool:
        """Return True if the actions in force may have changed since the last read, or if that read failed.

        Decisions change just before their rows, so the first read after a change may miss the rows. Therefore, two reads
        must have used the present decisions.
        """
        now = self._store.moderation.decisions
        return self._read_from != (now, now) or bool(self.failure)

    def on_changes(self, changes: Iterable[LiveChange]) -> None:
        """Read the restrictions again if moderation actions are among the changes.

        The read may be delayed. Until then, a newly blocked peer receives only the notice of the block.
        """
        acts = [item for item in changes if item.subject in _ON_MODERATION]
        if acts:
            posts = [item.post for item in acts if item.post is not None]
            blocked = [user for post in posts if isinstance(post.body, Block) for user in post.body.recipients]
            self._newly_blocked.update(filter(self._block_of, blocked))
            self._keep_out()
            self._is_eased |= any(map(self._lets_in, posts))
            self.read_soon()

    def _keep_out(self) -> None:
        """Withhold all posts except the notice from newly blocked users, unless they are unblocked meanwhile."""
        for user in list(self._newly_blocked):
            act = self._block_of(user)
            if act is not None:
                self.now.book.block(user, is_notified=act.notifies)

    def _block_of(self, user: bytes) -> ModerationAct | None:
        decisions = self._store.moderation.decisions
        return None if decisions is None else decisions.blocked_by(user, public=True)

    def _lets_in(self, post: Post) -> bool:
        """Return True if an action may admit rejected posts: it undoes another action, which may not be stored here."""
        decisions, act = self._store.moderation.decisions, act_of(post)
        if decisions is None or act is None or not _undoes(act):
            return False
        return act.is_private or decisions.role(act.author, act.channel).has_authority

    def read_soon(self) -> None:
        """Read the restrictions now, or later if reads take long, so that other jobs get their turn."""
        if self._waits is None:
            self._waits = self._loop.call_at(self._not_before_s, self.read)

    def read(self) -> asyncio.Future[Restrictions]:
        """Read the restrictions now. Later answers apply them. Return a future of the previous restrictions."""
        if self._waits is not None:
            self._waits.cancel()
        self._waits = None
        future = self._reads.begin(self._read)
        future.add_done_callback(self._has_read)
        return future

    def _read(self, reader: Reader) -> Restrictions:
        """Read the restrictions in the reading thread, whose later answers apply them. Return the previous ones."""
        began_s = self._loop.time()
        decisions = self._store.moderation.decisions
        try:
            before, self.now = self.now, read_restrictions(reader, decisions)
            self._keep_out()
        finally:
            now_s = self._loop.time()
            self._not_before_s = now_s + (now_s - began_s) / _SHARE
        self._read_from = (*self._read_from[-1:], decisions)
        return before

    def close(self) -> None:
        """Stop reading."""
        if self._waits is not None:
            self._waits.cancel()

    def _has_read(self, future: asyncio.Future[Restrictions]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._note(error)
            return
        self.failure = ""
        before, is_eased = future.result(), self._is_eased
        self._is_eased = False
        self._changed(self.now.channels - before.channels, is_eased or not before.refused <= self.now.refused)

    def _note(self, error: BaseException) -> None:
        """Log an error once while it persists. An error of the first read is not logged: it ends the node."""
        is_new = self.failure != str(error) and bool(self._read_from)
        self.failure = str(error)
        if is_new and not isinstance(error, StoreClosedError):
            _LOG.error("cannot read the moderation state", extra={"reason": self.failure})


def read_restrictions(reader: Reader, decisions: Decisions | None) -> Restrictions:
    """Read the restrictions of a node from the decisions, the drops, and the public blocks."""
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
        frozenset(AppliedDrops.of_rows(drops).channels),
        frozenset(refused),
    )


def _undoes(act: ModerationAct) -> bool:
    return act.type == UNBLOCK or (act.type == MODERATION and act.what in (Action.UNDROP_POST, Action.UNDROP_CHANNEL))


def _public_blocks(reader: Reader) -> Iterator[ModerationAct]:
    for digest in moderation.blocks(reader):
        post = reader.post(digest)
        act = None if post is None else act_of(post)
        if act is not None:
            yield act
