"""Drops in a store: dropped posts are removed, rejected and restored, also after another database becomes live."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moderated import (
    DAN,
    NOW_MS,
    answered,
    assert_clean,
    chain,
    is_sweeping,
    own,
    requestable,
    texts,
    verdicts_of,
    write,
)
from moderating import decide
from people import ANN, BOB, CYD, Person
from stores import channels_of

from cablestore import Block, CableStore, Info, Moderation, Role, Verdict, limits
from cablestore.errors import ArgumentError
from cablestore.index import drops
from cablestore.index.folder import Folder
from cablestore.index.local import DROPPED_HEAD, local_key
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.reader import Reader
from cablestore.moderation import Action, UserRole
from cablestore.moderation.applied import AppliedModeration
from cablestore.store import ClosedStore, answers


@pytest.fixture
def store() -> Iterator[CableStore]:
    with own() as opened:
        yield opened
        assert_clean(opened)


def local_keys(store: CableStore) -> list[bytes]:
    with store.snapshot() as snapshot:
        return [key for key, _ in snapshot.reader.prefix(LOCAL_PREFIX)]


def test_dropped_users_and_dropped_channels_have_no_memberships(store: CableStore) -> None:
    def channels(who: Person) -> list[str]:
        assert store.user(who.key, "c").is_member is (who.key in [user.public_key for user in store.members("c")])
        return channels_of(store, who.key)

    verdicts_of(store, *chain(CYD, BOB))
    assert channels(CYD) == channels(BOB) == ["c"]
    store.moderation.drop(users=[BOB.key])
    assert (channels(CYD), channels(BOB)) == (["c"], [])
    store.moderation.drop(channel="c")
    assert channels(CYD) == channels(BOB) == []


@pytest.mark.parametrize("what", ["user", "channel", "posts"])
def test_dropped_posts_are_removed_and_rejected_until_they_are_undropped(store: CableStore, what: str) -> None:
    posts = chain(CYD, BOB, CYD, BOB)
    verdicts_of(store, *posts)
    mine = [posts[1], posts[3]] if what != "channel" else posts
    arguments = {
        "user": {"users": [BOB.key]},
        "channel": {"channel": "c"},
        "posts": {"posts": [post.hash for post in mine]},
    }[what]
    heads = store.heads("c")
    effect = store.moderation.drop(**arguments)  # type: ignore[arg-type] # three kinds of arguments
    assert effect.dropped_posts == len(mine)
    assert not is_sweeping(store)
    assert_clean(store)
    for post in mine:
        assert store.get(post.hash) is None
        assert store.links(post.hash) == post.links
    assert requestable(store, *posts) == []
    assert answered(store, *mine) == []
    assert verdicts_of(store, *mine) == [Verdict.DROPPED] * len(mine)
    assert store.heads("c") == heads
    assert list(store.missing("c")) == []
    assert not list(store.snapshot().reader.tombstones())
    left = [] if what == "channel" else ["text 2", "text 0"]
    assert texts(store.messages("c", hidden="show").messages) == left
    assert [channel.name for channel in store.channels()] == ([] if what == "channel" else ["c"])
    assert [user.public_key for user in store.members("c")] == (
        {"user": [CYD.key], "channel": [], "posts": [CYD.key]}[what]
    )
    digest = store.dump_digest()
    store.rebuild()
    assert store.dump_digest() == digest
    assert requestable(store, *posts) == []
    store.moderation.undrop(**arguments)  # type: ignore[arg-type] # arguments of several types
    assert requestable(store, *mine) == [post.hash for post in mine]
    assert verdicts_of(store, *mine) == [Verdict.ACCEPTED] * len(mine)
    assert store.heads("c") == heads
    assert [key for key in local_keys(store) if b"dropped" in key] == []


def test_moderation_posts_and_deletions_stay_in_a_dropped_channel(store: CableStore) -> None:
    text, doomed = BOB.text("c", "x"), BOB.text("c", "y")
    deletion = BOB.delete(doomed)
    act = BOB.post(Moderation("", 0, "c", (CYD.key,), Action.HIDE_USER))
    verdicts_of(store, text, doomed, deletion, act)
    store.moderation.drop(channel="c")
    assert store.get(text.hash) is None
    assert store.get(deletion.hash) == deletion
    assert store.get(act.hash) == act
    late = BOB.delete(text)
    assert verdicts_of(store, late, BOB.post(Role("", 0, "c", CYD.key, 1))) == [Verdict.ACCEPTED] * 2
    store.moderation.undrop(channel="c")
    assert verdicts_of(store, text, doomed) == [Verdict.DELETED] * 2
    assert requestable(store, text, doomed) == []


def test_an_admins_drop_hides_own_posts_and_keeps_them(store: CableStore) -> None:
    store.moderation.set_role(BOB.key, UserRole.MOD)
    mine = store.post("c", "mine")
    others = CYD.text("c", "theirs")
    verdicts_of(store, others, BOB.post(Moderation("gone", 0, "c", (), Action.DROP_CHANNEL), at=NOW_MS + 50))
    assert store.get(others.hash) is None
    assert store.get(mine.hash) == mine
    assert texts(store.messages("c").messages) == []
    (message,) = store.messages("c", hidden="show").messages
    assert (message.text, message.hidden_by and message.hidden_by.reason) == ("mine", "gone")
    assert list(store.channels()) == []
    with store.snapshot() as snapshot:
        assert list(answers.channel_list(snapshot.reader)) == []


def test_an_unblock_that_keeps_the_drop_accepts_new_posts(store: CableStore) -> None:
    old = BOB.text("c", "old")
    verdicts_of(store, old)
    store.moderation.block([BOB.key], drop=True)
    assert verdicts_of(store, old) == [Verdict.DROPPED]
    effect = store.moderation.unblock([BOB.key])
    assert [(change.what, change.after) for change in effect.changes] == [("blocked", False)]
    assert verdicts_of(store, old, BOB.text("c", "new", at=NOW_MS + 1000)) == [Verdict.DROPPED, Verdict.ACCEPTED]
    assert texts(store.messages("c").messages) == ["new"]
    store.moderation.unblock([BOB.key], undrop=True)
    assert verdicts_of(store, old) == [Verdict.ACCEPTED]


def test_a_large_drop_is_swept_in_batches(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    posts = chain(*[BOB] * 25, CYD)
    verdicts_of(store, *posts, BOB.topic("c", "bob's"), CYD.topic("d", "x"), BOB.named("bob"))
    monkeypatch.setattr(limits, "MAX_BATCH_POSTS", 4)
    store.moderation.drop(users=[BOB.key])
    assert is_sweeping(store)
    with store.snapshot() as snapshot:
        going = [post for post in posts if snapshot.reader.post(post.hash) is not None and post.author == BOB.key]
        assert len(going) > 10
        assert list(answers.post_request(snapshot.reader, [post.hash for post in posts])) == [posts[-1].raw]
        assert list(answers.channel_time_range(snapshot.reader, "c", 0, 0)) == [posts[-1].hash]
        assert set(answers.channel_state(snapshot.reader, "c")) == set()
    assert texts(store.messages("c", hidden="show").messages) == ["text 25"]
    assert [channel.members for channel in store.channels()] == [1, 1]
    assert [user.public_key for user in store.members("c")] == [CYD.key]
    assert store.topic("c") == ""
    assert list(store.posts_by(BOB.key)) == []
    assert store.get(going[0].hash) is None
    assert store.resolve(going[0]).name == BOB.key.hex()
    assert verdicts_of(store, going[0]) == [Verdict.DROPPED]
    assert_clean(store)
    store.rebuild()
    done: list[int] = []
    assert store.moderation.sweep(done.append) == sum(done) > 10
    assert max(done) == limits.MAX_BATCH_POSTS
    assert not is_sweeping(store)
    assert store.moderation.sweep() == 0
    with store.snapshot() as snapshot:
        assert all(snapshot.reader.post(post.hash) is None for post in posts[:-1])
    store.moderation.undrop(users=[BOB.key])
    store.moderation.sweep()
    assert len(requestable(store, *posts)) == 25


def test_undropped_posts_are_forgotten_in_batches_or_when_they_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posts = sorted(chain(*[BOB] * 9), key=lambda post: post.hash)

    def known(store: CableStore) -> list[bytes]:
        return [post.hash for post in posts if store.moderation.dropped_post(post.hash) is not None]

    with own(tmp_path) as store:
        verdicts_of(store, *posts)
        store.moderation.drop(channel="c")
        assert known(store) == [post.hash for post in posts]
    with own(tmp_path) as store:
        store.moderation.sweep()  # the first opening after the first action removes all drops again
    with own(tmp_path) as store:
        assert not store.moderation.is_sweeping
        monkeypatch.setattr(limits, "MAX_BATCH_POSTS", 1)  # remembered posts are compared in order of hashes
        store.moderation.undrop(channel="c")
        assert verdicts_of(store, posts[-1]) == [Verdict.ACCEPTED]
        left = known(store)
        assert left == [post.hash for post in posts[-1 - len(left) : -1]] != []
    with own(tmp_path) as store:
        assert known(store) != []
        assert store.moderation.is_sweeping
        assert store.moderation.sweep() > 0
        assert known(store) == []
    with own(tmp_path) as store:
        assert not store.moderation.is_sweeping
        assert_clean(store)


def test_a_dropped_topic_is_removed_and_rejected_until_it_is_undropped(store: CableStore) -> None:
    old, new = BOB.topic("c", "old"), BOB.topic("c", "new")
    verdicts_of(store, old, new)
    store.moderation.drop(posts=[new.hash])
    store.moderation.sweep()
    assert store.get(new.hash) is None
    assert store.topic("c") == "old"
    assert verdicts_of(store, new) == [Verdict.DROPPED]
    store.moderation.undrop(posts=[new.hash])
    assert verdicts_of(store, new) == [Verdict.ACCEPTED]
    assert store.topic("c") == "new"


def test_many_single_drops_are_swept_in_batches_of_bytes(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    posts = chain(*[BOB] * 6)
    verdicts_of(store, *posts)
    monkeypatch.setattr(limits, "MAX_BATCH_SIZE_BYTES", max(len(post.raw) for post in posts) + 1)
    store.moderation.drop(posts=[post.hash for post in posts])
    with store.snapshot() as snapshot:
        assert sum(snapshot.reader.post(post.hash) is not None for post in posts) == 4
    assert store.moderation.sweep() >= 4
    assert not is_sweeping(store)
    assert_clean(store)


def test_an_answer_reads_drops_only_during_a_sweep(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, *others = [person.text("c", "hello") for person in (CYD, BOB, DAN)]
    verdicts_of(store, kept, *others)
    read: list[Reader] = []
    stored = drops.stored_drops

    def counted(reader: Reader) -> Iterator[tuple[bytes, drops.Drop]]:
        read.append(reader)
        return stored(reader)

    monkeypatch.setattr(drops, "stored_drops", counted)
    with store.snapshot() as snapshot:
        assert set(answers.channel_time_range(snapshot.reader, "c", 0, 0)) == {post.hash for post in (kept, *others)}
        assert not read
    for person in (BOB, DAN):
        store.moderation.drop(users=[person.key])
        store.moderation.sweep()
    read.clear()
    with store.snapshot() as snapshot:
        assert list(answers.channel_time_range(snapshot.reader, "c", 0, 0)) == [kept.hash]
        assert list(answers.post_request(snapshot.reader, [post.hash for post in (kept, *others)])) == [kept.raw]
        assert not read
        assert len(list(stored(snapshot.reader))) == 2
    monkeypatch.setattr(limits, "MAX_BATCH_POSTS", 1)
    verdicts_of(store, *[CYD.text("c", "going") for _ in range(3)])
    store.moderation.drop(users=[CYD.key])
    assert is_sweeping(store)
    with store.snapshot() as snapshot:
        assert list(answers.channel_time_range(snapshot.reader, "c", 0, 0)) == []
    assert read


def test_applied_moderation_searches_its_drops_once() -> None:
    """A channel list checks each channel, and a store may drop many users."""
    looks: list[None] = []

    class CountedDrops(dict[bytes, drops.Drop]):
        def values(self) -> Any:
            looks.append(None)
            return super().values()

    held = CountedDrops({drops.user_key(BOB.key): drops.Drop(bytes(32), None, place=None)})
    flags = {"remembers": True, "is_comparing": False, "must_be_stored": False}
    applied = AppliedModeration(ANN.key, decide(), None, held, **flags)
    for _ in range(3):
        assert applied.is_swept
        assert not applied.is_sweeping
    assert len(looks) == 1
    held[drops.user_key(CYD.key)] = drops.Drop(bytes(32), None)
    changed = replace(applied, drops=held)
    assert changed.is_sweeping
    assert not changed.is_swept


def test_rejected_posts_are_remembered_up_to_a_limit(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REJECTED_REMEMBERED", 2)
    store.moderation.drop(users=[BOB.key])
    posts = chain(BOB, BOB, BOB)
    assert verdicts_of(store, *posts) == [Verdict.DROPPED] * 3
    assert requestable(store, *posts) == [posts[2].hash]
    assert verdicts_of(store, posts[2]) == [Verdict.DROPPED]
    store.moderation.undrop(users=[BOB.key])
    assert verdicts_of(store, *posts) == [Verdict.ACCEPTED] * 3


def test_a_dropped_user_who_declined_roles_still_declines(store: CableStore) -> None:
    declines = BOB.post(Info.of(name="bob", accept_role=False))
    verdicts_of(store, declines)
    store.moderation.drop(users=[BOB.key])
    assert store.get(declines.hash) is None
    assert store.user(BOB.key).name == BOB.key.hex()
    with pytest.raises(ArgumentError, match="does not accept roles"):
        store.moderation.set_role(BOB.key, UserRole.MOD)
    store.rebuild()
    with pytest.raises(ArgumentError, match="does not accept roles"):
        store.moderation.set_role(BOB.key, UserRole.MOD)
    verdicts_of(store, BOB.delete(declines))
    store.moderation.set_role(BOB.key, UserRole.MOD)


def test_writing_to_a_dropped_channel_is_rejected(store: CableStore) -> None:
    store.moderation.drop(channel="c")
    with pytest.raises(ArgumentError, match="Undrop it first"):
        store.post("c", "x")
    assert store.moderation.decisions is not None


def test_exports_and_imports_do_not_restore_dropped_posts(tmp_path: Path) -> None:
    posts = chain(BOB, CYD, BOB)
    with own() as store:
        verdicts_of(store, *posts)
        store.export(tmp_path / "full")
        store.moderation.drop(users=[BOB.key])
        store.export(tmp_path / "after")
        store.import_exports([tmp_path / "full"])
        assert texts(store.messages("c").messages) == ["text 1"]
        assert_clean(store)
    with own() as other:
        other.import_exports([tmp_path / "after"])
        assert [other.get(post.hash) is not None for post in posts] == [False, True, False]
        assert [key for key in local_keys(other) if b"drop" in key] == []


def test_an_export_during_a_sweep_has_no_dropped_posts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posts = chain(BOB, BOB, BOB, CYD)
    with own(tmp_path / "store") as store:
        verdicts_of(store, *posts)
        monkeypatch.setattr(limits, "MAX_BATCH_POSTS", 1)
        store.moderation.drop(users=[BOB.key])
        assert is_sweeping(store)
        store.export(tmp_path / "open")
    ClosedStore(tmp_path / "store", identity=ANN.identity).export(tmp_path / "closed")
    for folder in ("open", "closed"):
        with CableStore.in_memory() as other:
            other.import_exports([tmp_path / folder])
            assert [other.get(post.hash) is not None for post in posts] == [False, False, False, True]


def test_going_back_to_an_earlier_database_does_not_restore_dropped_posts(tmp_path: Path) -> None:
    """Posts that this store dropped since stay removed. Opening removes those that only the earlier database has."""
    path = tmp_path / "store"
    posts = chain(BOB, CYD, BOB, DAN)
    with own(path) as store:
        verdicts_of(store, *posts)
    lost = BOB.text("c", "only in the earlier database")
    copied = tmp_path / "copied"
    shutil.copytree(path, copied)
    with own(copied) as store:
        verdicts_of(store, lost)
        (earlier,) = [each.name for each in ClosedStore(path, identity=ANN.identity).generations()]
    with own(path) as store:
        store.moderation.drop(users=[BOB.key])
        store.moderation.hide(users=[CYD.key])
    closed = ClosedStore(path, identity=ANN.identity)
    folder = Folder.open(path, create=False, dialect=None)
    name = folder.begin()
    shutil.copytree(path / earlier, path / name, dirs_exist_ok=True)
    shutil.rmtree(path / earlier)
    shutil.copytree(copied / earlier, path / earlier)
    folder.activate(name, keep=True)
    folder.close()
    closed.roll_back(earlier)
    assert closed.check().is_clean
    with own(path) as store:
        assert [store.get(post.hash) is not None for post in [*posts, lost]] == [False, True, False, True, False]
        assert texts(store.messages("c").messages) == ["text 3"]
        store.moderation.sweep()
        with store.snapshot() as snapshot:
            assert snapshot.reader.post(lost.hash) is None
        assert requestable(store, *posts, lost) == []
        assert_clean(store)


def test_a_moderated_session_decides_about_the_posts_of_an_unmoderated_one(tmp_path: Path) -> None:
    posts = chain(BOB, CYD)
    with own(tmp_path) as store:
        store.moderation.hide(users=[DAN.key])
    with own(tmp_path, moderated=False) as store:
        verdicts_of(store, *posts, ANN.post(Block("", 0, (BOB.key,), 1, 0)))
        assert store.get(posts[0].hash) is not None
    with own(tmp_path) as store:
        assert store.get(posts[0].hash) is None
        store.moderation.sweep()
        assert requestable(store, *posts) == []
        assert_clean(store)


def test_roles_in_rejected_infos_are_remembered_up_to_a_limit(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_CONSENTS_REMEMBERED", 3)
    store.moderation.block([BOB.key])
    infos = [BOB.post(Info.of(accept_role=number % 2 == 0)) for number in range(5)]
    assert verdicts_of(store, *infos) == [Verdict.BLOCKED] * 5
    assert sum(b"!consent!" in key for key in local_keys(store)) == 3


def test_a_check_finds_a_dropped_post_that_is_stored(tmp_path: Path) -> None:
    text, other = chain(BOB, CYD)
    with own(tmp_path / "a") as store:
        verdicts_of(store, text, other)
        store.moderation.drop(posts=[text.hash])
    with own(tmp_path / "b") as store:
        verdicts_of(store, text)
        rows = {key: value for key, value in store.dump() if text.hash_hex in key}
    post_key = b"!data!" + text.hash_hex
    write(tmp_path / "a", {post_key: rows[post_key], local_key(DROPPED_HEAD, b"c!" + other.hash_hex): b""})
    found = [problem.what for problem in ClosedStore(tmp_path / "a", identity=ANN.identity).check().problems]
    assert "a dropped post that is stored" in found
    assert "a row of an unknown dropped post" in found


def test_new_posts_link_to_the_last_dropped_posts(store: CableStore) -> None:
    """New posts link to the last dropped posts, and the channel has no second head."""
    posts = chain(CYD, BOB, BOB)
    verdicts_of(store, *posts)
    store.moderation.drop(users=[BOB.key])
    assert store.heads("c") == [posts[2].hash]
    mine = store.post("c", "after the drop")
    join = store.get(mine.links[0])
    assert join is not None
    assert join.links == (posts[2].hash,)
    assert store.heads("c") == [mine.hash]
    assert [message.text for message in store.causal_messages("c", 0)] == ["text 0", "after the drop"]
    assert list(store.missing("c")) == []


def test_the_wrong_clock_of_an_author_does_not_restore_dropped_posts(store: CableStore) -> None:
    store.moderation.block([BOB.key], drop=True)
    early, late = BOB.text("c", "early", at=1), BOB.text("c", "late", at=NOW_MS + limits.MAX_FUTURE_MS - 10)
    assert verdicts_of(store, early, late) == [Verdict.DROPPED] * 2
    store.moderation.unblock([BOB.key])
    assert verdicts_of(store, early) == [Verdict.DROPPED]
