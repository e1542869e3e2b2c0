"""Changes of moderation by a plan: the decisions after it, and the local rows of their drops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from cablestore import limits
from cablestore.index.drops import encode_drop, post_key
from cablestore.index.local import ACT, DECIDED, DROP, RULES, SEED, SWEPT, UNDROP
from cablestore.index.plan import BEGINNING, Plan, Position
from cablestore.index.reader import Reader
from cablestore.moderation import consents, sweeping
from cablestore.moderation.applied import (
    DROP_RULES,
    AppliedModeration,
    act_key,
    drop_keys_of,
    remembered_act,
    seed_value,
)
from cablestore.moderation.seed import Seed
from cablestore.moderation.stored import StoredActs
from cablestore.protocol.acts import Consent, ModerationAct, act_of, consent_of
from cablestore.protocol.body import DELETE, INFO, MODERATION_TYPES

_DECIDING: Final = MODERATION_TYPES | {INFO}
_REMEMBERED: Final = frozenset({INFO, DELETE})
"""Types of posts that change which statements about roles are remembered."""


def changed(plan: Plan, before: AppliedModeration | None, claims: Sequence[Consent] = ()) -> AppliedModeration | None:
    """Return the moderation after a plan, and add the resulting local rows to the plan.

    Return None in an unmoderated store. `claims` are statements that the plan remembers without their post/infos.
    """
    unsaid: list[Consent | ModerationAct] = []
    if not _REMEMBERED.isdisjoint(plan.types):
        unsaid += consents.settle(plan)
    if before is None:
        if not _DECIDING.isdisjoint(plan.types):
            plan.set_local(DECIDED, b"", None)  # the next opening with moderation derives the drops again
        return None
    if before.remembers and DELETE in plan.types:
        unsaid += sweeping.bury_dropped(plan)
    after = decided(plan, before, claims, unsaid)
    if after is not before or plan.remembered or (before.drops and _came_dropped(plan, before)):
        after = _with_changed_drops(before, after, plan)
    if after.is_swept is not after.is_stored_swept:
        plan.set_local(SWEPT, b"", b"" if after.is_swept else None)
        after = replace(after, is_stored_swept=after.is_swept)
    return after


def decided(
    plan: Plan,
    before: AppliedModeration,
    claims: Sequence[Consent] = (),
    unsaid: Sequence[Consent | ModerationAct] = (),
    *,
    since: Position = BEGINNING,
) -> AppliedModeration:
    """Return the moderation after the present content of a plan. Do not add the local rows of drops.

    `before` is the moderation at position `since` of the plan. `claims` are statements that the plan remembers without
    their post/infos. `unsaid` are remembered statements and actions that the plan forgets.
    """
    if not claims and not unsaid and _DECIDING.isdisjoint(plan.types):
        return before
    added, removed = _decided_of(plan, since)
    added = [*claims, *(each for each in added if each not in unsaid)]
    removed += unsaid
    if not added and not removed:
        return before
    held = StoredActs(plan.reader, before.own_key)
    return replace(before, decisions=before.decisions.changed(held, added, removed))


def read_with_seed(reader: Reader, before: AppliedModeration, seed: Seed) -> AppliedModeration:
    """Return the moderation of a store whose seed is set or revoked: `seed` replaces the seed in `before`.

    Actions that applied when the seed was revoked still apply.
    """
    after = AppliedModeration.read(reader, before.own_key, seed)
    if seed.revoked_at_ms is None:
        return after
    still = {act.hash for act in after.decisions.authorised_from(seed.revoked_at_ms)}
    lost = [act.hash for act in before.decisions.authorised_from(seed.revoked_at_ms) if act.hash not in still]
    return AppliedModeration.read(
        reader, before.own_key, seed.revoked(seed.revoked_at_ms, lost[: limits.MAX_SEED_ACTS_KEPT])
    )


def store_seed(plan: Plan, moderation: AppliedModeration) -> AppliedModeration:
    """Add local rows for the seed of `moderation` and for the drops that it requires. Return it with these drops."""
    if moderation.seed is not None:
        plan.set_local(SEED, b"", seed_value(moderation.seed), noted=True)
    return _with_drops(moderation, plan, moderation.drop_keys())


def store_drops(plan: Plan, moderation: AppliedModeration, *, noted: bool) -> AppliedModeration:
    """Add local rows for all drops that `moderation` requires to a plan, and sweep all stored posts again.

    Return the moderation with these drops. With `noted`, the change is logged for clients.
    """
    found = _with_drops(moderation, plan, moderation.drop_keys(), begin_again=True)
    plan.set_local(DECIDED, b"", moderation.own_key, noted=noted)
    plan.set_local(RULES, b"", DROP_RULES)
    return replace(found, must_be_stored=False)


def _decided_of(
    plan: Plan, since: Position = BEGINNING
) -> tuple[list[ModerationAct | Consent], list[ModerationAct | Consent]]:
    """Return the actions and statements that a plan adds, and those that it removes, after its position `since`.

    An item is in both lists if only its content changes: a dropped action is remembered without its reason.
    """
    came, gone = plan.added[since.added :], plan.removed[since.removed :]
    remembered, discarded = plan.remembered[since.remembered :], plan.discarded[since.discarded :]
    added = {post.hash: act_of(post) or consent_of(post) for post in came if post.type in _DECIDING}
    added |= {post.hash: consent_of(post) for post in (*remembered, *discarded) if post.type == INFO}
    acts = [post for post in remembered if post.type in MODERATION_TYPES]
    added |= {post.hash: remembered_act(post) for post in acts if plan.reader.local(ACT, act_key(post)) is not None}
    removed = {post.hash: act_of(post) or consent_of(post) for post in gone if post.type in _DECIDING}
    for digest in [digest for digest in added.keys() & removed.keys() if added[digest] == removed[digest]]:
        del added[digest], removed[digest]
    return [act for act in added.values() if act], [act for act in removed.values() if act]


def _came_dropped(plan: Plan, moderation: AppliedModeration) -> bool:
    """Return True if a plan stores a post that is itself the target of a drop.

    Until then its author and channel may be unknown, and they can make the drop void.
    """
    return any(post_key(post.hash) in moderation.drops for post in plan.added)


def _with_changed_drops(before: AppliedModeration, moderation: AppliedModeration, plan: Plan) -> AppliedModeration:
    """Return `moderation` with its drops updated for what `plan` changes. Add the local rows of changed drops to it.

    `before` is the moderation before the plan.
    """
    added, removed = _decided_of(plan)
    changed = [*added, *removed]
    acts = [act for act in changed if isinstance(act, ModerationAct)]
    came = (*plan.remembered, *plan.added)
    keys = {post_key(post.hash) for post in came if moderation.decisions.is_acted_on(post.hash)}
    if moderation.decisions is not before.decisions:
        has_roles = moderation.decisions.has_roles_of(before.decisions)
        keys |= drop_keys_of(acts) if has_roles else moderation.drop_keys()
    remembers = moderation.remembers or bool(plan.remembered)
    return _with_drops(replace(moderation, remembers=remembers), plan, keys)


def _with_drops(
    moderation: AppliedModeration, plan: Plan, keys: Iterable[bytes], *, begin_again: bool = False
) -> AppliedModeration:
    """Return `moderation` with the drops of `keys` as its decisions require. Add the changed local rows to the plan.

    With `begin_again`, the removal of the drops' posts starts again from the first post, for example because a
    reindexing added dropped posts.
    """
    drops = dict(moderation.drops)
    is_comparing = moderation.is_comparing or begin_again
    for key in keys:
        due, known = moderation.due(key, plan.reader), drops.get(key)
        if due is not None and known is not None and due.is_same(known):
            due = replace(due, place=b"" if begin_again else known.place)
        elif known is not None:
            is_comparing = True
        if due == known:
            continue
        if due is None:
            del drops[key]
        else:
            drops[key] = due
        plan.set_local(DROP, key, None if due is None else encode_drop(due))
    is_comparing = is_comparing and moderation.remembers
    if is_comparing:
        plan.set_local(UNDROP, b"", b"")
    return replace(moderation, drops=drops, is_comparing=is_comparing)
