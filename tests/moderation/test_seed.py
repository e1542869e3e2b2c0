"""Known answers for the seed: moderation.md 4.7."""

from __future__ import annotations

import pytest
from moderating import ADMIN, ALEPH, BERT, CASHEW, DORA, MOD, URSULA, USER, XU, act, decide, role, says

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.moderation import Action, Seed, UserRole

EXAMPLE = """\
2c869744624581c4a7dfd0452f1b70dd4289fd14245eeb0a0c2b3a87f0e3a5b9d
2656f9b6195035a063dd1f1f50def3a5a6ee19005384c49e1740df7dc192f722f
11f03bd1d7430e5d47cf197d0ec412707a7e211ee7d45f298bf596378dd4c14a4
"""
"""The example in the specification, with one digit for the role."""


def seeded(*roles: tuple[bytes, UserRole], revoked_at_ms: int | None = None) -> Seed:
    return Seed(roles, 100, revoked_at_ms)


def test_4_7_2_a_seed_changes_the_default_role() -> None:
    seed = seeded((ALEPH, ADMIN), (BERT, MOD))
    decisions = decide(seed=seed)
    assert [decisions.role(user, "test") for user in (ALEPH, BERT, CASHEW)] == [ADMIN, MOD, USER]
    assert [decisions.role_given_by(user) for user in (ALEPH, CASHEW)] == [seed, None]


def test_4_7_2_an_admin_can_issue_other_roles_to_seeded_users() -> None:
    seed = seeded((ALEPH, ADMIN), (BERT, ADMIN), (CASHEW, MOD))
    decisions = decide(role(ALEPH, BERT, MOD, 1), role(URSULA, CASHEW, USER, 2), role(BERT, DORA, MOD, 3), seed=seed)
    assert [decisions.role(user) for user in (ALEPH, BERT, CASHEW, DORA)] == [ADMIN, MOD, USER, USER]


def test_4_7_2_actions_and_roles_by_seeded_users_apply_at_any_time() -> None:
    acts = role(ALEPH, CASHEW, MOD, 0), act(ALEPH, Action.HIDE_USER, XU, 0), act(BERT, Action.HIDE_USER, DORA, 0)
    decisions = decide(*acts, role(BERT, DORA, ADMIN, 0), seed=seeded((ALEPH, ADMIN), (BERT, MOD)))
    assert [decisions.role(user) for user in (CASHEW, DORA)] == [MOD, USER]
    assert [decisions.user_hidden_by(user, None) for user in (XU, DORA)] == [*acts[1:]]


def test_4_7_2_applied_actions_and_roles_remain_after_the_seed_is_revoked() -> None:
    acts = role(ALEPH, CASHEW, ADMIN, 1), act(ALEPH, Action.HIDE_USER, XU, 2), role(CASHEW, BERT, MOD, 3)
    later = role(ALEPH, DORA, MOD, 51), act(ALEPH, Action.HIDE_USER, DORA, 51), role(CASHEW, DORA, MOD, 52)
    decisions = decide(*acts, *later[:2], seed=seeded((ALEPH, ADMIN), revoked_at_ms=50))
    assert [decisions.role(user) for user in (ALEPH, CASHEW, BERT, DORA)] == [USER, ADMIN, MOD, USER]
    assert [decisions.user_hidden_by(user, None) for user in (XU, DORA)] == [acts[1], None]
    assert decide(*acts, *later, seed=seeded((ALEPH, ADMIN), revoked_at_ms=50)).role(DORA) is MOD


def test_4_7_2_a_seeded_admin_confirmed_by_its_own_appointee_keeps_issued_roles() -> None:
    """An admin that a seeded admin appointed confirms the seed. That does not remove roles."""
    acts = role(ALEPH, BERT, ADMIN, 1), role(BERT, ALEPH, ADMIN, 2), role(ALEPH, CASHEW, MOD, 3)
    decisions = decide(*acts, seed=seeded((ALEPH, ADMIN)))
    assert [decisions.role(user) for user in (ALEPH, BERT, CASHEW)] == [ADMIN, ADMIN, MOD]


