"""Known answers for each rule about actions, private actions and blocks: moderation.md 4.4 to 4.6, 5.1.3 to 5.1.5."""

from __future__ import annotations

from itertools import permutations

import pytest
from moderating import (
    ADMIN,
    ALEPH,
    BERT,
    CASHEW,
    DORA,
    MOD,
    POST,
    URSULA,
    USER,
    XU,
    act,
    block,
    decide,
    role,
    unblock,
)
from moderation_model import MemoryActs

from cablestore.moderation import Action, ActResult, Decisions, ModerationAct, UserDrop, blocks_in_force

HIDE, UNHIDE, DROP_CHANNEL, UNDROP_CHANNEL = (
    Action.HIDE_USER,
    Action.UNHIDE_USER,
    Action.DROP_CHANNEL,
    Action.UNDROP_CHANNEL,
)
MODS = (role(URSULA, ALEPH, MOD, 1), role(URSULA, BERT, MOD, 1))


def hidden(decisions: Decisions, user: bytes, *channels: str | None) -> list[bool]:
    return [decisions.user_hidden_by(user, channel) is not None for channel in channels]


# --- 4.4: effective actions ---------------------------------------------------------------------------


def test_4_3_a_decision_reports_the_author_the_time_and_the_reason() -> None:
    why = ModerationAct(URSULA, b"\x01" * 32, 5, 7, "test", HIDE, (XU,), "spam")
    found = decide(why).user_hidden_by(XU, "test")
    assert found is not None
    assert (found.author, found.timestamp_ms, found.reason) == (URSULA, 5, "spam")


def test_4_4_a_user_hidden_in_the_cabal_can_be_unhidden_in_a_channel() -> None:
    acts = act(URSULA, HIDE, XU, 1), act(URSULA, UNHIDE, XU, 2, "test")
    assert hidden(decide(*acts), XU, None, "other", "test") == [True, True, False]
    by_mod = act(ALEPH, HIDE, XU, 2), act(ALEPH, UNHIDE, XU, 3, "test")
    assert hidden(decide(*MODS, *by_mod), XU, "other", "test") == [True, False]


def test_4_1_1_an_action_for_the_cabal_applies_to_all_channels_from_its_time_on() -> None:
    assert hidden(decide(act(URSULA, HIDE, XU, 1, "test"), act(URSULA, UNHIDE, XU, 2)), XU, "test") == [False]
    unhidden = act(ALEPH, HIDE, XU, 2), act(ALEPH, UNHIDE, XU, 3, "test")
    assert hidden(decide(*MODS, *unhidden, act(BERT, HIDE, XU, 4)), XU, "other", "test") == [True, True]
    assert hidden(decide(*MODS, act(ALEPH, HIDE, XU, 2, "test"), act(BERT, UNHIDE, XU, 3)), XU, "test") == [False]


def test_4_4_actions_for_a_channel_apply_only_there() -> None:
    assert hidden(decide(act(URSULA, HIDE, XU, 1, "test")), XU, "test", "other", None) == [True, False, False]


@pytest.mark.parametrize(
    ("does", "undoes"), [(Action(number), Action(number + 1)) for number in range(0, 8, 2)], ids=lambda each: each.name
)
def test_4_4_1_each_action_is_undone_by_its_pair(does: Action, undoes: Action) -> None:
    target = {HIDE: XU, DROP_CHANNEL: None}.get(does, POST)

    def take_effect(*acts: ModerationAct) -> list[bool]:
        found = decide(*acts)
        return [
            found.user_hidden_by(XU, "test") is not None,
            found.post_hidden_by(POST, XU, "test") is not None,
            found.post_dropped_by(POST, XU, "test") is not None,
            found.channel_dropped_by("test") is not None,
        ]

    first, undone, again = (act(URSULA, each, target, at, "test") for at, each in enumerate((does, undoes, does)))
    assert take_effect(first) == take_effect(first, undone, again) == [does == number for number in range(0, 8, 2)]
    assert not any(take_effect(undone, first))


def test_4_4_1_1_an_unblock_undoes_a_block() -> None:
    blocked = block(URSULA, XU, 1600000000000, notify=True)
    assert decide(blocked).blocked_by(XU) == blocked
    assert decide(blocked, unblock(URSULA, XU, 1700000000000)).blocked_by(XU) is None


