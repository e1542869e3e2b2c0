"""Known answers for each rule about roles: moderation.md 4.1, 4.2 and 5.1.2."""

from __future__ import annotations

from itertools import permutations

import pytest
from moderating import ADMIN, ALEPH, BERT, CASHEW, DORA, MOD, URSULA, USER, XU, act, decide, role, says

from cablestore.moderation import Action, ActResult, UserRole


def test_4_1_a_role_for_a_channel_applies_only_there() -> None:
    decisions = decide(role(URSULA, BERT, MOD, 1, "test"))
    assert [decisions.role(BERT, channel) for channel in ("test", "other", None)] == [MOD, USER, USER]


def test_4_1_1_a_role_for_the_cabal_applies_in_every_channel() -> None:
    decisions = decide(role(URSULA, BERT, MOD, 1))
    assert {decisions.role(BERT, channel) for channel in (None, "test", "")} == {MOD}


def test_4_2_only_roles_by_admins_apply() -> None:
    decisions = decide(role(URSULA, ALEPH, MOD, 1), role(ALEPH, BERT, MOD, 2), role(XU, BERT, ADMIN, 3))
    assert decisions.role(BERT) is USER


def test_4_2_1_the_local_user_admins_and_mods_have_authority() -> None:
    decisions = decide(role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, MOD, 2))
    assert [decisions.had_authority(user, None, 9) for user in (URSULA, ALEPH, BERT, XU)] == [True, True, True, False]
    assert (decisions.users_with(ADMIN), decisions.users_with(MOD)) == ([URSULA, ALEPH], [BERT])


def test_4_2_1_1_roles_depend_on_the_local_user() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, MOD, 2)
    assert [decide(*acts, own=own).role(BERT) for own in (URSULA, ALEPH, XU)] == [MOD, MOD, USER]


def test_4_2_1_1_1_roles_pass_through_admins() -> None:
    chain = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, ADMIN, 2), role(BERT, CASHEW, ADMIN, 3)
    assert decide(*chain, role(CASHEW, XU, MOD, 4)).role(XU) is MOD


def test_4_2_1_1_2_a_user_without_a_chain_of_admins_has_no_authority() -> None:
    circle = role(ALEPH, BERT, ADMIN, 1), role(BERT, ALEPH, ADMIN, 2), role(ALEPH, ALEPH, ADMIN, 3)
    assert decide(*circle).users_with(ADMIN) == [URSULA]


def test_4_2_2_a_new_role_replaces_the_authors_earlier_one() -> None:
    first, second = role(URSULA, BERT, ADMIN, 1), role(URSULA, BERT, MOD, 2)
    in_test = role(URSULA, BERT, ADMIN, 1, "test")
    decisions = decide(second, in_test, first)
    assert (decisions.role(BERT), decisions.role(BERT, "test"), decisions.role_given_by(BERT)) == (MOD, ADMIN, second)
    assert [judged.result for judged in decisions.history()] == [ActResult.UNDONE, ActResult.APPLIES]


def test_4_2_2_of_two_roles_of_one_time_the_one_with_the_greater_hash_is_later() -> None:
    first, second = role(URSULA, BERT, ADMIN, 1), role(URSULA, BERT, MOD, 1)
    assert first.hash < second.hash
    assert decide(second, first).role(BERT) is MOD


def test_4_2_3_the_example_of_relevant_roles_has_the_specified_result() -> None:
    decisions = decide(role(ALEPH, BERT, MOD, 1), role(ALEPH, BERT, ADMIN, 2), own=ALEPH)
    assert decisions.role(BERT) is ADMIN


def test_4_2_4_a_user_who_declines_is_a_normal_user_for_all_roles() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(URSULA, BERT, ADMIN, 1), role(BERT, ALEPH, MOD, 2)
    decisions = decide(*acts, says(ALEPH, False, 3))
    assert decisions.role(ALEPH) is USER
    assert [judged.result for judged in decisions.history() if judged.target == ALEPH] == [ActResult.DECLINED] * 2


