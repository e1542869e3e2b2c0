"""Decisions are what a plain model of the specification says, for random acts in any order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from moderation_model import MemoryActs, ModerationModel

from cablestore.moderation import Action, Consent, Decisions, ModerationAct, Seed, UserRole
from cablestore.protocol.body import BLOCK, MODERATION, ROLE, UNBLOCK

OWN, *OTHERS = USERS = [bytes([number]) * 32 for number in range(1, 7)]
POSTS = [bytes([number]) * 32 for number in (0x51, 0x52)]
CHANNELS = (None, "a", "b")
TIMES_MS = range(9)
ADMIN_IN_POST = UserRole.ADMIN.in_post
World = tuple[list[ModerationAct], list[Consent], Seed | None]

times = st.sampled_from(TIMES_MS)
contexts = st.sampled_from((None, None, None, "a", "b"))
likely_authorities = st.sampled_from([OWN, OWN, *USERS[:4], *USERS])


@st.composite
def acts(draw: st.DrawFn, digest: bytes) -> ModerationAct:
    """Draw one act: mostly roles, and of these mostly admins, so that chains of them grow and break."""
    author = draw(likely_authorities)
    is_private = author == OWN and draw(st.integers(0, 4)) == 0
    kind = draw(st.sampled_from((ROLE, ROLE, ROLE, MODERATION, MODERATION, BLOCK, UNBLOCK)))
    channel = draw(contexts)
    targets: tuple[bytes, ...] = (draw(st.sampled_from(USERS)),)
    if kind == ROLE:
        what = draw(st.sampled_from((0, 0, 0, 1, 2)))
    elif kind == MODERATION:
        what = draw(st.sampled_from((0, 0, 1, *range(8))))
        if what >= Action.DROP_CHANNEL:
            targets = ()
        elif what >= Action.HIDE_POST:
            targets = (draw(st.sampled_from(POSTS)),)
    else:
        channel, what = None, draw(st.integers(0, 3 if kind == BLOCK else 1))
    return ModerationAct(author, digest, draw(times), kind, channel, what, targets, "", is_private)


@st.composite
def worlds(draw: st.DrawFn, most: int = 24) -> World:
    """Draw acts, statements and perhaps a seed. All hashes differ and are in any order."""
    number = draw(st.integers(1, most))
    digests = [bytes([byte]) * 32 for byte in draw(st.permutations(range(number)))]
    made = [draw(acts(digest)) for digest in digests]
    consents = [
        Consent(draw(st.sampled_from(USERS)), bytes([0x80 + byte]) * 32, draw(times), draw(st.booleans()))
        for byte in range(draw(st.integers(0, 3)))
    ]
    roles = draw(st.dictionaries(st.sampled_from(USERS), st.sampled_from(UserRole), max_size=3))
    seed = Seed(tuple(roles.items()), 0, draw(st.none() | times)) if roles else None
    return made, consents, seed


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
        drop = decisions.user_dropped(user)
        for at in TIMES_MS:
            assert (drop.act if drop and drop.covers(at) else None) == model.dropped(user, at)


def arrive(
    draw: st.DataObject,
    acts: list[ModerationAct],
    consents: list[Consent],
    never: list[ModerationAct],
    seed: Seed | None,
) -> Decisions:
    """Return decisions after everything came in any order and batches, and what is deleted came and went."""
    left: list[ModerationAct | Consent] = draw.draw(st.permutations([*acts, *consents, *never]))
    held = MemoryActs()
    decisions = Decisions.read(held, OWN, seed)
    while left:
        size = draw.draw(st.integers(1, len(left)))
        batch, left = left[:size], left[size:]
        gone = [item for item in never if item in held.acts]
        held.acts = [act for act in held.acts if act not in gone]
        held.acts += [item for item in batch if isinstance(item, ModerationAct)]
        held.consents += [item for item in batch if isinstance(item, Consent)]
        decisions = decisions.changed(held, added=batch, removed=gone)
    gone = [item for item in never if item in held.acts]
    held.acts = [act for act in held.acts if act not in gone]
    return decisions.changed(held, removed=gone)


def compare(made: list[ModerationAct], consents: list[Consent], seed: Seed | None, data: st.DataObject) -> None:
    """Compare with the model what is decided at once, and act by act, where some of them are deleted."""
    deleted = data.draw(st.sets(st.sampled_from(range(len(made))), max_size=3))
    held = [act for number, act in enumerate(made) if number not in deleted]
    never = [made[number] for number in sorted(deleted)]
    at_once = Decisions.read(MemoryActs(held, consents), OWN, seed)
    assert_equal(at_once, ModerationModel(OWN, held, consents, seed))
    one_by_one = arrive(data, held, consents, never, seed)
    assert_equal(one_by_one, ModerationModel(OWN, held, consents, seed))
    for channel in CHANNELS:
        assert list(one_by_one.history(channel)) == list(at_once.history(channel))


@given(world=worlds(), data=st.data())
def test_decisions_are_what_the_model_says(world: World, data: st.DataObject) -> None:
    compare(*world, data)


@settings(max_examples=10 * settings().max_examples)
@given(world=worlds(most=40), data=st.data())
def test_decisions_are_what_the_model_says_of_larger_histories(world: World, data: st.DataObject) -> None:
    compare(*world, data)
