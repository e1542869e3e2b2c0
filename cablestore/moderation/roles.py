"""Roles: who has which role in one context, now and at every time before (moderation.md 4.2).

Roles are applied in order of (timestamp, hash). Within a millisecond, a role waits for the role that makes its author
admin. Authority starts with the local user and the seed's admins.

* A role counts if its author is admin and became admin in the role's millisecond or earlier, without interruption.
* An admin needs a chain of admin roles from the local user or the seed's admins. Two users who only make each other
  admin are not admins.
* The roles that an admin issued end when the admin's role ends. They do not return when the user becomes admin again.

The context of a channel contains the roles for this channel and the roles for the whole cabal. So an admin of one
channel assigns roles only in this channel, even with a post/role for the cabal (4.1.1, 4.2.5).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final

from cablestore.moderation.seed import Seed
from cablestore.protocol.acts import Consent, ModerationAct, UserRole

ALWAYS: Final = -1
"""A time before every timestamp."""

_Slot = tuple[bytes, str | None]
"""Author and context of an action: the newest action of a slot replaces the others (4.2.2)."""
_Event = tuple[int, bytes, ModerationAct | Consent | None]
"""Timestamp, hash, and the event. None is the revocation of the seed."""


class RoleContexts:
    """Roles in every context, computed on first use.

    `consents` are the statements with which users start or stop to decline roles.
    """

    def __init__(
        self, own_key: bytes, seed: Seed | None, acts: Iterable[ModerationAct], consents: Iterable[Consent]
    ) -> None:
        self._own = own_key
        self._seed = seed
        self._acts = list(acts)
        self._consents = list(consents)
        self.channels = {act.channel for act in self._acts if act.channel is not None}
        self._made: dict[tuple[str | None, bool], RoleHistory] = {}

    def history(self, channel: str | None, *, public: bool = False) -> RoleHistory:
        """Return the roles of a context. With `public` they follow only from public actions (4.5).

        A channel without roles of its own uses the roles of the cabal.
        """
        context = channel if channel in self.channels else None
        history = self._made.get((context, public))
        if history is None:
            acts = (act for act in self._acts if act.channel in (None, context) and not (public and act.is_private))
            history = self._made[context, public] = RoleHistory(self._own, self._seed, acts, self._consents)
        return history


class RoleHistory:
    """Roles of all users in one context. `acts` are the post/roles of this context, in any order."""

    def __init__(
        self, own_key: bytes, seed: Seed | None, acts: Iterable[ModerationAct], consents: Iterable[Consent]
    ) -> None:
        self._own = own_key
        self._seed = seed
        self._defaults = {user: role for user, role in (seed.roles if seed else ()) if user != own_key}
        self._given: defaultdict[bytes, dict[_Slot, ModerationAct]] = defaultdict(dict)
        """Applied roles, by recipient."""
        self._issued: defaultdict[bytes, set[tuple[bytes, _Slot]]] = defaultdict(set)
        """Applied roles, by author."""
        self._kept: set[bytes] = set()
        """Hashes of roles that stay applied although the seed that made their authors admin was revoked (4.7.2)."""
        self._declining: set[bytes] = set()
        self._admin_since = {user: ALWAYS for user, role in self._defaults.items() if role is UserRole.ADMIN}
        self._changes = {user: [(ALWAYS, role)] for user, role in self._defaults.items()}
        for timestamp_ms, events in groupby(self._events(acts, consents), key=itemgetter(0)):
            self._apply_all(timestamp_ms, [event for _, _, event in events])

    # --- answers -------------------------------------------------------------------------------------

    def role(self, user: bytes) -> UserRole:
        """Return the present role of a user."""
        if user == self._own:
            return UserRole.ADMIN
        changes = self._changes.get(user)
        return changes[-1][1] if changes else UserRole.USER

    def had_authority(self, user: bytes, timestamp_ms: int) -> bool:
        """Return True if `user` got authority before `timestamp_ms` and had not lost it by then (4.4.3)."""
        if user == self._own:
            return True
        changes = self._changes.get(user)
        if changes is None:
            return False
        at = bisect_left(changes, (timestamp_ms,))
        if at == 0 or not changes[at - 1][1].has_authority:
            return False
        return all(role.has_authority for when, role in changes[at:] if when == timestamp_ms)

    def users_with(self, role: UserRole) -> set[bytes]:
        """Return the users with this present role. For USER, return only users who had another role before."""
        return {user for user in (*self._changes, self._own) if self.role(user) is role}

    def decided_by(self, user: bytes) -> ModerationAct | Seed | None:
        """Return the source of a user's role, None for the default and for the local user."""
        if user == self._own or user in self._declining:
            return None
        acts = self._with_say(user)
        if acts:
            return max(acts, key=lambda act: (act.role, act.moment))
        return self._seed if user in self._defaults else None

    def declines(self, user: bytes) -> bool:
        """Return True if a user declines roles (4.2.4). The local user is always admin (4.2.5)."""
        return user in self._declining

    def is_applied(self, act: ModerationAct) -> bool:
        """Return True if an action is one of the actions that determine its recipient's role."""
        return self._given.get(act.targets[0], {}).get((act.author, act.channel)) == act

    # --- one event after the other -------------------------------------------------------------------

    def _events(self, acts: Iterable[ModerationAct], consents: Iterable[Consent]) -> Iterable[_Event]:
        """Return the events in order of time and hash. The seed's revocation comes first in its millisecond."""
        events: list[_Event] = [
            (act.timestamp_ms, act.hash, act)
            for act in acts
            if act.targets[0] not in (act.author, self._own)  # 4.4.3; 4.2.5 rule 1
        ]
        events += [(said.timestamp_ms, said.hash, said) for said in consents if said.user != self._own]
        events.sort(key=lambda event: event[:2])
        if self._seed is None or self._seed.revoked_at_ms is None:
            return events
        end: _Event = (self._seed.revoked_at_ms, b"", None)
        return merge([end], events, key=lambda event: event[:2])

    def _apply_all(self, timestamp_ms: int, events: list[ModerationAct | Consent | None]) -> None:
        """Apply the events of one millisecond. A role whose author is not admin is applied after the others (4.2.5).

        This is repeated as long as it makes the author of a further role admin.
        """
        while events:
            waiting: list[ModerationAct | Consent | None] = []
            for event in events:
                if isinstance(event, ModerationAct) and not self._may_issue(event):
                    waiting.append(event)
                else:
                    self._apply(timestamp_ms, event)
            if len(waiting) == len(events):
                for event in waiting:
                    self._apply(timestamp_ms, event)
                return
            events = waiting

    def _may_issue(self, act: ModerationAct) -> bool:
        """Return True if the author of `act` is admin after the events that were applied so far (4.2.5)."""
        return act.author == self._own or act.author in self._admin_since

    def _apply(self, timestamp_ms: int, event: ModerationAct | Consent | None) -> None:
        is_lowering = True
        match event:
            case ModerationAct():
                touched = {event.targets[0]}
                is_lowering = self._issue(event)
            case Consent(user=user, accepts=accepts):
                touched = {user}
                (self._declining.discard if accepts else self._declining.add)(user)
            case None:
                touched = set(self._defaults)
                self._end_seed()
        if is_lowering and not self._admin_since.keys().isdisjoint(touched):
            touched |= self._take_back(timestamp_ms)
        for user in touched:
            self._note(user, timestamp_ms)

    def _issue(self, act: ModerationAct) -> bool:
        """End the role that `act` replaces (same author, recipient and context). Apply `act` if its author is admin.

        Return True if someone may be no longer admin: the recipient's role may be lower, or a kept role was replaced.
        """
        recipient, slot = act.targets[0], (act.author, act.channel)
        before = self._withdraw(recipient, slot)
        is_admins = self._may_issue(act)
        if not is_admins and self._seed is not None and act.hash in self._seed.kept:
            self._kept.add(act.hash)
        elif not is_admins:
            return before is not None
        self._given[recipient][slot] = act
        self._issued[act.author].add((recipient, slot))
        if before is not None and before.hash in self._kept:
            return True
        return act.role is not UserRole.ADMIN and (before is None or before.role is not act.role)

    def _withdraw(self, recipient: bytes, slot: _Slot) -> ModerationAct | None:
        act = self._given[recipient].pop(slot, None)
        if act is not None:
            self._issued[slot[0]].discard((recipient, slot))
        return act

    def _end_seed(self) -> None:
        """Revoke the seed: its roles end. Roles that its admins assigned before stay applied (4.7.2)."""
        by_seed = {user for user in self._admin_since if self._is_admin_by_seed(user)}
        self._defaults = {}
        for user in by_seed - self._vouched_for():
            self._kept.update(self._given[recipient][slot].hash for recipient, slot in self._issued[user])

    def _take_back(self, timestamp_ms: int) -> set[bytes]:
        """Find users who are no longer admin, and end the roles that they issued, until no further user is found.

        Return these users and the recipients of the ended roles. A user who is admin again by a remaining role is
        admin since `timestamp_ms`.
        """
        touched: set[bytes] = set()
        while lost := set(self._admin_since) - self._vouched_for():
            touched |= lost
            for user in lost:
                del self._admin_since[user]
                for recipient, slot in list(self._issued[user]):
                    if self._given[recipient][slot].hash not in self._kept:
                        self._withdraw(recipient, slot)
                        touched.add(recipient)
            for user in touched:
                if self._resolve(user) is UserRole.ADMIN:
                    self._admin_since.setdefault(user, timestamp_ms)
        return touched

    def _vouched_for(self) -> set[bytes]:
        """Return the admins with a chain of admin roles that begins with the local user, the seed or a kept role."""
        reached = {user for user in self._admin_since if self._is_admin_by_seed(user) or self._is_kept(user)}
        reached.update(self._recipients(self._own))
        waiting = list(reached)
        while waiting:
            new = self._recipients(waiting.pop()) - reached
            reached |= new
            waiting += new
        return reached

    def _recipients(self, author: bytes) -> set[bytes]:
        """Return the users to whom an author assigned the role of admin and who are admins now."""
        return {
            recipient
            for recipient, slot in self._issued[author]
            if recipient in self._admin_since
            and self._given[recipient][slot].role is UserRole.ADMIN
            and self._resolve(recipient) is UserRole.ADMIN
        }

    def _is_admin_by_seed(self, user: bytes) -> bool:
        """Return True if the seed makes `user` admin, no post/role lowers the role, and the user accepts it (4.7.2)."""
        if self._defaults.get(user) is not UserRole.ADMIN or user in self._declining:
            return False
        return all(act.role is UserRole.ADMIN for act in self._with_say(user))

    def _is_kept(self, user: bytes) -> bool:
        if self._resolve(user) is not UserRole.ADMIN:
            return False
        return any(act.hash in self._kept and act.role is UserRole.ADMIN for act in self._with_say(user))

    def _note(self, user: bytes, timestamp_ms: int) -> None:
        """Add the present role of `user` to the user's roles over time, if it changed at `timestamp_ms`."""
        role = self._resolve(user)
        if role is UserRole.ADMIN:
            self._admin_since.setdefault(user, timestamp_ms)
        if role is not self.role(user):
            self._changes.setdefault(user, []).append((timestamp_ms, role))

    # --- one user ------------------------------------------------------------------------------------

    def _with_say(self, user: bytes) -> list[ModerationAct]:
        """Return the applied roles that count for `user`: those by the local user if any, otherwise all (4.2.5)."""
        acts = list(self._given.get(user, {}).values())
        return [act for act in acts if act.author == self._own] or acts

    def _resolve(self, user: bytes) -> UserRole:
        """Return the role that follows from the applied actions (4.2.4, 4.2.5)."""
        if user in self._declining:
            return UserRole.USER
        acts = self._with_say(user)
        return max(act.role for act in acts) if acts else self._defaults.get(user, UserRole.USER)
