"""A simple model of moderation that follows the text of moderation.md instead of the code. It is slow.

Everything is a list that each query reads again. `MemoryActs` has actions without a store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cablestore.moderation import Action, Consent, ModerationAct, Seed, UserRole
from cablestore.protocol.body import BLOCK, MODERATION, ROLE, UNBLOCK
from cablestore.views.acts import record_of

ADMIN, MOD, USER = UserRole.ADMIN, UserRole.MOD, UserRole.USER


@dataclass
class MemoryActs:
    """Actions and statements in lists."""

    acts: list[ModerationAct] = field(default_factory=list)
    consents: list[Consent] = field(default_factory=list)

    def roles_of(self, author: bytes) -> list[ModerationAct]:
        return [act for act in self.acts if act.author == author and act.type == ROLE]

    def actions_of(self, author: bytes) -> list[bytes]:
        return [record_of(act) for act in self.acts if act.author == author and act.type != ROLE]

    def consents_of(self, user: bytes) -> list[Consent]:
        return [consent for consent in self.consents if consent.user == user]

    def blocks_on(self, user: bytes) -> list[ModerationAct]:
        return [act for act in self.acts if act.type in (BLOCK, UNBLOCK) and user in act.targets]


class RoleModel:
    """Roles in one context. `states` has, in order, each moment's timestamp and all roles after it."""

    def __init__(
        self, own: bytes, seed: Seed | None, acts: Iterable[ModerationAct], consents: Iterable[Consent]
    ) -> None:
        self.own = own
        self.defaults = {user: role for user, role in seed.roles if user != own} if seed else {}
        self.applied: list[ModerationAct] = []
        self.kept: list[ModerationAct] = []
        self.says: dict[bytes, bool] = {}
        acts = [act for act in acts if act.type == ROLE and act.targets[0] not in (act.author, own)]
        self.users = {*self.defaults, *(act.targets[0] for act in acts), *(act.author for act in acts)} - {own}
        self.since = {user: -1 for user, role in self.defaults.items() if role is ADMIN}
        self.states = [(-1, self.roles())]
        events: list[tuple[int, bytes, object]] = [(*act.moment, act) for act in acts]
        events += [(*said.moment, said) for said in consents]
        if seed and seed.revoked_at_ms is not None:
            events.append((seed.revoked_at_ms, b"", seed))
        events.sort(key=lambda event: event[:2])
        while events:
            at = events[0][0]
            now = [event for event in events if event[0] == at]
            # 4.2.5: "from that point on" includes the millisecond, so the action that makes an admin is first
            while len(left := self.pass_over(at, now)) < len(now):
                now = left
            for event in left:
                self.happen_at(at, event[2])
            events = [event for event in events if event[0] > at]

    def pass_over(self, at: int, events: list[tuple[int, bytes, object]]) -> list[tuple[int, bytes, object]]:
        """Apply the possible roles, and return those whose authors are not admins yet."""
        left = []
        for event in events:
            if self.is_able(event[2]):
                self.happen_at(at, event[2])
            else:
                left.append(event)
        return left

    def happen_at(self, at: int, event: object) -> None:
        self.happen(at, event)
        self.states.append((at, self.roles()))

    def is_able(self, event: object) -> bool:
        return not isinstance(event, ModerationAct) or event.author == self.own or event.author in self.since

    def happen(self, at: int, event: object) -> None:
        if isinstance(event, Consent):
            self.says[event.user] = event.accepts
        elif isinstance(event, ModerationAct):
            # 4.2.2: one issued role for each recipient and context; a new one overrides it.
            slot = (event.author, event.targets, event.channel)
            self.applied = [act for act in self.applied if (act.author, act.targets, act.channel) != slot]
            # 4.2.5: only roles of an admin, issued after it became one.
            if self.is_able(event):
                self.applied.append(event)
        else:
            # 4.7.2: the applied roles of users who were admins only by the seed are kept.
            by_seed = [user for user in self.since if self.by_seed(user)]
            self.defaults = {}
            beside = self.vouched()
            self.kept = [act for act in self.applied if act.author in by_seed and act.author not in beside]
        while lost := [user for user in self.since if user not in self.vouched()]:
            # 4.2.5: if an admin's role is revoked, the roles that it issued are removed.
            self.since = {user: since for user, since in self.since.items() if user not in lost}
            self.applied = [act for act in self.applied if act.author not in lost or act in self.kept]
            self.begin(at)
        self.begin(at)

    def begin(self, at: int) -> None:
        for user in self.users:
            if self.role(user) is ADMIN:
                self.since.setdefault(user, at)

    def deciding(self, user: bytes) -> list[ModerationAct]:
        on_user = [act for act in self.applied if act.targets[0] == user]
        return [act for act in on_user if act.author == self.own] or on_user

    def role(self, user: bytes) -> UserRole:
        if user == self.own:
            return ADMIN
        if not self.says.get(user, True):
            return USER
        return max((act.role for act in self.deciding(user)), default=self.defaults.get(user, USER))

    def roles(self) -> dict[bytes, UserRole]:
        return {user: self.role(user) for user in self.users}

    def by_seed(self, user: bytes) -> bool:
        if self.defaults.get(user) is not ADMIN or not self.says.get(user, True):
            return False
        return {act.role for act in self.deciding(user)} <= {ADMIN}

    def vouched(self) -> list[bytes]:
        """Return the admins with a chain of confirmations from the local user or the seed."""
        found = [self.own]
        while new := [user for user in self.users if user not in found and self.is_vouched(user, found)]:
            found += new
        return found

    def is_vouched(self, user: bytes, found: list[bytes]) -> bool:
        vouches = [
            act for act in self.deciding(user) if act.role is ADMIN and (act.author in found or act in self.kept)
        ]
        return self.role(user) is ADMIN and (self.by_seed(user) or bool(vouches))

    def had_authority(self, user: bytes, at: int) -> bool:
        if user == self.own:
            return True
        before = [roles for when, roles in self.states if when < at][-1]
        then = [roles for when, roles in self.states if when == at]
        return all(roles.get(user, USER) is not USER for roles in (before, *then))


