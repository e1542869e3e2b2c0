"""Moderation actions of the user: which targets they accept, and which changes they report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moderated import assert_clean, own, verdicts_of
from people import ANN, BOB, CYD

from cablestore import CableStore, Moderation
from cablestore.errors import ArgumentError
from cablestore.moderation import Action, UserRole, act_of
from cablestore.store.moderator import Effect


@pytest.fixture
def store() -> Iterator[CableStore]:
    with own() as opened:
        yield opened
        assert_clean(opened)


def test_targets_that_do_not_fit_the_action_are_rejected(store: CableStore) -> None:
    text, topic, joined = BOB.text("c", "x"), BOB.topic("c", "t"), BOB.join("c")
    verdicts_of(store, text, topic, joined)
    moderation, keys = store.moderation, [bytes([number]) * 32 for number in range(17)]
    with pytest.raises(ArgumentError, match=r"needs a post/text$"):
        moderation.hide(posts=[topic.hash])
    with pytest.raises(ArgumentError, match=r"needs a post/text or post/topic$"):
        moderation.drop(posts=[text.hash, joined.hash])
    for undo in (moderation.unhide, moderation.undrop):
        with pytest.raises(ArgumentError, match="pass its channel"):
            undo(posts=[bytes(32)])
        assert len(undo(posts=[bytes(32)], channel="c", dry_run=True).posts) == 0
    with pytest.raises(ArgumentError, match="not stored"):
        moderation.drop(posts=[bytes(32)], channel="c")
    with pytest.raises(ArgumentError, match="the name is empty"):
        moderation.drop(channel="")
    for wrong in ({"posts": [text.hash]}, {"channel": "c"}):
        with pytest.raises(ArgumentError, match="only one of users, posts and channel"):
            moderation.drop(users=[BOB.key], **wrong)
        with pytest.raises(ArgumentError, match="only one of users, posts and channel"):
            moderation.undrop(users=[BOB.key], **wrong)
    with pytest.raises(ArgumentError, match="users or posts"):
        moderation.hide(channel="c")
    with pytest.raises(ArgumentError, match="1 to 16"):
        moderation.unhide(posts=keys, channel="c")
    assert len(moderation.unhide(posts=keys[1:], channel="c", dry_run=True).posts) == 0
    assert len(moderation.block(keys[1:], dry_run=True).changes) == 16


def test_an_effect_lists_each_changed_value_and_counts_the_dropped_posts(store: CableStore) -> None:
    text, other = BOB.text("c", "x"), BOB.topic("c", "t")
    verdicts_of(store, text, other, CYD.text("d", "of 1970", at=0), CYD.text("d", "y"), CYD.named("cyd"))
    moderation, user, mod = store.moderation, UserRole.USER, UserRole.MOD
    cases: list[tuple[Effect, list[tuple[object, ...]], int]] = [
        (moderation.set_role(BOB.key, mod), [("role", BOB.key, None, user, mod)], 0),
        (moderation.set_role(BOB.key, user), [("role", BOB.key, None, mod, user)], 0),
        (moderation.hide(users=[BOB.key]), [("hidden", BOB.key, None, False, True)], 0),
        (moderation.unhide(users=[BOB.key], channel="c"), [("hidden", BOB.key, "c", True, False)], 0),
        (moderation.hide(posts=[text.hash]), [("hidden", text.hash, "c", False, True)], 0),
        (moderation.unhide(posts=[text.hash]), [("hidden", text.hash, "c", True, False)], 0),
        (moderation.drop(posts=[other.hash]), [("dropped", other.hash, "c", False, True)], 1),
        (moderation.undrop(posts=[other.hash]), [("dropped", other.hash, "c", True, False)], 0),
        (moderation.drop(channel="c"), [("dropped", b"", "c", False, True)], 1),
        (moderation.undrop(channel="c"), [("dropped", b"", "c", True, False)], 0),
        (moderation.block([CYD.key]), [("blocked", CYD.key, None, False, True)], 0),
        (moderation.block([CYD.key], drop=True), [("dropped", CYD.key, None, False, True)], 3),
        (
            moderation.unblock([CYD.key], undrop=True),
            [("dropped", CYD.key, None, True, False), ("blocked", CYD.key, None, True, False)],
            0,
        ),
    ]
    for effect, expected, dropped in cases:
        assert ([change[:5] for change in effect.changes], effect.dropped_posts) == (expected, dropped)
        for change in effect.changes:
            is_undone = change.what != "role" and change.after is False
            assert change.by == (None if is_undone else act_of(effect.posts[0]))


def test_a_store_without_a_key_has_no_own_actions(tmp_path: Path) -> None:
    with CableStore.open(tmp_path) as store:
        verdicts_of(store, ANN.post(Moderation("", 0, "", (BOB.key,), Action.HIDE_USER)))
        assert store.moderation.own_acts("hide", BOB.key) == []
        assert store.moderation.hide(users=[BOB.key], skip_repeated=True).unchanged == ()
        assert len(store.moderation.own_acts("hide", BOB.key)) == 1
