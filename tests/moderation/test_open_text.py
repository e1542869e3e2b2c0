"""Decisions where sentences of moderation.md conflict: the table in docs/reference/moderation.md has the reasons."""

from __future__ import annotations

from moderating import ADMIN, ALEPH, BERT, CASHEW, MOD, POST, URSULA, USER, XU, act, decide, role, says

from cablestore.moderation import Action, Seed

HIDE, UNHIDE = Action.HIDE_USER, Action.UNHIDE_USER


def test_roles_in_the_same_millisecond() -> None:
    decisions = decide(role(ALEPH, BERT, MOD, 2), role(URSULA, ALEPH, ADMIN, 2), act(BERT, HIDE, XU, 2))
    assert decisions.role(BERT) is MOD
    assert decisions.user_hidden_by(XU, None) is None
    assert decide(role(URSULA, ALEPH, MOD, 2), role(URSULA, ALEPH, USER, 2)).role(ALEPH) is USER


def test_unhide_by_another_moderator_after_the_user_became_one() -> None:
    hide = act(ALEPH, HIDE, XU, 2)
    acts = role(URSULA, ALEPH, MOD, 1), role(URSULA, BERT, MOD, 1), hide, role(URSULA, XU, MOD, 3)
    assert decide(*acts, act(BERT, UNHIDE, XU, 4)).user_hidden_by(XU, None) == hide
    for by in (ALEPH, URSULA):
        assert decide(*acts, act(by, UNHIDE, XU, 4)).user_hidden_by(XU, None) is None


def test_unhide_for_the_cabal_against_an_earlier_hide_in_a_channel() -> None:
    mods = role(URSULA, ALEPH, MOD, 1), role(URSULA, BERT, MOD, 1)
    hide, unhide = act(ALEPH, HIDE, XU, 2, "test"), act(BERT, UNHIDE, XU, 3)
    assert decide(*mods, hide, unhide).user_hidden_by(XU, "test") is None
    own = act(URSULA, HIDE, XU, 2, "test")
    assert decide(*mods, own, unhide).user_hidden_by(XU, "test") == own


def test_actions_under_a_deleted_role() -> None:
    given, hide = role(URSULA, ALEPH, MOD, 1), act(ALEPH, HIDE, XU, 2)
    assert decide(given, hide, role(URSULA, ALEPH, USER, 3)).user_hidden_by(XU, None) == hide
    assert decide(hide).user_hidden_by(XU, None) is None


def test_roles_after_accepting_again() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, MOD, 2), says(ALEPH, False, 3), says(ALEPH, True, 4)
    assert [decide(*acts).role(user) for user in (ALEPH, BERT)] == [ADMIN, USER]


def test_public_role_over_a_private_one() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1, private=True), role(URSULA, ALEPH, USER, 2)
    assert decide(*acts).role(ALEPH) is USER
    assert decide(*acts[::-1], role(URSULA, ALEPH, MOD, 3, private=True)).role(ALEPH, public=True) is USER


def test_seeded_users_action_after_the_revocation() -> None:
    seed = Seed(((ALEPH, MOD),), 0)
    before, after = act(ALEPH, HIDE, XU, 4), act(ALEPH, HIDE, XU, 6)
    assert decide(before, seed=seed.revoked(5)).user_hidden_by(XU, None) == before
    assert decide(after, seed=seed.revoked(5)).user_hidden_by(XU, None) is None
    assert decide(after, seed=seed.revoked(5, [after.hash])).user_hidden_by(XU, None) == after


def test_channel_admin_acting_for_the_cabal() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1, "test"), role(ALEPH, BERT, MOD, 2), act(ALEPH, HIDE, XU, 2)
    decisions = decide(*acts)
    assert [decisions.role(BERT, channel) for channel in ("test", "other", None)] == [MOD, USER, USER]
    assert [decisions.user_hidden_by(XU, channel) for channel in ("test", "other", None)] == [acts[2], None, None]


def test_role_issued_twice() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, MOD, 2), role(URSULA, ALEPH, ADMIN, 3)
    decisions = decide(*acts)
    assert decisions.role_given_by(ALEPH) == acts[2]
    assert [decisions.role(user) for user in (ALEPH, BERT, CASHEW)] == [ADMIN, MOD, USER]


def test_drop_of_a_post_that_the_store_has_not_seen() -> None:
    mods = role(URSULA, ALEPH, MOD, 1), role(URSULA, XU, MOD, 1)
    drop = act(ALEPH, Action.DROP_POST, POST, 2, "test")
    assert decide(*mods, drop).unseen_post_dropped_by(POST) == drop
    assert decide(*mods, drop).post_dropped_by(POST, XU, "test") is None
    assert decide(*mods, drop).post_dropped_by(POST, BERT, "other") is None
