"""Actions and roles of dropped users: their free text is removed, but decisions stay (moderation.md 4.4.4, 5.1.4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from moderated import DAN, assert_clean, own, requestable, verdicts_of
from people import ANN, BOB, CYD, START_MS

from cablestore import Block, CableStore, Moderation, Role, Unblock, Verdict, limits
from cablestore.moderation import Action, UserRole

SECRET = "a name and an address"
ADMIN = ANN.post(Role("", 0, "", BOB.key, UserRole.ADMIN.in_post), at=START_MS)
HIDE = BOB.post(Moderation(SECRET, 0, "", (CYD.key,), Action.HIDE_USER), at=START_MS + 5)
ROLE = BOB.post(Role(SECRET, 0, "", DAN.key, UserRole.MOD.in_post), at=START_MS + 6)
PLAIN = BOB.post(Moderation("", 0, "", (DAN.key,), Action.HIDE_USER), at=START_MS + 4)
ON_OWN = BOB.post(Block(SECRET, 0, (ANN.key,), 0, 1), at=START_MS + 7)
ACTS = (HIDE, ROLE, ON_OWN)
DROP = ANN.post(Block("", 0, (BOB.key,), 1, 0), at=START_MS + 20)
UNDROP = ANN.post(Unblock("", 0, (BOB.key,), 1), at=START_MS + 30)


def effects(store: CableStore) -> tuple[bool, UserRole, bool]:
    decisions = store.moderation.decisions
    assert decisions is not None
    blocks_us = decisions.blocks_own_user(BOB.key) is not None
    return store.user(CYD.key).is_hidden, store.user(DAN.key).role, blocks_us


def says_secret(store: CableStore) -> bool:
    with store.snapshot() as snapshot:
        is_stored = any(SECRET.encode() in value for _, value in snapshot.reader.prefix(b"!"))
    return is_stored or any(SECRET in judged.act.reason for judged in store.moderation.history())


@pytest.mark.parametrize("is_first", [True, False], ids=["drop first", "drop last"])
def test_dropped_actions_are_removed_and_their_decisions_remain(tmp_path: Path, is_first: bool) -> None:
    with own(tmp_path) as store:
        verdicts_of(store, ADMIN, PLAIN)
        if is_first:
            verdicts_of(store, DROP)
            assert verdicts_of(store, *ACTS) == [Verdict.DROPPED] * 3
        else:
            verdicts_of(store, *ACTS)
            assert says_secret(store)
            assert store.moderation.block([BOB.key], drop=True, dry_run=True).dropped_posts == 3
            verdicts_of(store, DROP)
            store.moderation.sweep()
        for _ in range(2):
            assert [store.get(act.hash) for act in ACTS] == [None] * 3
            assert effects(store) == (True, UserRole.MOD, True)
            assert not says_secret(store)
            store.rebuild()
        assert store.get(PLAIN.hash) == PLAIN
        assert requestable(store, *ACTS) == []
        assert_clean(store)
    with own(tmp_path) as store:
        assert effects(store) == (True, UserRole.MOD, True)
        assert verdicts_of(store, *ACTS) == [Verdict.DROPPED] * 3
        verdicts_of(store, UNDROP)
        store.moderation.sweep()
        assert effects(store) == (True, UserRole.MOD, True)
    with own(tmp_path) as store:
        assert verdicts_of(store, *ACTS) == [Verdict.ACCEPTED] * 3
        assert effects(store) == (True, UserRole.MOD, True)
        verdicts_of(store, BOB.delete(*ACTS, at=START_MS + 40))
        assert effects(store) == (False, UserRole.USER, False)
        assert_clean(store)
    with own(tmp_path) as store:
        assert effects(store) == (False, UserRole.USER, False)


@pytest.mark.parametrize("is_undropped", [False, True], ids=["dropped", "undropped"])
def test_a_deletion_ends_the_effect_of_an_action_that_is_not_stored(tmp_path: Path, is_undropped: bool) -> None:
    with own(tmp_path) as store:
        verdicts_of(store, ADMIN, *ACTS)
        verdicts_of(store, DROP)
        store.moderation.sweep()
        if is_undropped:
            verdicts_of(store, UNDROP)
            store.moderation.sweep()
        assert verdicts_of(store, BOB.delete(*ACTS, at=START_MS + 10)) == [Verdict.ACCEPTED]
        assert effects(store) == (False, UserRole.USER, False)
        assert verdicts_of(store, *ACTS) == [Verdict.DELETED] * 3
        assert_clean(store)
    with own(tmp_path) as store:
        assert effects(store) == (False, UserRole.USER, False)


def test_a_limited_number_of_actions_by_a_dropped_user_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BLOCKED_ACTIONS", 2)
    with own() as store:
        verdicts_of(store, ADMIN, DROP)
        assert verdicts_of(store, *ACTS) == [Verdict.DROPPED] * 3
        assert effects(store) == (True, UserRole.MOD, False)
        assert_clean(store)
