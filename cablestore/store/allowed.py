"""Own acts of moderation that moderation.md forbids, whether a client writes a post or asks for an act."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from cablestore.errors import ModerationError
from cablestore.index.reader import Reader
from cablestore.moderation.stored import StoredActs
from cablestore.protocol.acts import ModerationAct
from cablestore.protocol.body import BLOCK, LOCAL_ONLY, MODERATION, UNBLOCK, Block, Body, Moderation, Role, Unblock
from cablestore.views.acts import act_in, has_declined

_BLOCKS_FROM: Final = 100
"""Added to the types of post/block and post/unblock, to distinguish them from the numbers of actions."""
BLOCKS: Final = frozenset({_BLOCKS_FROM + BLOCK, _BLOCKS_FROM + UNBLOCK})


def require_allowed(reader: Reader, body: Body, own_key: bytes | None) -> None:
    """Raise ModerationError for a post that its author must not write (moderation.md 4.2.4, 4.4.3, 4.5.1)."""
    match body:
        case Role(recipient=user):
            if user == own_key:
                raise ModerationError("a role for oneself is not allowed (moderation.md 4.4.3): name another user")
            if has_declined(reader, user):
                raise ModerationError(f"the user {user.hex()} declines roles, so it can be given none")
        case Block(recipients=users, privacy=privacy, notify=notify):
            if own_key in users:
                raise ModerationError("you cannot block yourself: name other users")
            if privacy == LOCAL_ONLY and notify:
                raise ModerationError("a private block never leaves this store, so nobody can be notified of it")
        case Unblock(recipients=users) if body.privacy != LOCAL_ONLY:
            _require_private(private_doings(reader, own_key, BLOCKS, users, None))
        case Moderation(action=action, recipients=targets, channel=channel) if (
            action % 2 and body.privacy != LOCAL_ONLY
        ):
            context = reader.dialect.channel_id(channel) if channel else None
            _require_private(private_doings(reader, own_key, {action - 1, action}, targets or (b"",), context))


def _require_private(known: list[ModerationAct]) -> None:
    if known:
        raise ModerationError(
            f"what you did in the private post {known[0].hash.hex()} can only be undone privately (moderation.md 4.5.1)"
        )


def private_doings(
    reader: Reader, own_key: bytes | None, types: Container[int], targets: Iterable[bytes], context: str | None
) -> list[ModerationAct]:
    """Return the own private acts of some actions, or blocks, that are in force for one of the targets."""
    wanted = set(targets)
    latest: dict[bytes, ModerationAct] = {}
    if own_key is None:
        return []
    acts = map(act_in, StoredActs(reader, own_key).actions_of(own_key))
    for act in sorted(acts, key=lambda act: act.moment):
        number = act.what if act.type == MODERATION else act.type + _BLOCKS_FROM
        if act.is_private and number in types and act.channel == context:
            latest.update({target: act for target in act.targets or (b"",) if target in wanted})
    return [act for act in latest.values() if (act.type == BLOCK if act.type != MODERATION else act.what % 2 == 0)]
