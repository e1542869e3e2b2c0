"""Moderator: the moderation actions of the store's user, and the decisions that apply (moderation.md 4, 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Literal, NamedTuple, TypedDict, Unpack

from cablestore import limits
from cablestore.arguments import (
    check,
    check_choice,
    check_given,
    check_id,
    check_instance,
    checked_each,
)
from cablestore.errors import ArgumentError, StoreClosedError
from cablestore.index.batches import Progress, no_progress
from cablestore.index.drops import DroppedPost, dropped_post
from cablestore.index.engine import Engine, Transaction
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Skeleton
from cablestore.moderation.blocks import UserDrop
from cablestore.moderation.changing import read_with_seed, store_seed
from cablestore.moderation.decisions import ActResult, Decision, Decisions
from cablestore.moderation.seed import Seed
from cablestore.protocol.acts import Action, ModerationAct, UserRole, act_of
from cablestore.protocol.body import (
    LOCAL_ONLY,
    PUBLIC,
    TEXT,
    TOPIC,
    TYPE_NAMES,
    Block,
    Moderation,
    Role,
    Unblock,
)
from cablestore.protocol.post import Post
from cablestore.reprs import hex_repr
from cablestore.store.allowed import BLOCKS, own_actions_in_force, private_doings, require_allowed
from cablestore.store.authoring import Composer
from cablestore.store.causal_order import known_skeleton
from cablestore.store.differences import Difference, ModerationPosition, count_removed, differences, previewed
from cablestore.store.following import read_again
from cablestore.store.present import Present, finish
from cablestore.store.repeated import ActBody, without_repeated


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a moderation action: the written posts (none in a dry run), and the changes for the store's user.

    A dry run reports all changes, including changes by earlier actions of a user who receives a role. Otherwise, only
    changes of the action's own targets are reported.

    `dropped_posts` is the number of stored posts that are dropped and removed. `unchanged` lists the users and posts
    that `skip_repeated` left out, b"" for a channel.
    """

    posts: tuple[Post, ...]
    changes: tuple[Difference, ...]
    dropped_posts: int = 0
    unchanged: tuple[bytes, ...] = ()

    __repr__ = hex_repr


class ActOptions(TypedDict, total=False):
    """Options of every moderation action."""

    reason: str
    """Reason, visible to everyone who sees the action: up to 128 code points."""
    private: bool
    """True for a private action, which never leaves this store. Default: False."""
    dry_run: bool
    """True to return the effect and write nothing. Default: False."""
    sync: bool
    """True to return only when the action is on disk. Default: True."""
    skip_repeated: bool
    """True to leave out users and posts for which the action changes nothing. Default: False."""


@dataclass(frozen=True, slots=True)
class _How:
    """Checked values of `ActOptions`."""

    reason: str = ""
    private: bool = False
    dry_run: bool = False
    sync: bool = True
    skip_repeated: bool = False

    def __post_init__(self) -> None:
        check(reason=self.reason, private=self.private, dry_run=self.dry_run, sync=self.sync)
        check(skip_repeated=self.skip_repeated)

    @property
    def privacy(self) -> int:
        return LOCAL_ONLY if self.private else PUBLIC


class _Acts(NamedTuple):
    """The action numbers that a method can issue: one on users or a channel, and one on posts of the types `types`."""

    first: Action
    on_posts: Action
    types: tuple[int, ...]


_HIDE: Final = _Acts(Action.HIDE_USER, Action.HIDE_POST, (TEXT,))
_UNHIDE: Final = _Acts(Action.UNHIDE_USER, Action.UNHIDE_POST, (TEXT,))
_ON_USERS: Final = {"hide": frozenset({Action.HIDE_USER, Action.UNHIDE_USER}), "block": BLOCKS}
_ON_POSTS: Final = frozenset({Action.HIDE_POST, Action.UNHIDE_POST})
_DROP: Final = _Acts(Action.DROP_CHANNEL, Action.DROP_POST, (TEXT, TOPIC))
_UNDROP: Final = _Acts(Action.UNDROP_CHANNEL, Action.UNDROP_POST, (TEXT, TOPIC))


