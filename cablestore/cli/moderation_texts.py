"""Output of moderation commands: actions and changes, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from cablestore.cli.output import Output, safe
from cablestore.moderation import Action, Decision, ModerationAct, Seed, UserRole
from cablestore.protocol.body import BLOCK, MODERATION, ROLE, UNBLOCK
from cablestore.store.differences import Difference
from cablestore.store.store import CableStore

_ACTIONS: Final = {
    Action.HIDE_USER: "hidden",
    Action.UNHIDE_USER: "unhidden",
    Action.HIDE_POST: "hidden post",
    Action.UNHIDE_POST: "unhidden post",
    Action.DROP_POST: "dropped post",
    Action.UNDROP_POST: "undropped post",
    Action.DROP_CHANNEL: "dropped channel",
    Action.UNDROP_CHANNEL: "undropped channel",
}
_UNCHANGED: Final = {
    "role": "already has this role",
    "hide": "is already hidden",
    "unhide": "is not hidden",
    "drop": "is already dropped",
    "undrop": "is not dropped",
    "block": "is already blocked",
    "unblock": "is not blocked",
}
"""Text about a target that a command leaves unchanged."""
_NAME_CHARACTERS: Final = 20
_KEY_DIGITS: Final = 8


class UserNames:
    """Cached names of users."""

    def __init__(self, store: CableStore) -> None:
        self._store = store
        self._names: dict[bytes, str] = {}
        self._own_key: Final = store.public_key

    def of(self, user: bytes) -> str:
        """Return "you" for the local user, otherwise the name with digits of the key, because names can be forged."""
        if user == self._own_key:
            return "you"
        if user not in self._names:
            name = self._store.user(user).name
            digits = user.hex()
            self._names[user] = digits if name == digits else f"{name[:_NAME_CHARACTERS]} {digits[:_KEY_DIGITS]}"
        return self._names[user]


def is_on_posts(act: ModerationAct) -> bool:
    """Return True if the targets of an action are posts."""
    return act.type == MODERATION and Action.HIDE_POST <= act.what < Action.DROP_CHANNEL


def what(act: ModerationAct) -> str:
    """Return the effect of an action on its target in a few words."""
    match act.type:
        case kind if kind == ROLE:
            said = act.role.name.lower()
        case kind if kind == BLOCK:
            said = "blocked and dropped" if act.drops else "blocked"
        case kind if kind == UNBLOCK:
            said = "unblocked and undropped" if act.drops else "unblocked"
        case _:
            said = _ACTIONS[Action(act.what)]
    return f"{said} (private)" if act.is_private else said


def action_filter(with_undone: bool) -> Callable[[Decision], bool]:
    """Return a filter for the actions to list. Without `with_undone`, it excludes actions that undo another action."""

    def is_doing(judged: Decision) -> bool:
        act = judged.act
        return with_undone or act.type in (ROLE, BLOCK) or (act.type == MODERATION and act.what % 2 == 0)

    return is_doing


def decision_fields(judged: Decision, names: UserNames, out: Output, *, with_result: bool) -> dict[str, Any]:
    """Return an action on one target as a table row, with its result if `with_result`. JSON has keys, not names."""
    act, target = judged.act, judged.target
    fields: dict[str, Any] = {"what": what(act), "channel": act.channel or ""}
    if out.as_json:
        fields |= {
            "target": target.hex(),
            "author": act.author.hex(),
            "timestamp_ms": act.timestamp_ms,
            "private": act.is_private,
            "hash": act.hash.hex(),
        }
    else:
        shown = target.hex() if is_on_posts(act) or not target else _whole(target, names)
        fields |= {"target": shown, "by": names.of(act.author), "time": out.when(act.timestamp_ms)}
    fields["reason"] = act.reason
    return fields | ({"result": judged.result.value} if with_result else {})


def _whole(user: bytes, names: UserNames) -> str:
    """Return the name of a user, and the complete key. Commands accept the key."""
    name = names.of(user)
    return name if name == user.hex() else f"{name.rsplit(' ', 1)[0]} {user.hex()}"


def seed_rows(seed: Seed, names: UserNames, out: Output) -> Iterator[dict[str, Any]]:
    """Yield the rows of a moderation seed, unless it is revoked."""
    if seed.revoked_at_ms is not None:
        return
    for user, role in seed.roles:
        fields: dict[str, Any] = {"what": f"{role.name.lower()} (seed)", "channel": "", "reason": ""}
        if out.as_json:
            yield fields | {"target": user.hex(), "author": None, "timestamp_ms": seed.given_at_ms, "hash": None}
        else:
            yield fields | {"target": _whole(user, names), "by": "the seed", "time": out.when(seed.given_at_ms)}


def change_text(change: Difference, names: UserNames) -> str:
    """Return a readable line about a change."""
    where = f"in {safe(change.channel)}" if change.channel else ""
    if isinstance(change.after, UserRole):
        assert isinstance(change.before, UserRole)  # noqa: S101 - both have the same type
        roles = f"{change.after.name.lower()}, was {change.before.name.lower()}"
        return " ".join(filter(None, (safe(names.of(change.target)), where, "is", roles)))
    verb = "is" if change.after else "is no longer"
    if not change.target:
        return f"the channel {safe(change.channel or '')} {verb} {change.what}"
    return " ".join(filter(None, (safe(names.of(change.target)), where, verb, change.what)))


def unchanged_text(command: str, target: bytes, names: UserNames) -> str:
    """Return a line about a user, a post or a channel (b"") that a command leaves unchanged."""
    subject = safe(names.of(target)) if target else "the channel"
    return f"{subject} {_UNCHANGED[command]}: nothing was written"


def change_fields(change: Difference) -> dict[str, Any]:
    """Return the fields of a change for JSON."""

    def plain(value: UserRole | bool) -> str | bool:
        return value.name.lower() if isinstance(value, UserRole) else value

    return {
        "what": change.what,
        "target": change.target.hex(),
        "channel": change.channel,
        "before": plain(change.before),
        "after": plain(change.after),
    }
