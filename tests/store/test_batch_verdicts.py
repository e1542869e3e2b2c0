"""A batch has the verdicts of its posts one by one, except for posts that the batch itself removes or admits."""

from __future__ import annotations

from random import Random

import pytest
from history import AUTHORS, histories
from hypothesis import given
from hypothesis import strategies as st
from moderated import own, verdicts_of
from people import ANN, BOB, CYD, START_MS, Person, raws
from test_moderated_order import in_memory

from cablestore import Dialect, Post, Verdict
from cablestore.protocol.acts import Action
from cablestore.protocol.body import DELETE, MODERATION_TYPES, Block, Body, Moderation, Role, Unblock

ACCEPTED, DELETED, DROPPED, BLOCKED = Verdict.ACCEPTED, Verdict.DELETED, Verdict.DROPPED, Verdict.BLOCKED
REFUSED_AT_ONCE = {DELETED, DROPPED, BLOCKED}
"""Verdicts of posts that are accepted one by one, because the post that removes them arrives later."""


@given(histories(), st.randoms(use_true_random=False), st.lists(st.integers(1, 9), max_size=6))
def test_a_batch_has_the_verdicts_of_storing_posts_one_by_one(
    history: tuple[Dialect, list[Post]], random: Random, cuts: list[int]
) -> None:
    dialect, drawn = history
    posts = random.sample(drawn, len(drawn))
    with in_memory(dialect) as straight, in_memory(dialect) as other:
        expected = [straight.ingest([post.raw], verify=False)[0].verdict for post in posts]
        found: list[Verdict] = []
        at = 0
        for cut in [*cuts, len(posts)]:
            found += [each.verdict for each in other.ingest(raws(*posts[at : at + cut]), batch_posts=cut, verify=False)]
            at += cut
        other.moderation.sweep()
        for post, one, many in zip(posts, expected, found, strict=True):
            if one == many:
                continue
            assert post.type not in MODERATION_TYPES | {DELETE}, (post, one, many)
            is_held = other.get(post.hash) is not None
            assert is_held is (many is ACCEPTED), (post, one, many)
            assert (one, many) in {(ACCEPTED, each) for each in REFUSED_AT_ONCE} | {
                (DROPPED, ACCEPTED),  # the batch undoes the action
                (BLOCKED, ACCEPTED),
            }, (post, one, many)


def acts(by: Person) -> list[Post]:
    key = AUTHORS[2].public_key
    bodies: list[Body] = [
        Role("", 0, "", key, 1),
        Moderation("", 0, "", (key,), Action.HIDE_USER),
        Moderation("", 0, "c", (), Action.DROP_CHANNEL),
        Block("", 0, (key,), 1, 0),
        Unblock("", 0, (key,), 1),
    ]
    return [by.post(body) for body in bodies]


def verdicts(posts: list[Post]) -> list[Verdict]:
    with own() as store:
        return [outcome.verdict for outcome in store.ingest(raws(*posts))]


def test_an_action_after_its_own_deletion_is_deleted() -> None:
    for act in acts(ANN):
        deletion = ANN.delete(act)
        assert verdicts([deletion, act]) == [ACCEPTED, DELETED], act.type
        assert verdicts([act, deletion]) == [ACCEPTED, ACCEPTED], act.type
        assert verdicts([act, deletion, act]) == [ACCEPTED, ACCEPTED, DELETED], act.type
        assert verdicts([BOB.delete(act), act]) == [ACCEPTED, ACCEPTED], act.type


def test_a_dropped_post_is_stored_if_its_batch_deletes_the_dropping_action() -> None:
    drop, text = ANN.post(Moderation("", 0, "c", (), Action.DROP_CHANNEL)), BOB.text("c", "welcome")
    with own() as store:
        assert verdicts_of(store, drop, text) == [ACCEPTED, DROPPED]
        assert verdicts_of(store, ANN.delete(drop), text) == [ACCEPTED, ACCEPTED]
        assert store.get(text.hash) == text
        assert store.check().is_clean
    with own() as store:
        assert verdicts_of(store, ANN.delete(drop), drop, text) == [ACCEPTED, DELETED, ACCEPTED]


BLOCK_AT_MS, LATER_MS = START_MS + 10, START_MS + 20


@pytest.mark.parametrize(
    "blocker", [ANN, BOB], ids=["the own user blocks the author", "the author blocks the own user"]
)
def test_deletions_and_actions_are_decided_in_their_order_in_a_batch(blocker: Person) -> None:
    """A block with notify affects only later posts of the batch, until it is deleted."""
    blocked = ANN if blocker is BOB else BOB
    block = blocker.post(Block("", 0, (blocked.key,), 0, 1), at=BLOCK_AT_MS)
    undo = blocker.delete(block, at=LATER_MS)
    role = BOB.post(Role("", 0, "", CYD.key, 1), at=LATER_MS)
    for later in (BOB.delete(BOB.text("c", "never came", at=START_MS), at=LATER_MS), role):
        for posts, expected in (
            ([later, block], [ACCEPTED, ACCEPTED]),
            ([block, later], [ACCEPTED, BLOCKED]),
            ([block, undo, later], [ACCEPTED, ACCEPTED, ACCEPTED]),
            ([block, later, undo], [ACCEPTED, BLOCKED, ACCEPTED]),
        ):
            assert verdicts(posts) == expected
            with own() as store:
                assert [verdict for post in posts for verdict in verdicts_of(store, post)] == expected
            with own() as store:
                assert [*verdicts_of(store, posts[0]), *verdicts_of(store, *posts[1:])] == expected
