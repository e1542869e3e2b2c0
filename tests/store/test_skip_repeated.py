"""`skip_repeated` leaves out the targets of an action that it would not change, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from moderated import DAN, NOW_MS, own, verdicts_of
from people import BOB, CYD

from cablestore import Block, Body, Moderation, Unblock
from cablestore.errors import ArgumentError
from cablestore.moderation import Action, UserRole
from cablestore.store.moderator import Effect, Moderator

TEXT = CYD.text("c", "text")
BODIES: list[Body] = [
    Moderation("", 0, "", (CYD.key,), Action.HIDE_USER),
    Moderation("", 0, "c", (CYD.key,), Action.UNHIDE_USER),
    Block("", 0, (CYD.key,), 1, 0),
    Unblock("", 0, (CYD.key,), 1),
]
FOREIGN = [BOB.post(body, at=NOW_MS - 10 + number) for number, body in enumerate(BODIES)]
"""Actions of Bob, who is an admin."""
Do = Callable[[Moderator, Any], Effect]
ACTS: list[Do] = [
    *(lambda m, o, c=channel: m.hide(users=[CYD.key], channel=c, **o) for channel in (None, "c")),
    *(lambda m, o, c=channel: m.unhide(users=[CYD.key], channel=c, **o) for channel in (None, "c")),
    lambda m, o: m.hide(posts=[TEXT.hash], **o),
    lambda m, o: m.unhide(posts=[TEXT.hash], **o),
    lambda m, o: m.drop(channel="c", **o),
    lambda m, o: m.undrop(channel="c", **o),
    *(lambda m, o, d=drop: m.block([CYD.key], drop=d, **o) for drop in (False, True)),
    *(lambda m, o, u=undrop: m.unblock([CYD.key], undrop=u, **o) for undrop in (False, True)),
    *(lambda m, o, r=role: m.set_role(DAN.key, r, channel="c", **o) for role in (UserRole.USER, UserRole.MOD)),
]


@given(
    st.lists(st.sampled_from(FOREIGN), max_size=2, unique=True),
    st.lists(st.tuples(st.sampled_from(ACTS), st.booleans(), st.sampled_from(["", "spam"])), max_size=5),
)
def test_an_action_is_skipped_if_it_was_done_and_never_if_it_changes_something(
    foreign: list[Any], chosen: list[tuple[Do, bool, str]]
) -> None:
    with own() as store:
        moderator = store.moderation
        moderator.join_with_seed(bytes([UserRole.ADMIN]) + BOB.key)
        verdicts_of(store, TEXT, *foreign)
        for do, private, reason in chosen:
            options = {"private": private, "reason": reason}
            try:
                trial = do(moderator, options | {"dry_run": True})
            except ArgumentError:  # a private action cannot be undone publicly
                continue
            done = do(moderator, options | {"skip_repeated": True})
            assert bool(done.posts) != bool(done.unchanged)
            assert done.posts or not trial.changes
            again = do(moderator, options | {"skip_repeated": True})
            assert (again.posts, again.dropped_posts, len(again.unchanged)) == ((), 0, 1)
            assert do(moderator, options | {"dry_run": True}).changes == ()


def test_only_changed_targets_are_written() -> None:
    with own() as store:
        verdicts_of(store, TEXT)
        moderator = store.moderation
        assert moderator.unhide(users=[BOB.key], skip_repeated=True).unchanged == (BOB.key,)
        assert moderator.undrop(channel="c", skip_repeated=True).unchanged == (b"",)
        assert moderator.set_role(BOB.key, UserRole.USER, skip_repeated=True).unchanged == (BOB.key,)
        moderator.hide(users=[BOB.key], reason="spam")
        effect = moderator.hide(users=[CYD.key, BOB.key, DAN.key], skip_repeated=True)
        assert [post.body.recipients for post in effect.posts if isinstance(post.body, Moderation)] == [
            (CYD.key, DAN.key)
        ]
        assert effect.unchanged == (BOB.key,)
        for different in ({"reason": "rude"}, {"private": True}, {"channel": "c"}):
            assert len(moderator.hide(users=[BOB.key], skip_repeated=True, dry_run=True, **different).unchanged) == 0
        moderator.block([BOB.key])
        assert moderator.block([BOB.key], notify=True, skip_repeated=True, dry_run=True).unchanged == ()
        assert moderator.block([BOB.key], drop=True, skip_repeated=True, dry_run=True).unchanged == ()
        assert moderator.block([BOB.key], skip_repeated=True, dry_run=True).unchanged == (BOB.key,)