def test_4_4_2_an_action_is_relevant_until_its_author_undoes_it() -> None:
    acts = act(ALEPH, HIDE, XU, 2, "test"), act(ALEPH, UNHIDE, XU, 3, "test"), act(BERT, UNHIDE, XU, 4, "other")
    outcomes = [judged.result for judged in decide(*MODS, *acts).history("test")][2:]
    assert outcomes == [ActResult.UNDONE, ActResult.APPLIES]


def test_4_4_2_an_author_who_lost_authority_can_still_undo() -> None:
    acts = *MODS, act(ALEPH, HIDE, XU, 2), role(URSULA, ALEPH, USER, 3)
    assert hidden(decide(*acts), XU, None) == [True]
    assert hidden(decide(*acts, act(ALEPH, UNHIDE, XU, 4)), XU, None) == [False]


def test_4_4_2_a_repetition_without_authority_changes_nothing() -> None:
    acts = *MODS, act(ALEPH, HIDE, XU, 2), role(URSULA, ALEPH, USER, 3), act(ALEPH, HIDE, XU, 4)
    assert decide(*acts).user_hidden_by(XU, None) == acts[2]


@pytest.mark.parametrize(("at", "expected"), [(1, False), (2, False), (3, True), (4, False), (5, False)])
def test_4_4_3_an_action_applies_if_its_author_had_authority_before_and_at_its_time(at: int, expected: bool) -> None:
    acts = role(URSULA, ALEPH, MOD, 2), role(URSULA, ALEPH, USER, 4)
    assert hidden(decide(*acts, act(ALEPH, HIDE, XU, at)), XU, "test") == [expected]


def test_4_4_3_a_role_for_its_own_author_is_void() -> None:
    decisions = decide(role(ALEPH, ALEPH, ADMIN, 1), role(URSULA, ALEPH, MOD, 2), role(ALEPH, ALEPH, ADMIN, 3))
    assert decisions.role(ALEPH) is MOD


def test_4_4_3_the_authority_of_a_channel_counts_only_there() -> None:
    acts = role(URSULA, ALEPH, MOD, 1, "test"), act(ALEPH, HIDE, XU, 2), block(ALEPH, XU, 2)
    decisions = decide(*acts)
    assert hidden(decisions, XU, "test", "other", None) == [True, False, False]
    assert decisions.blocked_by(XU) is None


def test_4_4_4_actions_stay_when_their_author_loses_authority_or_changes_role() -> None:
    acts = *MODS, act(ALEPH, HIDE, XU, 3), role(URSULA, ALEPH, ADMIN, 4), role(URSULA, ALEPH, USER, 5)
    assert hidden(decide(*acts), XU, "test") == [True]


def test_4_4_4_a_deleted_action_is_undone_and_a_deleted_undoing_action_has_no_effect() -> None:
    acts = act(URSULA, HIDE, XU, 1), act(URSULA, UNHIDE, XU, 2)
    held = MemoryActs([*acts])
    decisions = Decisions.read(held, URSULA)
    without_second = decisions.changed(MemoryActs([acts[0]]), removed=[acts[1]])
    without_both = without_second.changed(MemoryActs(), removed=[acts[0]])
    assert [hidden(each, XU, None) for each in (decisions, without_second, without_both)] == [[False], [True], [False]]


def test_4_4_4_the_order_in_which_actions_arrive_does_not_matter() -> None:
    acts = *MODS[:1], act(ALEPH, HIDE, XU, 2), act(URSULA, UNHIDE, XU, 3, "test"), act(ALEPH, UNHIDE, XU, 4)
    for order in permutations(acts):
        held, decisions = MemoryActs(), Decisions.read(MemoryActs(), URSULA)
        for each in order:
            held.acts.append(each)
            decisions = decisions.changed(held, added=[each])
        assert list(decisions.history("test")) == list(decide(*acts).history("test"))


def test_4_4_5_an_action_of_the_local_user_has_priority_even_if_it_is_older() -> None:
    acts = *MODS, act(URSULA, UNHIDE, XU, 2), act(ALEPH, HIDE, XU, 3), act(ALEPH, HIDE, XU, 3, "test")
    decisions = decide(*acts)
    assert hidden(decisions, XU, None, "test") == [False, False]
    assert [judged.result for judged in decisions.history("test")][-2:] == [ActResult.OVERRULED] * 2


def test_4_4_5_an_overruled_block_drops_nothing() -> None:
    overruled = block(ALEPH, XU, 5, drop=True)
    decisions = decide(*MODS, unblock(URSULA, XU, 3), overruled)
    assert (decisions.user_dropped(XU), decisions.blocked_by(XU)) == (None, None)
    assert [judged.result for judged in decisions.history()][-1] is ActResult.OVERRULED


