"""Known actions: the actions of all users who may have authority, found by roles from the local user and the seed.

Actions of others have no effect, so they are not read, except blocks on the local user. Users who declined a role, or
whose role came from a user without authority, stay known: `roles` decides which roles count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, Self, TypeVar

from cablestore.moderation.seed import Seed
from cablestore.protocol.acts import Consent, ModerationAct, UserRole, turning_points
from cablestore.protocol.body import BLOCK, MODERATION, ROLE
from cablestore.views.acts import act_in, record_of, targets_in

_Item = TypeVar("_Item", bound=ModerationAct | Consent)

BLOCKING: Final = 8
"""Number of the pair post/block and post/unblock. Each other pair has its even action number, such as HIDE_USER."""


class HeldActs(Protocol):
    """Actions of a store, read when they are needed. Deleted actions are excluded, as if they had never been issued."""

    def roles_of(self, author: bytes) -> Iterable[ModerationAct]:
        """Return each post/role of one author in any order, including private roles of the store's own user."""

    def actions_of(self, author: bytes) -> Iterable[bytes]:
        """Return the records of one author's actions except roles, in any order. Include private actions."""

    def consents_of(self, user: bytes) -> Iterable[Consent]:
        """Return all statements of a user about accepting roles, in any order."""

    def blocks_on(self, user: bytes) -> Iterable[ModerationAct]:
        """Return each post/block and post/unblock that targets this user, in any order."""


def pair_of(act: ModerationAct) -> int:
    """Return the number of the pair of an action: hide and unhide, drop and undrop, or block and unblock (4.4.1)."""
    return act.what & ~1 if act.type == MODERATION else BLOCKING


def is_doing(act: ModerationAct) -> bool:
    """Return True if an action hides, drops or blocks, False if it undoes that."""
    return not act.what & 1 if act.type == MODERATION else act.type == BLOCK


def _channel_in(record: bytes) -> str:
    return act_in(record).channel or ""


class KnownActs:
    """The actions of known users, and blocks on the local user. Lists are replaced, not changed: `copy` shares them."""

    def __init__(self, own_key: bytes, seed: Seed | None) -> None:
        self.own_key = own_key
        self.seed = seed
        self.roles: dict[bytes, list[ModerationAct]] = {}
        """Each post/role, by author. The keys are all users whose actions are known."""
        self.records: dict[bytes | str, tuple[bytes, ...]] = {}
        """Encoded actions, by each targeted user, post or channel. Bytes use less memory than objects."""
        self.consents: dict[bytes, list[Consent]] = {}
        self.against: dict[bytes, list[ModerationAct]] = {}
        """Public blocks on the local user, by author."""

    @classmethod
    def read(cls, held: HeldActs, own_key: bytes, seed: Seed | None) -> Self:
        """Read the actions of all users who may have authority."""
        known = cls(own_key, seed)
        for act in held.blocks_on(own_key):
            if not act.is_private and act.author != own_key:
                known.against.setdefault(act.author, []).append(act)
        known.follow_roles(held)
        return known

    def copy(self) -> Self:
        """Return a copy that can be changed independently."""
        copied = type(self)(self.own_key, self.seed)
        copied.roles, copied.records = dict(self.roles), dict(self.records)
        copied.consents, copied.against = dict(self.consents), dict(self.against)
        return copied

    def follow_roles(self, held: HeldActs) -> None:
        """Read the actions of users to whom the seed, the local user or a possible admin assigned mod or admin."""
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
        self.roles[user] = list(held.roles_of(user))
        actions = self.records
        for record in held.actions_of(user):
            for target in targets_in(record) or (_channel_in(record),):
                actions[target] = (*actions.get(target, ()), record)

    def is_acted_on(self, target: bytes | str) -> bool:
        """Return True if a known action targets `target`: a user, a post or a channel."""
        return target in self.records

    def actions_on(self, target: bytes | str, pair: int, channel: str | None) -> list[ModerationAct]:
        """Return the actions of a pair on a target in one context."""
        return [act for act in self.all_actions_on(target, pair) if act.channel == channel]

    def all_actions_on(self, target: bytes | str, pair: int) -> list[ModerationAct]:
        """Return the actions of a pair on a target in all contexts."""
        return [act for record in self.records.get(target, ()) if pair_of(act := act_in(record)) == pair]

    def contexts_on(self, target: bytes | str, pair: int) -> list[str]:
        """Return the channels of the actions of a pair on a target, sorted; "" for the whole cabal."""
        return sorted({act.channel or "" for act in self.all_actions_on(target, pair)})

    def actions(self) -> Iterable[ModerationAct]:
        """Return all actions."""
        return map(act_in, {record for records in self.records.values() for record in records})

    def add(self, item: ModerationAct | Consent) -> bool:
        """Add a stored action or statement of a known user. Return True if roles may change."""
        return self._change(item, is_added=True)

    def remove(self, item: ModerationAct | Consent) -> bool:
        """Remove a deleted action or statement. Return True if roles may change."""
        return self._change(item, is_added=False)

    def _change(self, item: ModerationAct | Consent, *, is_added: bool) -> bool:
        if isinstance(item, Consent):
            if item.user not in self.roles:
                return False
            before = self.consents[item.user]
            after = self.consents[item.user] = _changed(before, item, is_added)
            return turning_points(before) != turning_points(after)  # a new name does not change roles
        if self._is_against(item):
            self.against[item.author] = _changed(self.against.get(item.author, []), item, is_added)
        if item.author not in self.roles:
            return False
        if item.type == ROLE:
            self.roles[item.author] = _changed(self.roles[item.author], item, is_added)
            return True
        record = record_of(item)
        for target in item.targets or (item.channel or "",):
            others = tuple(other for other in self.records.get(target, ()) if other != record)
            self.records[target] = (*others, record) if is_added else others
        return False

    def _is_against(self, act: ModerationAct) -> bool:
        if act.type in (ROLE, MODERATION) or act.is_private or act.author == self.own_key:
            return False
        return self.own_key in act.targets


def _changed(items: list[_Item], item: _Item, is_added: bool) -> list[_Item]:
    """Return a copy of `items` with `item` if `is_added`, otherwise without it. An existing item is not added again."""
    others = [other for other in items if other.hash != item.hash]
    return [*others, item] if is_added else others
