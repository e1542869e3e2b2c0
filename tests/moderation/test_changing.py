"""Drops that follow from a batch of posts do not depend on order, sessions or interruptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path

import pytest
from moderated import DAN, assert_clean, chain, own, requestable, verdicts_of
from people import ANN, BOB, CYD, Person

from cablestore import Block, CableStore, Moderation, Post, Role, Verdict
from cablestore.index.database import Row
from cablestore.index.local import DROP, local_key
from cablestore.moderation import Action, UserRole

BOB_IS_MODERATOR = ANN.post(Role("", 0, "", BOB.key, UserRole.MOD.in_post), at=1)


def drop_of(by: Person, posts: Sequence[Post], channel: str, *, undo: bool = False) -> Post:
    action = Action.UNDROP_POST if undo else Action.DROP_POST
    return by.post(Moderation("", 0, channel, tuple(post.hash for post in posts), action))


def drops_of(store: CableStore) -> list[Row]:
    return store.rows(local_key(DROP), 100)


def stores_in_any_order(later: Sequence[Post]) -> Iterator[CableStore]:
    """Yield a swept store for each order in which it received these posts, after Bob became a moderator."""
    for order in permutations(later):
        with own() as store:
            verdicts_of(store, BOB_IS_MODERATOR)
            for each in order:
                verdicts_of(store, each)
            store.moderation.sweep()
            yield store


@pytest.mark.parametrize(
    ("author", "named", "is_dropped"),
    [(DAN, "c", True), (DAN, "d", False), (CYD, "c", False), (ANN, "c", False)],
    ids=["dropped", "in another channel", "by an admin", "by the local user"],
)
def test_a_drop_by_a_moderator_has_the_same_effect_before_and_after_its_post(
    author: Person, named: str, *, is_dropped: bool
) -> None:
    """Only the post shows its author and its channel, which may make the drop void."""
    post = author.text("c", "text")
    later = [ANN.post(Role("", 0, "", CYD.key, UserRole.ADMIN.in_post), at=2), drop_of(BOB, [post], named), post]
    for store in stores_in_any_order(later):
        assert bool(drops_of(store)) is is_dropped
        assert_clean(store)


def test_a_drop_of_one_post_and_the_drop_of_its_author_have_the_same_effect_in_any_order() -> None:
    """The post is not in the channel that the moderator names, also if it is rejected and only its fields are known."""
    post = DAN.text("c", "text")
    expected = None
    later = [drop_of(BOB, [post], "d"), ANN.post(Block("", 0, (DAN.key,), 1, 0)), post]
    for store in stores_in_any_order(later):
        found = drops_of(store)
        assert [DAN.key.hex().encode() in key for key, _ in found] == [True]
        assert expected in (None, found)
        expected = found


def test_an_undrop_by_a_moderator_admits_the_posts_that_only_the_moderator_dropped() -> None:
    posts = chain(*[DAN] * 16)
    with own() as store:
        verdicts_of(store, BOB_IS_MODERATOR, *posts, drop_of(BOB, posts, "c"), drop_of(ANN, posts[:15], "c"))
        store.moderation.sweep()
        assert verdicts_of(store, *posts) == [Verdict.DROPPED] * 16
        verdicts_of(store, drop_of(BOB, posts, "c", undo=True))
        assert len(drops_of(store)) == 15
        assert verdicts_of(store, *posts) == [*[Verdict.DROPPED] * 15, Verdict.ACCEPTED]
        assert_clean(store)


def test_a_session_after_an_unmoderated_one_drops_the_posts_that_its_actions_name(tmp_path: Path) -> None:
    posts = chain(BOB, CYD)
    for _ in range(2):  # the second session has stored the drops of all actions
        with own(tmp_path) as store:
            store.moderation.hide(users=[DAN.key])
    with own(tmp_path, moderated=False) as store:
        assert verdicts_of(store, *posts, drop_of(ANN, posts[:1], "c")) == [Verdict.ACCEPTED] * 3
    with own(tmp_path) as store:
        store.moderation.sweep()
        assert requestable(store, *posts) == []
        assert [store.get(post.hash) is None for post in posts] == [True, False]
        assert_clean(store)
