"""Own posts are dated after the posts that they replace. If that is impossible, an error names those posts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Final

import pytest
from clock import SetClock
from people import ANN, BOB, CYD, raws
from stores import channels_of

from cablestore import CableStore, Info, Moderation, Post, StoreOptions, Verdict, limits
from cablestore.errors import ArgumentError, CableStoreError
from cablestore.moderation import Action, UserRole
from cablestore.store.changes import TopicChanged

NOW_MS: Final = 1_700_000_000_000
MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
WEEK_MS: Final = limits.MAX_FUTURE_MS
AHEAD: Final = [MINUTE_MS - 1, 2 * DAY_MS, WEEK_MS - 10]
"""How far the clock was ahead. Each own post that replaces another needs some more milliseconds."""


@pytest.fixture
def clock() -> SetClock:
    return SetClock(NOW_MS)


@pytest.fixture
def store(clock: SetClock) -> CableStore:
    store = CableStore.in_memory(identity=ANN.identity, options=StoreOptions(clock=clock))
    store.ingest(raws(BOB.text("garden", "hello", at=NOW_MS - 10), BOB.text("shed", "hello", at=NOW_MS - 9)))
    return store


def in_the_way(store: CableStore, error: CableStoreError) -> list[bytes]:
    """Return the hashes of the posts that the command in an error message deletes."""
    [command] = re.findall("`cablestore delete ([^`]*)`", str(error))
    found = [store.find_hashes(each, 2) for each in command.split()]
    assert [len(hashes) for hashes in found] == [1] * len(found)
    return [hashes[0] for hashes in found]


Do = Callable[[CableStore], object]
See = Callable[[CableStore], object]
CASES: Final[dict[str, tuple[Do, Do, See, object]]] = {
    "name": (lambda s: s.set_name("old"), lambda s: s.set_name("new"), lambda s: s.user(ANN.key).name, "new"),
    "no name": (lambda s: s.set_name("old"), lambda s: s.set_name(""), lambda s: s.user(ANN.key).info.name, None),
    "all info": (
        lambda s: s.write(Info.of(name="old")),
        lambda s: s.write(Info.of(name="new")),
        lambda s: s.user(ANN.key).name,
        "new",
    ),
    "topic": (
        lambda s: s.set_topic("garden", "old"),
        lambda s: s.set_topic("garden", "new"),
        lambda s: s.topic("garden"),
        "new",
    ),
    "no topic": (
        lambda s: s.set_topic("garden", "old"),
        lambda s: s.set_topic("garden", ""),
        lambda s: s.topic("garden"),
        "",
    ),
    "join": (
        lambda s: (s.join("shed"), s.leave("shed")),
        lambda s: s.join("shed"),
        lambda s: "shed" in channels_of(s, ANN.key),
        True,
    ),
    "text": (
        lambda s: (s.join("shed"), s.leave("shed")),
        lambda s: s.post("shed", "back again"),
        lambda s: "shed" in channels_of(s, ANN.key),
        True,
    ),
    "leave": (
        lambda s: s.join("shed"),
        lambda s: s.leave("shed"),
        lambda s: "shed" in channels_of(s, ANN.key),
        False,
    ),
    "leave after a text": (
        lambda s: (s.post("shed", "I was here"), s.set_topic("shed", "tools")),
        lambda s: s.leave("shed"),
        lambda s: "shed" in channels_of(s, ANN.key),
        False,
    ),
    "hide": (
        lambda s: (s.moderation.hide(users=[BOB.key]), s.moderation.unhide(users=[BOB.key])),
        lambda s: s.moderation.hide(users=[BOB.key]),
        lambda s: s.user(BOB.key).is_hidden,
        True,
    ),
    "unhide": (
        lambda s: s.moderation.hide(users=[BOB.key], private=True),
        lambda s: s.moderation.unhide(users=[BOB.key], private=True),
        lambda s: s.user(BOB.key).is_hidden,
        False,
    ),
    "unhide everywhere": (
        lambda s: s.moderation.hide(users=[BOB.key], channel="garden"),
        lambda s: s.moderation.unhide(users=[BOB.key]),
        lambda s: s.user(BOB.key, "garden").is_hidden,
        False,
    ),
    "unhide in a channel": (
        lambda s: s.moderation.hide(users=[BOB.key]),
        lambda s: s.moderation.unhide(users=[BOB.key], channel="garden"),
        lambda s: s.user(BOB.key, "garden").is_hidden,
        False,
    ),
    "unblock": (
        lambda s: s.moderation.block([BOB.key]),
        lambda s: s.moderation.unblock([BOB.key]),
        lambda s: s.user(BOB.key).is_blocked,
        False,
    ),
    "undrop a channel": (
        lambda s: s.moderation.drop(channel="shed"),
        lambda s: s.moderation.undrop(channel="shed"),
        lambda s: s.moderation.decisions is not None and s.moderation.decisions.channel_dropped_by("shed") is None,
        True,
    ),
    "role": (
        lambda s: s.moderation.set_role(BOB.key, UserRole.ADMIN),
        lambda s: s.moderation.set_role(BOB.key, UserRole.USER),
        lambda s: s.user(BOB.key).role,
        UserRole.USER,
    ),
}
EACH = pytest.mark.parametrize(("before", "act", "see", "expected"), CASES.values(), ids=list(CASES))


@EACH
@pytest.mark.parametrize("ahead_ms", AHEAD)
def test_an_own_post_takes_effect_after_a_correction_of_the_clock(
    store: CableStore, clock: SetClock, before: Do, act: Do, see: See, expected: object, ahead_ms: int
) -> None:
    """The post also takes effect in every other store, in any order of arrival. No post is dated a week or more
    ahead."""
    clock.now_ms = NOW_MS + ahead_ms
    before(store)
    clock.now_ms = NOW_MS
    act(store)
    assert see(store) == expected
    posts = [event.post for event in store.events(timeout_s=0) if event.post is not None]
    assert max(post.timestamp_ms for post in posts) < NOW_MS + WEEK_MS
    assert store.check(signatures=True).is_clean
    random.Random(f"{ahead_ms}").shuffle(posts)
    with CableStore.in_memory(identity=ANN.identity, options=StoreOptions(clock=clock)) as other:
        other.ingest(raws(*posts))
        assert see(other) == expected


@EACH
def test_an_own_post_that_cannot_take_effect_is_rejected_with_the_cause(
    store: CableStore, clock: SetClock, before: Do, act: Do, see: See, expected: object
) -> None:
    clock.now_ms = NOW_MS + 3650 * DAY_MS
    before(store)
    clock.now_ms = NOW_MS
    digest = store.dump_digest()
    with pytest.raises(ArgumentError, match="cannot take effect until") as raised:
        act(store)
    assert store.dump_digest() == digest
    assert "2033-11-11" in str(raised.value)  # ten years after the test's clock
    assert "2033-11-04" in str(raised.value)  # a week earlier, the command succeeds
    found: CableStoreError = raised.value
    while isinstance(found, ArgumentError) and "cannot take effect until" in str(found):
        store.delete(in_the_way(store, found))
        try:
            act(store)
        except CableStoreError as error:  # another post is in the way, or there is nothing to undo
            found = error
        else:
            break
    assert see(store) == expected


def test_the_command_succeeds_from_the_time_that_the_error_names(store: CableStore, clock: SetClock) -> None:
    clock.now_ms = NOW_MS + 30 * DAY_MS
    old = store.set_name("old")
    assert old is not None
    clock.now_ms = old.timestamp_ms + 1 - WEEK_MS
    with pytest.raises(ArgumentError, match="cannot take effect until"):
        store.set_name("new")
    clock.now_ms += 1
    store.set_name("new")
    assert store.user(ANN.key).name == "new"


def test_an_error_lists_a_limited_number_of_blocking_posts(store: CableStore, clock: SetClock) -> None:
    """MAX_POSTS_IN_THE_WAY_LISTED: the command that deletes the posts stays short."""
    clock.now_ms = NOW_MS + 30 * DAY_MS
    for number in range(limits.MAX_POSTS_IN_THE_WAY_LISTED):
        store.post("shed", f"text {number}")
    clock.now_ms = NOW_MS
    with pytest.raises(ArgumentError, match="repeat this until") as raised:
        store.leave("shed")
    listed = in_the_way(store, raised.value)
    assert len(listed) == limits.MAX_POSTS_IN_THE_WAY_LISTED
    store.delete(listed)
    with pytest.raises(ArgumentError, match="cannot take effect until") as raised:  # the post/join is left
        store.leave("shed")
    assert "repeat this until" not in str(raised.value)


def test_an_error_names_the_post_in_the_way_by_its_first_digits(store: CableStore, clock: SetClock) -> None:
    clock.now_ms = NOW_MS + 30 * DAY_MS
    own, topic = store.set_name("old"), BOB.topic("garden", "roses", at=clock.now_ms)
    assert own is not None
    store.ingest([topic.raw])
    clock.now_ms = NOW_MS
    with pytest.raises(ArgumentError) as raised:
        store.set_name("new")
    digits = own.hash.hex()[:12]
    assert f" your post {digits}, which is dated 2023-12-14 " in str(raised.value)
    assert str(raised.value).endswith(f"Run `cablestore delete {digits}` and try again")
    with pytest.raises(ArgumentError) as raised:
        store.set_topic("garden", "tulips")
    digits = topic.hash.hex()[:12]
    assert f" the post {digits}, which is dated 2023-12-14 " in str(raised.value)
    assert str(raised.value).endswith(
        f"(`cablestore hide {BOB.key.hex()[:16]}`), or drop the post (`cablestore drop {digits}`)"
    )


def test_messages_to_a_channel_after_a_leave_join_it_once(store: CableStore, clock: SetClock) -> None:
    clock.now_ms = NOW_MS + 2 * DAY_MS
    store.join("shed")
    store.leave("shed")
    clock.now_ms = NOW_MS
    texts = [store.post("shed", f"message {number}") for number in range(3)]
    joins = [post for post in store.posts_by(ANN.key) if post.type_name == "join"]
    assert len(joins) == 2
    assert [text.timestamp_ms for text in texts] == [NOW_MS, NOW_MS + 1, NOW_MS + 2]  # only the join is dated ahead


def test_posts_that_do_not_replace_others_are_dated_now(store: CableStore, clock: SetClock) -> None:
    clock.now_ms = NOW_MS + 2 * DAY_MS
    store.set_name("old")
    clock.now_ms = NOW_MS
    first = store.post("garden", "one")
    renamed = store.set_name("new")
    assert renamed is not None
    second = store.post("garden", "two")
    deletion = store.delete(first.hash)[0]
    assert renamed.timestamp_ms > NOW_MS + 2 * DAY_MS
    assert (second.timestamp_ms, deletion.timestamp_ms) == (first.timestamp_ms + 1, first.timestamp_ms + 2)
    store.moderation.set_role(BOB.key, UserRole.MOD)
    undo = BOB.post(Moderation("", 0, "", (CYD.key,), Action.UNHIDE_USER), at=NOW_MS + DAY_MS)
    same = BOB.post(Moderation("", 0, "", (CYD.key,), Action.HIDE_USER), at=NOW_MS + 2 * DAY_MS)
    store.ingest(raws(undo, same))
    [hide] = store.moderation.hide(users=[CYD.key]).posts
    assert hide.timestamp_ms == undo.timestamp_ms + 1


# --- members who date topics ahead -----------------------------------------------------------------


def test_a_member_cannot_lock_a_topic_by_dating_it_ahead(store: CableStore, clock: SetClock) -> None:
    """The next topic takes effect here and for other users, even if the member repeats the attack."""
    with CableStore.in_memory(identity=CYD.identity, options=StoreOptions(clock=clock)) as other:
        for number in range(5):
            clock.now_ms += 1000
            locked = BOB.topic("garden", f"insults {number}", at=clock.now_ms + WEEK_MS - 1)
            for each in (store, other):
                assert each.ingest(raws(locked))[0].verdict is Verdict.ACCEPTED
            clock.now_ms += 1000
            topic = store.set_topic("garden", f"roses {number}")
            assert store.topic("garden") == f"roses {number}"
            assert other.ingest(raws(topic))[0].verdict is Verdict.ACCEPTED
            assert other.topic("garden") == f"roses {number}"


@pytest.mark.parametrize("way", ["hide", "hide here", "block", "drop", "drop the post"])
def test_a_topic_no_longer_counts_when_its_author_is_hidden_or_blocked(
    store: CableStore, clock: SetClock, way: str
) -> None:
    """The previous topic counts again. The next one is not dated after the topic that no longer counts."""
    store.set_topic("garden", "roses")
    locked = BOB.topic("garden", "insults", at=NOW_MS + WEEK_MS - 1)
    store.ingest(raws(locked))
    clock.now_ms = NOW_MS - 1  # the next topic would need a date a week ahead
    with pytest.raises(ArgumentError, match="cablestore hide") as raised:
        store.set_topic("garden", "tulips")
    assert BOB.key.hex()[:16] in str(raised.value)
    assert store.topic("garden") == "insults"
    cursor = store.cursor
    moderation = store.moderation
    {
        "hide": lambda: moderation.hide(users=[BOB.key]),
        "hide here": lambda: moderation.hide(users=[BOB.key], channel="garden"),
        "block": lambda: moderation.block([BOB.key]),
        "drop": lambda: moderation.drop(users=[BOB.key]),
        "drop the post": lambda: moderation.drop(posts=[locked.hash]),
    }[way]()
    assert TopicChanged("garden", "roses") in store.next_changes(cursor, timeout_s=0).changes
    assert store.topic("garden") == "roses"
    assert next(each.topic for each in store.channels() if each.name == "garden") == "roses"
    store.set_topic("garden", "tulips")
    assert store.topic("garden") == "tulips"


def test_a_topic_counts_again_when_its_author_is_no_longer_hidden(store: CableStore) -> None:
    store.set_topic("garden", "roses")
    store.ingest(raws(BOB.topic("garden", "tulips", at=NOW_MS + 5)))
    store.moderation.hide(users=[BOB.key])
    assert store.topic("garden") == "roses"
    cursor = store.cursor
    store.moderation.unhide(users=[BOB.key])
    assert store.topic("garden") == "tulips"
    assert TopicChanged("garden", "tulips") in store.next_changes(cursor, timeout_s=0).changes


def test_a_topic_of_a_hidden_user_is_replaced_for_others_as_well(store: CableStore, clock: SetClock) -> None:
    locked = BOB.topic("garden", "insults", at=NOW_MS + 6 * DAY_MS)
    store.ingest(raws(locked))
    store.moderation.hide(users=[BOB.key], private=True)
    topic = store.set_topic("garden", "roses")
    with CableStore.in_memory(identity=CYD.identity, options=StoreOptions(clock=clock)) as other:
        other.ingest(raws(locked, topic))
        assert other.topic("garden") == "roses"


@pytest.mark.parametrize("before_end_ms", [1, 2])
def test_a_topic_that_does_not_count_here_is_replaced_if_the_new_one_is_dated_within_a_week(
    store: CableStore, clock: SetClock, before_end_ms: int
) -> None:
    store.ingest(raws(BOB.topic("garden", "roses", at=NOW_MS + WEEK_MS - before_end_ms)))
    store.moderation.block([BOB.key])
    topic = store.set_topic("garden", "tulips")
    assert (topic.timestamp_ms == NOW_MS + WEEK_MS - 1) is (before_end_ms == 2)
    assert store.topic("garden") == "tulips"


def test_the_only_topic_counts_if_its_author_is_hidden_and_not_if_it_is_blocked(store: CableStore) -> None:
    """Hiding a user concerns messages, not topics."""
    store.ingest(raws(BOB.topic("garden", "tulips", at=NOW_MS)))
    store.moderation.hide(users=[BOB.key])
    assert store.topic("garden") == "tulips"
    store.moderation.block([BOB.key])
    assert store.topic("garden") == ""
    store.moderation.unblock([BOB.key])
    store.set_topic("garden", "roses")
    assert store.topic("garden") == "roses"


def test_few_topics_of_blocked_users_are_read(store: CableStore, clock: SetClock) -> None:
    """MAX_TOPICS_READ: a flood of topics costs a bounded number of reads, and the next topic counts."""
    store.set_topic("garden", "roses")
    flood = [BOB.topic("garden", f"{number}", at=NOW_MS + 10 + number) for number in range(limits.MAX_TOPICS_READ)]
    store.ingest(raws(*flood[1:]), verify=False)
    store.moderation.block([BOB.key])
    assert store.topic("garden") == "roses"
    store.moderation.unblock([BOB.key])
    store.ingest(raws(flood[0]), verify=False)
    store.moderation.block([BOB.key])
    assert store.topic("garden") == ""
    store.set_topic("garden", "tulips")
    assert store.topic("garden") == "tulips"


# --- actions of other moderators -------------------------------------------------------------------


def test_an_action_that_overrules_another_moderator_takes_effect_for_others(store: CableStore, clock: SetClock) -> None:
    """Another admin's clock is ahead. For the local user, the user's own action is always in effect."""
    with CableStore.in_memory(identity=CYD.identity, options=StoreOptions(clock=clock)) as other:
        cyd = store.moderation.set_role(CYD.key, UserRole.ADMIN).posts
        other.moderation.set_role(ANN.key, UserRole.ADMIN)
        clock.now_ms = NOW_MS + DAY_MS
        hidden: tuple[Post, ...] = other.moderation.hide(users=[BOB.key]).posts
        clock.now_ms = NOW_MS + 1000
        store.ingest(raws(*hidden))
        assert store.user(BOB.key).is_hidden
        shown = store.moderation.unhide(users=[BOB.key]).posts
        assert not store.user(BOB.key).is_hidden
        assert shown[0].timestamp_ms > hidden[0].timestamp_ms
        assert len(cyd) == 1
