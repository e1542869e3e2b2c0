"""Rules of moderation.md for a post or an action that arrives late, arrives after its drop, or is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from moderated import DAN, NOW_MS, assert_clean, own, requestable, verdicts_of
from people import ANN, BOB, CYD, START_MS, Person, raws

from cablestore import LEGACY, Block, Body, CableStore, Info, Moderation, Post, Role, Text, Unblock, Verdict, limits
from cablestore.errors import ArgumentError
from cablestore.moderation import Action, UserRole, act_of
from cablestore.protocol.body import LOCAL_ONLY, PUBLIC

MOD = UserRole.MOD.in_post


def role(user: Person, at: int) -> Post:
    return ANN.post(Role("", 0, "", user.key, MOD), at=START_MS + at)


def action(by: Person, what: Action, targets: tuple[bytes, ...], at: int, channel: str = "c") -> Post:
    return by.post(Moderation("", 0, channel, targets, what), at=START_MS + at)


def test_a_post_that_a_known_action_drops_is_not_requested(tmp_path: Path) -> None:
    bad, other = CYD.text("c", "illegal", at=START_MS + 10), CYD.text("c", "fine", at=START_MS + 11)
    drop = action(BOB, Action.DROP_POST, (bad.hash,), 20)
    with own(tmp_path) as store:
        verdicts_of(store, drop)
        assert requestable(store, bad, other) == [bad.hash, other.hash], "its author has no authority"
        verdicts_of(store, role(BOB, 5))
        assert requestable(store, bad, other) == [other.hash]
        assert not store.moderation.is_sweeping
        assert_clean(store)
    with own(tmp_path) as store:
        store.rebuild()
        assert requestable(store, bad) == []
        assert verdicts_of(store, bad) == [Verdict.DROPPED]
        verdicts_of(store, action(BOB, Action.UNDROP_POST, (bad.hash,), 30))
        assert requestable(store, bad) == [bad.hash]
        assert verdicts_of(store, bad) == [Verdict.ACCEPTED]
        assert_clean(store)


def test_a_post_to_which_a_drop_does_not_apply_is_kept() -> None:
    """The author or the channel of the post shows that the drop does not apply to it (4.4.5, 5.1.3.2)."""
    by_mod, elsewhere = CYD.text("c", "of a mod", at=START_MS + 10), CYD.text("d", "elsewhere", at=START_MS + 11)
    with own() as store:
        verdicts_of(store, role(BOB, 5), role(CYD, 5), action(BOB, Action.DROP_POST, (by_mod.hash, elsewhere.hash), 20))
        assert verdicts_of(store, by_mod, elsewhere) == [Verdict.ACCEPTED] * 2
        store.moderation.drop(channel="d")
        store.moderation.sweep()
        assert store.get(by_mod.hash) is not None
        assert_clean(store)


def test_an_own_post_that_its_author_dropped_stays_dropped(tmp_path: Path) -> None:
    with own(tmp_path) as store:
        verdicts_of(store, role(BOB, 5))
        mistake = store.write(Text("c", "my mistake"))
        store.moderation.drop(posts=[mistake.hash])
        store.moderation.sweep()
        assert verdicts_of(store, mistake) == [Verdict.DROPPED]
        verdicts_of(store, action(BOB, Action.DROP_CHANNEL, (), 2_000))
        assert verdicts_of(store, mistake) == [Verdict.DROPPED]
        assert store.get(mistake.hash) is None


def test_a_block_that_notified_stays_in_force_until_it_is_undone() -> None:
    def block(at: int, *, notify: int) -> Post:
        return BOB.post(Block("", 0, (ANN.key,), 0, notify), at=START_MS + at)

    text = BOB.text("c", "x", at=START_MS + 50)
    with own() as store:
        verdicts_of(store, block(10, notify=1), block(20, notify=0))
        assert verdicts_of(store, text) == [Verdict.BLOCKED]
        verdicts_of(store, BOB.post(Unblock("", 0, (ANN.key,), 0), at=START_MS + 30))
        assert verdicts_of(store, text) == [Verdict.ACCEPTED]
        verdicts_of(store, block(40, notify=0))
        assert verdicts_of(store, BOB.text("c", "y", at=START_MS + 51)) == [Verdict.ACCEPTED]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (Role("", PUBLIC, "", ANN.key, MOD), "cannot assign a role to yourself"),
        (Role("", LOCAL_ONLY, "c", BOB.key, MOD), "does not accept roles"),
        (Block("", PUBLIC, (ANN.key,), 0, 0), "cannot block yourself"),
        (Block("", LOCAL_ONLY, (BOB.key,), 0, 1), "private block"),
        (Unblock("", PUBLIC, (CYD.key,), 0), "Undo it privately"),
        (Moderation("", PUBLIC, "c", (CYD.key,), Action.UNHIDE_USER), "Undo it privately"),
        (Moderation("", PUBLIC, "d", (), Action.UNDROP_CHANNEL), "Undo it privately"),
    ],
)
def test_writing_a_post_rejects_invalid_actions(body: Body, message: str) -> None:
    with own() as store:
        verdicts_of(store, BOB.post(Info.of(accept_role=False)))
        store.moderation.block([CYD.key], private=True)
        store.moderation.hide(users=[CYD.key], channel="c", private=True)
        store.moderation.drop(channel="d", private=True)
        before = store.stats().posts
        with pytest.raises(ArgumentError, match=message):
            store.write(body)
        assert store.stats().posts == before


def test_a_post_with_a_known_deletion_by_its_author_is_not_forwarded() -> None:
    text, other = BOB.text("c", "x"), BOB.text("c", "y")
    with own() as store:
        verdicts_of(store, BOB.delete(text), CYD.delete(other))
        verdicts = [outcome.verdict for outcome in store.parts.appraise([text.raw, other.raw], LEGACY)]
        assert verdicts == [Verdict.DELETED, Verdict.ACCEPTED]


def test_posts_that_the_store_would_reject_are_not_forwarded() -> None:
    with own() as store:
        store.moderation.drop(channel="d")
        store.moderation.block([CYD.key])
        posts = [BOB.text("d", "x"), CYD.text("c", "x"), BOB.post(Unblock("", LOCAL_ONLY, (CYD.key,), 0))]
        verdicts = [outcome.verdict for outcome in store.parts.appraise(raws(*posts), LEGACY)]
        assert verdicts == [Verdict.DROPPED, Verdict.BLOCKED, Verdict.LOCAL_ONLY]


def seeded_store() -> tuple[CableStore, list[Post]]:
    """Return a store with Bob as admin by its seed, and Bob's actions, dated ahead of the store's clock."""
    store = own()
    store.moderation.join_with_seed(bytes((UserRole.ADMIN,)) + BOB.key)
    ahead = NOW_MS - START_MS
    hide = action(BOB, Action.HIDE_USER, (CYD.key,), ahead + 1_000, "")
    given = BOB.post(Role("", 0, "", DAN.key, MOD), at=NOW_MS + 1_000)
    verdicts_of(store, hide, given, action(DAN, Action.HIDE_USER, (CYD.key,), ahead + 2_000, "d"))
    return store, [hide, given]


def test_revoking_a_seed_keeps_applied_actions_that_are_dated_ahead() -> None:
    store, (hide, given) = seeded_store()
    with store:
        store.moderation.revoke_seed()
        for _ in range(2):
            decisions = store.moderation.decisions
            assert decisions is not None
            assert decisions.role(BOB.key) is UserRole.USER
            assert decisions.role(DAN.key) is UserRole.MOD
            assert decisions.user_hidden_by(CYD.key, "c") == act_of(hide)
            assert decisions.user_hidden_by(CYD.key, "d") is not None
            store.rebuild()
        late = action(BOB, Action.HIDE_USER, (Person("eve").key,), NOW_MS - START_MS + 500, "")
        verdicts_of(store, late)
        assert store.moderation.decisions is not None
        assert store.moderation.decisions.user_hidden_by(Person("eve").key, "c") is None
        verdicts_of(store, BOB.delete(hide, given, at=NOW_MS + 5_000))
        assert store.moderation.decisions.user_hidden_by(CYD.key, "c") is None
        assert store.moderation.decisions.role(DAN.key) is UserRole.USER


def test_the_number_of_actions_kept_after_a_seed_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SEED_ACTS_KEPT", 1)
    store, acts = seeded_store()
    with store:
        store.moderation.revoke_seed()
        seed = store.moderation.seed
        assert seed is not None
        assert seed.kept == {min(acts, key=lambda post: (post.timestamp_ms, post.hash)).hash}