class ModerationModel:
    """The rules that apply for one user."""

    def __init__(
        self, own: bytes, acts: Iterable[ModerationAct], consents: Iterable[Consent] = (), seed: Seed | None = None
    ) -> None:
        self.own = own
        self.seed = seed
        self.acts = list(acts)
        self.consents = [consent for consent in consents if consent.user != own]
        self.made: dict[tuple[str | None, bool], RoleModel] = {}

    def roles(self, channel: str | None, public: bool = False) -> RoleModel:
        if (channel, public) not in self.made:
            acts = [act for act in self.acts if act.channel in (None, channel) and not (public and act.is_private)]
            self.made[channel, public] = RoleModel(self.own, self.seed, acts, self.consents)
        return self.made[channel, public]

    def role(self, user: bytes, channel: str | None, public: bool = False) -> UserRole:
        return self.roles(channel, public).role(user)

    def taking_effect(
        self,
        doing: list[tuple[int, int]],
        undoing: list[tuple[int, int]],
        target: bytes,
        channel: str | None,
        subject: bytes | None,
        *,
        public: bool = False,
    ) -> ModerationAct | None:
        """Return the effective action, None if it is an undo or if there is none. Actions are (type, number)."""
        acts = [act for act in self.acts if (act.type, act.what) in doing + undoing and act.channel in (None, channel)]
        acts = [act for act in acts if target in (act.targets or (b"",)) and not (public and act.is_private)]
        if (MODERATION, Action.DROP_CHANNEL) in doing:  # 5.1.3.3: the action names the channel
            acts = [act for act in acts if act.channel is not None]

        def does(act: ModerationAct) -> bool:
            return (act.type, act.what) in doing

        def undoes(new: ModerationAct, old: ModerationAct) -> bool:
            if new.author != old.author or does(new) == does(old):
                return False
            return new.moment > old.moment and (new.is_private or not old.is_private)  # 4.4.2, 4.5.1

        relevant = [act for act in acts if not any(undoes(new, act) for new in acts)]
        roles = self.roles(channel, public)
        applicable = [
            act
            for act in relevant
            if act.author == self.own
            or (  # 4.4.3, and 4.4.5: not users with authority
                roles.had_authority(act.author, act.timestamp_ms)
                and not (subject is not None and roles.had_authority(subject, act.timestamp_ms))
            )
        ]
        if not applicable:
            return None

        def precedence(act: ModerationAct) -> tuple[bool, bool, tuple[int, bytes]]:  # 4.4.5; 4.1.1: in all channels
            is_own = act.author == self.own
            is_private_doing = is_own and act.is_private and does(act) and act.type != UNBLOCK
            return is_own, is_private_doing, act.moment

        first = max(applicable, key=precedence)
        return first if does(first) else None

    def action(
        self, action: Action, target: bytes, channel: str | None, subject: bytes | None, *, public: bool = False
    ) -> ModerationAct | None:
        doing, undoing = [(MODERATION, int(action))], [(MODERATION, action + 1)]
        return self.taking_effect(doing, undoing, target, channel, subject, public=public)

    def blocked_by(self, user: bytes, *, public: bool = False) -> ModerationAct | None:
        doing, undoing = [(BLOCK, what) for what in range(4)], [(UNBLOCK, 0), (UNBLOCK, 1)]
        return None if user == self.own else self.taking_effect(doing, undoing, user, None, user, public=public)

    def blocks_on(self, user: bytes) -> list[ModerationAct]:
        acts = [act for act in self.acts if act.type in (BLOCK, UNBLOCK) and user in act.targets and user != self.own]
        return sorted(acts, key=lambda act: act.moment)

    def until(self, act: ModerationAct) -> ModerationModel:
        """Return the model at the time of an action, without later ones."""
        acts = [each for each in self.acts if each.type == ROLE or each.moment <= act.moment]
        return ModerationModel(self.own, acts, self.consents, self.seed)

    def took_effect(self, act: ModerationAct, user: bytes) -> bool:
        """Return True if a block or unblock took effect when it was written."""
        then = self.until(act)
        if act.type == BLOCK and act.author == self.own:
            return True  # 4.4.5 rule 1
        blocks, unblocks = [(BLOCK, what) for what in range(4)], [(UNBLOCK, 0), (UNBLOCK, 1)]
        doing, undoing = (blocks, unblocks) if act.type == BLOCK else (unblocks, blocks)
        if act.type == UNBLOCK and then.blocked_by(user):
            return False
        return then.taking_effect(doing, undoing, user, None, user) == act

    def blocked_since(self, user: bytes) -> int | None:
        """Return the time since which a user is blocked without interruption."""
        since_ms = None
        for act in self.blocks_on(user):
            if not self.until(act).blocked_by(user):
                since_ms = None
            elif since_ms is None:
                since_ms = act.timestamp_ms
        return since_ms

    def withdraws(self, unblock: ModerationAct, block: ModerationAct) -> bool:
        """Return True if an author undoes their own block (4.4.2, 4.5.1)."""
        return unblock.author == block.author and (unblock.is_private or not block.is_private)

    def dropped(self, user: bytes, timestamp_ms: int) -> list[ModerationAct]:
        """Return the blocks that drop a user's post of this time (5.1.4, 5.1.5), each considered separately."""
        acts = self.blocks_on(user)
        effective = [act for act in acts if self.took_effect(act, user)]
        return [
            block
            for block in effective
            if block.type == BLOCK and block.what & 1 and self.drops_post(block, acts, effective, timestamp_ms)
        ]

    def drops_post(
        self, block: ModerationAct, acts: list[ModerationAct], effective: list[ModerationAct], timestamp_ms: int
    ) -> bool:
        later = [act for act in acts if act.moment > block.moment]
        ends = [
            act for act in later if act.type == UNBLOCK and (act in effective or self.withdraws(act, block))
        ]  # 4.4.1: its author, or an action with precedence, undoes it
        if any(act.what == 1 for act in ends):
            return False  # 5.1.5: undrop
        if block.author != self.own and any(
            act.type == BLOCK and act.author == self.own and not act.what & 1 for act in later
        ):
            return False  # 5.1.4: drop = 0 keeps the posts; 4.4.5 rule 1: the local user's action has precedence
        return not ends or timestamp_ms <= ends[0].timestamp_ms  # 5.1.5: old posts remain dropped

    def dropped_times(self, user: bytes, times_ms: Iterable[int]) -> set[int]:
        """Return the times of a user's dropped posts, by simulating all moments in order.

        It is the second formulation of `dropped`: at each moment, every user has a set of dropped times.
        """
        every = set(times_ms)
        held: dict[ModerationAct, set[int]] = {}
        running: list[ModerationAct] = []
        before = self.until(ModerationAct(b"", b"", -1, BLOCK, None, 0, ()))
        for act in self.blocks_on(user):
            now = self.until(act)
            if act.type == BLOCK:
                own_said = any(each.author == self.own for each in before.blocks_on(user))
                roles = self.roles(None)
                counts = not own_said and roles.had_authority(act.author, act.timestamp_ms)
                counts = counts and not roles.had_authority(user, act.timestamp_ms)
                if act.author == self.own or counts:
                    if act.what & 1:
                        held[act] = every
                        running.append(act)
                    elif act.author == self.own:
                        held = {block: times for block, times in held.items() if block.author == self.own}
                        running = [block for block in running if block.author == self.own]
            else:
                mine = act.author == self.own and not now.blocked_by(user)
                others = all(each.author != self.own for each in now.blocks_on(user))
                roles = self.roles(None)
                counts = others and roles.had_authority(act.author, act.timestamp_ms)
                counts = counts and not roles.had_authority(user, act.timestamp_ms)
                undone = [block for block in held if mine or counts or self.withdraws(act, block)]
                for block in undone:
                    if act.what == 1:
                        del held[block]
                    elif block in running:
                        held[block] = {at for at in every if at <= act.timestamp_ms}
                running = [block for block in running if block not in undone]
            before = now
        return set().union(*held.values())

    def blocks_own_user(self, user: bytes) -> bool:
        acts = [act for act in self.acts if act.author == user and self.own in act.targets and not act.is_private]
        acts = [act for act in acts if act.type in (BLOCK, UNBLOCK)]
        undone = max((act.moment for act in acts if act.type == UNBLOCK), default=(-1, b""))
        return user != self.own and any(act.type == BLOCK and act.what & 2 and act.moment > undone for act in acts)
