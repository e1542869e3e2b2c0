"""Checks that reject the local user's forbidden posts (moderation.md), and queries for the user's actions in force."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from cablestore.errors import ArgumentError
from cablestore.index.reader import Reader
from cablestore.moderation.stored import StoredActs
from cablestore.protocol.acts import Action, ModerationAct
from cablestore.protocol.body import BLOCK, LOCAL_ONLY, MODERATION, UNBLOCK, Block, Body, Moderation, Role, Unblock
from cablestore.views.acts import act_in, has_declined

_BLOCKS_FROM: Final = 100
"""Offset added to the type numbers of post/block and post/unblock, so that they differ from all action numbers."""
BLOCKS: Final = frozenset({_BLOCKS_FROM + BLOCK, _BLOCKS_FROM + UNBLOCK})


def require_allowed(reader: Reader, body: Body, own_key: bytes | None) -> None:
    """Raise ArgumentError if moderation.md forbids the local user to write this post (4.2.4, 4.4.3, 4.5.1)."""
    match body:
        case Role(recipient=user):
            if user == own_key:
                raise ArgumentError("you cannot assign a role to yourself (moderation.md 4.4.3). Choose another user")
            if has_declined(reader, user):
                raise ArgumentError(f"cannot assign a role: the user {user.hex()} does not accept roles")
        case Block(recipients=users, privacy=privacy, notify=notify):
            if own_key in users:
                raise ArgumentError("you cannot block yourself. Choose other users")
            if privacy == LOCAL_ONLY and notify:
                raise ArgumentError(
                    "a private block never leaves this store, so the blocked user cannot be notified. Block publicly, "
                    "or without notification"
                )
        case Moderation(action=Action.HIDE_USER, recipients=users) if own_key in users:
            raise ArgumentError("you cannot hide yourself. Choose other users")
        case Unblock(recipients=users) if body.privacy != LOCAL_ONLY:
            _require_private(private_doings(reader, own_key, BLOCKS, users, None))
        case Moderation(action=action, recipients=targets, channel=channel) if (
            action % 2 and body.privacy != LOCAL_ONLY
        ):
            context = reader.dialect.channel_id(channel) if channel else None
            _require_private(private_doings(reader, own_key, {action - 1, action}, targets or (b"",), context))


def _require_private(known: list[ModerationAct]) -> None:
    if known:
        raise ArgumentError(
            f"cannot publicly undo the action in your private post {known[0].hash.hex()} (moderation.md 4.5.1). Undo it "
            "privately"
        )


def own_actions_in_force(
    reader: Reader, own_key: bytes | None, types: Container[int], target: bytes
) -> list[ModerationAct]:
    """Return the local user's actions of the given `types` that are in force for a target, private actions first.

    The result contains at most one private and one public action for each context. A private action is undone only by a
    private action, a public action only by a public one. An undo for the whole cabal applies to each channel too.
    """
    found: dict[tuple[bool, str], ModerationAct] = {}
    if own_key is None:
        return []
    acts = map(act_in, StoredActs(reader, own_key).actions_of(own_key))
    for act in sorted(acts, key=lambda act: act.moment):
        if _number(act) not in types or target not in act.targets:
            continue
        if _does(act):
            found[act.is_private, act.channel or ""] = act
        else:
            found = {each: kept for each, kept in found.items() if not _undoes(act, kept)}
    return [found[each] for each in sorted(found, key=lambda each: (not each[0], each[1]))]


def _undoes(undoing: ModerationAct, act: ModerationAct) -> bool:
    return undoing.is_private == act.is_private and undoing.channel in (None, act.channel)


def _number(act: ModerationAct) -> int:
    return act.what if act.type == MODERATION else act.type + _BLOCKS_FROM


def _does(act: ModerationAct) -> bool:
    return act.type == BLOCK if act.type != MODERATION else act.what % 2 == 0


def private_doings(
    reader: Reader, own_key: bytes | None, types: Container[int], targets: Iterable[bytes], context: str | None
) -> list[ModerationAct]:
    """Return the private actions by which the user hides, drops or blocks any of `targets`, if not undone since.

    Only actions of the given `types` in exactly this `context` count: a channel, or None for the whole cabal.
    """
    wanted = set(targets)
    latest: dict[bytes, ModerationAct] = {}
    if own_key is None:
        return []
    acts = map(act_in, StoredActs(reader, own_key).actions_of(own_key))
    for act in sorted(acts, key=lambda act: act.moment):
        if act.is_private and _number(act) in types and act.channel == context:
            latest.update({target: act for target in act.targets or (b"",) if target in wanted})
    return [act for act in latest.values() if _does(act)]
