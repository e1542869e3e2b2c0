"""Known acts: those of everybody who may have authority, as far as roles reach from the own user and the seed.

Acts of others change nothing, so they are not read and take no memory. The one exception are blocks on the own user.
Who once declined, or was given a role by somebody who lost the right to, is still known: `roles` says what counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from cablestore.moderation.seed import Seed
from cablestore.protocol.acts import Consent, ModerationAct, UserRole
from cablestore.protocol.body import BLOCK, MODERATION, ROLE

_Item = TypeVar("_Item", bound=ModerationAct | Consent)

BLOCKING: Final = 8
"""Pair of post/block and post/unblock. Those of actions are the number of the doing one (5.1.3)."""


class HeldActs(Protocol):
    """What a store holds, read when it is needed. Deleted posts are not held: a deleted act was never issued."""

    def by_author(self, author: bytes) -> Iterable[ModerationAct]:
        """Return the acts of one author in any order, also the private ones of the store's own user."""

    def consents_of(self, user: bytes) -> Iterable[Consent]:
        """Return what a user ever said of taking roles, in any order."""

    def blocks_on(self, user: bytes) -> Iterable[ModerationAct]:
        """Return each post/block and post/unblock by which anybody blocks or unblocks this user, in any order."""


class ActionKey(NamedTuple):
    """Key of the actions that can undo or overrule one another: pair, target, and context."""

    pair: int
    target: bytes
    channel: str | None


def pair_of(act: ModerationAct) -> int:
    """Return which pair an action belongs to: what does something and what undoes it (4.4.1)."""
    return act.what & ~1 if act.type == MODERATION else BLOCKING


def is_doing(act: ModerationAct) -> bool:
    """Tell whether an action hides, drops or blocks. Otherwise it undoes that."""
    return not act.what & 1 if act.type == MODERATION else act.type == BLOCK


def keys_of(act: ModerationAct) -> list[ActionKey]:
    """Return the keys of an action, one for each target. The target of an act on a channel is empty."""
    pair = pair_of(act)
    return [ActionKey(pair, target, act.channel) for target in act.targets or (b"",)]


class KnownActs:
    """Known acts. Lists are replaced, never changed, after a copy was made of them."""

    def __init__(self, own_key: bytes, seed: Seed | None) -> None:
        self.own_key = own_key
        self.seed = seed
        self.roles: dict[bytes, list[ModerationAct]] = {}
        """Each post/role, by author. Its keys are all whose acts are known."""
        self.actions: dict[ActionKey, list[ModerationAct]] = {}
        self.consents: dict[bytes, list[Consent]] = {}
        self.against: dict[bytes, list[ModerationAct]] = {}
        """Public blocks on the own user, by author."""

    @classmethod
    def read(cls, held: HeldActs, own_key: bytes, seed: Seed | None) -> Self:
        """Read what is held of everybody who may have authority."""
        known = cls(own_key, seed)
        for act in held.blocks_on(own_key):
            if not act.is_private and act.author != own_key:
                known.against.setdefault(act.author, []).append(act)
        known.follow_roles(held)
        return known

    def copy(self) -> Self:
        """Return a copy that can be changed alone."""
        copied = type(self)(self.own_key, self.seed)
        copied.roles, copied.actions = dict(self.roles), dict(self.actions)
        copied.consents, copied.against = dict(self.consents), dict(self.against)
        return copied

    def follow_roles(self, held: HeldActs) -> None:
        """Read those who may have authority by a role that somebody gave who may be admin, in any context."""
        seeded = dict(self.seed.roles) if self.seed else {}
        admins = {self.own_key} | {user for user, role in seeded.items() if role is UserRole.ADMIN}
        waiting = list(admins)
        for user in admins | {user for user, role in seeded.items() if role.has_authority}:
            self._admit(user, held)
        while waiting:
            for act in self.roles[waiting.pop()]:
                recipient, role = act.targets[0], act.role
                if role.has_authority:
                    self._admit(recipient, held)
                if role is UserRole.ADMIN and recipient not in admins:
                    admins.add(recipient)
                    waiting.append(recipient)

    def _admit(self, user: bytes, held: HeldActs) -> None:
        if user in self.roles:
            return
        self.consents[user] = list(held.consents_of(user))
        roles = self.roles[user] = []
        actions: dict[ActionKey, list[ModerationAct]] = {}
        for act in held.by_author(user):
            if act.type == ROLE:
                roles.append(act)
            else:
                for key in keys_of(act):
                    actions.setdefault(key, []).append(act)
        for key, acts in actions.items():
            others = self.actions.get(key)
            self.actions[key] = acts if others is None else [*others, *acts]

    def add(self, item: ModerationAct | Consent) -> bool:
        """Add an act or statement that was stored, if it is of somebody known. Tell whether roles may change."""
        return self._change(item, is_added=True)

    def remove(self, item: ModerationAct | Consent) -> bool:
        """Remove an act or statement that was deleted. Tell whether roles may change."""
        return self._change(item, is_added=False)

    def _change(self, item: ModerationAct | Consent, *, is_added: bool) -> bool:
        if isinstance(item, Consent):
            if item.user not in self.roles:
                return False
            self.consents[item.user] = _changed(self.consents[item.user], item, is_added)
            return True
        if self._is_against(item):
            self.against[item.author] = _changed(self.against.get(item.author, []), item, is_added)
        if item.author not in self.roles:
            return False
        if item.type == ROLE:
            self.roles[item.author] = _changed(self.roles[item.author], item, is_added)
            return True
        for key in keys_of(item):
            self.actions[key] = _changed(self.actions.get(key, []), item, is_added)
        return False

    def _is_against(self, act: ModerationAct) -> bool:
        if act.type in (ROLE, MODERATION) or act.is_private or act.author == self.own_key:
            return False
        return self.own_key in act.targets


def _changed(items: list[_Item], item: _Item, is_added: bool) -> list[_Item]:
    """Return the list with an item or without it. An item that is there already is not added twice."""
    others = [other for other in items if other.hash != item.hash]
    return [*others, item] if is_added else others