class Moderator:
    """Moderation actions of the store's user, and the decisions that apply for the user. Use `CableStore.moderation`.

    Users are 32-byte public keys. Posts are 32-byte hashes. `channel` is the context of an action; None is the whole
    cabal. Every action accepts `ActOptions`. Methods that write raise ArgumentError for actions that moderation.md
    forbids.

    Reads reflect an action at once. Dropped posts are removed in batches: the first batch with the action, further
    batches with later writes and by `sweep`.
    """

    def __init__(self, engine: Engine, present: Present, composer: Composer, clock: Callable[[], int]) -> None:
        """Use `CableStore.moderation`."""
        self._engine = engine
        self._present = present
        self._composer = composer
        self._clock = clock

    # --- writing -------------------------------------------------------------------------------

    def set_role(
        self,
        user: bytes,
        role: UserRole,
        *,
        channel: str | None = None,
        **options: Unpack[ActOptions],
    ) -> Effect:
        """Assign a role to a user. `UserRole.USER` removes a role, even if others assigned it (4.2, 5.1.2).

        Raises ArgumentError for the local user (4.4.3) and for a user who declines roles (4.2.4).
        """
        how = _How(**options)
        check(user=user)
        check_instance("role", role, UserRole)
        with self._engine.transaction() as transaction:
            body = Role(how.reason, how.privacy, self._context(channel), user, role.in_post)
            return self._act(transaction, [body], how)

    def hide(
        self,
        *,
        users: Iterable[bytes] = (),
        posts: Iterable[bytes] = (),
        channel: str | None = None,
        **options: Unpack[ActOptions],
    ) -> Effect:
        """Hide all messages of users, in a channel or the whole cabal, or single post/texts (5.1.3.4, 5.1.3.5).

        Posts must be stored, deleted or dropped, because the action contains the names of their channels.
        """
        return self._moderate(_HIDE, users, posts, channel, _How(**options))

    def unhide(
        self,
        *,
        users: Iterable[bytes] = (),
        posts: Iterable[bytes] = (),
        channel: str | None = None,
        **options: Unpack[ActOptions],
    ) -> Effect:
        """Undo `hide`. To undo a private action, pass `private=True` (4.5.1)."""
        return self._moderate(_UNHIDE, users, posts, channel, _How(**options))

    def drop(
        self,
        *,
        users: Iterable[bytes] = (),
        posts: Iterable[bytes] = (),
        channel: str | None = None,
        **options: Unpack[ActOptions],
    ) -> Effect:
        """Remove posts from this store, and reject them if they arrive again (4.4.6).

        Pass only one of `users`, `posts` and `channel`.

        As for `hide`, posts must be stored, deleted or dropped. Their type must be post/text or post/topic. Users are
        dropped by a `private` post/block with `drop=1` (5.1.4.1). To block them publicly, use `block`.
        """
        people = checked_each("users", users, check_id)
        if people:
            _require_alone(posts, channel)
            return self.block(people, drop=True, **(options | {"private": True}))
        return self._moderate(_DROP, (), posts, channel, _How(**options))

    def undrop(
        self,
        *,
        users: Iterable[bytes] = (),
        posts: Iterable[bytes] = (),
        channel: str | None = None,
        **options: Unpack[ActOptions],
    ) -> Effect:
        """Undo `drop`: the posts can be requested and stored again. A post/unblock undrops users (5.1.5)."""
        people = checked_each("users", users, check_id)
        if people:
            _require_alone(posts, channel)
            with self._engine.reading() as reader:
                if private_doings(reader, self._composer.own_key, BLOCKS, people, None):
                    options["private"] = True
            return self.unblock(people, undrop=True, **options)
        return self._moderate(_UNDROP, (), posts, channel, _How(**options))

    def block(
        self,
        users: Iterable[bytes],
        *,
        drop: bool = False,
        notify: bool = False,
        **options: Unpack[ActOptions],
    ) -> Effect:
        """Reject new posts of users. With `drop`, also remove their stored posts (4.6, 5.1.4).

        With `notify`, the post/block is sent to the blocked users.
        """
        check(drop=drop, notify=notify)
        how, people = _How(**options), self._users(users)
        with self._engine.transaction() as transaction:
            body = Block(how.reason, how.privacy, people, int(drop), int(notify))
            return self._act(transaction, [body], how)

    def unblock(
        self,
        users: Iterable[bytes],
        *,
        undrop: bool = False,
        **options: Unpack[ActOptions],
    ) -> Effect:
        """Undo `block`. With `undrop`, the posts that the block dropped can be stored again (5.1.5)."""
        check(undrop=undrop)
        how, people = _How(**options), self._users(users)
        with self._engine.transaction() as transaction:
            body = Unblock(how.reason, how.privacy, people, int(undrop))
            return self._act(transaction, [body], how)

    def join_with_seed(self, seed: bytes | str, *, dry_run: bool = False) -> Effect:
        """Apply the roles of a moderation seed, until each user receives another role or the seed is revoked (4.7).

        `seed` is bytes or a hex string. Raises ArgumentError if it is malformed, or if another seed is in force.
        Revoke the other seed first.
        """
        check(dry_run=dry_run)
        check_instance("seed", seed, (bytes, str))
        now_ms = self._clock()
        given = Seed.read_hex(seed, now_ms) if isinstance(seed, str) else Seed.read(seed, now_ms)
        known = self.seed
        if known is not None and known.revoked_at_ms is None and known.roles != given.roles:
            raise ArgumentError(
                "cannot apply the moderation seed: another moderation seed is in force. Revoke that seed first"
            )
        return self._with_seed(given, dry_run=dry_run)

    def revoke_seed(self, *, dry_run: bool = False) -> Effect:
        """Revoke the moderation seed. Earlier actions of its users stay applied (4.7.2).

        Raises ArgumentError if the store has no seed, or if it is already revoked.
        """
        check(dry_run=dry_run)
        known = self.seed
        if known is None or known.revoked_at_ms is not None:
            raise ArgumentError("cannot revoke the moderation seed: the store has no seed, or it is already revoked")
        return self._with_seed(known.revoked(self._clock()), dry_run=dry_run)

    def sweep(self, progress: Progress = no_progress) -> int:
        """Remove all dropped posts that are still stored, in batches. Return the number of posts that were read.

        After an interruption, the next call or later writes resume the removal. `progress` counts posts.
        """
        check(progress=progress)
        total = 0
        while True:
            with self._engine.transaction() as transaction:
                done = self._present.sweep_batch(transaction)
            if not done:
                return total
            total += done
            progress(done)

    @property
    def is_sweeping(self) -> bool:
        """True if dropped posts still have to be removed."""
        moderation = self._present.state.moderation
        return moderation is not None and moderation.is_sweeping

    # --- reading -------------------------------------------------------------------------------

    @property
    def decisions(self) -> Decisions | None:
        """Decisions that apply now, as an immutable object. None if the store is not moderated."""
        moderation = self._present.state.moderation
        return None if moderation is None else moderation.decisions

    @property
    def seed(self) -> Seed | None:
        """Moderation seed with which the store joined, even if revoked. None if it joined without a seed."""
        moderation = self._present.state.moderation
        return None if moderation is None else moderation.seed

    def in_force(self, channel: str | None = None) -> list[Decision]:
        """Return the actions in force in a context, oldest first: roles and hidden, dropped or blocked targets.

        Each `Decision` contains the action with its author, time and reason.
        """
        return [judged for judged in self.history(channel) if judged.result is ActResult.APPLIES]

    def history(self, channel: str | None = None) -> list[Decision]:
        """Return all actions in a context by users who may have had authority, with their results, oldest first."""
        check_given(channel=channel)
        with self._engine.reading() as reader:
            moderation = self._present.state.moderation
            if moderation is None:
                return []
            context = None if channel is None else reader.dialect.channel_id(channel)
            return list(moderation.decisions.history(context, partial(_author_of, reader)))

    def own_acts(self, kind: Literal["hide", "block"], target: bytes) -> list[ModerationAct]:
        """Return the user's actions in force that hide or block another user, or hide a post, private actions first.

        To undo an action, issue the opposite action with the same privacy and channel.
        """
        check_choice("kind", kind, _ON_USERS)
        check(target=target)
        with self._engine.reading() as reader:
            types = _ON_USERS[kind] | (_ON_POSTS if kind == "hide" else frozenset())
            return own_actions_in_force(reader, self._composer.own_key, types, target)

    def user_drop(self, user: bytes) -> UserDrop | None:
        """Return the post/block that drops a user's posts, and the time up to which it does. None without a drop."""
        check_id("user", user)
        decisions = self.decisions
        return None if decisions is None else decisions.user_dropped(user)

    def dropped_post(self, digest: bytes) -> DroppedPost | None:
        """Return the fields that the store keeps of a dropped post, None if it keeps none."""
        check_id("digest", digest)
        with self._engine.reading() as reader:
            return dropped_post(reader, digest)

    def contexts(self) -> list[str]:
        """Return the channels that are the context of an action, sorted."""
        decisions = self.decisions
        return [] if decisions is None else decisions.contexts()

    def follow(self, timeout_s: float | None = None) -> Iterator[Difference]:
        """Yield changes of roles, and of hidden, dropped or blocked users, posts and channels, after this call.

        Ends after `timeout_s` without an event, or when the store is closed.
        """
        check_given(timeout_s=timeout_s)
        return self._follow(timeout_s)

    def _follow(self, timeout_s: float | None) -> Iterator[Difference]:
        position = self.position
        while position.moderation is not None and self._engine.wait(position.sequence, timeout_s):
            try:
                found, position = self.since(position)
            except StoreClosedError:
                return
            yield from found

    @property
    def position(self) -> ModerationPosition:
        """Current position. `since` returns the changes after it."""
        return ModerationPosition(self._present.state.moderation, self._engine.next_sequence - 1)

    def since(self, position: ModerationPosition) -> tuple[list[Difference], ModerationPosition]:
        """Return the changes since an earlier position, as `follow` yields them, and the current position."""
        check_instance("position", position, ModerationPosition)
        return read_again(self._engine, partial(self._since, position))

    # --- implementation ------------------------------------------------------------------------

    def _since(self, position: ModerationPosition) -> tuple[list[Difference], ModerationPosition]:
        sequence = self._engine.next_sequence - 1
        with self._engine.reading() as reader:
            before, after = position.moderation, self._present.state.moderation or position.moderation
            if before is None or after is None or after is before:
                return [], ModerationPosition(after, sequence)
            return list(differences(before, after, reader)), ModerationPosition(after, sequence)

    def _context(self, channel: str | None) -> str:
        check_given(channel=channel)
        if channel == "":
            raise ArgumentError("invalid argument channel: the name is empty. Omit it for the whole cabal")
        return channel or ""

    def _users(self, users: Iterable[bytes]) -> tuple[bytes, ...]:
        people = tuple(dict.fromkeys(checked_each("users", users, check_id)))
        _require_count(people, "users")
        return people

    def _moderate(
        self, acts: _Acts, users: Iterable[bytes], posts: Iterable[bytes], channel: str | None, how: _How
    ) -> Effect:
        """Write one post/moderation on users or on a channel, or one post/moderation for each channel of the posts."""
        check_given(channel=channel)
        people = tuple(dict.fromkeys(checked_each("users", users, check_id)))
        hashes = tuple(dict.fromkeys(checked_each("posts", posts, check_id)))
        on_channel = acts.first >= Action.DROP_CHANNEL
        if bool(people) + bool(hashes) + (on_channel and not hashes and channel is not None) != 1:
            raise ArgumentError(
                "invalid targets: pass either " + ("posts or a channel" if on_channel else "users or posts")
            )
        with self._engine.transaction() as transaction:
            if hashes:
                _require_count(hashes, "posts")
                found = self._by_channel(transaction.reader, acts, hashes, channel)
                parts = [(name, acts.on_posts, targets) for name, targets in found.items()]
            else:
                if people:
                    _require_count(people, "users")
                parts = [(self._context(channel), acts.first, people)]
            bodies = [Moderation(how.reason, how.privacy, name, targets, action) for name, action, targets in parts]
            return self._act(transaction, bodies, how)

    def _by_channel(
        self, reader: Reader, acts: _Acts, hashes: tuple[bytes, ...], channel: str | None
    ) -> dict[str, tuple[bytes, ...]]:
        """Group the posts `hashes` by channel, because an action on posts contains their channel's name (5.1.3.2)."""
        found: dict[str, list[bytes]] = {}
        for digest in hashes:
            post = reader.post(digest)
            remains = None if post is not None else known_skeleton(reader, digest)
            bones = remains if post is None else Skeleton.of(post)
            if bones is not None and bones.type not in acts.types:
                names = " or ".join(f"post/{TYPE_NAMES[each]}" for each in acts.types)
                raise ArgumentError(
                    f"the post {digest.hex()} is a post/{TYPE_NAMES[bones.type]}, but this action needs a {names}"
                )
            name = getattr(post.body, "channel", None) if post else (bones.channel if bones else channel)
            if name is None or (bones is None and not acts.on_posts % 2):
                raise ArgumentError(
                    f"the post {digest.hex()} is not stored, so its channel is unknown. To undo an action on this "
                    "post, pass its channel"
                )
            found.setdefault(name, []).append(digest)
        return {name: tuple(targets) for name, targets in found.items()}

    def _act(self, transaction: Transaction, bodies: Sequence[ActBody], how: _How) -> Effect:
        """Sign and store posts with `bodies` in one write, and return the effect. A dry run only returns the effect."""
        composer = self._composer.for_trial() if how.dry_run else self._composer
        for body in bodies:
            require_allowed(transaction.reader, body, self._composer.own_key)
        bodies, unchanged = self._without_repeated(transaction.reader, bodies) if how.skip_repeated else (bodies, ())
        if not bodies:
            return Effect((), (), unchanged=unchanged)
        posts = []
        for body in bodies:
            posts += composer.compose(transaction, body, self._present.state.moderation)
            composer.written(posts[-1])
        state = self._present.follow_identity()  # composing the first action may have created the identity
        plan = transaction.plan()
        for post in posts:
            plan.add(post)
        acts = None if how.dry_run else [act for post in posts if (act := act_of(post)) is not None]
        found, count = previewed(plan, transaction.reader, state.moderation, posts[0].author, acts)
        if not how.dry_run:
            self._present.commit(transaction, finish(plan, state), sync=how.sync)
        return Effect(() if how.dry_run else tuple(posts), found, count, unchanged)

    def _without_repeated(
        self, reader: Reader, bodies: Sequence[ActBody]
    ) -> tuple[Sequence[ActBody], tuple[bytes, ...]]:
        own_key, decisions = self._composer.own_key, self.decisions
        if own_key is None or decisions is None:
            return bodies, ()
        pairs = [without_repeated(reader, decisions, own_key, body) for body in bodies]
        return [body for body, _ in pairs if body is not None], tuple(chain.from_iterable(each for _, each in pairs))

    def _with_seed(self, seed: Seed, *, dry_run: bool) -> Effect:
        with self._engine.transaction() as transaction:
            before = self._present.follow_identity().moderation
            if before is None:
                raise ArgumentError("this store is open without moderation. Open it with moderation to set a seed")
            reader = transaction.reader
            after = read_with_seed(reader, before, seed)
            effect = Effect((), tuple(differences(before, after, reader)), count_removed(before, after, reader))
            if not dry_run:
                plan = transaction.plan()
                state = self._present.state._replace(moderation=store_seed(plan, after))
                self._present.commit(transaction, finish(plan, state), sync=True)
            return effect


def _require_count(values: Sequence[bytes], what: str) -> None:
    if not 1 <= len(values) <= limits.MAX_RECIPIENTS:
        raise ArgumentError(f"invalid number of {what}: {len(values)}. Pass 1 to {limits.MAX_RECIPIENTS}")


def _require_alone(posts: Iterable[bytes], channel: str | None) -> None:
    check_given(channel=channel)
    if checked_each("posts", posts, check_id) or channel is not None:
        raise ArgumentError(
            "invalid targets of a drop: expected only one of users, posts and channel. To drop users, omit the channel"
        )


def _author_of(reader: Reader, digest: bytes) -> bytes | None:
    """Return the author of a post that is stored or recorded as dropped, None for other posts."""
    post = reader.post(digest)
    if post is not None:
        return post.author
    known = dropped_post(reader, digest)
    return None if known is None else known.author