def test_4_4_5_the_later_action_of_two_moderators_takes_effect() -> None:
    first, second = act(ALEPH, HIDE, XU, 2), act(BERT, UNHIDE, XU, 3)
    assert hidden(decide(*MODS, first, second), XU, None) == [False]
    assert hidden(decide(*MODS, first, act(BERT, UNHIDE, XU, 1), act(BERT, UNHIDE, DORA, 3)), XU, None) == [True]


def test_4_4_5_only_actions_of_the_local_user_apply_to_users_with_authority() -> None:
    by_aleph = block(ALEPH, BERT, 2), act(ALEPH, HIDE, BERT, 2), act(ALEPH, Action.HIDE_POST, POST, 2, "test")
    decisions = decide(*MODS, *by_aleph)
    assert decisions.blocked_by(BERT) is decisions.user_hidden_by(BERT, "test") is None
    assert decisions.post_hidden_by(POST, BERT, "test") is None
    assert decisions.post_hidden_by(POST, XU, "test") == by_aleph[2]
    judged = list(decisions.history("test", lambda _: BERT))[2:]
    assert [each.result for each in judged] == [ActResult.EXEMPT] * 3
    assert decide(*MODS, *by_aleph, block(URSULA, BERT, 1)).blocked_by(BERT) is not None


def test_4_4_5_the_role_at_the_time_of_the_action_counts() -> None:
    acts = role(URSULA, ALEPH, MOD, 1), act(ALEPH, HIDE, BERT, 2), role(URSULA, BERT, MOD, 3), act(ALEPH, HIDE, BERT, 4)
    assert decide(*acts).user_hidden_by(BERT, None) == acts[1]


def test_4_4_5_a_role_for_a_hidden_user_does_not_unhide_it() -> None:
    acts = act(URSULA, HIDE, XU, 1), block(URSULA, XU, 1), role(URSULA, XU, ADMIN, 2)
    decisions = decide(*acts)
    assert (decisions.user_hidden_by(XU, "test"), decisions.blocked_by(XU)) == acts[:2]


def test_4_4_5_nobody_else_hides_or_drops_the_local_user() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1), act(ALEPH, HIDE, URSULA, 2), block(ALEPH, URSULA, 2, drop=True)
    decisions = decide(*acts, act(ALEPH, Action.DROP_POST, POST, 2, "test"))
    assert decisions.user_hidden_by(URSULA, "test") is decisions.blocked_by(URSULA) is None
    assert (decisions.user_dropped(URSULA), decisions.post_dropped_by(POST, URSULA, "test")) == (None, None)


# --- 4.4.6, 5.1.3 to 5.1.5: drops --------------------------------------------------------------------


def test_4_4_6_1_an_unblock_with_undrop_undoes_the_drop_of_a_user() -> None:
    dropped = block(URSULA, XU, 1, drop=True)
    assert decide(dropped).user_dropped(XU) == UserDrop(dropped, None)
    assert decide(dropped, unblock(URSULA, XU, 2, undrop=True)).user_dropped(XU) is None


def test_5_1_3_1_an_action_on_a_user_needs_no_channel_and_one_without_users_is_void() -> None:
    nobody = ModerationAct(URSULA, b"\x01" * 32, 5, 7, None, HIDE, ())
    decisions = decide(nobody, act(URSULA, HIDE, XU, 1))
    assert [judged.result for judged in decisions.history()] == [ActResult.APPLIES, ActResult.VOID]


def test_5_1_3_2_an_action_on_a_post_applies_in_its_channel_or_everywhere_without_one() -> None:
    in_test, anywhere = act(URSULA, Action.HIDE_POST, POST, 1, "test"), act(URSULA, Action.HIDE_POST, POST, 1)
    assert [bool(decide(in_test).post_hidden_by(POST, XU, channel)) for channel in ("test", "other")] == [True, False]
    assert decide(anywhere).post_hidden_by(POST, XU, "test") == anywhere


def test_5_1_3_3_a_drop_without_a_channel_is_void() -> None:
    decisions = decide(act(URSULA, DROP_CHANNEL, None, 1))
    assert decisions.channel_dropped_by("test") is None
    assert [judged.result for judged in decisions.history()] == [ActResult.VOID]


