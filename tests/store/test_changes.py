"""Changes of a store: each thing is reported once per read, and invalid cursors are rejected."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from inside import engine_of
from people import ANN, BOB, CYD, START_MS, raws
from waiting import LIMIT_S

from cablestore import CableStore, EventKind, limits
from cablestore.errors import CursorError, StoreClosedError
from cablestore.index import arrival_log
from cablestore.index.reader import Reader
from cablestore.moderation import UserRole
from cablestore.protocol.body import PUBLIC, Moderation
from cablestore.protocol.dialect import RESERVED_CHANNELS
from cablestore.store import following
from cablestore.store.changes import (
    ChannelAdded,
    ChannelRemoved,
    DraftChanged,
    Joined,
    Left,
    LocalChanged,
    MessageAdded,
    MessageDeleted,
    MessageHidden,
    MessageShown,
    ModerationChanged,
    MuteChanged,
    NameChanged,
    RoleChanged,
    TopicChanged,
    UnreadChanged,
    UserHidden,
    UserShown,
)
from cablestore.store.closed import ClosedStore, locked_folder
from cablestore.store.cursor import ChangesCursor, cursor_of


def kinds(store: CableStore, after: ChangesCursor, channel: str | None = None) -> list[type]:
    return [type(change) for change in store.next_changes(after, channel, timeout_s=0).changes]


def test_each_change_is_reported_once(store: CableStore) -> None:
    before = store.cursor
    store.ingest(raws(ANN.topic("default", "old"), ANN.topic("default", "new"), ANN.named("ann")))
    gone, kept = ANN.text("default", "gone"), ANN.text("default", "kept")
    store.ingest(raws(gone, kept, ANN.delete(gone)))
    changes, cursor = store.next_changes(before)
    ann = store.user(ANN.key)
    assert ann.name == "ann"
    assert changes == [
        ChannelAdded("default"),
        NameChanged(ann),
        Joined("default", store.user(ANN.key, "default")),
        TopicChanged("default", "new"),
        MessageDeleted(gone.hash, "default"),
        MessageAdded(store.messages("default").messages[0]),
        UnreadChanged("default"),
    ]
    assert store.next_changes(before).changes == changes
    assert (store.next_changes(cursor, timeout_s=0), store.cursor) == (([], cursor), cursor)


def test_a_member_who_writes_again_did_not_join_again(store: CableStore) -> None:
    store.ingest(raws(ANN.text("default", "first")))
    cursor = store.cursor
    store.ingest(raws(ANN.text("default", "second"), BOB.text("default", "hello")))
    changes = store.next_changes(cursor).changes
    assert [change.user.public_key for change in changes if isinstance(change, Joined)] == [BOB.key]
    assert ChannelAdded("default") not in changes
    cursor = store.cursor
    store.ingest(raws(BOB.leave("default")))
    assert kinds(store, cursor) == [Left]


def test_changes_by_a_discarded_post_are_reported(store: CableStore) -> None:
    text, topic, name = ANN.text("other", "a"), ANN.topic("other", "b"), ANN.named("ann")
    store.ingest(raws(text, topic, name))
    cursor = store.cursor
    store.discard([topic.hash, name.hash])
    changes = store.next_changes(cursor).changes
    assert TopicChanged("other", "") in changes
    assert NameChanged(store.user(ANN.key)) in changes
    hidden = store.moderation.hide(users=[ANN.key]).posts[0]
    cursor = store.cursor
    store.discard([hidden.hash])
    assert ModerationChanged(None) in store.next_changes(cursor).changes
    cursor = store.cursor
    store.discard([text.hash])
    assert set(kinds(store, cursor)) == {ChannelRemoved, Left, MessageDeleted, UnreadChanged}
    assert MessageDeleted(text.hash, None) in store.next_changes(cursor).changes


def test_all_changes_by_posts_discarded_in_turn_are_reported(store: CableStore) -> None:
    topics = [ANN.topic(channel, "t") for channel in ("a", "b", "c")]
    store.ingest(raws(*topics, *(ANN.text(channel, "x") for channel in ("a", "b", "c"))))
    cursor = store.cursor
    for topic in topics:
        store.discard([topic.hash])
    changes = store.next_changes(cursor).changes
    assert {change.channel for change in changes if isinstance(change, TopicChanged)} == {"a", "b", "c"}


def test_the_last_entry_of_a_post_is_found_before_any_number(store: CableStore) -> None:
    for number in range(3):
        store.ingest(raws(*(ANN.text("default", f"{number} {each}") for each in range(3))))
        store.local.set_draft("default", f"draft {number}")
        own = store.post("default", f"mine {number}")
        store.moderation.hide(posts=[own.hash], private=True)
    with engine_of(store).reading() as reader:
        every = list(arrival_log.entries(reader, 0))
        for row in reader.scan(arrival_log.LOG_PREFIX, arrival_log.NEXT_KEY):
            first, after = arrival_log.span_of(row)
            ends = {arrival_log.end_of_batch(reader, sequence) for sequence in range(first, after)}
            assert ends == {after - 1}
        assert arrival_log.end_of_batch(reader, len(every) + 9) == len(every) + 9
        for upto in range(len(every) + 2):
            found = [each for each in every if each.sequence <= upto and each.kind is not EventKind.LOCAL]
            assert arrival_log.last_post_entry(reader, upto) == (found[-1] if found else None)
            assert list(arrival_log.entries(reader, upto)) == [each for each in every if each.sequence > upto]


def touched_rows(store: CableStore) -> list[bytes]:
    with engine_of(store).reading() as reader:
        return [key for key, _ in reader.scan(b"!local!touched!", b"!local!touched~")]


def test_changes_by_discarded_posts_are_kept_while_a_cursor_may_need_them(tmp_path: Path) -> None:
    """A rebuild removes the rows, unless the store keeps a generation in which cursors are still valid."""
    path, topics = tmp_path / "store", [ANN.topic("other", f"topic {at}") for at in range(4)]
    with CableStore.open(path) as store:
        store.ingest(raws(ANN.text("other", "a"), *topics))
        store.discard([topics[0].hash])
        assert len(touched_rows(store)) == 1
        store.post("other", "hello")
        store.rebuild()
        assert touched_rows(store) == []
        assert store.check().is_clean
        cursor = store.cursor
        store.discard([topics[3].hash])
    with locked_folder(path) as folder:
        first = folder.header.generation
        shutil.copytree(folder.database_path, tmp_path / "copy")
        folder.activate(folder.adopt(tmp_path / "copy"), keep=True)
    with CableStore.open(path) as store:
        store.discard([topics[2].hash])
        store.rebuild()
        assert len(touched_rows(store)) == 2
    ClosedStore(path).rebuild()
    ClosedStore(path).roll_back(first)
    with CableStore.open(path) as store:
        assert TopicChanged("other", "topic 1") in store.next_changes(cursor).changes
    ClosedStore(path).remove("kept")
    ClosedStore(path).rebuild()
    with CableStore.open(path) as store:
        assert touched_rows(store) == []
        assert store.check().is_clean


def test_a_cursor_can_be_read_during_a_rebuild(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilt: list[object] = []

    def rebuild_first(reader: Reader) -> str:
        if not rebuilt:
            rebuilt.append(store.rebuild())
        return cursor_of(reader)

    monkeypatch.setattr(following, "cursor_of", rebuild_first)
    assert store.cursor == store.cursor
    assert rebuilt


def test_a_rebuild_in_memory_removes_changes_by_discarded_posts(store: CableStore) -> None:
    topic = ANN.topic("other", "b")
    store.ingest(raws(topic))
    store.discard([topic.hash])
    assert touched_rows(store)
    store.rebuild()
    assert not touched_rows(store)


def test_moderation_is_reported_by_its_targets(store: CableStore) -> None:
    text = BOB.text("default", "loud")
    store.ingest(raws(text, CYD.text("default", "here")))
    cursor = store.cursor
    store.moderation.hide(posts=[text.hash])
    hidden = store.next_changes(cursor).changes[0]
    assert isinstance(hidden, MessageHidden)
    assert (hidden.message.hash, hidden.message.text, hidden.message.is_hidden) == (text.hash, "", True)
    store.moderation.unhide(posts=[text.hash])
    assert kinds(store, cursor) == [MessageShown, UnreadChanged]
    cursor = store.cursor
    store.moderation.hide(users=[BOB.key], channel="default")
    assert store.next_changes(cursor).changes == [UserHidden(store.user(BOB.key, "default"), "default")]
    store.moderation.unhide(users=[BOB.key], channel="default")
    assert kinds(store, cursor) == [UserShown]
    cursor = store.cursor
    store.moderation.set_role(BOB.key, UserRole.MOD)
    assert store.next_changes(cursor).changes == [RoleChanged(store.user(BOB.key), None), ModerationChanged(None)]
    assert store.user(BOB.key).role is UserRole.MOD
    cursor = store.cursor
    store.moderation.drop(posts=[text.hash])
    assert MessageDeleted(text.hash, "default") in store.next_changes(cursor).changes
    cursor = store.cursor
    store.moderation.drop(channel="default")
    removed = store.next_changes(cursor).changes
    assert (removed[0], removed[-2]) == (ChannelRemoved("default"), ModerationChanged("default"))
    store.moderation.undrop(channel="default")
    store.ingest(raws(CYD.text("default", "again", at=START_MS)))
    assert store.next_changes(cursor).changes[0] == ChannelAdded("default")


def test_actions_of_strangers_cause_no_change(store: CableStore) -> None:
    store.join("default")
    cursor = store.cursor
    store.ingest(raws(BOB.post(Moderation("", PUBLIC, "default", (CYD.key,), 0))))
    assert store.last_sequence > int(cursor.rsplit(".", 1)[1])
    assert kinds(store, cursor) == []


def test_a_new_name_is_a_change_of_roles_only_for_users_who_may_have_authority(store: CableStore) -> None:
    """Their post/info may accept or decline roles. The local user's role is fixed."""
    store.moderation.set_role(BOB.key, UserRole.MOD)
    for expected, named in (
        ([NameChanged], lambda: store.set_name("me")),
        ([NameChanged], lambda: store.ingest(raws(CYD.named("cyd")))),
        ([NameChanged, RoleChanged, ModerationChanged], lambda: store.ingest(raws(BOB.named("bob")))),
    ):
        cursor = store.cursor
        named()
        assert kinds(store, cursor) == expected


