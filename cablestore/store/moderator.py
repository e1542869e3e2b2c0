"""Moderator: the acts of moderation of a store's own user, and what applies (moderation.md 4, 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cablestore.index.batches import Progress, no_progress
from cablestore.index.engine import Engine
from cablestore.moderation.acts import ModerationAct, Seed, UserRole
from cablestore.moderation.decisions import Decisions, Judged
from cablestore.protocol.post import Post
from cablestore.store.authoring import Composer
from cablestore.store.judge import Judge


class Change(NamedTuple):
    """Change of one thing: `what` is role, hidden, dropped or blocked.

    `target` is the 32 bytes of a user or a post, b"" for a channel; `channel` the context, None for the whole cabal.
    `before` and `after` are a UserRole or a bool. `act` is what it follows from, None if that was taken back.
    """

    what: str
    target: bytes
    channel: str | None
    before: UserRole | bool
    after: UserRole | bool
    act: ModerationAct | None


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of an act: the posts that were written, none in a dry run, and what changes for the store's user."""

    posts: tuple[Post, ...]
    changes: tuple[Change, ...]


class Moderator:
    """Acts of moderation of the store's user, and what applies for it. Use `CableStore.moderation`.

    Users are 32-byte public keys, posts 32-byte hashes. `channel` is the context of an act; None is the whole cabal.
    All methods that write take `reason` (up to 128 code points), `private` (the act never leaves this store), `dry_run`
    (nothing is written, the effect is returned) and `sync`. They raise ModerationError for what moderation.md forbids.

    An act takes effect in reads at once. Posts that it drops are removed in batches: a first one with the act, further
    ones with other writes and by `sweep`.
    """

    def __init__(self, engine: Engine, judge: Judge, composer: Composer, clock: Callable[[], int]) -> None:
        """Use `CableStore.moderation`."""
        self._engine = engine
        self._judge = judge
        self._composer = composer
        self._clock = clock

    # --- writing -------------------------------------------------------------------------------

    def set_role(
        self,
        user: bytes,
        role: UserRole,
        *,
        channel: str | None = None,
        reason: str = "",
        private: bool = False,
        dry_run: bool = False,
        sync: bool = True,
    ) -> Effect:
        """Give a user a role. USER takes a role away, also one that others gave (4.2, 5.1.2).

        Raises ModerationError for the own user (4.4.3) and for one that declines roles (4.2.4).
        """
        raise NotImplementedError

    def hide(
        self,
        *,
        users: Iterable[bytes] = (),
        posts: Iterable[bytes] = (),
        channel: str | None = None,
        reason: str = "",
        private: bool = False,
        dry_run: bool = False,
        sync: bool = True,
    ) -> Effect:
        """Hide the messages of users, in a channel or the whole cabal, or single post/text (5.1.3.4, 5.1.3.5).

        Posts must be stored; acts on them name their channels.
        """
        raise NotImplementedError

    def unhide(
        self,
        *,
        users: Iterable[bytes] = (),
        posts: Iterable[bytes] = (),
        channel: str | None = None,
        reason: str = "",
        private: bool = False,
        dry_run: bool = False,
        sync: bool = True,
    ) -> Effect:
        """Undo `hide`. What was hidden privately is unhidden privately only (4.5.1)."""
        raise NotImplementedError

    def drop(
        self,
        *,
        users: Iterable[bytes] = (),
        posts: Iterable[bytes] = (),
        channel: str | None = None,
        reason: str = "",
        private: bool = False,
        dry_run: bool = False,
        sync: bool = True,
    ) -> Effect:
        """Remove posts from this store, and store and request them no more: one of users, posts or a channel (4.4.6).

        Posts must be a post/text or post/topic that is stored. Users are dropped by a post/block with `drop=1`, which
        must be `private` (5.1.4.1): use `block` to block them publicly.
        """
        raise NotImplementedError

    def undrop(
        self,
        *,
        users: Iterable[bytes] = (),
        posts: Iterable[bytes] = (),
        channel: str | None = None,
        reason: str = "",
        private: bool = False,
        dry_run: bool = False,
        sync: bool = True,
    ) -> Effect:
        """Undo `drop`: the posts may be requested and stored again. Users are undropped by a post/unblock (5.1.5)."""
        raise NotImplementedError

    def block(
        self,
        users: Iterable[bytes],
        *,
        drop: bool = False,
        notify: bool = False,
        reason: str = "",
        private: bool = False,
        dry_run: bool = False,
        sync: bool = True,
    ) -> Effect:
        """Store no posts of users from now on; with `drop`, remove those that are stored too (4.6, 5.1.4).

        With `notify` the users are told.
        """
        raise NotImplementedError

    def unblock(
        self,
        users: Iterable[bytes],
        *,
        undrop: bool = False,
        reason: str = "",
        private: bool = False,
        dry_run: bool = False,
        sync: bool = True,
    ) -> Effect:
        """Undo `block`. With `undrop`, the posts that it dropped may come back (5.1.5)."""
        raise NotImplementedError

    def join_with_seed(self, seed: bytes | str, *, dry_run: bool = False) -> Effect:
        """Regard the users of a moderation seed as it says, until each gets a role or the seed is revoked (4.7).

        `seed` is its bytes, or these in hex digits. Raises ModerationError if it is malformed, or if another is in
        force: revoke that one first.
        """
        raise NotImplementedError

    def revoke_seed(self, *, dry_run: bool = False) -> Effect:
        """Revoke the moderation seed. What its users did until now stays applied (4.7.2)."""
        raise NotImplementedError

    def sweep(self, progress: Progress = no_progress) -> int:
        """Remove all posts that are dropped and not removed yet, in batches. Returns how many posts were read.

        It can be interrupted at any instant, and goes on where it was: when it is called again, or with other writes.
        """
        raise NotImplementedError

    @property
    def is_sweeping(self) -> bool:
        """Whether posts that are dropped must still be removed."""
        raise NotImplementedError

    # --- reading -------------------------------------------------------------------------------

    @property
    def decisions(self) -> Decisions | None:
        """What applies now, with all its questions; it does not change. None if the store is not moderated."""
        raise NotImplementedError

    @property
    def seed(self) -> Seed | None:
        """The moderation seed that the store joined with, revoked or not; None if it joined without one."""
        raise NotImplementedError

    def in_force(self, channel: str | None = None) -> list[Judged]:
        """Return what takes effect in a context, oldest first: who has a role, who or what is hidden, dropped, blocked.

        Each has the act with its author, time and reason.
        """
        raise NotImplementedError

    def history(self, channel: str | None = None) -> list[Judged]:
        """Return each act in a context of those who may ever have had authority, oldest first, and its outcome."""
        raise NotImplementedError

    def contexts(self) -> list[str]:
        """Return the channels that acts name as their context, sorted."""
        raise NotImplementedError

    def follow(self, timeout_s: float | None = None) -> Iterator[Change]:
        """Yield each change of a role or of what is hidden, dropped or blocked, from now on.

        Ends when nothing happens for `timeout_s`, or when the store is closed.
        """
        raise NotImplementedError
