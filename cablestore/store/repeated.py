"""Moderation actions that would change nothing, because an earlier action of the user has the same effect."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from cablestore.index.reader import Reader
from cablestore.moderation.decisions import Decisions
from cablestore.moderation.known import BLOCKING, is_doing
from cablestore.protocol.acts import ModerationAct, UserRole
from cablestore.protocol.body import LOCAL_ONLY, Block, Moderation, Role, Unblock

_OnTargets = Moderation | Block | Unblock
ActBody = Role | _OnTargets
"""Body of a moderation action."""


class _Act(NamedTuple):
    """The fields that new actions of all types share."""

    pair: int
    channel: str | None
    is_doing: bool
    is_private: bool
    drops: bool
    notifies: bool
    reason: str


def without_repeated(
    reader: Reader, decisions: Decisions, own_key: bytes, body: ActBody
) -> tuple[ActBody | None, tuple[bytes, ...]]:
    """Return an action limited to the targets that it changes, None if it changes none, and the other targets.

    The target of an action on a channel is b"".
    """
    if isinstance(body, Role):
        is_repeated = _is_repeated_role(reader, decisions, body)
        return (None, (body.recipient,)) if is_repeated else (body, ())
    act = _fields(reader, body)
    targets = body.recipients or (act.channel or "",)
    repeated = [target for target in targets if _is_repeated(act, _held(decisions, act, target), own_key)]
    left = tuple(target for target in body.recipients if target not in repeated)
    unchanged = tuple(target if isinstance(target, bytes) else b"" for target in repeated)
    if len(repeated) == len(targets):
        return None, unchanged
    return (replace(body, recipients=left) if repeated else body), unchanged


def _fields(reader: Reader, body: _OnTargets) -> _Act:
    is_private = body.privacy == LOCAL_ONLY
    match body:
        case Moderation(channel=name, action=action):
            context = reader.dialect.channel_id(name) if name else None
            return _Act(action & ~1, context, not action & 1, is_private, False, False, body.reason)
        case Block(drop=drop, notify=notify):
            return _Act(BLOCKING, None, True, is_private, bool(drop), bool(notify), body.reason)
        case Unblock(undrop=undrop):
            return _Act(BLOCKING, None, False, is_private, bool(undrop), False, body.reason)


def _held(decisions: Decisions, act: _Act, target: bytes | str) -> list[ModerationAct]:
    return sorted(decisions.acts_on(target, act.pair, act.channel), key=lambda held: held.moment)


def _is_repeated(act: _Act, held: list[ModerationAct], own_key: bytes) -> bool:
    """Return True if the new action `act` would change nothing.

    `held` are the stored actions on its target, oldest first.
    """
    if act.is_doing:
        if act.is_private:
            held = [each for each in held if each.is_private]
        last = next((at for at, each in reversed([*enumerate(held)]) if _is_same(act, each, own_key)), None)
        return last is not None and all(map(is_doing, held[last:]))
    return not any(
        is_doing(each) and not any(_is_undoing(act, later, each, own_key) for later in held[at:])
        for at, each in enumerate(held)
        if each.author != own_key or act.is_private or not each.is_private
    )


def _is_same(act: _Act, held: ModerationAct, own_key: bytes) -> bool:
    if held.author != own_key or held.channel != act.channel or held.is_private != act.is_private or not is_doing(held):
        return False
    return (held.drops, held.notifies) == (act.drops, act.notifies) and act.reason in ("", held.reason)


def _is_undoing(act: _Act, later: ModerationAct, doing: ModerationAct, own_key: bytes) -> bool:
    """Return True if `later` undoes the action `doing` at least as far as the new undoing action `act` would."""
    if is_doing(later) or later.author not in (own_key, doing.author):
        return False
    if later.channel not in (None, act.channel, doing.channel) or (act.drops and doing.drops and not later.drops):
        return False
    if later.author != own_key:
        return True
    return later.is_private or not doing.is_private if act.is_private else not later.is_private


def _is_repeated_role(reader: Reader, decisions: Decisions, body: Role) -> bool:
    context = reader.dialect.channel_id(body.channel) if body.channel else None
    given = max(decisions.own_roles(body.recipient, context), key=lambda act: act.moment, default=None)
    if given is None:
        return body.role == UserRole.USER.in_post and decisions.role(body.recipient, context) is UserRole.USER
    is_same = given.role.in_post == body.role and given.is_private == (body.privacy == LOCAL_ONLY)
    return is_same and body.reason in ("", given.reason)