@pytest.mark.parametrize("number", [*range(0, 8, 2), 8])
def test_5_1_3_4_to_7_a_hidden_or_dropped_text_is_not_displayed(number: int) -> None:
    if number == 8:
        acting = block(URSULA, XU, 1, drop=True)
    else:
        target = {HIDE: XU, DROP_CHANNEL: None}.get(Action(number), POST)
        acting = act(URSULA, Action(number), target, 1, "test")
    decisions = decide(acting)
    assert decisions.text_hidden_by(POST, XU, "test", 9) == acting
    assert decisions.text_hidden_by(b"\x78" * 32, BERT, "other", 9) is None


def test_5_1_3_7_a_dropped_channel_is_dropped_for_all_authors() -> None:
    dropped = act(ALEPH, DROP_CHANNEL, None, 2, "test")
    decisions = decide(*MODS, dropped)
    assert {decisions.text_hidden_by(POST, user, "test", 1) for user in (URSULA, BERT, XU)} == {dropped}


def test_5_1_4_a_block_keeps_or_drops_old_posts() -> None:
    assert decide(block(URSULA, XU, 1)).user_dropped(XU) is None
    both = block(URSULA, XU, 1, drop=True), block(URSULA, XU, 2)
    assert decide(*both).user_dropped(XU) == UserDrop(both[0], None)


def test_5_1_4_a_block_without_drop_keeps_posts_from_after_an_earlier_unblock() -> None:
    acts = *MODS, block(ALEPH, XU, 5, drop=True), unblock(ALEPH, XU, 7)
    assert decide(*acts, block(BERT, XU, 20)).user_dropped(XU) == UserDrop(acts[2], 7)
    dropped = block(URSULA, XU, 5, drop=True), unblock(URSULA, XU, 7), block(URSULA, XU, 20)
    assert decide(*dropped).user_dropped(XU) == UserDrop(dropped[0], 7)


@pytest.mark.parametrize("at", [3, 9])
def test_5_1_4_a_block_by_the_local_user_without_drop_keeps_posts_from_the_drops_of_others(at: int) -> None:
    kept, dropped = block(URSULA, XU, at), block(ALEPH, XU, 5, drop=True)
    decisions = decide(*MODS, dropped, kept)
    assert (decisions.user_dropped(XU), decisions.blocked_by(XU)) == (None, kept)
    outcomes = {judged.act: judged.result for judged in decisions.history()}
    assert (outcomes[kept], outcomes[dropped]) == (ActResult.APPLIES, ActResult.OVERRULED)
    assert decide(*MODS, dropped, kept, unblock(URSULA, XU, 20)).user_dropped(XU) is None


def test_5_1_4_1_a_private_block_drops_a_user() -> None:
    dropped = block(URSULA, XU, 1, drop=True, private=True)
    decisions = decide(dropped)
    assert (decisions.user_dropped(XU), decisions.blocked_by(XU)) == (UserDrop(dropped, None), dropped)
    assert decisions.blocked_by(XU, public=True) is None


def test_5_1_5_an_unblock_without_undrop_keeps_old_posts_dropped() -> None:
    decisions = decide(
        block(URSULA, XU, 5, drop=True), unblock(URSULA, XU, 7), block(URSULA, XU, 9), unblock(URSULA, XU, 11)
    )
    drop = decisions.user_dropped(XU)
    assert drop is not None
    assert decisions.blocked_by(XU) is None
    assert [drop.covers(at) for at in (1, 7, 8, 12)] == [True, True, False, False]


def test_5_1_5_the_first_unblock_by_the_local_user_ends_the_drop_by_an_authority() -> None:
    acts = *MODS, block(ALEPH, XU, 5, drop=True), unblock(URSULA, XU, 7), unblock(URSULA, XU, 9)
    drop = decide(*acts).user_dropped(XU)
    assert drop == UserDrop(acts[2], 7)


def test_5_1_5_a_later_unblock_does_not_drop_newer_posts() -> None:
    acts = *MODS, block(ALEPH, XU, 5, drop=True), unblock(ALEPH, XU, 7)
    for by in (ALEPH, BERT, URSULA):
        assert decide(*acts, unblock(by, XU, 20)).user_dropped(XU) == UserDrop(acts[2], 7)
    assert decide(*acts, unblock(BERT, XU, 20, undrop=True)).user_dropped(XU) is None


def test_5_1_5_an_author_without_authority_ends_only_its_own_drop() -> None:
    acts = *MODS, block(ALEPH, XU, 5, drop=True), role(URSULA, ALEPH, USER, 6), unblock(ALEPH, XU, 8)
    assert decide(*acts).user_dropped(XU) == UserDrop(acts[2], 8)
    other = block(BERT, XU, 7, drop=True)
    assert decide(*acts, other).user_dropped(XU) == UserDrop(other, None)


