"""Moderator: the acts of moderation of a store's own user, and what applies (moderation.md 4, 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Literal, NamedTuple, TypedDict, Unpack

from cablestore import limits
from cablestore.arguments import (
    check,
    check_bytes,
    check_choice,
    check_given,
    check_id,
    check_instance,
    checked_each,
)
from cablestore.errors import ModerationError, StoreClosedError
from cablestore.index.batches import Progress, no_progress
from cablestore.index.drops import dropped_post
from cablestore.index.engine import Engine, Transaction
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Skeleton
from cablestore.moderation.blocks import UserDrop
from cablestore.moderation.changing import read_with_seed, store_seed
from cablestore.moderation.decisions import ActOutcome, Decisions, JudgedAct
from cablestore.moderation.seed import Seed
from cablestore.protocol.acts import Action, ModerationAct, UserRole, act_of
from cablestore.protocol.body import (
    LOCAL_ONLY,
    PUBLIC,
    TEXT,
    TOPIC,
    TYPE_NAMES,
    Block,
    Body,
    Moderation,
    Role,
    Unblock,
)
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.post import Post
from cablestore.reprs import hex_repr
from cablestore.store.allowed import BLOCKS, own_acts_in_force, private_doings, require_allowed
from cablestore.store.authoring import Composer
from cablestore.store.causal_order import known_skeleton
from cablestore.store.differences import Difference, Place, count_removed, differences, previewed
from cablestore.store.following import read_again
from cablestore.store.present import Present, finish
from cablestore.store.repeated import without_repeated


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of an act: the posts that were written, none in a dry run, and what changes for the store's user.

    A dry run tells all changes, also those that follow from what a user did who gets a role. An act that is written
    tells those of its own targets.

    `dropped_posts` is the number of stored posts that are dropped from then on, and removed. `unchanged` are the users
    and posts that the act leaves out because it changes nothing for them (`skip_repeated`), b"" for a channel.
    """

    posts: tuple[Post, ...]
    changes: tuple[Difference, ...]
    dropped_posts: int = 0
    unchanged: tuple[bytes, ...] = ()

    __repr__ = hex_repr


class ActOptions(TypedDict, total=False):
    """Options of every act."""

    reason: str
    """Why, for all who see the act: up to 128 code points."""
    private: bool
    """Whether the act never leaves this store."""
    dry_run: bool
    """Whether nothing is written, and the effect is returned alone."""
    sync: bool
    """Whether the act is on the disk when the call returns, as it is by default."""
    skip_repeated: bool
    """True to leave out users and posts for which an earlier own act says the same already, or nothing is undone."""