def test_4_2_4_declining_ends_issued_roles_and_keeps_earlier_actions() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, MOD, 2), act(ALEPH, Action.HIDE_USER, XU, 3)
    decisions = decide(*acts, says(ALEPH, False, 4), act(ALEPH, Action.HIDE_USER, DORA, 5))
    assert decisions.role(BERT) is USER
    assert (decisions.user_hidden_by(XU, None), decisions.user_hidden_by(DORA, None)) == (acts[2], None)


def test_4_2_4_roles_issued_before_a_decline_do_not_return_with_acceptance() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, MOD, 2), says(ALEPH, False, 3), says(ALEPH, True, 4)
    decisions = decide(*acts, role(ALEPH, CASHEW, MOD, 5))
    assert [decisions.role(user) for user in (ALEPH, BERT, CASHEW)] == [ADMIN, USER, MOD]


def test_4_2_4_the_local_user_may_decline_and_still_issue_roles() -> None:
    decisions = decide(says(URSULA, False, 1), role(URSULA, ALEPH, MOD, 2))
    assert (decisions.role(URSULA), decisions.role(ALEPH)) == (ADMIN, MOD)


@pytest.mark.parametrize(("at", "expected"), [(1, USER), (2, MOD), (3, MOD)])
def test_4_2_5_roles_from_before_their_author_became_admin_do_not_apply(at: int, expected: UserRole) -> None:
    assert decide(role(URSULA, ALEPH, ADMIN, 2), role(ALEPH, BERT, MOD, at)).role(BERT) is expected


def test_4_2_5_roles_of_one_millisecond_apply_along_the_chain_in_any_order_of_hashes() -> None:
    chain = [(URSULA, ALEPH, ADMIN), (ALEPH, BERT, ADMIN), (BERT, CASHEW, ADMIN), (CASHEW, XU, MOD)]
    for ordered in permutations(chain):  # the later post has the greater hash
        decisions = decide(*(role(by, to, given, 2) for by, to, given in ordered))
        assert [decisions.role(user) for user in (ALEPH, BERT, CASHEW, XU)] == [ADMIN, ADMIN, ADMIN, MOD]


def test_4_2_5_roles_issued_by_an_admin_end_with_its_own_role_and_do_not_return() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, ADMIN, 2), role(BERT, CASHEW, MOD, 3)
    assert decide(*acts).role(CASHEW) is MOD
    revoked = *acts, role(URSULA, ALEPH, MOD, 4)
    decisions = decide(*revoked)
    assert [decisions.role(user) for user in (ALEPH, BERT, CASHEW)] == [MOD, USER, USER]
    again = decide(*revoked, role(URSULA, ALEPH, ADMIN, 5))
    assert [again.role(user) for user in (ALEPH, BERT, CASHEW)] == [ADMIN, USER, USER]


def test_4_2_5_an_admin_revoked_for_the_cabal_keeps_its_roles_where_it_is_still_admin() -> None:
    acts = role(URSULA, BERT, ADMIN, 1), role(BERT, ALEPH, ADMIN, 2), role(URSULA, ALEPH, ADMIN, 2, "test")
    revoked = *acts, role(ALEPH, CASHEW, MOD, 3), role(BERT, ALEPH, USER, 4)
    decisions = decide(*revoked)
    assert [decisions.role(ALEPH, channel) for channel in (None, "test")] == [USER, ADMIN]
    assert [decisions.role(CASHEW, channel) for channel in (None, "test", "other")] == [USER, MOD, USER]


def test_4_2_5_a_user_with_another_issuer_keeps_its_role() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(URSULA, BERT, ADMIN, 1), role(ALEPH, CASHEW, MOD, 2)
    assert decide(*acts, role(BERT, CASHEW, MOD, 3), role(URSULA, ALEPH, USER, 4)).role(CASHEW) is MOD


def test_4_2_5_two_admins_with_roles_only_from_each_other_are_not_admins() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, ADMIN, 2), role(BERT, CASHEW, ADMIN, 3)
    mutual = *acts, role(CASHEW, BERT, ADMIN, 4)
    assert decide(*mutual).users_with(ADMIN) == [URSULA, ALEPH, BERT, CASHEW]
    assert decide(*mutual, role(ALEPH, BERT, USER, 5)).users_with(ADMIN) == [URSULA, ALEPH]


