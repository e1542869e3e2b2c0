"""Acts of moderation: what a post/role, post/moderation, post/block or post/unblock says, as one kind of value.

Whether an act counts is not said here (`cablestore.moderation`).
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
    """Role of a user, greater with more capabilities. These numbers are also the ones of the seed's example (4.7.3)."""

    USER = 0
    MOD = 1
    ADMIN = 2

    @property
    def has_authority(self) -> bool:
        """Whether the actions of users with this role take effect (4.2.1)."""
        return self is not UserRole.USER

    @classmethod
    def of_post(cls, number: int) -> Self:
        """Return the role that a post/role means by a number (5.1.2): 0 is admin, 1 is mod, 2 is user."""
        return cls(2 - number)

    @property
    def in_post(self) -> int:
        """The number by which a post/role says this role (5.1.2)."""
        return 2 - self.value


class Action(IntEnum):
    """Action of a post/moderation, by its number (5.1.3). Each even one is undone by the next number."""

    HIDE_USER = 0
    UNHIDE_USER = 1
    HIDE_POST = 2
    UNHIDE_POST = 3
    DROP_POST = 4
    UNDROP_POST = 5
    DROP_CHANNEL = 6
    UNDROP_CHANNEL = 7


class ModerationAct(NamedTuple):
    """Act of moderation. `channel` is the context by which channels are compared, None for the whole cabal (4.1).

    `what` is the number of the role or action; of a post/block, DROPS and NOTIFIES; of a post/unblock, DROPS if it
    undrops. `targets` are public keys, hashes of posts, or nothing for an act on a channel.
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
        """The order of acts: timestamp, then hash."""
        return self.timestamp_ms, self.hash

    @property
    def role(self) -> UserRole:
        """The role that a post/role gives. Raises ValueError for other types."""
        if self.type != ROLE:
            raise ValueError(f"only a post/role gives a role, this is a post of type {self.type}")
        return UserRole.of_post(self.what)

    @property
    def drops(self) -> bool:
        """Whether a post/block drops the posts of those it blocks, or a post/unblock undrops them (5.1.4, 5.1.5)."""
        return self.type in (BLOCK, UNBLOCK) and bool(self.what & DROPS)

    @property
    def notifies(self) -> bool:
        """Whether a post/block may be sent to those it blocks (5.1.4)."""
        return self.type == BLOCK and bool(self.what & NOTIFIES)


class Consent(NamedTuple):
    """Statement of a post/info: its author accepts roles or declines them (4.2.4)."""

    user: bytes
    hash: bytes
    timestamp_ms: int
    accepts: bool
    is_claim: bool = False
    """True if another store claims that the post/info says so: nobody signed the claim."""

    def __repr__(self) -> str:
        return hex_repr(self)

    @property
    def moment(self) -> tuple[int, bytes]:
        """The order of statements: timestamp, then hash."""
        return self.timestamp_ms, self.hash


def turning_points(statements: Iterable[Consent]) -> list[Consent]:
    """Return the statements of one user with which it began or ceased to decline roles, oldest first.

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
    """Return True if the user who made these statements declines roles now."""
    found = turning_points(statements)
    return bool(found) and not found[-1].accepts


def act_of(post: Post) -> ModerationAct | None:
    """Return the act of a post, None if it is of another type. `post.channel` is the channel that is compared."""
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
    """Return what a post/info says of taking roles, None for posts of other types. It is yes unless it says no."""
    if not isinstance(post.body, Info):
        return None
    return Consent(post.author, post.hash, post.timestamp_ms, post.body.accepts_role)
