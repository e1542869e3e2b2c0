"""Decisions: which of the stored moderation actions apply for the store's own user (moderation.md 4).

Decisions are immutable. `changed` returns a new object, so any thread may read the existing object. Decisions are a
function of the stored actions, the local user's key and the seed: neither the order of arrival nor the time of day
matters.

Most methods return the action that takes effect, or None. For example, `user_hidden_by` returns the action that hides a
user, with its author, time and reason.

With `public=True`, a result depends only on public actions. Everything that peers can observe must be decided this way
(4.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple, Self

from cablestore.moderation.blocks import BlockState, UserDrop, resolve_blocks
from cablestore.moderation.known import BLOCKING, HeldActs, KnownActs, is_doing, pair_of
from cablestore.moderation.roles import RoleContexts
from cablestore.moderation.seed import Seed
from cablestore.protocol.acts import Action, Consent, ModerationAct, UserRole, turning_points
from cablestore.protocol.body import BLOCK, MODERATION, ROLE, UNBLOCK
from cablestore.reprs import hex_repr


class ActResult(StrEnum):
    """Result of an action for one of its targets."""

    APPLIES = "applies"
    UNDONE = "undone"
    """The author of the action replaced or undid it (4.2.2, 4.4.2)."""
    NO_AUTHORITY = "no authority"
    """The author lacked authority when the action was issued, or has lost the admin role that a post/role needs (4.2.5,
    4.4.3)."""
    EXEMPT = "exempt"
    """The target had authority when the action was issued (4.4.5)."""
    OVERRULED = "overruled"
    """Another action takes precedence (4.2.5, 4.4.5)."""
    DECLINED = "declined"
    """The action assigns a role to a user who declines roles (4.2.4)."""
    VOID = "void"
    """The action is impossible: a role for its author (4.4.3) or for the local user, or a drop without a channel."""


class Decision(NamedTuple):
    """Decision about an action for one of its targets. The target of an action on a channel is b""."""

    act: ModerationAct
    target: bytes
    result: ActResult

    def __repr__(self) -> str:
        return hex_repr(self)


_AboutUsers = dict[tuple[bytes, str], tuple[UserDrop | None, ModerationAct | None]]
"""The drop and the hiding action of a user in a channel."""
_Blocks = dict[tuple[bytes, bool], BlockState]
"""The blocks of a user, by all actions or only by public actions."""
_Hidden = tuple[dict[bytes, frozenset[str] | None], frozenset[bytes]]
"""The hidden users with their channels, and the posts that are targets of actions."""


class Decisions:
    """Decisions for one user. A context is a channel's comparable name, or None for the whole cabal.

    Actions of users who never had authority are not read, except blocks on the local user.
    """

    def __init__(
        self,
        known: KnownActs,
        contexts: RoleContexts | None = None,
        users: _AboutUsers | None = None,
        blocks: _Blocks | None = None,
    ) -> None:
        """Use `read` instead. `contexts`, `users` and `blocks` are cached results."""
        self._known = known
        self.has_actions: Final = bool(known.records or known.against)
        """True if any action may hide, drop or block."""
        self._own = known.own_key
        self._users = users or {}
        self._blocks = blocks or {}
        self._hidden: _Hidden | None = None
        self._contexts = contexts or RoleContexts(
            known.own_key,
            known.seed,
            chain.from_iterable(known.roles.values()),
            chain.from_iterable(map(turning_points, known.consents.values())),
        )

    @classmethod
    def read(cls, held: HeldActs, own_key: bytes, seed: Seed | None = None) -> Self:
        """Read the actions of everybody who may have authority, starting with the local user and the seed."""
        return cls(KnownActs.read(held, own_key, seed))

    def changed(
        self,
        held: HeldActs,
        added: Iterable[ModerationAct | Consent] = (),
        removed: Iterable[ModerationAct | Consent] = (),
    ) -> Self:
        """Return the decisions after the actions and statements `added` were stored and `removed` were deleted.

        `held` reads the state after that, only for users who newly may have authority and if a role was deleted. After
        a change of the seed, use `read` instead.
        """
        added, removed = list(added), list(removed)
        known = self._known.copy()
        gone = [item for item in removed if known.remove(item)]
        if any(isinstance(item, ModerationAct) for item in gone):  # some users can no longer have authority
            return self.read(held, self._own, known.seed)
        came = [item for item in added if known.add(item)]
        if not gone and not came:
            touched = {
                target for item in (*added, *removed) if isinstance(item, ModerationAct) for target in item.targets
            }
            users = {key: about for key, about in list(self._users.items()) if key[0] not in touched}
            blocks = {key: state for key, state in list(self._blocks.items()) if key[0] not in touched}
            return type(self)(known, self._contexts, users, blocks)
        known.follow_roles(held)
        return type(self)(known)

    def has_roles_of(self, other: Decisions) -> bool:
        """Return True if these decisions were derived from `other` without a change of roles."""
        return self._contexts is other._contexts

    def acts(self) -> Iterator[ModerationAct]:
        """Yield all actions of users who may have authority, in any order."""
        yield from chain.from_iterable(self._known.roles.values())
        yield from self._known.actions()

    def contexts(self) -> list[str]:
        """Return the channels of the actions in `acts`, sorted."""
        return sorted({act.channel for act in self.acts() if act.channel})

    # --- roles (4.2) ---------------------------------------------------------------------------------

    def role(self, user: bytes, channel: str | None = None, *, public: bool = False) -> UserRole:
        """Return the present role of a user in a channel, or in the whole cabal if `channel` is None."""
        return self._contexts.history(channel, public=public).role(user)

    def role_given_by(self, user: bytes, channel: str | None = None) -> ModerationAct | Seed | None:
        """Return the source of a user's role: an action or the seed, None for the default and for the local user."""
        return self._contexts.history(channel).decided_by(user)

    def had_authority(self, user: bytes, channel: str | None, timestamp_ms: int, *, public: bool = False) -> bool:
        """Return True if `user` got authority before `timestamp_ms` and had not lost it by then (4.4.3)."""
        return self._contexts.history(channel, public=public).had_authority(user, timestamp_ms)

    def authorised_from(self, timestamp_ms: int) -> list[ModerationAct]:
        """Return the actions dated `timestamp_ms` or later whose authors had authority in any context, oldest first."""
        found = [act for act in self.acts() if act.timestamp_ms >= timestamp_ms and self._is_authorised(act)]
        return sorted(found, key=lambda act: act.moment)

    def _is_authorised(self, act: ModerationAct) -> bool:
        contexts = [None, *self._contexts.channels] if act.channel is None else [act.channel]
        histories = map(self._contexts.history, contexts)
        if act.type == ROLE:
            return any(history.is_applied(act) for history in histories)
        return any(history.had_authority(act.author, act.timestamp_ms) for history in histories)

    def may_have_authority(self, user: bytes) -> bool:
        """Return True for the local user, and for users to whom the seed or a possible admin assigned a role.

        Actions of other users have no effect, except blocks on the local user.
        """
        return user in self._known.roles

    def users_with(self, role: UserRole, channel: str | None = None) -> list[bytes]:
        """Return the sorted public keys of all users with a role, MOD or ADMIN. Raises ValueError for USER."""
        if not role.has_authority:
            raise ValueError("invalid argument role: normal users are not listed. Use UserRole.MOD or UserRole.ADMIN")
        return sorted(self._contexts.history(channel).users_with(role))

    # --- hidden and dropped targets (4.4) ------------------------------------------------------------

    def is_acted_on(self, target: bytes | str) -> bool:
        """Return True if a user who may have authority acted on a user, a post or a channel.

        This check is fast. Targets for which it returns False are not hidden, dropped or blocked.
        """
        return self._known.is_acted_on(target)

    def user_hidden_by(self, user: bytes, channel: str | None) -> ModerationAct | None:
        """Return the action that hides a user's texts in a channel, or in the cabal if `channel` is None (5.1.3.4)."""
        return self._doing(Action.HIDE_USER, user, channel, user)

    def post_hidden_by(self, post_hash: bytes, author: bytes | None, channel: str) -> ModerationAct | None:
        """Return the action that hides a post/text, None if it is not hidden.

        Posts of other types cannot be hidden (5.1.3.5).
        """
        return self._doing(Action.HIDE_POST, post_hash, channel, author)

    def post_dropped_by(self, post_hash: bytes, author: bytes | None, channel: str) -> ModerationAct | None:
        """Return the action that drops a post/text or post/topic. Posts of other types cannot be dropped (5.1.3.6).

        An unknown author (None) is not exempt.
        """
        return self._doing(Action.DROP_POST, post_hash, channel, author)

    def unseen_post_dropped_by(self, post_hash: bytes) -> ModerationAct | None:
        """Return an action that drops a post whose author and channel are unknown, None if no action does.

        Each action is applied as if the post were in the action's channel.
        """
        contexts = self._known.contexts_on(post_hash, Action.DROP_POST)
        found = (self.post_dropped_by(post_hash, None, context) for context in contexts)
        return next((act for act in found if act is not None), None)

    def channel_dropped_by(self, channel: str) -> ModerationAct | None:
        """Return the action that drops a channel, None if it is not dropped (5.1.3.7)."""
        return self._doing(Action.DROP_CHANNEL, channel, channel, None)

    def user_dropped(self, user: bytes) -> UserDrop | None:
        """Return the drop of a user's posts (5.1.4, 5.1.5), None if they are not dropped."""
        return self.blocks_of(user).drop

    def text_hidden_by(self, post_hash: bytes, author: bytes, channel: str, timestamp_ms: int) -> ModerationAct | None:
        """Return the action that hides or drops a post/text, its author or its channel. None if the text is visible."""
        is_acted_on = self.is_acted_on  # a page calls this for each message, and most need only this check
        found = self.channel_dropped_by(channel) if is_acted_on(channel) else None
        if found is None and is_acted_on(author):
            drop, hide = self._about_user(author, channel)
            found = drop.act if drop is not None and drop.covers(timestamp_ms) else hide
        if found is None and is_acted_on(post_hash):
            found = self.post_dropped_by(post_hash, author, channel) or self.post_hidden_by(post_hash, author, channel)
        return found

    def _about_user(self, user: bytes, channel: str) -> tuple[UserDrop | None, ModerationAct | None]:
        """Return the drop of a user and the action that hides the user in a channel, each None if there is none.

        The result is cached, because the messages of a page have few authors.
        """
        about = self._users.get((user, channel))
        if about is None:
            about = self._users[user, channel] = self.user_dropped(user), self.user_hidden_by(user, channel)
        return about

    def hidden_users(self) -> dict[bytes, frozenset[str] | None]:
        """Return the users with hidden or dropped texts, each with the channels of these texts (None: all channels)."""
        return self._all_hidden()[0]

    def hidden_posts(self) -> frozenset[bytes]:
        """Return the posts that are targets of actions. Not all are hidden: see `text_hidden_by`."""
        return self._all_hidden()[1]

    def _all_hidden(self) -> _Hidden:
        """Return the results of `hidden_users` and `hidden_posts`. They are cached for lists of channels."""
        if self._hidden is None:
            contexts: dict[bytes, set[str | None]] = {}
            posts: set[bytes] = set()
            for act in self._known.actions():
                if act.type == MODERATION and act.what >= Action.HIDE_POST:
                    posts.update(act.targets)
                elif is_doing(act):
                    for user in act.targets:
                        contexts.setdefault(user, set()).add(act.channel)
            users = {user: self._hiding_contexts(user, named) for user, named in contexts.items()}
            self._hidden = (
                {user: channels for user, channels in users.items() if channels is None or channels},
                frozenset(posts),
            )
        return self._hidden

    def _hiding_contexts(self, user: bytes, named: set[str | None]) -> frozenset[str] | None:
        """Return the channels in `named` in which `user` is hidden. None if hidden in the whole cabal, or dropped."""
        if self.user_dropped(user) is not None or self.user_hidden_by(user, None) is not None:
            return None
        channels = (channel for channel in named if channel is not None)
        return frozenset(channel for channel in channels if self.user_hidden_by(user, channel) is not None)

    # --- blocks (4.6) --------------------------------------------------------------------------------

    def blocks_of(self, user: bytes, *, public: bool = False) -> BlockState:
        """Return the block on a user, its start, and the drops of the user's posts."""
        if user == self._own or not self._known.is_acted_on(user):
            return BlockState()
        state = self._blocks.get((user, public))
        if state is None:
            acts = self._known.actions_on(user, BLOCKING, None)
            state = self._blocks[user, public] = resolve_blocks(
                [
                    (act, act.author == self._own or self._is_applicable(act, None, user, public))
                    for act in acts
                    if not (public and act.is_private)
                ],
                self._own,
            )
        return state

    def blocked_by(self, user: bytes, *, public: bool = False) -> ModerationAct | None:
        """Return the post/block, by the local user or an authority, that blocks a user. None if none does (4.6.1)."""
        return self.blocks_of(user, public=public).block

    def blocks_own_user(self, user: bytes) -> ModerationAct | None:
        """Return the post/block by which a user blocks and notifies the local user, or None (4.6.1).

        The block is in force until the user undoes it: a later post/block that does not notify changes nothing.
        """
        found = None
        for act in sorted(self._known.against.get(user, ()), key=lambda act: act.moment):
            if act.type == UNBLOCK:
                found = None
            elif act.notifies:
                found = act
        return found

    # --- actions on a target ------------------------------------------------------------------------

    def acts_on(self, target: bytes | str, pair: int, channel: str | None) -> Iterator[ModerationAct]:
        """Yield the actions of a pair on a target in a context and in overlapping contexts, in any order.

        The whole cabal (None) overlaps with every channel. `pair` is the number of the doing action, or BLOCKING.
        """
        for act in self._known.all_actions_on(target, pair):
            if channel is None or act.channel in (None, channel):
                yield act

    def own_roles(self, user: bytes, channel: str | None) -> Iterator[ModerationAct]:
        """Yield each post/role by which the local user assigned a role to `user` in one context, in any order."""
        for act in self._known.roles.get(self._own, ()):
            if act.targets[0] == user and act.channel == channel:
                yield act

    # --- which action takes effect -------------------------------------------------------------------

    def _doing(
        self, pair: int, target: bytes | str, channel: str | None, subject: bytes | None
    ) -> ModerationAct | None:
        act = self._effective(pair, target, channel, subject)
        return act if act is not None and is_doing(act) else None

    def _effective(
        self, pair: int, target: bytes | str, channel: str | None, subject: bytes | None
    ) -> ModerationAct | None:
        """Return the doing or undoing action of the pair `pair` that takes effect on `target`. None if none does.

        The local user's action takes precedence, then the latest action. An action for the cabal applies to all
        channels (4.1.1, 4.4.5). `subject` is the user whose authority protects the target: the user, or the post's
        author. None if there is none or the author is unknown.
        """
        if not self._known.is_acted_on(target):
            return None
        by_author = self._relevant(self._actions_on(target, pair, channel))
        if self._own in by_author:
            return by_author[self._own][-1]
        acts = (act for acts in by_author.values() for act in acts)
        applicable = (act for act in acts if self._is_applicable(act, channel, subject))
        return max(applicable, key=lambda act: act.moment, default=None)

    def _actions_on(self, target: bytes | str, pair: int, channel: str | None) -> list[ModerationAct]:
        """Return the actions of a pair on a target that apply in a context, including actions for the cabal."""
        found = self._known.actions_on(target, pair, channel)
        if channel is None or pair == Action.DROP_CHANNEL:
            return found
        return found + self._known.actions_on(target, pair, None)

    def _relevant(self, acts: list[ModerationAct]) -> dict[bytes, list[ModerationAct]]:
        """Return, by author, those of `acts` that the author has not undone since, oldest first (4.4.2).

        `acts` are the actions of one pair on one target.

        Only a private action undoes a private action of the local user (4.5.1).
        """
        relevant: dict[bytes, list[ModerationAct]] = {}
        latest_private = None
        for act in sorted(acts, key=lambda act: act.moment):
            others = relevant.get(act.author)
            if others and is_doing(others[0]) == is_doing(act):
                others.append(act)
            else:
                relevant[act.author] = [act]
            if act.is_private:
                latest_private = act
        if latest_private and is_doing(latest_private):
            relevant[self._own] = [latest_private]
        return relevant

    def _is_applicable(
        self, act: ModerationAct, channel: str | None, subject: bytes | None, public: bool = False
    ) -> bool:
        """Return True if an action's author had authority when it was issued, and `subject` had none (4.4.3, 4.4.5)."""
        history = self._contexts.history(channel, public=public)
        seed = self._known.seed
        is_kept = seed is not None and act.hash in seed.kept
        if not is_kept and not history.had_authority(act.author, act.timestamp_ms):
            return False
        return subject is None or not history.had_authority(subject, act.timestamp_ms)

    # --- lists ---------------------------------------------------------------------------------------

    def in_force(
        self, channel: str | None = None, author_of_post: Callable[[bytes], bytes | None] = lambda _: None
    ) -> Iterator[Decision]:
        """Yield the actions that take effect in a context, oldest first, including actions that undo others.

        `author_of_post` is explained in `history`.
        """
        return (judged for judged in self.history(channel, author_of_post) if judged.result is ActResult.APPLIES)

    def history(
        self, channel: str | None = None, author_of_post: Callable[[bytes], bytes | None] = lambda _: None
    ) -> Iterator[Decision]:
        """Yield each action in a context by users who may ever have had authority, oldest first, with its result.

        The actions for a channel include the actions for the cabal. An action on a post does not contain the post's
        author: `author_of_post` returns it, or None.
        """
        roles = sorted(chain.from_iterable(self._known.roles.values()), key=lambda act: act.moment)
        latest = {(act.author, act.targets, act.channel): act for act in roles}
        for act in sorted((*roles, *self._known.actions()), key=lambda act: act.moment):
            if act.channel not in (None, channel):
                continue
            for target in act.targets or (b"",):
                if act.type == ROLE:
                    is_latest = latest[act.author, act.targets, act.channel] == act
                    yield Decision(act, target, self._decide_role(act, target, channel, is_latest))
                else:
                    yield Decision(act, target, self._decide_action(act, target, channel, author_of_post))

    def _decide_role(self, act: ModerationAct, user: bytes, channel: str | None, is_latest: bool) -> ActResult:
        if user in (act.author, self._own):
            return ActResult.VOID
        if not is_latest:
            return ActResult.UNDONE
        history = self._contexts.history(channel)
        if not history.is_applied(act):
            return ActResult.NO_AUTHORITY
        if history.declines(user):
            return ActResult.DECLINED
        return ActResult.APPLIES if history.decided_by(user) == act else ActResult.OVERRULED

    def _decide_action(
        self, act: ModerationAct, target: bytes, channel: str | None, author_of_post: Callable[[bytes], bytes | None]
    ) -> ActResult:
        pair = pair_of(act)
        is_on_channel = pair == Action.DROP_CHANNEL
        if act.channel is None if is_on_channel else not target:
            return ActResult.VOID
        if pair == BLOCKING and target == self._own == act.author:
            return ActResult.VOID
        subject = target if pair in (Action.HIDE_USER, BLOCKING) else None if is_on_channel else author_of_post(target)
        key = target or act.channel or ""
        if act in self._taking_effect(pair, key, channel, subject):
            return ActResult.APPLIES
        acts = self._actions_on(key, pair, channel)
        if act not in self._relevant(acts).get(act.author, ()):
            return ActResult.UNDONE
        if act.author == self._own or self._is_applicable(act, channel, subject):
            return ActResult.OVERRULED
        has_authority = self.had_authority(act.author, channel, act.timestamp_ms)
        return ActResult.EXEMPT if has_authority else ActResult.NO_AUTHORITY

    def _taking_effect(
        self, pair: int, target: bytes | str, channel: str | None, subject: bytes | None
    ) -> tuple[ModerationAct | None, ...]:
        """Return a tuple that begins with the action of the pair `pair` that takes effect on `target`, or None.

        For BLOCKING, each post/block whose drop takes effect follows.
        """
        if pair != BLOCKING or not isinstance(target, bytes):
            return (self._effective(pair, target, channel, subject),)
        state = self.blocks_of(target)
        return (state.in_force, *(drop.act for drop in state.drops))


def blocks_in_force(acts: Iterable[ModerationAct]) -> dict[tuple[bytes, bytes], ModerationAct]:
    """Return the post/block in force for each pair (blocking user, blocked user), by the users' own actions (4.6.1).

    Private actions do not count, because others cannot know them.
    """
    latest: dict[tuple[bytes, bytes], ModerationAct] = {}
    for act in sorted(acts, key=lambda act: act.moment):
        if not act.is_private:
            latest.update({(act.author, target): act for target in act.targets})
    return {pair: act for pair, act in latest.items() if act.type == BLOCK}
