"""Blocks of one user: the start of the present block, and the end of the drops (moderation.md 4.6, 5.1.4).

The actions on the user are applied in order of (timestamp, hash), each to the state after the earlier actions:

* Actions of the local user take effect. Actions of other users take effect if they are applicable (4.4.3, 4.4.5) and
  the local user has no earlier relevant action (4.4.5 rule 1). An overruled action changes nothing.
* A block with `drop=1` that takes effect drops all posts of the user (5.1.4). The drop ends with the first later
  unblock that takes effect, or by which the author of the block undoes it (4.4.2).
* When the drop ends, posts dated up to the unblock stay dropped (5.1.5). Later unblocks do not change that.
* An unblock with `undrop=1` removes the drops that it undoes, including drops that have already ended.
* A block with `drop=0` does not drop posts. If its author is the local user, it also removes the drops of others
  (5.1.4, 4.4.5 rule 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cablestore.protocol.acts import ModerationAct
from cablestore.protocol.body import BLOCK


class UserDrop(NamedTuple):
    """A drop of a user: the post/block that drops, and until when the user's posts are dropped.

    `until_ms` is None while the block is in force: all posts are dropped. After an unblock, posts dated up to the
    unblock stay dropped (5.1.5, undrop = 0), and later posts are stored.
    """

    act: ModerationAct
    until_ms: int | None

    def covers(self, timestamp_ms: int) -> bool:
        """Return True if a post of the user with this timestamp is dropped."""
        return self.until_ms is None or timestamp_ms <= self.until_ms


class BlockState(NamedTuple):
    """State of the blocks of one user after all actions on it.

    `in_force` is the post/block or post/unblock in force, `since_ms` the start of the present uninterrupted block.
    `drops` contains an entry for each block that drops posts. The last entry covers all posts of the other entries.
    """

    in_force: ModerationAct | None = None
    since_ms: int | None = None
    drops: tuple[UserDrop, ...] = ()

    @property
    def block(self) -> ModerationAct | None:
        """The post/block in force, None if the user is not blocked."""
        return self.in_force if self.in_force is not None and self.in_force.type == BLOCK else None

    @property
    def drop(self) -> UserDrop | None:
        """The drop that covers all dropped posts, None if the user's posts are not dropped."""
        return self.drops[-1] if self.drops else None


def resolve_blocks(actions: Iterable[tuple[ModerationAct, bool]], own_key: bytes) -> BlockState:
    """Return the state of one user's blocks after `actions`: (action on the user, True if it can take effect).

    An action can take effect if it is the local user's or applicable (4.4.3, 4.4.5).
    """
    timeline = _Timeline(own_key)
    for act, is_applicable in sorted(actions, key=lambda action: action[0].moment):
        timeline.apply(act, is_applicable)
    drops = sorted(timeline.drops, key=lambda drop: (drop.until_ms is None, drop.until_ms or 0, drop.act.moment))
    return BlockState(timeline.in_force, timeline.since_ms, tuple(drops))


class _Timeline:
    """State of the blocks and drops of one user after the last applied action."""

    def __init__(self, own_key: bytes) -> None:
        self._own = own_key
        self._relevant: dict[tuple[bytes, bool], ModerationAct] = {}
        """The latest relevant and applicable action, by (author, True if it is private)."""
        self.in_force: ModerationAct | None = None
        self.since_ms: int | None = None
        self.drops: list[UserDrop] = []

    def apply(self, act: ModerationAct, is_applicable: bool) -> None:
        self._relevant = {slot: old for slot, old in self._relevant.items() if not _undoes(act, old)}
        if is_applicable:
            self._relevant[act.author, act.is_private] = act
        self.in_force = self._find_in_force()
        if self.in_force is None or self.in_force.type != BLOCK:
            self.since_ms = None
        elif self.since_ms is None:
            self.since_ms = act.timestamp_ms
        if act.type != BLOCK:
            takes_effect = self.in_force == act
            self.drops = [left for drop in self.drops if (left := _after_unblock(drop, act, takes_effect))]
        elif act.author == self._own or self.in_force == act:
            self._block(act)

    def _find_in_force(self) -> ModerationAct | None:
        """Return the latest action of the local user, otherwise the latest action of others (4.4.5), otherwise None.

        A private block of the local user takes precedence (4.5.1).
        """
        private = self._relevant.get((self._own, True))
        if private is not None and private.type == BLOCK:
            return private
        own = [act for act in (private, self._relevant.get((self._own, False))) if act is not None]
        return max(own or self._relevant.values(), key=lambda act: act.moment, default=None)

    def _block(self, act: ModerationAct) -> None:
        if act.drops:
            self.drops.append(UserDrop(act, None))
        elif act.author == self._own:
            self.drops = [drop for drop in self.drops if drop.act.author == self._own]


def _undoes(act: ModerationAct, old: ModerationAct) -> bool:
    """Return True if `act` undoes `old`: same author, opposite type, and private if `old` is private (4.4.2, 4.5.1)."""
    return act.author == old.author and act.type != old.type and (act.is_private or not old.is_private)


def _after_unblock(drop: UserDrop, unblock: ModerationAct, takes_effect: bool) -> UserDrop | None:
    """Return what remains of `drop` after `unblock`, None if nothing does.

    `takes_effect` is True if `unblock` is the action in force on the user.
    """
    if not takes_effect and not _undoes(unblock, drop.act):
        return drop
    if unblock.drops:
        return None
    return UserDrop(drop.act, unblock.timestamp_ms) if drop.until_ms is None else drop