@dataclass(frozen=True, slots=True)
class _How:
    """Values of the options."""

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
    """Acts of a post/moderation: on users or on a channel, and on posts of some types."""

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
    """Acts of moderation of the store's user, and what applies for it. Use `CableStore.moderation`.

    Users are 32-byte public keys, posts 32-byte hashes. `channel` is the context of an act; None is the whole cabal.
    Every act takes the options of `ActOptions`. All methods that write raise ModerationError for what moderation.md
    forbids.

    An act takes effect in reads at once. Posts that it drops are removed in batches: a first one with the act, further
    ones with other writes and by `sweep`.
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
        """Give a user a role. USER takes a role away, also one that others gave (4.2, 5.1.2).

        Raises ModerationError for the own user (4.4.3) and for one that declines roles (4.2.4).
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
        """Hide the messages of users, in a channel or the whole cabal, or single post/text (5.1.3.4, 5.1.3.5).

        Posts must be stored; acts on them name their channels.
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
        """Undo `hide`. What was hidden privately is unhidden privately only (4.5.1)."""
        return self._moderate(_UNHIDE, users, posts, channel, _How(**options))

    def drop(
        self,
        *,
        users: Iterable[bytes] = (),
        posts: Iterable[bytes] = (),
        channel: str | None = None,
        **options: Unpack[ActOptions],
    ) -> Effect:
        """Remove posts from this store, and store and request them no more: one of users, posts or a channel (4.4.6).

        Posts must be a post/text or post/topic that is stored. Users are dropped by a post/block with `drop=1`, which
        must be `private` (5.1.4.1): use `block` to block them publicly.
        """
        people = checked_each("users", users, check_bytes)
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
        """Undo `drop`: the posts may be requested and stored again. Users are undropped by a post/unblock (5.1.5)."""
        people = checked_each("users", users, check_bytes)
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
        """Store no posts of users from now on; with `drop`, remove those that are stored too (4.6, 5.1.4).

        With `notify` the users are told.
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
        """Undo `block`. With `undrop`, the posts that it dropped may come back (5.1.5)."""
        check(undrop=undrop)
        how, people = _How(**options), self._users(users)
        with self._engine.transaction() as transaction:
            body = Unblock(how.reason, how.privacy, people, int(undrop))
            return self._act(transaction, [body], how)

    def join_with_seed(self, seed: bytes | str, *, dry_run: bool = False) -> Effect:
        """Regard the users of a moderation seed as it says, until each gets a role or the seed is revoked (4.7).

        `seed` is its bytes, or these in hex digits. Raises ModerationError if it is malformed, or if another is in
        force: revoke that one first.
        """
        check(dry_run=dry_run)
        check_instance("seed", seed, (bytes, str))
        now_ms = self._clock()
        given = Seed.read_hex(seed, now_ms) if isinstance(seed, str) else Seed.read(seed, now_ms)
        known = self.seed
        if known is not None and known.revoked_at_ms is None and known.roles != given.roles:
            raise ModerationError("another moderation seed is in force. Revoke it first")
        return self._with_seed(given, dry_run=dry_run)

    def revoke_seed(self, *, dry_run: bool = False) -> Effect:
        """Revoke the moderation seed. What its users did until now stays applied (4.7.2)."""
        check(dry_run=dry_run)
        known = self.seed
        if known is None or known.revoked_at_ms is not None:
            raise ModerationError("no moderation seed is in force")
        return self._with_seed(known.revoked(self._clock()), dry_run=dry_run)

    def sweep(self, progress: Progress = no_progress) -> int:
        """Remove all posts that are dropped and not removed yet, in batches. Returns how many posts were read.

        It can be interrupted at any instant, and goes on where it was: when it is called again, or with other writes.
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
        """Whether posts that are dropped must still be removed."""
        moderation = self._present.state.moderation
        return moderation is not None and moderation.is_sweeping

    # --- reading -------------------------------------------------------------------------------

    @property
    def decisions(self) -> Decisions | None:
        """What applies now, with all its questions; it does not change. None if the store is not moderated."""
        moderation = self._present.state.moderation
        return None if moderation is None else moderation.decisions

    @property
    def seed(self) -> Seed | None:
        """The moderation seed that the store joined with, revoked or not; None if it joined without one."""
        moderation = self._present.state.moderation
        return None if moderation is None else moderation.seed

    def in_force(self, channel: str | None = None) -> list[JudgedAct]:
        """Return what takes effect in a context, oldest first: who has a role, who or what is hidden, dropped, blocked.

        Each has the act with its author, time and reason.
        """
        return [judged for judged in self.history(channel) if judged.outcome is ActOutcome.APPLIES]

    def history(self, channel: str | None = None) -> list[JudgedAct]:
        """Return each act in a context of those who may ever have had authority, oldest first, and its outcome."""
        check_given(channel=channel)
        with self._engine.reading() as reader:
            moderation = self._present.state.moderation
            if moderation is None:
                return []
            context = None if channel is None else reader.dialect.channel_id(channel)
            return list(moderation.decisions.history(context, partial(_author_of, reader)))

    def own_acts(self, kind: Literal["hide", "block"], target: bytes) -> list[ModerationAct]:
        """Return the own acts that hide or block a user, or hide a post, and are in force: private ones first.

        Each is undone by an act of the same privacy in the same channel.
        """
        check_choice("kind", kind, _ON_USERS)
        check(target=target)
        with self._engine.reading() as reader:
            types = _ON_USERS[kind] | (_ON_POSTS if kind == "hide" else frozenset())
            return own_acts_in_force(reader, self._composer.own_key, types, target)

    def user_drop(self, user: bytes) -> UserDrop | None:
        """Return the drop of a user's posts: the post/block, and until when posts are dropped. None if there is none."""
        check_id("user", user)
        decisions = self.decisions
        return None if decisions is None else decisions.user_dropped(user)

    def contexts(self) -> list[str]:
        """Return the channels that acts name as their context, sorted."""
        decisions = self.decisions
        return [] if decisions is None else decisions.contexts()

    def follow(self, timeout_s: float | None = None) -> Iterator[Difference]:
        """Yield each change of a role or of what is hidden, dropped or blocked, from now on.

        Ends when nothing happens for `timeout_s`, or when the store is closed.
        """
        check_given(timeout_s=timeout_s)
        return self._follow(timeout_s)

    def _follow(self, timeout_s: float | None) -> Iterator[Difference]:
        place = self.place
        while place.moderation is not None and self._engine.wait(place.sequence, timeout_s):
            try:
                found, place = self.since(place)
            except StoreClosedError:
                return
            yield from found

    @property
    def place(self) -> Place:
        """The present place: `since` tells what changes after it."""
        return Place(self._present.state.moderation, self._engine.next_sequence - 1)

    def since(self, place: Place) -> tuple[list[Difference], Place]:
        """Return what `follow` yields for the writes since an earlier place, and the present one."""
        check_instance("place", place, Place)
        return read_again(self._engine, partial(self._since, place))

    # --- how -----------------------------------------------------------------------------------

    def _since(self, place: Place) -> tuple[list[Difference], Place]:
        sequence = self._engine.next_sequence - 1
        with self._engine.reading() as reader:
            before, after = place.moderation, self._present.state.moderation or place.moderation
            if before is None or after is None or after is before:
                return [], Place(after, sequence)
            return list(differences(before, after, reader)), Place(after, sequence)

    def _context(self, channel: str | None) -> str:
        check_given(channel=channel)
        if channel == "":
            raise ModerationError("a channel has a name: leave it out for the whole cabal")
        return channel or ""

    def _users(self, users: Iterable[bytes]) -> tuple[bytes, ...]:
        people = tuple(dict.fromkeys(checked_each("users", users, check_bytes)))
        _require_keys(people, "users")
        return people

    def _moderate(
        self, acts: _Acts, users: Iterable[bytes], posts: Iterable[bytes], channel: str | None, how: _How
    ) -> Effect:
        """Write a post/moderation on users or on a channel, or one on the posts of each channel."""
        check_given(channel=channel)
        people = tuple(dict.fromkeys(checked_each("users", users, check_bytes)))
        hashes = tuple(dict.fromkeys(checked_each("posts", posts, check_bytes)))
        on_channel = acts.first >= Action.DROP_CHANNEL
        if bool(people) + bool(hashes) + (on_channel and not hashes and channel is not None) != 1:
            raise ModerationError("name either " + ("posts or a channel" if on_channel else "users or posts"))
        with self._engine.transaction() as transaction:
            if hashes:
                _require_keys(hashes, "posts")
                found = self._by_channel(transaction.reader, acts, hashes, channel)
                parts = [(name, acts.on_posts, targets) for name, targets in found.items()]
            else:
                if people:
                    _require_keys(people, "users")
                parts = [(self._context(channel), acts.first, people)]
            bodies: list[Body] = []
            for name, action, targets in parts:
                bodies.append(Moderation(how.reason, how.privacy, name, targets, action))
            return self._act(transaction, bodies, how)

    def _by_channel(
        self, reader: Reader, acts: _Acts, hashes: tuple[bytes, ...], channel: str | None
    ) -> dict[str, tuple[bytes, ...]]:
        """Return the posts by the names of their channels, which acts on them repeat (5.1.3.2)."""
        found: dict[str, list[bytes]] = {}
        for digest in hashes:
            post = reader.post(digest)
            remains = None if post is not None else known_skeleton(reader, digest)
            bones = remains if post is None else Skeleton.of(post)
            if bones is not None and bones.type not in acts.types:
                names = " or ".join(f"post/{TYPE_NAMES[each]}" for each in acts.types)
                raise ModerationError(
                    f"the post {digest.hex()} is a post/{TYPE_NAMES[bones.type]}. This act is for a {names} alone"
                )
            name = getattr(post.body, "channel", None) if post else (bones.channel if bones else channel)
            if name is None or (bones is None and not acts.on_posts % 2):
                raise ModerationError(
                    f"the post {digest.hex()} is not stored. To undo an action on it, name its channel"
                )
            found.setdefault(name, []).append(digest)
        return {name: tuple(targets) for name, targets in found.items()}

    def _act(self, transaction: Transaction, bodies: list[Body], how: _How) -> Effect:
        """Sign and store acts, in one write. In a dry run only tell the effect."""
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
        state = self._present.follow_identity()  # a store without one has made it for the first act
        plan = transaction.plan()
        for post in posts:
            plan.add(post)
        acts = None if how.dry_run else [act for post in posts if (act := act_of(post)) is not None]
        found, count = previewed(plan, transaction.reader, state.moderation, posts[0].author, acts)
        if not how.dry_run:
            self._present.commit(transaction, finish(plan, state), sync=how.sync)
        return Effect(() if how.dry_run else tuple(posts), found, count, unchanged)

    def _without_repeated(self, reader: Reader, bodies: list[Body]) -> tuple[list[Body], tuple[bytes, ...]]:
        own_key, decisions = self._composer.own_key, self.decisions
        if own_key is None or decisions is None:
            return bodies, ()
        pairs = [without_repeated(reader, decisions, own_key, body) for body in bodies]
        return [body for body, _ in pairs if body is not None], tuple(chain.from_iterable(each for _, each in pairs))

    def _with_seed(self, seed: Seed, *, dry_run: bool) -> Effect:
        with self._engine.transaction() as transaction:
            before = self._present.follow_identity().moderation
            if before is None:
                raise ModerationError(
                    "this store is open without moderation: open it with moderation to give it a seed"
                )
            reader = transaction.reader
            after = read_with_seed(reader, before, seed)
            effect = Effect((), tuple(differences(before, after, reader)), count_removed(before, after, reader))
            if not dry_run:
                plan = transaction.plan()
                state = self._present.state._replace(moderation=store_seed(plan, after))
                self._present.commit(transaction, finish(plan, state), sync=True)
            return effect


def _require_keys(values: Sequence[bytes], what: str) -> None:
    if not 1 <= len(values) <= limits.MAX_RECIPIENTS:
        raise ModerationError(f"{len(values)} {what} are named, allowed are 1 to {limits.MAX_RECIPIENTS}")
    for value in values:
        if len(value) != KEY_SIZE_BYTES:
            raise ModerationError(f"{value.hex()} has {len(value)} bytes. Name {what} by {KEY_SIZE_BYTES} bytes")


def _require_alone(posts: Iterable[bytes], channel: str | None) -> None:
    check_given(channel=channel)
    if checked_each("posts", posts, check_bytes) or channel is not None:
        raise ModerationError("name either users, posts or a channel. Users are dropped in the whole cabal")


def _author_of(reader: Reader, digest: bytes) -> bytes | None:
    """Return the author of a post that is stored or remembered."""
    post = reader.post(digest)
    if post is not None:
        return post.author
    known = dropped_post(reader, digest)
    return None if known is None else known.author
