"""Drops by blocks are intervals. An unblock, a second block or an overruled block decides which posts are removed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from moderated import assert_clean, own, verdicts_of, write
from people import ANN, BOB, CYD, START_MS, Person

from cablestore import Block, CableStore, Post, Role, Unblock, Verdict
from cablestore.index.drops import Drop, encode_drop, user_key
from cablestore.index.local import DROP, RULES, local_key
from cablestore.moderation import UserRole
from cablestore.protocol.body import UNBLOCK

EVE = Person("eve")
MODS = [ANN.post(Role("", 0, "", mod.key, UserRole.MOD.in_post), at=START_MS) for mod in (BOB, CYD)]


@pytest.fixture
def store() -> Iterator[CableStore]:
    with own() as opened:
        verdicts_of(opened, *MODS)
        yield opened
        assert_clean(opened)


def block(by: Person, at: int, *, drop: int = 0, private: int = 0) -> Post:
    return by.post(Block("", private, (EVE.key,), drop, 0), at=START_MS + at)


def unblock(by: Person, at: int, *, undrop: int = 0, private: int = 0) -> Post:
    return by.post(Unblock("", private, (EVE.key,), undrop), at=START_MS + at)


def text(at: int) -> Post:
    return EVE.text("c", f"at {at}", at=START_MS + at)


def held(store: CableStore, *posts: Post) -> list[bool]:
    store.moderation.sweep()
    return [store.get(post.hash) is not None for post in posts]


FIRST = {
    "own": [block(ANN, 10, drop=1), unblock(ANN, 20)],
    "own, private": [block(ANN, 10, drop=1, private=1), unblock(ANN, 20, private=1)],
    "a mod": [block(BOB, 10, drop=1), unblock(BOB, 20)],
}
SECOND = {
    "own unblock": unblock(ANN, 60),
    "private unblock": unblock(ANN, 60, private=1),
    "another mod's unblock": unblock(CYD, 60),
    "own block that keeps": block(ANN, 60),
    "another mod's block that keeps": block(CYD, 60),
}


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", FIRST)
def test_posts_from_after_the_first_unblock_stay(store: CableStore, first: str, second: str) -> None:
    old, new = text(5), text(40)
    verdicts_of(store, old, *FIRST[first])
    assert verdicts_of(store, new) == [Verdict.ACCEPTED]
    verdicts_of(store, SECOND[second])
    assert held(store, old, new) == [False, True]
    store.rebuild()
    assert held(store, old, new) == [False, True]


@pytest.mark.parametrize("overruling", [unblock(ANN, 30), block(ANN, 30)], ids=["unblock", "block that keeps"])
def test_an_overruled_block_removes_nothing(overruling: Post) -> None:
    posts, overruled = [text(at) for at in (10, 20)], block(BOB, 500, drop=1)
    for order in permutations([MODS[0], overruling, overruled]):
        with own() as store:
            verdicts_of(store, *posts)
            for act in order:
                verdicts_of(store, act)
            was_in_force = order.index(overruling) == 2
            assert held(store, *posts) == [not was_in_force] * 2, order
            if overruling.type == UNBLOCK:
                assert verdicts_of(store, *posts) == [Verdict.ACCEPTED if was_in_force else Verdict.DUPLICATE] * 2
            assert_clean(store)


def test_a_block_by_the_local_user_keeps_posts_from_a_later_arriving_older_drop(store: CableStore) -> None:
    evidence = text(5)
    verdicts_of(store, evidence)
    verdicts_of(store, block(ANN, 30))
    verdicts_of(store, block(BOB, 20, drop=1))
    assert held(store, evidence) == [True]


def test_a_second_drop_removes_posts_since_the_first(store: CableStore) -> None:
    old, new = text(5), text(40)
    verdicts_of(store, old, block(ANN, 10, drop=1), unblock(ANN, 20))
    verdicts_of(store, new)
    verdicts_of(store, block(ANN, 60))
    effect = store.moderation.block([EVE.key], drop=True, dry_run=True)
    assert (effect.changes, effect.dropped_posts) == ((), 1)
    assert held(store, old, new) == [False, True]
    assert store.moderation.block([EVE.key], drop=True).dropped_posts == 1
    assert held(store, old, new) == [False, False]


def test_a_seed_reports_the_number_of_posts_that_its_users_drop() -> None:
    with own() as store:
        posts = [text(5), text(40)]
        verdicts_of(store, *posts, block(BOB, 10, drop=1))
        seed = bytes((UserRole.MOD,)) + BOB.key
        effects = [store.moderation.join_with_seed(seed, dry_run=dry_run) for dry_run in (True, False)]
        assert [effect.dropped_posts for effect in effects] == [2, 2]
        assert held(store, *posts) == [False, False]
        assert_clean(store)


def test_drops_stored_by_an_earlier_version_are_computed_again(tmp_path: Path) -> None:
    """Versions up to 0.13.1 moved the end of a drop to the latest unblock."""
    new, dropping = text(40), block(ANN, 10, drop=1)
    with own(tmp_path) as store:
        verdicts_of(store, *MODS, dropping, unblock(ANN, 20), new, unblock(ANN, 60))
    with own(tmp_path):
        pass
    stored = Drop(dropping.hash, None, START_MS + 60)
    write(tmp_path, {local_key(DROP, user_key(EVE.key)): encode_drop(stored), local_key(RULES): None})
    with own(tmp_path) as store:
        assert held(store, new) == [True]
        assert_clean(store)