def test_4_2_5_a_deleted_role_was_never_issued() -> None:
    given, issued = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, MOD, 2)
    hidden = act(BERT, Action.HIDE_USER, XU, 3)
    before = decide(given, issued, hidden)
    assert before.user_hidden_by(XU, "test") == hidden
    after = decide(issued, hidden)
    assert (after.role(ALEPH), after.role(BERT), after.user_hidden_by(XU, "test")) == (USER, USER, None)


def test_4_2_5_rule_1_nobody_changes_the_role_of_the_local_user() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, URSULA, USER, 2), role(URSULA, URSULA, MOD, 3)
    decisions = decide(*acts)
    assert decisions.role(URSULA) is ADMIN
    assert [judged.result for judged in decisions.history()][1:] == [ActResult.VOID] * 2


def test_4_2_5_1_1_the_local_user_stays_admin_when_another_admin_demotes_it() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(URSULA, BERT, ADMIN, 1), role(ALEPH, BERT, USER, 2)
    decisions = decide(*acts)
    assert (decisions.role(BERT), decisions.role_given_by(BERT)) == (ADMIN, acts[1])
    assert list(decisions.history())[-1].result is ActResult.OVERRULED


def test_4_2_5_1_1_the_local_user_stays_a_normal_user_when_an_admin_promotes_it() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(URSULA, XU, USER, 2), role(ALEPH, XU, MOD, 3)
    assert decide(*acts).role(XU) is USER


def test_4_2_5_1_2_the_role_with_most_capabilities_counts() -> None:
    acts = role(URSULA, BERT, ADMIN, 1), role(URSULA, ALEPH, ADMIN, 2), role(ALEPH, CASHEW, MOD, 4)
    by_bert = role(BERT, CASHEW, ADMIN, 3)
    decisions = decide(*acts, by_bert)
    assert (decisions.role(CASHEW), decisions.role_given_by(CASHEW)) == (ADMIN, by_bert)


def test_4_2_5_1_3_a_user_without_a_role_is_a_normal_user() -> None:
    decisions = decide()
    assert (decisions.role(XU), decisions.role(XU, "test"), decisions.role_given_by(XU)) == (USER, USER, None)
    with pytest.raises(ValueError, match="normal users are not listed"):
        decisions.users_with(USER)


def test_4_2_5_1_4_the_combined_example_has_the_specified_result() -> None:
    acts = role(URSULA, BERT, ADMIN, 1), role(URSULA, ALEPH, MOD, 2, "test"), role(BERT, ALEPH, ADMIN, 3)
    decisions = decide(*acts)
    assert [decisions.role(ALEPH, channel) for channel in ("test", "other", None)] == [MOD, ADMIN, ADMIN]
    decisions = decide(*acts, role(URSULA, ALEPH, USER, 4))
    assert [decisions.role(ALEPH, channel) for channel in ("test", "other", None)] == [MOD, USER, USER]


def test_5_1_2_roles_have_the_numbers_that_posts_contain() -> None:
    assert [UserRole.of_post(number) for number in range(3)] == [ADMIN, MOD, USER]
    assert [each.in_post for each in (ADMIN, MOD, USER)] == [0, 1, 2]
    assert ADMIN > MOD > USER


def test_5_1_2_1_the_role_normal_user_ends_an_authors_earlier_role() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, ADMIN, 2), role(ALEPH, BERT, USER, 3)
    assert decide(*acts).role(BERT) is USER


def test_5_1_2_2_roles_by_a_mod_do_not_apply() -> None:
    decisions = decide(role(URSULA, ALEPH, MOD, 1), role(ALEPH, BERT, ADMIN, 2), act(ALEPH, Action.HIDE_USER, XU, 2))
    assert (decisions.role(BERT), decisions.user_hidden_by(XU, None) is not None) == (USER, True)


@pytest.mark.parametrize("given", list(UserRole))
def test_5_1_2_3_an_admin_can_issue_every_role(given: UserRole) -> None:
    decisions = decide(role(URSULA, ALEPH, ADMIN, 1), role(ALEPH, BERT, given, 2))
    assert decisions.role(BERT) is given