def test_an_action_or_a_name_that_was_deleted_before_the_read_is_reported(store: CableStore) -> None:
    hide, name = BOB.post(Moderation("", PUBLIC, "", (CYD.key,), 0)), BOB.named("bob")
    store.moderation.set_role(BOB.key, UserRole.MOD)
    for post, expected in ((hide, [ModerationChanged]), (name, [NameChanged, RoleChanged, ModerationChanged])):
        cursor = store.cursor
        store.ingest(raws(post, BOB.delete(post)))
        assert kinds(store, cursor) == expected


def test_a_membership_is_reported_if_a_leave_was_deleted_before_the_read(store: CableStore) -> None:
    """A deleted text says nothing about the membership."""
    store.ingest(raws(ANN.join("default")))
    for post, expected in ((ANN.leave("default"), [Joined]), (ANN.text("default", "x"), [])):
        cursor = store.cursor
        store.ingest(raws(post, ANN.delete(post)))
        assert [kind for kind in kinds(store, cursor) if kind in (Joined, Left)] == expected


def test_a_dropped_text_that_is_not_removed_yet_is_reported_as_deleted(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [BOB.text("default", f"{number}") for number in range(3)]
    store.ingest(raws(CYD.text("default", "hello")))
    cursor = store.cursor
    store.ingest(raws(*texts))
    monkeypatch.setattr(limits, "MAX_BATCH_POSTS", 1)
    store.moderation.drop(users=[BOB.key])
    assert store.moderation.is_sweeping
    changes = store.next_changes(cursor).changes
    assert [change for change in changes if isinstance(change, MessageDeleted)] == [
        MessageDeleted(text.hash, "default") for text in texts
    ]
    assert not any(isinstance(change, MessageAdded) for change in changes)
    assert Left("default", store.user(BOB.key, "default")) in changes


def test_a_reserved_channel_is_not_reported_as_new(store: CableStore) -> None:
    cursor = store.cursor
    store.ingest(raws(*(ANN.text(channel, "x") for channel in (*RESERVED_CHANNELS, "a"))))
    assert [each for each in store.next_changes(cursor).changes if isinstance(each, ChannelAdded)] == [
        ChannelAdded("a")
    ]


def test_a_seed_is_reported_as_a_change(store: CableStore) -> None:
    store.join("default")
    cursor = store.cursor
    store.moderation.join_with_seed(bytes((UserRole.ADMIN,)) + BOB.key)
    assert kinds(store, cursor) == [ModerationChanged]


def test_the_changes_of_a_channel_include_those_of_all_channels(store: CableStore) -> None:
    cursor = store.cursor
    store.ingest(raws(ANN.text("one", "a"), ANN.text("two", "b"), ANN.named("ann")))
    assert kinds(store, cursor, "two") == [ChannelAdded, NameChanged, Joined, MessageAdded, UnreadChanged]
    assert kinds(store, cursor, "three") == [NameChanged]


def test_local_changes_are_reported_and_are_not_events(store: CableStore) -> None:
    store.join("default")
    cursor, events = store.cursor, list(store.events(timeout_s=0))
    store.local.put("theme", "colour", b"red")
    store.local.set_draft("default", "I wa")
    store.local.mute("default")
    assert store.next_changes(cursor, local=True).changes == [
        LocalChanged("theme", "colour"),
        DraftChanged("default"),
        MuteChanged("default"),
    ]
    cursor = store.cursor
    store.local.mute("default")
    assert store.cursor == cursor  # the value did not change
    assert list(store.events(events[-1].sequence, timeout_s=0)) == []
    assert list(store.events(timeout_s=0)) == events
    assert [event.kind for event in events] == [EventKind.ACCEPTED] * len(events)


def test_a_local_value_that_changes_often_has_one_entry(store: CableStore) -> None:
    store.join("default")
    cursor = store.cursor
    for turn in range(50):
        store.local.set_draft("default", f"I want {turn}")
        store.local.put("place", "x", b"%d" % (turn % 2))
    with store.snapshot() as state:
        kept = [entry for entry in arrival_log.entries(state.reader, 0) if entry.kind is EventKind.LOCAL]
    assert len(kept) == 2
    assert store.last_sequence == int(cursor.rsplit(".", 1)[1]) + 100
    assert set(map(type, store.next_changes(cursor, local=True).changes)) == {DraftChanged, LocalChanged}


def test_cursors_of_other_states_are_rejected(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "a") as store:
        store.post("default", "hello")
        cursor = store.cursor
        generation, number = cursor.rsplit(".", 1)
        for malformed in ("", "x", cursor + "x", generation, number, "ä.1", f"{generation}.-1"):
            with pytest.raises(CursorError, match="invalid cursor of changes"):
                store.next_changes(ChangesCursor(malformed))
        with pytest.raises(CursorError, match="never had"):
            store.next_changes(ChangesCursor(f"{generation}.{int(number) + 1}"))
        with CableStore.open(tmp_path / "b") as other, pytest.raises(CursorError, match="new page"):
            other.next_changes(cursor)
    with CableStore.open(tmp_path / "a") as store:
        assert store.cursor == cursor
        store.post("default", "again")
        assert kinds(store, cursor) == [MessageAdded, UnreadChanged]
        store.rebuild()
        with pytest.raises(CursorError, match="rebuilt"):
            store.next_changes(cursor)
        assert kinds(store, store.messages("default").changes_cursor) == []


def test_a_cursor_of_a_local_change_is_rejected_by_an_earlier_copy(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(ANN.text("default", "a")))
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with CableStore.open(tmp_path / "store") as store:
        store.local.set_draft("default", "a draft")
        cursor = store.cursor
    with CableStore.open(tmp_path / "copy") as copy, pytest.raises(CursorError, match="which the store never had"):
        copy.next_changes(cursor, timeout_s=0)


def test_a_store_in_memory_rejects_cursors_of_its_past() -> None:
    with CableStore.in_memory() as store:
        store.post("default", "hello")
        cursor = store.cursor
        store.rebuild()
        with pytest.raises(CursorError, match="new page"):
            list(store.changes(after=cursor))


@pytest.mark.parametrize("limit", ["MAX_THINGS_CHANGED", "MAX_EVENTS_READ"])
def test_a_read_is_limited_and_its_cursor_continues_after_it(
    store: CableStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    cursor = store.cursor
    posts = [ANN.text("default", str(number)) for number in range(20)]
    store.ingest(raws(*posts))
    monkeypatch.setattr(limits, limit, 7)
    sizes, found = [], list[bytes]()
    while page := store.next_changes(cursor, timeout_s=0):
        if not page.changes:
            break
        added = [change.message.hash for change in page.changes if isinstance(change, MessageAdded)]
        sizes.append(len(added))
        found += added
        cursor = page.cursor
    assert sizes == [7, 7, 6]
    assert found == [post.hash for post in posts]


def test_a_hidden_text_that_is_deleted_before_the_read_is_reported_as_deleted(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read may end between the action and the deletion. It then reports the text as deleted."""
    text = ANN.text("default", "a")
    store.ingest(raws(text))
    store.moderation.hide(posts=[text.hash])
    cursor = store.cursor
    store.moderation.unhide(posts=[text.hash])
    store.ingest(raws(ANN.delete(text)))
    monkeypatch.setattr(limits, "MAX_EVENTS_READ", 1)
    assert kinds(store, cursor) == [MessageDeleted, UnreadChanged]


def test_closing_the_store_ends_waiting_followers(tmp_path: Path) -> None:
    store = CableStore.open(tmp_path)
    cursor, heard, ended = store.cursor, threading.Event(), threading.Event()

    def listen() -> None:
        for _ in store.changes():
            heard.set()
        ended.set()

    listener = threading.Thread(target=listen)
    listener.start()
    while not heard.wait(0.01):
        store.post("default", "hello", sync=False)
    store.close()
    assert ended.wait(LIMIT_S)
    listener.join(LIMIT_S)
    with pytest.raises(StoreClosedError):
        store.next_changes(cursor)


@pytest.mark.parametrize("later", [0, 1, 2, 7])
def test_a_cursor_is_rejected_if_the_log_lost_its_entry(tmp_path: Path, later: int) -> None:
    """A power failure lost the last writes, and new posts reuse their numbers. The cursor would skip the new posts."""
    path, copy = tmp_path / "a", tmp_path / "copy"
    with CableStore.open(path) as store:
        store.post("default", "first")
        early = store.cursor
    shutil.copytree(path, copy)
    with CableStore.open(path) as store:
        for number in range(3):
            store.post("default", f"lost {number}")
        cursor = store.cursor
        store.local.set_draft("default", "unfinished")
        assert len(store.next_changes(cursor).changes) == 1
    with CableStore.open(copy) as store:
        for number in range(later):
            store.post("default", f"new {number}")
        with pytest.raises(CursorError, match="never had or has lost"):
            store.next_changes(cursor)
        added = [
            change for change in store.next_changes(early, timeout_s=0).changes if isinstance(change, MessageAdded)
        ]
        assert len(added) == later
