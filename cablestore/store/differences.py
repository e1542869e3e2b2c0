"""Differences between two states of moderation: roles, hidden, dropped and blocked targets, and removed posts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cablestore import limits
from cablestore.index.drops import KEPT_TYPES, is_kept
from cablestore.index.plan import Plan
from cablestore.index.reader import Reader
from cablestore.moderation.applied import AppliedModeration
from cablestore.moderation.blocks import UserDrop
from cablestore.moderation.changing import decided
from cablestore.moderation.seed import Seed
from cablestore.protocol.acts import Action, ModerationAct, UserRole
from cablestore.protocol.body import ALL_TYPES, MODERATION, MODERATION_TYPES, TEXT, TOPIC
from cablestore.reprs import hex_repr
from cablestore.views import activity
from cablestore.views import author as author_view

_Context = tuple[str, bytes, str | None]
_State = tuple[UserRole | bool, ModerationAct | Seed | None]


class Difference(NamedTuple):
    """A changed value. `what` is "role", "hidden", "dropped" or "blocked".

    `target` is the 32 bytes of a user or a post, b"" for a channel. `channel` is the context, None for the whole cabal.
    `before` and `after` are a UserRole or a bool. `by` is the action or the seed that causes the new value, None if the
    value has no such cause.
    """

    what: str
    target: bytes
    channel: str | None
    before: UserRole | bool
    after: UserRole | bool
    by: ModerationAct | Seed | None

    def __repr__(self) -> str:
        return hex_repr(self)


class ModerationPosition(NamedTuple):
    """The moderation after a write, None in an unmoderated store, and the number of the latest event at that time."""

    moderation: AppliedModeration | None
    sequence: int


class _Targets(NamedTuple):
    """Targets of actions: users and posts with their contexts, and channels."""

    users: set[tuple[bytes, str | None]]
    posts: set[tuple[bytes, str]]
    channels: set[str]


def previewed(
    plan: Plan, reader: Reader, before: AppliedModeration | None, own_key: bytes, acts: Iterable[ModerationAct] | None
) -> tuple[tuple[Difference, ...], int]:
    """Return the changes of moderation that a plan causes for a user, and the number of posts that it drops.

    Only stored posts are counted. With `acts`, only changes of their targets are returned. `reader` reads the state
    before the plan. In a dry run, `own_key` may be a temporary key. Returns ((), 0) if the store is unmoderated.
    """
    if before is None:
        return (), 0
    if before.own_key != own_key:
        before = AppliedModeration.read(reader, own_key)
    after = decided(plan, before)
    return tuple(differences(before, after, plan.reader, acts)), count_removed(before, after, plan.reader, acts)


def differences(
    before: AppliedModeration, after: AppliedModeration, reader: Reader, acts: Iterable[ModerationAct] | None = None
) -> Iterator[Difference]:
    """Yield the differences between two states of a store's moderation. With `acts`, compare only their targets.

    `reader` finds the authors of posts. Without `acts`, a difference of roles or seeds makes the comparison slow: it
    then covers the targets of all actions.
    """
    targets = _compared(before, after, acts)
    now = dict(_states(after, targets, reader))
    for key, (value, _) in _states(before, targets, reader):
        new, by = now[key]
        if new != value:
            yield Difference(*key, value, new, by)


def count_removed(
    before: AppliedModeration, after: AppliedModeration, reader: Reader, acts: Iterable[ModerationAct] | None = None
) -> int:
    """Return the number of stored posts that `after` drops and `before` does not.

    With `acts`, only drops of their targets count. A post that several dropped targets cover (its author, its channel
    or the post itself) is counted several times.
    """
    targets = _compared(before, after, acts)
    pair = before.decisions, after.decisions
    users = {user for user, channel in targets.users if channel is None}
    count = sum(_count_of_user(reader, user, *(each.user_dropped(user) for each in pair)) for user in users)
    for channel in targets.channels:
        was, now = (each.channel_dropped_by(channel) is not None for each in pair)
        count += sum(activity.of_channel(reader, channel)) if now > was else 0
    for digest, channel in targets.posts:
        post = reader.post(digest)
        if post is not None and post.type in (TEXT, TOPIC):
            was, now = (each.post_dropped_by(digest, post.author, channel) is not None for each in pair)
            count += now > was
    return count


def _count_of_user(reader: Reader, user: bytes, before: UserDrop | None, after: UserDrop | None) -> int:
    """Return the number of stored posts of a user that the drop `after` covers and `before` does not."""
    if after is None or (before is not None and before.until_ms is None):
        return 0
    start_ms = 0 if before is None or before.until_ms is None else before.until_ms + 1
    end_ms = limits.MAX_TIMESTAMP_MS + 1 if after.until_ms is None else after.until_ms + 1
    acts = map(reader.post, author_view.between(reader, user, MODERATION_TYPES, start_ms, end_ms))
    count = sum(1 for act in acts if act is not None and not is_kept(act))
    return count + sum(1 for _ in author_view.between(reader, user, ALL_TYPES - KEPT_TYPES, start_ms, end_ms))


def _compared(before: AppliedModeration, after: AppliedModeration, acts: Iterable[ModerationAct] | None) -> _Targets:
    """Return the targets to compare: those of `acts`, or if it is None, all targets for which the states may differ.

    If the seeds differ, their users are included.
    """
    seeds = [moderation.seed for moderation in (before, after) if moderation.seed is not None]
    if acts is None:
        acts = {*before.decisions.acts()} ^ {*after.decisions.acts()}
        if before.seed != after.seed or not after.decisions.has_roles_of(before.decisions):
            acts = {*before.decisions.acts(), *after.decisions.acts()}
    return _targets(acts, seeds if before.seed != after.seed else [])


def _targets(acts: Iterable[ModerationAct], seeds: Iterable[Seed]) -> _Targets:
    targets = _Targets(set(), set(), set())
    for act in acts:
        if act.type != MODERATION or act.what < Action.HIDE_POST:
            targets.users.update((user, act.channel) for user in act.targets)
        elif act.channel and act.what < Action.DROP_CHANNEL:
            targets.posts.update((digest, act.channel) for digest in act.targets)
        elif act.channel:
            targets.channels.add(act.channel)
    targets.users.update((user, None) for seed in seeds for user, _ in seed.roles)
    return targets


def _states(moderation: AppliedModeration, targets: _Targets, reader: Reader) -> Iterator[tuple[_Context, _State]]:
    decisions = moderation.decisions
    for user, channel in sorted(targets.users, key=lambda pair: (pair[1] or "", pair[0])):
        yield ("role", user, channel), (decisions.role(user, channel), decisions.role_given_by(user, channel))
        hidden = decisions.user_hidden_by(user, channel)
        yield ("hidden", user, channel), (hidden is not None, hidden)
        if channel is None:
            drop, block = decisions.user_dropped(user), decisions.blocked_by(user)
            yield ("dropped", user, None), (drop is not None, drop.act if drop else None)
            yield ("blocked", user, None), (block is not None, block)
    for digest, channel in sorted(targets.posts):
        post = reader.post(digest)
        if post is None or post.type in (TEXT, TOPIC):
            author = post.author if post else b""
            hidden = decisions.post_hidden_by(digest, author, channel)
            dropped = decisions.post_dropped_by(digest, author, channel)
            yield ("hidden", digest, channel), (hidden is not None, hidden)
            yield ("dropped", digest, channel), (dropped is not None, dropped)
    for channel in sorted(targets.channels):
        act = decisions.channel_dropped_by(channel)
        yield ("dropped", b"", channel), (act is not None, act)