def test_4_7_2_a_seeded_admin_demoted_by_its_own_appointee_returns_to_its_default_role() -> None:
    """The demotion removes the roles that the demoted user assigned, including the role of the demoting admin."""
    acts = role(ALEPH, BERT, ADMIN, 1), role(ALEPH, CASHEW, MOD, 2), role(BERT, ALEPH, USER, 3)
    decisions = decide(*acts, seed=seeded((ALEPH, ADMIN)))
    assert [decisions.role(user) for user in (ALEPH, BERT, CASHEW)] == [ADMIN, USER, USER]


def test_4_7_2_roles_issued_by_a_seeded_admin_end_when_the_local_user_demotes_it() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, CASHEW, MOD, 2), role(URSULA, ALEPH, USER, 60)
    assert decide(*acts[:2], seed=seeded((ALEPH, ADMIN), revoked_at_ms=50)).role(CASHEW) is MOD
    assert decide(*acts, seed=seeded((ALEPH, ADMIN), revoked_at_ms=50)).role(CASHEW) is USER


def test_4_7_2_a_repeated_role_by_an_admin_confirmed_only_by_its_recipient_ends_both_roles() -> None:
    """Bert's role remains without Aleph's. A repeated role is a new role, and then the two only confirm each other."""
    acts = role(ALEPH, BERT, ADMIN, 1), role(BERT, ALEPH, ADMIN, 60), role(ALEPH, BERT, ADMIN, 70)
    seed = seeded((ALEPH, ADMIN), revoked_at_ms=50)
    assert [decide(*acts[:2], seed=seed).role(user) for user in (ALEPH, BERT)] == [ADMIN, ADMIN]
    assert [decide(*acts, seed=seed).role(user) for user in (ALEPH, BERT)] == [USER, USER]


def test_4_2_4_a_seeded_user_may_decline() -> None:
    assert decide(says(ALEPH, False, 1), seed=seeded((ALEPH, ADMIN))).role(ALEPH) is USER


def test_4_7_3_the_example_is_read_from_hex_and_from_bytes() -> None:
    seed = Seed.read_hex(EXAMPLE, 5)
    assert [(key.hex()[:4], each) for key, each in seed.roles] == [("c869", ADMIN), ("656f", ADMIN), ("1f03", MOD)]
    assert len(seed.write()) == 99
    assert Seed.read(seed.write(), 5) == Seed.read_hex(seed.write().hex(), 5) == seed
    assert seed.revoked(7) == Seed(seed.roles, 5, 7)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (b"\x02" + bytes(31), "32 bytes"),
        (
            b"".join(b"\x02" + bytes([number]) * 32 for number in range(limits.MAX_SEED_USERS + 1)),
            "for each of 1 to 16 users",
        ),
        (b"\x03" + bytes(32), "invalid role 3"),
        (b"\x02" + bytes(32) + b"\x01" + bytes(32), "duplicate user"),
    ],
)
def test_4_7_2_a_malformed_seed_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Seed.read(data, 0)
    with pytest.raises(ArgumentError, match=message):
        Seed.read_hex(data.hex(), 0)


def test_4_7_3_a_seed_may_list_16_users_in_both_forms() -> None:
    roles = tuple((bytes([number]) * 32, MOD) for number in range(limits.MAX_SEED_USERS))
    printed = "\n".join(f"{role.value:x}{key.hex()}" for key, role in roles)
    assert Seed.read_hex(printed, 0).roles == Seed.read(Seed(roles, 0).write(), 0).roles == roles


@pytest.mark.parametrize("text", ["2c", "zz" * 33, "2" * 64])
def test_4_7_2_an_invalid_hex_seed_is_rejected(text: str) -> None:
    with pytest.raises(ArgumentError, match="seed"):
        Seed.read_hex(text, 0)