# --- 4.5: private actions ----------------------------------------------------------------------------


def test_4_5_private_actions_count_only_for_their_author() -> None:
    acts = role(URSULA, ALEPH, ADMIN, 1, private=True), block(ALEPH, XU, 2), block(URSULA, BERT, 2, private=True)
    decisions = decide(*acts)
    assert (decisions.role(ALEPH), decisions.blocked_by(XU), decisions.blocked_by(BERT)) == (ADMIN, acts[1], acts[2])
    assert decisions.role(ALEPH, public=True) is USER
    assert decisions.blocked_by(XU, public=True) is decisions.blocked_by(BERT, public=True) is None
    assert blocks_in_force(acts) == {(ALEPH, XU): acts[1]}


def test_4_5_a_privately_undone_action_still_applies_for_peers() -> None:
    blocked = block(URSULA, XU, 1)
    decisions = decide(blocked, unblock(URSULA, XU, 2, private=True))
    assert (decisions.blocked_by(XU), decisions.blocked_by(XU, public=True)) == (None, blocked)


def test_4_5_1_a_private_action_is_undone_only_privately() -> None:
    private, public = act(URSULA, HIDE, XU, 1, private=True), act(URSULA, UNHIDE, XU, 2)
    assert decide(private, public).user_hidden_by(XU, None) == private
    assert decide(private, public, act(URSULA, UNHIDE, XU, 3, private=True)).user_hidden_by(XU, None) is None
    assert (
        decide(private, public, act(URSULA, HIDE, XU, 3), act(URSULA, UNHIDE, XU, 4)).user_hidden_by(XU, None)
        == private
    )


# --- 4.6: blocks -------------------------------------------------------------------------------------


def test_4_6_1_a_block_by_an_authority_applies_like_a_block_by_the_local_user() -> None:
    by_mod, by_stranger = block(ALEPH, XU, 2), block(DORA, CASHEW, 2)
    decisions = decide(*MODS, by_mod, by_stranger)
    assert (decisions.blocked_by(XU), decisions.blocked_by(CASHEW)) == (by_mod, None)
    assert decide(*MODS, by_mod, unblock(URSULA, XU, 1)).blocked_by(XU) is None


def test_4_6_1_a_block_of_the_local_user_applies_if_it_notifies_and_is_not_undone() -> None:
    notified, unnotified, undone = (
        block(XU, URSULA, 1, notify=True),
        block(BERT, URSULA, 1),
        block(DORA, URSULA, 1, notify=True),
    )
    decisions = decide(notified, unnotified, undone, unblock(DORA, URSULA, 2), block(CASHEW, XU, 1, notify=True))
    assert [decisions.blocks_own_user(user) for user in (XU, BERT, DORA, CASHEW)] == [notified, None, None, None]
    later = decisions.changed(MemoryActs(), added=[undone_again := block(DORA, URSULA, 3, notify=True)])
    assert (later.blocks_own_user(DORA), decisions.blocks_own_user(DORA)) == (undone_again, None)


def test_4_6_1_a_block_is_in_force_until_its_author_undoes_it() -> None:
    acts = block(XU, BERT, 1), block(XU, CASHEW, 1), unblock(XU, BERT, 2), unblock(DORA, CASHEW, 3)
    assert blocks_in_force(reversed(acts)) == {(XU, CASHEW): acts[1]}


def test_4_6_nobody_blocks_itself() -> None:
    decisions = decide(block(URSULA, URSULA, 1, drop=True))
    assert (decisions.blocked_by(URSULA), decisions.user_dropped(URSULA)) == (None, None)
    assert decisions.blocks_own_user(URSULA) is None
    assert [judged.result for judged in decisions.history()] == [ActResult.VOID]


# --- lists -------------------------------------------------------------------------------------------


def test_a_new_role_applies_to_stored_actions_that_are_dated_after_it() -> None:
    early, late = act(ALEPH, HIDE, XU, 1), act(ALEPH, HIDE, DORA, 3)
    held = MemoryActs([early, late])
    decisions = Decisions.read(held, URSULA)
    assert list(decisions.history()) == []
    held.acts.append(role(URSULA, ALEPH, MOD, 2))
    decisions = decisions.changed(held, added=held.acts[-1:])
    assert [(judged.act, judged.result) for judged in decisions.history()] == [
        (early, ActResult.NO_AUTHORITY),
        (held.acts[2], ActResult.APPLIES),
        (late, ActResult.APPLIES),
    ]
    assert [judged.act for judged in decisions.in_force("test")] == [held.acts[2], late]
