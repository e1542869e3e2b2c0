"""Moderation in a store: hidden and blocked targets, rejected actions, and the changes that clients receive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from moderated import (
    DAN,
    NOW_MS,
    answered,
    assert_clean,
    chain,
    clock,
    own,
    texts,
    verdicts_of,
)
from people import ANN, BOB, CYD, START_MS, Person

from cablestore import Block, CableStore, Info, Moderation, Role, StoreOptions, Unblock, Verdict, limits
from cablestore.errors import ArgumentError
from cablestore.index.reader import Reader
from cablestore.moderation import Action, UserRole
from cablestore.protocol.body import LOCAL_ONLY
from cablestore.store import answers
from cablestore.store.moderator import ActOptions
from cablestore.views import membership


@pytest.fixture
def store() -> Iterator[CableStore]:
    with own() as opened:
        yield opened
        assert_clean(opened)


# --- hiding (moderation.md 4.3, 5.1.3.4, 5.1.3.5) -------------------------------------------------


def test_messages_of_a_hidden_user_are_omitted_marked_or_shown(store: CableStore) -> None:
    posts = chain(BOB, CYD, BOB)
    verdicts_of(store, *posts)
    store.moderation.hide(users=[BOB.key], reason="too loud")
    assert texts(store.messages("c").messages) == ["text 1"]
    marked = store.messages("c", hidden="mark").messages
    assert texts(marked) == ["", "text 1", ""]
    shown = store.messages("c", hidden="show").messages
    assert texts(shown) == ["text 2", "text 1", "text 0"]
    for message in (marked[0], shown[0]):
        assert message.is_hidden
        assert message.hidden_by is not None
        assert (message.hidden_by.author, message.hidden_by.reason) == (ANN.key, "too loud")
    assert not marked[1].is_hidden
    assert texts(store.causal_messages("c", 0)) == ["text 1"]
    assert {user.public_key: user.is_hidden for user in store.members("c")} == {BOB.key: True, CYD.key: False}
    assert len(answered(store, *posts)) == 3  # hidden posts are stored, and sent to peers
    late = BOB.text("c", "late")
    assert verdicts_of(store, late) == [Verdict.ACCEPTED]
    assert store.resolve(late).is_hidden
    store.moderation.unhide(users=[BOB.key])
    assert len(store.messages("c").messages) == 4


def test_a_user_unhidden_in_one_channel_is_hidden_in_the_others(store: CableStore) -> None:
    verdicts_of(store, BOB.text("c", "x"), BOB.text("d", "y"))
    store.moderation.hide(users=[BOB.key])
    store.moderation.unhide(users=[BOB.key], channel="d")
    assert texts(store.messages("c").messages) == []
    assert texts(store.messages("d").messages) == ["y"]
    assert store.user(BOB.key, "c").is_hidden
    assert not store.user(BOB.key, "d").is_hidden


def test_a_decision_about_a_user_replaces_earlier_ones_in_each_channel(store: CableStore) -> None:
    verdicts_of(store, BOB.text("c", "x"), BOB.text("d", "y"))

    def shown() -> list[str]:
        return [message.text for channel in ("c", "d") for message in store.messages(channel).messages]

    store.moderation.hide(users=[BOB.key], channel="d")
    assert shown() == ["x"]
    store.moderation.hide(users=[BOB.key], channel="c")
    assert shown() == []
    store.moderation.unhide(users=[BOB.key], channel="d")
    assert shown() == ["y"]
    store.moderation.block([BOB.key], drop=True)
    assert shown() == []


def test_one_post_can_be_hidden_and_unhidden(store: CableStore) -> None:
    posts = chain(BOB, BOB)
    verdicts_of(store, *posts)
    store.moderation.hide(posts=[posts[0].hash])
    assert texts(store.messages("c").messages) == ["text 1"]
    assert len(store.moderation.own_acts("hide", posts[0].hash)) == 1
    store.moderation.unhide(posts=[posts[0].hash])
    assert texts(store.messages("c").messages) == ["text 1", "text 0"]
    assert store.moderation.own_acts("hide", posts[0].hash) == []


def test_posts_that_an_admin_hides_are_hidden_until_the_action_is_deleted(store: CableStore) -> None:
    verdicts_of(store, CYD.text("c", "x"))
    store.moderation.set_role(BOB.key, UserRole.ADMIN)
    assert store.user(BOB.key).role is UserRole.ADMIN
    act = BOB.post(Moderation("rude", 0, "", (CYD.key,), Action.HIDE_USER), at=NOW_MS + 10)
    verdicts_of(store, act)
    (message,) = store.messages("c", hidden="show").messages
    assert message.hidden_by is not None
    assert (message.hidden_by.author, message.hidden_by.hash) == (BOB.key, act.hash)
    verdicts_of(store, BOB.delete(act, at=NOW_MS + 11))
    assert texts(store.messages("c").messages) == ["x"]


def test_a_page_reads_at_most_max_page_rows_read(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts_of(store, *(BOB.text("c", f"b{number}") for number in range(30)), CYD.text("c", "seen", at=START_MS - 1))
    store.moderation.hide(users=[BOB.key])
    monkeypatch.setattr(limits, "MAX_PAGE_ROWS_READ", 10)
    cursor, pages = None, 0
    found: list[str] = []
    while True:
        page = store.messages("c", 5, cursor=cursor)
        pages += 1
        found += texts(page.messages)
        cursor = page.cursor
        if cursor is None:
            break
    assert found == ["seen"]
    assert pages == 4


def test_a_snapshot_keeps_its_decisions(store: CableStore) -> None:
    verdicts_of(store, BOB.text("c", "x"))
    with store.snapshot() as before:
        store.moderation.hide(users=[BOB.key])
        assert texts(before.messages("c").messages) == ["x"]
    assert texts(store.messages("c").messages) == []


def test_a_private_action_does_not_change_answers_to_peers(store: CableStore) -> None:
    verdicts_of(store, BOB.text("c", "x"), CYD.text("c", "y"))

    def said() -> object:
        with store.snapshot() as snapshot:
            reader = snapshot.reader
            return (
                list(answers.moderation_state(reader, ["c"])),
                list(answers.channel_list(reader)),
                list(answers.channel_time_range(reader, "c", 0, 0)),
                [
                    row
                    for row in snapshot.dump()
                    if row[0].startswith((b"!sync!", b"!moderation!", b"!acts!", b"!chat!"))
                ],
            )

    before = said()
    store.moderation.hide(users=[BOB.key], private=True)
    store.moderation.set_role(CYD.key, UserRole.MOD, private=True)
    assert said() == before
    assert texts(store.messages("c").messages) == ["y"]
    assert store.user(CYD.key).role is UserRole.MOD


def test_a_list_of_channels_reads_only_hidden_users_who_wrote(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = ["c", "d", "e"]
    verdicts_of(store, *(person.text(channel, "x") for person in (BOB, CYD, DAN) for channel in channels))
    strangers = [Person(f"stranger {number}").key for number in range(8)]
    store.moderation.hide(users=[BOB.key, *strangers])
    store.moderation.drop(users=[DAN.key, Person("another").key])
    looked_up: list[bytes] = []
    latest_ms = membership.latest_ms

    def counted(reader: Reader, channel: str, author: bytes) -> int | None:
        looked_up.append(author)
        return latest_ms(reader, channel, author)

    monkeypatch.setattr(membership, "latest_ms", counted)
    assert [channel.unread for channel in store.channels()] == [1, 1, 1]
    assert set(looked_up) == {ANN.key, BOB.key}
    assert len(looked_up) == 2 * len(channels)
    store.moderation.undrop(users=[DAN.key])
    verdicts_of(store, DAN.text("c", "x"), Person("stranger 0").text("c", "y"))
    assert [channel.unread for channel in store.channels()] == [2, 1, 1]


# --- blocks (moderation.md 4.6) -------------------------------------------------------------------


def test_posts_of_a_blocked_user_are_rejected_and_old_ones_stay(store: CableStore) -> None:
    old, new = chain(BOB, BOB)
    verdicts_of(store, old)
    store.moderation.block([BOB.key])
    assert verdicts_of(store, new, old, BOB.named("bob")) == [Verdict.BLOCKED, Verdict.DUPLICATE, Verdict.BLOCKED]
    assert texts(store.messages("c").messages) == ["text 0"]
    assert store.user(BOB.key).is_blocked
    store.rebuild()
    assert texts(store.messages("c").messages) == ["text 0"]
    assert verdicts_of(store, BOB.delete(old)) == [Verdict.ACCEPTED]
    store.moderation.unblock([BOB.key])
    assert verdicts_of(store, new) == [Verdict.ACCEPTED]


def test_posts_of_a_user_who_blocks_the_local_user_are_rejected_once_it_is_notified(store: CableStore) -> None:
    verdicts_of(store, BOB.post(Block("", 0, (ANN.key,), 0, 0)))
    assert verdicts_of(store, BOB.text("c", "x")) == [Verdict.ACCEPTED]
    verdicts_of(store, BOB.post(Block("", 0, (ANN.key,), 0, 1)))
    assert verdicts_of(store, BOB.text("c", "y"), CYD.text("c", "z")) == [Verdict.BLOCKED, Verdict.ACCEPTED]
    verdicts_of(store, BOB.post(Unblock("", 0, (ANN.key,), 0)))
    assert verdicts_of(store, BOB.text("c", "w")) == [Verdict.ACCEPTED]


def test_a_block_by_a_moderator_applies_like_a_block_by_the_local_user(store: CableStore) -> None:
    store.moderation.set_role(BOB.key, UserRole.MOD)
    verdicts_of(store, BOB.post(Block("", 0, (CYD.key, DAN.key), 1, 0), at=NOW_MS + 10))
    assert verdicts_of(store, CYD.text("c", "x")) == [Verdict.DROPPED]
    store.moderation.unblock([CYD.key], undrop=True)  # the local user's action takes precedence (4.4.5)
    assert verdicts_of(store, CYD.text("c", "y"), DAN.text("c", "z")) == [Verdict.ACCEPTED, Verdict.DROPPED]


def test_a_block_counts_for_later_posts_of_its_batch(store: CableStore) -> None:
    mine = CYD.text("c", "x")
    block = ANN.post(Block("", 0, (CYD.key,), 1, 0))
    assert verdicts_of(store, mine, block) == [Verdict.DROPPED, Verdict.ACCEPTED]


# --- writing ---------------------------------------------------------------------------------------


def test_actions_that_the_specification_forbids_are_rejected(store: CableStore) -> None:
    text, topic = BOB.text("c", "x"), BOB.topic("c", "t")
    verdicts_of(store, text, topic, CYD.post(Info.of(accept_role=False)))
    moderation, sequence = store.moderation, store.last_sequence
    keys = [bytes([number]) * 32 for number in range(17)]
    with pytest.raises(ArgumentError, match="cannot assign a role to yourself"):
        moderation.set_role(ANN.key, UserRole.MOD)
    with pytest.raises(ArgumentError, match="does not accept roles"):
        moderation.set_role(CYD.key, UserRole.MOD)
    for users in ([], keys):
        with pytest.raises(ArgumentError, match="1 to 16"):
            moderation.block(users)
        with pytest.raises(ArgumentError):
            moderation.hide(users=users)
    with pytest.raises(ArgumentError, match="32 bytes"):
        moderation.block([b"short"])
    with pytest.raises(ArgumentError, match="yourself"):
        moderation.block([ANN.key])
    with pytest.raises(ArgumentError, match="needs a post/text"):
        moderation.hide(posts=[topic.hash])
    with pytest.raises(ArgumentError, match="not stored"):
        moderation.hide(posts=[bytes(32)])
    with pytest.raises(ArgumentError, match="either"):
        moderation.hide(users=[BOB.key], posts=[text.hash])
    with pytest.raises(ArgumentError, match="either"):
        moderation.drop()
    with pytest.raises(ArgumentError, match="notified"):
        moderation.block([BOB.key], private=True, notify=True)
    with pytest.raises(ArgumentError, match="reason"):
        moderation.hide(users=[BOB.key], reason="x" * 129)
    with pytest.raises(ArgumentError, match="channel name"):
        moderation.hide(users=[BOB.key], channel="x" * 65)
    assert store.last_sequence == sequence
    assert store.moderation.in_force() == []


def test_private_actions_are_undone_only_privately(store: CableStore) -> None:
    verdicts_of(store, BOB.text("c", "x"))
    store.moderation.hide(users=[BOB.key], private=True)
    with pytest.raises(ArgumentError, match="privately"):
        store.moderation.unhide(users=[BOB.key])
    store.moderation.unhide(users=[BOB.key], private=True)
    assert texts(store.messages("c").messages) == ["x"]
    store.moderation.unhide(users=[BOB.key])
    store.moderation.block([BOB.key], private=True)
    with pytest.raises(ArgumentError, match="privately"):
        store.moderation.unblock([BOB.key])
    store.moderation.unblock([BOB.key], private=True)
    store.moderation.drop(users=[BOB.key])
    (post,) = store.moderation.undrop(users=[BOB.key]).posts
    assert isinstance(post.body, Unblock)
    assert post.body.privacy == LOCAL_ONLY


def test_dropping_posts_of_two_channels_writes_one_action_per_channel(store: CableStore) -> None:
    one, two = BOB.text("c", "x"), BOB.text("D", "y")
    verdicts_of(store, one, two)
    posts = store.moderation.drop(posts=[one.hash, two.hash]).posts
    assert [(post.channel, getattr(post.body, "recipients", ())) for post in posts] == [
        ("c", (one.hash,)),
        ("D", (two.hash,)),
    ]
    assert list(store.channels()) == []


def test_a_dry_run_reports_and_changes_nothing(store: CableStore) -> None:
    verdicts_of(store, CYD.text("c", "x", at=0), CYD.text("c", "y"))
    verdicts_of(store, BOB.post(Role("", 0, "", DAN.key, UserRole.MOD.in_post), at=NOW_MS + 1000))
    digest, sequence = store.dump_digest(), store.last_sequence
    effect = store.moderation.drop(users=[CYD.key], dry_run=True)
    assert (effect.posts, effect.dropped_posts) == ((), 2)
    assert {change.what for change in effect.changes} == {"dropped", "blocked"}
    effect = store.moderation.set_role(BOB.key, UserRole.ADMIN, dry_run=True)
    roles = {change.target: change.after for change in effect.changes}
    assert roles == {BOB.key: UserRole.ADMIN, DAN.key: UserRole.MOD}
    assert (store.dump_digest(), store.last_sequence) == (digest, sequence)
    assert store.user(BOB.key).role is UserRole.USER


def test_a_dry_run_creates_no_key_and_reports_the_same_changes(tmp_path: Path) -> None:
    with CableStore.open(tmp_path, options=StoreOptions(clock=clock)) as store:
        verdicts_of(store, *(posts := chain(BOB, CYD)))
        verdicts_of(store, BOB.post(Moderation("", 0, "", (CYD.key,), Action.HIDE_USER), at=NOW_MS + 1000))
        digest = store.dump_digest()

        def changes() -> list[list[tuple[object, ...]]]:
            acts, dry = store.moderation, ActOptions(dry_run=True)
            alone = ActOptions(dry_run=True, private=True)
            effects = [
                acts.hide(posts=[posts[0].hash], **dry),
                acts.hide(users=[CYD.key], **alone),
                acts.drop(users=[BOB.key], **dry),
                acts.drop(channel="c", **dry),
                acts.block([CYD.key], **dry),
                acts.set_role(BOB.key, UserRole.ADMIN, **dry),
                acts.set_role(BOB.key, UserRole.ADMIN, **alone),
                acts.unblock([CYD.key], **dry),
                acts.undrop(users=[BOB.key], **dry),
            ]
            return [[change[:5] for change in effect.changes] for effect in effects]

        found = changes()
        assert [len(each) for each in found] == [1, 1, 2, 1, 1, 2, 2, 0, 0]
        assert (store.dump_digest(), store.public_key) == (digest, None)
        assert not (tmp_path / "identity").exists()
        store.import_identity(ANN.identity)
        assert changes() == found


def test_the_seed_is_kept_until_it_is_revoked(tmp_path: Path) -> None:
    seed = bytes([UserRole.ADMIN]) + BOB.key
    with own(tmp_path) as store:
        effect = store.moderation.join_with_seed(seed)
        assert [(change.what, change.target, change.after) for change in effect.changes] == [
            ("role", BOB.key, UserRole.ADMIN)
        ]
        verdicts_of(store, CYD.text("c", "x"), BOB.post(Block("", 0, (CYD.key,), 1, 0)))
        with pytest.raises(ArgumentError, match="another"):
            store.moderation.join_with_seed(bytes([UserRole.MOD]) + CYD.key)
        assert store.moderation.join_with_seed(seed).changes == ()
    with own(tmp_path) as store:
        store.rebuild()
        assert store.user(BOB.key).role is UserRole.ADMIN
        assert texts(store.messages("c").messages) == []
        store.moderation.revoke_seed()
        assert store.user(BOB.key).role is UserRole.USER
        assert verdicts_of(store, CYD.text("c", "y")) == [Verdict.DROPPED]  # earlier actions stay applied (4.7.2)
        with pytest.raises(ArgumentError, match="cannot revoke the moderation seed"):
            store.moderation.revoke_seed()
        assert_clean(store)
        store.moderation.join_with_seed(bytes([UserRole.MOD]) + DAN.key)
        assert store.user(DAN.key).role is UserRole.MOD
    with own() as store, pytest.raises(ArgumentError, match="cannot revoke the moderation seed"):
        store.moderation.revoke_seed()


def test_a_rejected_deletion_does_not_change_private_actions(store: CableStore) -> None:
    verdicts_of(store, foreign := CYD.text("c", "x"))
    effect = store.moderation.hide(users=[CYD.key], private=True)
    (private,) = [post.hash for post in effect.posts]
    with pytest.raises(ArgumentError, match="Only the author can delete it"):
        store.delete([private, foreign.hash])
    assert store.get(private) == effect.posts[0]
    assert store.user(CYD.key).is_hidden
    assert store.delete([private]) == []
    assert store.get(private) is None
    assert not store.user(CYD.key).is_hidden


# --- lists and events ------------------------------------------------------------------------------


def test_lists_report_author_time_and_reason(store: CableStore) -> None:
    verdicts_of(store, CYD.text("c", "x"))
    store.moderation.set_role(BOB.key, UserRole.MOD, reason="helps")
    store.moderation.hide(users=[CYD.key], channel="c", reason="rude")
    store.moderation.unhide(users=[CYD.key], channel="c")
    found = [
        (judged.act.author, judged.act.reason, judged.target, judged.result) for judged in store.moderation.history("c")
    ]
    assert found == [
        (ANN.key, "helps", BOB.key, "applies"),
        (ANN.key, "rude", CYD.key, "undone"),
        (ANN.key, "", CYD.key, "applies"),
    ]
    assert len(store.moderation.in_force("c")) == 2
    assert len(store.moderation.in_force()) == 1
    assert store.moderation.contexts() == ["c"]


def test_followers_are_notified_of_changes(store: CableStore) -> None:
    verdicts_of(store, CYD.text("c", "x"))
    found = []
    begun = threading.Event()

    def follow() -> None:
        changes = store.moderation.follow()
        begun.set()
        for change in changes:
            found.append(change)
            if len(found) == 2:
                return

    follower = threading.Thread(target=follow)
    follower.start()
    begun.wait()
    while not found:  # the first action may precede the thread's first read of the decisions
        store.moderation.unhide(users=[CYD.key])
        store.moderation.hide(users=[CYD.key])
        follower.join(0.05)
        if not follower.is_alive():
            break
    store.moderation.set_role(BOB.key, UserRole.MOD)
    while follower.is_alive():
        store.moderation.unhide(users=[CYD.key])
        store.moderation.hide(users=[CYD.key])
        follower.join(0.05)
    assert {change.what for change in found} <= {"hidden", "role"}


def test_an_unmoderated_store_keeps_and_shows_everything() -> None:
    with own(moderated=False) as store:
        verdicts_of(store, BOB.text("c", "x"), ANN.post(Block("", 0, (BOB.key,), 1, 0)))
        assert texts(store.messages("c").messages) == ["x"]
        assert verdicts_of(store, BOB.text("c", "y")) == [Verdict.ACCEPTED]
        assert store.moderation.decisions is None
        assert store.moderation.history() == store.moderation.in_force() == []
        assert store.moderation.contexts() == []
        assert store.moderation.user_drop(BOB.key) is None
        assert store.moderation.seed is None
        position = store.moderation.position
        effect = store.moderation.hide(users=[BOB.key], skip_repeated=True)
        assert (len(effect.posts), effect.changes, effect.dropped_posts, effect.unchanged) == (1, (), 0, ())
        assert store.moderation.since(position) == ([], store.moderation.position)
        assert position.sequence + 1 == store.moderation.position.sequence == store.last_sequence
        assert list(store.moderation.follow(timeout_s=0)) == []
        with pytest.raises(ArgumentError, match="without moderation"):
            store.moderation.join_with_seed(bytes([UserRole.MOD]) + BOB.key)


def test_moderation_applies_to_an_identity_that_is_added_later(tmp_path: Path) -> None:
    with CableStore.open(tmp_path, options=StoreOptions(clock=clock)) as store:
        verdicts_of(store, BOB.text("c", "x"), ANN.post(Moderation("", 0, "", (BOB.key,), Action.HIDE_USER)))
        assert texts(store.messages("c").messages) == ["x"]
        store.import_identity(ANN.identity)
        assert texts(store.messages("c").messages) == []


def test_the_first_own_post_is_exempt_from_actions_of_others_as_any_other(tmp_path: Path) -> None:
    with CableStore.open(tmp_path, options=StoreOptions(clock=clock)) as store:
        store.moderation.join_with_seed(bytes([UserRole.ADMIN]) + BOB.key)
        verdicts_of(store, BOB.post(Moderation("", 0, "c", (), Action.DROP_CHANNEL)))
        post = store.post("c", "the store gets its identity by this")
        assert store.get(post.hash) == post
        assert_clean(store)
