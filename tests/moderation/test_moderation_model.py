"""Decisions equal those of a simple model of the specification, for random actions in any order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moderation_model import MemoryActs, ModerationModel

from cablestore.moderation import Action, Consent, Decisions, ModerationAct, Seed, UserRole
from cablestore.protocol.body import BLOCK, MODERATION, ROLE, UNBLOCK

OWN, *OTHERS = USERS = [bytes([number]) * 32 for number in range(1, 7)]
POSTS = [bytes([number]) * 32 for number in (0x51, 0x52)]
CHANNELS = (None, "a", "b")
TIMES_MS = range(20)
ADMIN = UserRole.ADMIN
World = tuple[list[ModerationAct], list[Consent], Seed | None]

HOLDERS = (OWN, OTHERS[0], OTHERS[0], OTHERS[1], OTHERS[1], OTHERS[2])
"""Authors of actions: few people, so that their actions interact."""
ROLES = (ADMIN, ADMIN, ADMIN, UserRole.MOD, UserRole.USER, UserRole.USER)


def role_act(rng: Random, digest: bytes) -> ModerationAct:
    """Return a role, mostly admin or none, so that chains of admins grow and break."""
    channel, what = rng.choice((None, None, None, "a")), rng.choice(ROLES).in_post
    recipient = (rng.choice(OTHERS[:4]),) if rng.random() < 0.9 else (OWN,)
    author = rng.choice(HOLDERS)
    is_private = author == OWN and rng.random() < 0.2
    return ModerationAct(author, digest, rng.choice(TIMES_MS), ROLE, channel, what, recipient, "", is_private)


def action(rng: Random, digest: bytes, pair: int) -> ModerationAct:
    """Return an action of a pair: do or undo it, with one of few targets."""
    author, is_doing = rng.choice(HOLDERS), rng.random() < 0.6
    kind, channel, what = MODERATION, rng.choice((None, "a", "a", "b")), pair + (not is_doing)
    targets: tuple[bytes, ...] = (rng.choice((OTHERS[0], OTHERS[3], OTHERS[3], OWN)),)
    if pair > Action.DROP_CHANNEL:
        kind, channel, what = BLOCK if is_doing else UNBLOCK, None, rng.randrange(4 if is_doing else 2)
    elif pair == Action.DROP_CHANNEL:
        targets = ()
    elif pair != Action.HIDE_USER:
        targets = (POSTS[0],)
    is_private = author == OWN and rng.random() < 0.5
    return ModerationAct(author, digest, rng.choice(TIMES_MS), kind, channel, what, targets, "", is_private)


def world(rng: Random, most: int) -> World:
    """Return actions, statements and perhaps a seed: only roles, or roles first and then actions of one pair."""
    digests = [bytes([byte]) * 32 for byte in rng.sample(range(128), rng.randint(1, most))]
    share, pair = rng.choice((1.0, 0.7, 0.3)), rng.choice(range(0, 10, 2))
    made = [role_act(rng, each) if rng.random() < share else action(rng, each, pair) for each in digests]
    if rng.random() < 0.6:  # in sequence: long chains of admins that break
        made = [act._replace(timestamp_ms=at * len(TIMES_MS) // len(made)) for at, act in enumerate(made)]
    consents = [
        Consent(rng.choice(USERS[:4]), bytes([0x80 + byte]) * 32, rng.choice(TIMES_MS), rng.random() < 0.5)
        for byte in range(rng.choice((0, 0, 1, 3)))
    ]
    if rng.random() < 0.5:
        return made, consents, None
    roles = {user: rng.choice(ROLES[1:]) for user in rng.sample(USERS[:4], rng.randint(1, 3))}
    return made, consents, Seed(tuple(roles.items()), 0, rng.choice((None, *TIMES_MS)))


def assert_equal(decisions: Decisions, model: ModerationModel) -> None:
    """Compare every answer about every user, post and channel."""
    for channel in CHANNELS:
        for user in USERS:
            for public in (False, True):
                assert decisions.role(user, channel, public=public) is model.role(user, channel, public)
                assert [decisions.had_authority(user, channel, at, public=public) for at in TIMES_MS] == [
                    model.roles(channel, public).had_authority(user, at) for at in TIMES_MS
                ]
            assert decisions.user_hidden_by(user, channel) == model.action(Action.HIDE_USER, user, channel, user)
        for role in (UserRole.ADMIN, UserRole.MOD):
            assert decisions.users_with(role, channel) == [user for user in USERS if model.role(user, channel) is role]
        if channel is not None:
            assert decisions.channel_dropped_by(channel) == model.action(Action.DROP_CHANNEL, b"", channel, None)
            for post, author in zip(POSTS, OTHERS, strict=False):
                hidden, dropped = decisions.post_hidden_by, decisions.post_dropped_by
                assert hidden(post, author, channel) == model.action(Action.HIDE_POST, post, channel, author)
                assert dropped(post, author, channel) == model.action(Action.DROP_POST, post, channel, author)
    for user in USERS:
        assert decisions.blocked_by(user) == model.blocked_by(user)
        assert decisions.blocked_by(user, public=True) == model.blocked_by(user, public=True)
        assert bool(decisions.blocks_own_user(user)) is model.blocks_own_user(user)
        assert_drops_equal(decisions, model, user)


def assert_drops_equal(decisions: Decisions, model: ModerationModel, user: bytes) -> None:
    """Compare the dropped posts of a user with the model's two formulations."""
    drop = decisions.user_dropped(user)
    at_each_instant = model.dropped_times(user, TIMES_MS)
    for at in TIMES_MS:
        by = model.dropped(user, at)
        assert bool(by) is (at in at_each_instant)
        assert bool(drop and drop.covers(at)) is bool(by)
        assert drop is None or not by or drop.act in by


