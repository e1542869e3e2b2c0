"""Decisions: what applies for the store's own user, of all acts of moderation that are held (moderation.md 4).

Decisions never change. `changed` returns others, so any thread may read the ones it has. They are a function of the
acts that are held, the own key and the seed: neither the order in which acts came nor the time of day matters.

Each answer is the act that it follows from, None if there is none. So `user_hidden_by(user, channel)` says whether a
user is hidden, by whom, when and why.

With `public=True` an answer follows from public acts alone. What peers can notice must be decided with it (4.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple, Self

from cablestore.moderation.acts import Consent, HeldActs, ModerationAct, Seed, UserRole


class ActOutcome(StrEnum):
    """ActOutcome of an act for one of its targets."""

    APPLIES = "applies"
    UNDONE = "undone"
    """Its author replaced or undid it (4.2.2, 4.4.2)."""
    NO_AUTHORITY = "no authority"
    """Its author lacked authority when it was issued, or lost it since if the act gives a role (4.2.5, 4.4.3)."""
    EXEMPT = "exempt"
    """Its target had authority when it was issued (4.4.5)."""
    OVERRULED = "overruled"
    """Another act takes precedence (4.2.5, 4.4.5)."""
    DECLINED = "declined"
    """It gives a role to a user who declines roles (4.2.4)."""
    VOID = "void"
    """It says what no act can: a role for its own author (4.4.3), or a drop of no channel (5.1.3.3)."""


class Judged(NamedTuple):
    """Judged act: what it does to one of its targets. The target is b"" if the act is on a channel."""

    act: ModerationAct
    target: bytes
    outcome: ActOutcome


class UserDrop(NamedTuple):
    """Drop of a user: the post/block that drops, and until when the user's posts are dropped.

    `until_ms` is None while the user is blocked: all posts are dropped. Later ones than `until_ms` are welcome again:
    the user was unblocked, and the posts from before stay dropped (5.1.5, undrop = 0).
    """

    act: ModerationAct
    until_ms: int | None

    def covers(self, timestamp_ms: int) -> bool:
        """Tell whether a post of the user with this timestamp is dropped."""
        return self.until_ms is None or timestamp_ms <= self.until_ms


class Decisions:
    """Decisions for one user. A context is a channel's name as channels are compared, or None for the whole cabal.

    Acts of those who never had authority are not read, except blocks on the own user.
    """

    def __init__(self, held: HeldActs, own_key: bytes, seed: Seed | None = None) -> None:
        """Read what is held of everybody who may have authority, beginning with the own user and the seed."""
        raise NotImplementedError

    def changed(
        self,
        held: HeldActs,
        added: Iterable[ModerationAct | Consent] = (),
        removed: Iterable[ModerationAct | Consent] = (),
    ) -> Self:
        """Return the decisions after acts and statements were stored or deleted. `held` is what is held since then.

        `held` is read only for users who may have authority from now on. For another seed make new Decisions.
        """
        raise NotImplementedError

    # --- roles (4.2) ---------------------------------------------------------------------------------

    def role(self, user: bytes, channel: str | None = None, *, public: bool = False) -> UserRole:
        """Return the role of a user now."""
        raise NotImplementedError

    def role_given_by(self, user: bytes, channel: str | None = None) -> ModerationAct | Seed | None:
        """Return what gives a user its role: an act, the seed, None if it is the default or the own user's."""
        raise NotImplementedError

    def had_authority(self, user: bytes, channel: str | None, timestamp_ms: int, *, public: bool = False) -> bool:
        """Tell whether a user had authority at a time: it got it before, and had not lost it by then (4.4.3)."""
        raise NotImplementedError

    def users_with(self, role: UserRole, channel: str | None = None) -> list[bytes]:
        """Return the public keys of all users who have a role of MOD or ADMIN, sorted. Raises ValueError for USER."""
        raise NotImplementedError

    # --- what is hidden and dropped (4.4) ------------------------------------------------------------

    def user_hidden_by(self, user: bytes, channel: str | None) -> ModerationAct | None:
        """Return the act that hides a user's post/text in a channel, or with None in the cabal (5.1.3.4)."""
        raise NotImplementedError

    def post_hidden_by(self, post_hash: bytes, author: bytes, channel: str) -> ModerationAct | None:
        """Return the act that hides a post/text. Posts of other types cannot be hidden (5.1.3.5)."""
        raise NotImplementedError

    def post_dropped_by(self, post_hash: bytes, author: bytes, channel: str) -> ModerationAct | None:
        """Return the act that drops a post/text or post/topic. Posts of other types cannot be dropped (5.1.3.6)."""
        raise NotImplementedError

    def channel_dropped_by(self, channel: str) -> ModerationAct | None:
        """Return the act that drops a channel (5.1.3.7)."""
        raise NotImplementedError

    def user_dropped(self, user: bytes) -> UserDrop | None:
        """Return the drop of a user's posts (5.1.4), None if there is none."""
        raise NotImplementedError

    def text_hidden_by(self, post_hash: bytes, author: bytes, channel: str, timestamp_ms: int) -> ModerationAct | None:
        """Return the act for which a post/text is not displayed: it is hidden or dropped, or its author or channel is."""
        raise NotImplementedError

    # --- blocks (4.6) --------------------------------------------------------------------------------

    def blocked_by(self, user: bytes, *, public: bool = False) -> ModerationAct | None:
        """Return the post/block by which the own user blocks a user: its own, or one of an authority (4.6.1)."""
        raise NotImplementedError

    def blocks_own_user(self, user: bytes) -> ModerationAct | None:
        """Return the post/block by which a user blocks the own user and notifies it (4.6.1)."""
        raise NotImplementedError

    # --- lists ---------------------------------------------------------------------------------------

    def in_force(self, channel: str | None = None) -> Iterator[Judged]:
        """Yield what takes effect in a context, oldest first: roles, what hides, drops and blocks, and what undoes it."""
        raise NotImplementedError

    def history(self, channel: str | None = None) -> Iterator[Judged]:
        """Yield each act in a context of those who may ever have had authority, oldest first, and its outcome."""
        raise NotImplementedError


def blocks_in_force(acts: Iterable[ModerationAct]) -> dict[tuple[bytes, bytes], ModerationAct]:
    """Return which users block which by their own acts: (who blocks, who is blocked) -> post/block (4.6.1).

    Private acts do not count, because others cannot know them.
    """
    raise NotImplementedError
