"""Actions, roles and deletions of users who are blocked, or who block the local user (moderation.md 4.6, 4.6.1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moderated import DAN, assert_clean, own, verdicts_of
from people import ANN, BOB, CYD, START_MS, Person

from cablestore import Block, CableStore, Moderation, Post, Role, Unblock, Verdict, limits
from cablestore.moderation import Action, UserRole
from cablestore.store import answers

ACCEPTED, BLOCKED = Verdict.ACCEPTED, Verdict.BLOCKED
ADMIN = ANN.post(Role("", 0, "", BOB.key, UserRole.ADMIN.in_post), at=START_MS)


@pytest.fixture
def store() -> Iterator[CableStore]:
    with own() as opened:
        verdicts_of(opened, ADMIN)
        yield opened
        assert_clean(opened)


def hide(by: Person, user: Person, at: int, reason: str = "") -> Post:
    return by.post(Moderation(reason, 0, "", (user.key,), Action.HIDE_USER), at=START_MS + at)


def block(by: Person, user: Person, at: int, *, drop: int = 0, notify: int = 0) -> Post:
    return by.post(Block("", 0, (user.key,), drop, notify), at=START_MS + at)


def unblock(by: Person, user: Person, at: int) -> Post:
    return by.post(Unblock("", 0, (user.key,), 0), at=START_MS + at)


def is_hidden(store: CableStore, user: Person) -> bool:
    return store.user(user.key).is_hidden


def announced(store: CableStore) -> set[bytes]:
    with store.snapshot() as snapshot:
        return set(answers.moderation_state(snapshot.reader, [], 0))


def later_posts(by: Person) -> list[Post]:
    return [
        hide(by, CYD, 31),
        by.post(Role("", 0, "", DAN.key, UserRole.MOD.in_post), at=START_MS + 32),
        block(by, CYD, 33),
        unblock(by, CYD, 34),
        by.delete(hide(by, CYD, 1), at=START_MS + 35),
        by.text("c", "later", at=START_MS + 36),
    ]


@pytest.mark.parametrize("drop", [0, 1])
def test_posts_of_any_type_from_after_a_block_are_rejected(store: CableStore, drop: int) -> None:
    later, blocked = later_posts(BOB), block(ANN, BOB, 20, drop=drop)
    verdicts_of(store, blocked)
    verdict = Verdict.DROPPED if drop else BLOCKED
    assert verdicts_of(store, *later) == [BLOCKED] * 5 + [verdict]
    assert announced(store) == {ADMIN.hash, blocked.hash}
    assert (is_hidden(store, CYD), store.user(DAN.key).role) == (False, UserRole.USER)
    verdicts_of(store, unblock(ANN, BOB, 40))
    assert verdicts_of(store, *later)[:5] == [ACCEPTED] * 5
    assert is_hidden(store, CYD)


def test_a_block_decides_about_later_posts_of_its_batch(store: CableStore) -> None:
    assert verdicts_of(store, block(ANN, BOB, 20), hide(BOB, CYD, 31), hide(BOB, CYD, 19)) == [
        ACCEPTED,
        BLOCKED,
        ACCEPTED,
    ]


@pytest.mark.parametrize("is_own", [True, False], ids=["own block", "block on the own user"])
def test_an_unblock_decides_about_later_posts_of_its_batch(store: CableStore, is_own: bool) -> None:
    blocker, other = (ANN, BOB) if is_own else (BOB, ANN)
    verdicts_of(store, block(blocker, other, 20, notify=1))
    assert verdicts_of(store, hide(BOB, CYD, 25)) == [BLOCKED]
    assert verdicts_of(store, unblock(blocker, other, 30), hide(BOB, CYD, 31), hide(BOB, CYD, 25)) == [ACCEPTED] * 3


def test_actions_and_roles_from_before_a_block_count(store: CableStore) -> None:
    verdicts_of(store, block(ANN, BOB, 20))
    role = BOB.post(Role("", 0, "", DAN.key, UserRole.MOD.in_post), at=START_MS + 11)
    assert verdicts_of(store, hide(BOB, CYD, 10), role, hide(DAN, BOB, 15)) == [ACCEPTED] * 3
    assert is_hidden(store, CYD)
    assert store.user(DAN.key).role is UserRole.MOD


def test_posts_from_after_the_first_of_several_blocks_are_rejected(store: CableStore) -> None:
    verdicts_of(store, block(ANN, BOB, 20), block(ANN, BOB, 40))
    assert verdicts_of(store, hide(BOB, CYD, 20), hide(BOB, CYD, 30)) == [ACCEPTED, BLOCKED]
    verdicts_of(store, unblock(ANN, BOB, 50), block(ANN, BOB, 60))
    assert verdicts_of(store, hide(BOB, CYD, 30), hide(BOB, CYD, 61)) == [ACCEPTED, BLOCKED]


def test_a_deletion_from_after_a_block_is_rejected_until_the_block_ends(store: CableStore) -> None:
    evidence = CYD.text("c", "insult", at=START_MS + 5)
    deletion = CYD.delete(evidence, at=START_MS + 30)
    verdicts_of(store, evidence)
    verdicts_of(store, block(ANN, CYD, 20))
    assert verdicts_of(store, deletion) == [BLOCKED]
    assert store.get(evidence.hash) == evidence
    verdicts_of(store, unblock(ANN, CYD, 40))
    assert verdicts_of(store, deletion) == [ACCEPTED]
    assert store.get(evidence.hash) is None


def test_a_deletion_from_before_a_block_counts(store: CableStore) -> None:
    seen, unseen = BOB.text("c", "seen", at=START_MS + 5), BOB.text("c", "unseen", at=START_MS + 5)
    verdicts_of(store, seen, hidden := hide(BOB, CYD, 5))
    verdicts_of(store, block(ANN, BOB, 20))
    deletions = [BOB.delete(post, at=START_MS + 7) for post in (seen, unseen, hidden)]
    assert verdicts_of(store, *deletions) == [ACCEPTED] * 3
    assert store.get(seen.hash) is None
    assert verdicts_of(store, unseen) == [Verdict.DELETED]
    assert not is_hidden(store, CYD)


def test_posts_of_a_user_whose_block_notified_the_local_user_are_rejected(store: CableStore) -> None:
    verdicts_of(store, blocking := block(BOB, ANN, 20, notify=1))
    later = later_posts(BOB)
    assert verdicts_of(store, *later) == [BLOCKED] * 6
    assert verdicts_of(store, hide(BOB, CYD, 10)) == [ACCEPTED]
    assert verdicts_of(store, unblock(BOB, ANN, 40)) == [ACCEPTED]
    assert verdicts_of(store, *later)[0] is ACCEPTED
    verdicts_of(store, again := block(BOB, ANN, 50, notify=1))
    assert verdicts_of(store, hide(BOB, CYD, 60)) == [BLOCKED]
    assert verdicts_of(store, BOB.delete(again, at=START_MS + 61)) == [ACCEPTED]
    assert verdicts_of(store, hide(BOB, CYD, 60)) == [ACCEPTED]
    assert blocking.hash in announced(store)


def test_the_number_of_actions_dated_before_a_block_is_limited(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_BLOCKED_ACTIONS", 3)
    verdicts_of(store, block(ANN, CYD, 20), hide(CYD, BOB, 1))
    flood = [hide(CYD, BOB, at) for at in range(2, 10)]
    assert verdicts_of(store, *flood) == [ACCEPTED] * 2 + [BLOCKED] * 6
    assert verdicts_of(store, *flood[:2]) == [Verdict.DUPLICATE] * 2
    verdicts_of(store, unblock(ANN, CYD, 40))
    assert verdicts_of(store, *flood[2:]) == [ACCEPTED] * 6