def arrive(
    rng: Random, acts: list[ModerationAct], consents: list[Consent], never: list[ModerationAct], seed: Seed | None
) -> Decisions:
    """Return decisions after all actions arrived in any order and batches, and deleted ones arrived and were removed."""
    left: list[ModerationAct | Consent] = [*acts, *consents, *never]
    rng.shuffle(left)
    held = MemoryActs()
    decisions = Decisions.read(held, OWN, seed)
    while left or any(act in held.acts for act in never):
        size = rng.randint(1, 12)
        batch, left = left[:size], left[size:]
        gone = [item for item in never if item in held.acts]
        held.acts = [act for act in held.acts if act not in gone]
        held.acts += [item for item in batch if isinstance(item, ModerationAct)]
        held.consents += [item for item in batch if isinstance(item, Consent)]
        decisions = decisions.changed(held, added=batch, removed=gone)
    return decisions


def compare(rng: Random, most: int) -> None:
    """Compare the decisions with the model, at once and action by action, with deletions of some actions."""
    made, consents, seed = world(rng, most)
    never = rng.sample(made, min(len(made), rng.choice((0, 0, 1, 3))))
    held = [act for act in made if act not in never]
    at_once = Decisions.read(MemoryActs(held, consents), OWN, seed)
    one_by_one = arrive(rng, held, consents, never, seed)
    model = ModerationModel(OWN, held, consents, seed)
    assert_equal(at_once, model)
    assert_equal(one_by_one, model)
    for channel in CHANNELS:
        assert list(one_by_one.history(channel)) == list(at_once.history(channel))


def blocks(rng: Random, most: int) -> World:
    """Return blocks and unblocks of one user by an admin, a mod and perhaps the user of the store, and changing roles."""
    made = [
        ModerationAct(OWN, b"\xf0" * 32, 0, ROLE, None, ADMIN.in_post, (OTHERS[0],)),
        ModerationAct(OWN, b"\xf1" * 32, 0, ROLE, None, UserRole.MOD.in_post, (OTHERS[1],)),
    ]
    authors = rng.choice((OTHERS[:1], OTHERS[:2], OTHERS[:2], [OWN], [OWN, *OTHERS[:2]]))
    role_share, private_share = rng.choice((0.0, 0.0, 0.2)), rng.choice((0.0, 0.3))
    for byte in rng.sample(range(128), rng.randint(2, most)):
        digest, at_ms, author = bytes([byte]) * 32, rng.choice(TIMES_MS), rng.choice(authors)
        if rng.random() < role_share:
            made.append(role_act(rng, digest))
            continue
        kind = rng.choice((BLOCK, UNBLOCK))
        what = rng.choice((0, 1, 1)) if kind == BLOCK else rng.choice((0, 0, 0, 1))
        is_private = author == OWN and rng.random() < private_share
        made.append(ModerationAct(author, digest, at_ms, kind, None, what, (OTHERS[3],), "", is_private))
    return made, [], None


@settings(max_examples=3 * settings().max_examples)
@given(number=st.integers(0, 2**64))
def test_drops_of_blocks_agree_with_the_model_at_every_instant(number: int) -> None:
    rng = Random(number)
    acts, consents, seed = blocks(rng, 12)
    decisions = arrive(rng, acts, consents, [], seed)
    model = ModerationModel(OWN, acts, consents, seed)
    assert decisions.blocked_by(OTHERS[3]) == model.blocked_by(OTHERS[3])
    assert decisions.blocks_of(OTHERS[3]).since_ms == model.blocked_since(OTHERS[3])
    assert_drops_equal(decisions, model, OTHERS[3])


@settings(max_examples=5 * settings().max_examples)
@given(number=st.integers(0, 2**64))
def test_decisions_agree_with_the_model(number: int) -> None:
    compare(Random(number), 20)


@pytest.mark.thorough
@settings(max_examples=2 * settings().max_examples)
@given(number=st.integers(0, 2**64))
def test_decisions_agree_with_the_model_for_larger_histories(number: int) -> None:
    compare(Random(number), 50)
