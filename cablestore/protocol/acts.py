"""Moderation actions: the content of a post/role, post/moderation, post/block or post/unblock as one kind of value.

`cablestore.moderation` decides whether an action applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple, Self

from cablestore.protocol.body import BLOCK, LOCAL_ONLY, ROLE, UNBLOCK, Block, Info, Moderation, Role, Unblock
from cablestore.protocol.post import Post
from cablestore.reprs import hex_repr

DROPS: Final = 1
NOTIFIES: Final = 2


class UserRole(IntEnum):
    """Role of a user. A role with a greater number has more capabilities, as in the example of seeds (4.7.3)."""

    USER = 0
    MOD = 1
    ADMIN = 2

    @property
    def has_authority(self) -> bool:
        """True if the actions of users with this role take effect (4.2.1)."""
        return self is not UserRole.USER

    @classmethod
    def of_post(cls, number: int) -> Self:
        """Return the role for a number in a post/role (5.1.2): 0 is admin, 1 is mod, 2 is user."""
        return cls(2 - number)

    @property
    def in_post(self) -> int:
        """The number of this role in a post/role (5.1.2)."""
        return 2 - self.value


class Action(IntEnum):
    """Action of a post/moderation, by its number (5.1.3). The action after an even number undoes it."""

    HIDE_USER = 0
    UNHIDE_USER = 1
    HIDE_POST = 2
    UNHIDE_POST = 3
    DROP_POST = 4
    UNDROP_POST = 5
    DROP_CHANNEL = 6
    UNDROP_CHANNEL = 7


class ModerationAct(NamedTuple):
    """A moderation action. `channel` is the comparable name of its context, or None for the whole cabal (4.1).

    `what` is the number of the role or action. For a post/block, it is a sum of the flags DROPS and NOTIFIES. For a
    post/unblock, it is DROPS if the post undrops, otherwise 0. `targets` are public keys, hashes of posts, or empty for
    an action on a channel.
    """

    author: bytes
    hash: bytes
    timestamp_ms: int
    type: int
    channel: str | None
    what: int
    targets: tuple[bytes, ...]
    reason: str = ""
    is_private: bool = False

    def __repr__(self) -> str:
        return hex_repr(self)

    @property
    def moment(self) -> tuple[int, bytes]:
        """The order of actions: timestamp, then hash."""
        return self.timestamp_ms, self.hash

    @property
    def role(self) -> UserRole:
        """The role that a post/role assigns. Raises ValueError for other types."""
        if self.type != ROLE:
            raise ValueError(f"this action does not assign a role: it is a post of type {self.type}, not a post/role")
        return UserRole.of_post(self.what)

    @property
    def drops(self) -> bool:
        """True if a post/block drops the posts of the blocked users, or a post/unblock undrops them (5.1.4, 5.1.5)."""
        return self.type in (BLOCK, UNBLOCK) and bool(self.what & DROPS)

    @property
    def notifies(self) -> bool:
        """True if a post/block may be sent to the blocked users (5.1.4)."""
        return self.type == BLOCK and bool(self.what & NOTIFIES)


class Consent(NamedTuple):
    """Statement of a post/info: its author accepts or declines roles (4.2.4)."""

    user: bytes
    hash: bytes
    timestamp_ms: int
    accepts: bool
    is_claim: bool = False
    """True if only another store claims this statement, which is then unsigned."""

    def __repr__(self) -> str:
        return hex_repr(self)

    @property
    def moment(self) -> tuple[int, bytes]:
        """The order of statements: timestamp, then hash."""
        return self.timestamp_ms, self.hash


def turning_points(statements: Iterable[Consent]) -> list[Consent]:
    """Return the statements with which one user began or stopped declining roles, oldest first.

    A claim that the user accepts roles does not end a decline that the user signed.
    """
    found: list[Consent] = []
    decline: Consent | None = None
    for said in sorted(statements, key=lambda said: said.moment):
        if said.accepts and decline is not None and not (said.is_claim and not decline.is_claim):
            decline = None
            found.append(said)
        elif not said.accepts:
            if decline is None:
                found.append(said)
            if decline is None or decline.is_claim:
                decline = said
    return found


def declines_roles(statements: Iterable[Consent]) -> bool:
    """Return True if the user of these statements declines roles now."""
    found = turning_points(statements)
    return bool(found) and not found[-1].accepts


def act_of(post: Post) -> ModerationAct | None:
    """Return the action of a post, or None for posts of other types. `post.channel` is the comparable channel."""
    body, targets = post.body, tuple[bytes, ...]()
    match body:
        case Role(recipient=recipient, role=what):
            targets = (recipient,)
        case Moderation(recipients=recipients, action=what):
            targets = () if what >= Action.DROP_CHANNEL else tuple(dict.fromkeys(recipients))
        case Block(recipients=recipients, drop=drop, notify=notify):
            targets, what = tuple(dict.fromkeys(recipients)), DROPS * drop | NOTIFIES * notify
        case Unblock(recipients=recipients, undrop=undrop):
            targets, what = tuple(dict.fromkeys(recipients)), DROPS * undrop
        case _:
            return None
    is_private = body.privacy == LOCAL_ONLY
    return ModerationAct(
        post.author,
        post.hash,
        post.timestamp_ms,
        post.type,
        post.channel or None,
        what,
        targets,
        body.reason,
        is_private,
    )


def consent_of(post: Post) -> Consent | None:
    """Return the statement of a post/info about roles, or None for other types. By default, users accept roles."""
    if not isinstance(post.body, Info):
        return None
    return Consent(post.author, post.hash, post.timestamp_ms, post.body.accepts_role)
