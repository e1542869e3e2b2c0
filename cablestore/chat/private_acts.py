"""Moderation actions that apply only for the client's user, and undoing the user's actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from cablestore.chat.entries import PrivateAct, Restriction, UndoneAct
from cablestore.errors import ArgumentError
from cablestore.moderation import Action, ModerationAct
from cablestore.protocol.body import BLOCK, MODERATION, TEXT
from cablestore.store.display import User
from cablestore.store.lookup import find_users
from cablestore.store.store import CableStore

_KINDS: Final[dict[str, Literal["hide", "block"]]] = {"unhide": "hide", "unblock": "block"}
_SHOWN: Final = {"hide": "hidden", "block": "blocked"}


def moderate(store: CableStore, act: PrivateAct, users: Sequence[bytes], posts: Sequence[bytes]) -> list[UndoneAct]:
    """Hide, unhide, block or unblock, only for the user.

    Unhide and unblock undo all actions of the user on a target, and return the undone actions. If the user has not
    acted on the target, they undo the actions of others, only for the user. Raises ArgumentError for an action without
    effect.
    """
    moderator = store.moderation
    match act:
        case "hide":
            _require_no_own(store, "hide", [*users, *posts])
            moderator.hide(users=users, posts=posts, private=True)
            return []
        case "block":
            _require_no_own(store, "block", users)
            moderator.block(users, private=True)
            return []
        case _:
            return [undone for target in (*users, *posts) for undone in _undo(store, _KINDS[act], target)]


def _require_no_own(store: CableStore, kind: Literal["hide", "block"], targets: Sequence[bytes]) -> None:
    for target in targets:
        own = [
            known for known in store.moderation.own_acts(kind, target) if known.channel is None or _is_on_post(known)
        ]
        if own:
            how = "privately" if own[0].is_private else "publicly"
            raise ArgumentError(f"{_named(store, target)} is already {_SHOWN[kind]} by you, {how}. Nothing changed")


def _is_on_post(act: ModerationAct) -> bool:
    return act.type == MODERATION and act.what == Action.HIDE_POST


def _undo(store: CableStore, kind: Literal["hide", "block"], target: bytes) -> list[UndoneAct]:
    moderator = store.moderation
    own = moderator.own_acts(kind, target)
    for act in own:
        _undo_one(store, act, target)
    if own:
        return [UndoneAct(act.is_private, act.channel or "") for act in own]
    message = store.get(target)
    if kind == "block" and store.user(target).is_blocked:
        moderator.unblock([target], private=True)
    elif kind == "hide" and message is None and _hidden_somewhere(store, target):
        moderator.unhide(users=[target], private=True)
    elif kind == "hide" and message is not None and message.type == TEXT:
        hiding = store.resolve(message).hidden_by
        if hiding is None or not _is_on_post(hiding):
            raise ArgumentError("this message itself is not hidden. /unhide NAME shows the messages of its author")
        moderator.unhide(posts=[target], private=True)
    else:
        raise ArgumentError(
            f"{_named(store, target)} is not {_SHOWN[kind]}. Nothing changed. /{_SHOWN[kind]} lists {_SHOWN[kind]} "
            "users"
        )
    return []


def _undo_one(store: CableStore, act: ModerationAct, target: bytes) -> None:
    moderator, private = store.moderation, act.is_private
    if act.type == BLOCK:
        moderator.unblock([target], private=private)
    elif _is_on_post(act):
        moderator.unhide(posts=[target], channel=act.channel, private=private)
    else:
        moderator.unhide(users=[target], channel=act.channel, private=private)


def _hidden_somewhere(store: CableStore, user: bytes) -> bool:
    contexts = (None, *store.moderation.contexts())
    return any(store.user(user, context).hidden_by is not None for context in contexts)


def _named(store: CableStore, target: bytes) -> str:
    if store.get(target) is not None:
        return "this message"
    name = store.user(target).name
    return name[:8] if name == target.hex() else name


# --- restrictions that apply -----------------------------------------------------------------------


def restrictions(store: CableStore) -> list[Restriction]:
    """Return the hidden and blocked users and messages, in order of the actions that hide or block them."""
    moderator, found = store.moderation, list[Restriction]()
    for context in (None, *moderator.contexts()):
        for judged in moderator.in_force(context):
            act = judged.act
            if act.channel == context and (what := _restriction(act)):
                found.append(_described(store, act, judged.target, what))
    return sorted(found, key=lambda each: each.timestamp_ms)


def _restriction(act: ModerationAct) -> str:
    """Return the effect of an action on its target, or "" if it only undoes another action or assigns a role."""
    if act.type == BLOCK:
        return "blocked"
    if act.type != MODERATION:
        return ""
    return {Action.HIDE_USER: "hidden", Action.HIDE_POST: "hidden message"}.get(Action(act.what), "")


def _described(store: CableStore, act: ModerationAct, target: bytes, what: str) -> Restriction:
    post = store.get(target) if what == "hidden message" else None
    author = target if post is None else post.author
    return Restriction(
        what=what,
        public_key=author,
        name=store.user(author).name,
        by_name=store.user(act.author).name,
        is_private=act.is_private,
        channel=act.channel or "",
        timestamp_ms=act.timestamp_ms,
        reason=act.reason,
    )


def users_typed(store: CableStore, text: str) -> list[User]:
    """Return the users that match a typed text, including restricted users without stored posts."""
    found = {user.public_key: user for user in store.find_users(text)}
    others = [store.user(each.public_key) for each in restrictions(store) if each.public_key not in found]
    return [*found.values(), *{user.public_key: user for user in find_users(text, others)}.values()]
