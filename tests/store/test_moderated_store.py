"""Moderation that acts on a store: what is hidden, dropped and blocked, and which acts are refused."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from people import ANN, BOB, CYD, START_MS, Person, raws

from cablestore import LEGACY, Block, CableStore, Info, Message, Moderation, Post, Role, Unblock, Verdict, limits
from cablestore.errors import InvalidPostError, ModerationError
from cablestore.index import drops
from cablestore.index.folder import Folder
from cablestore.index.leveldb import LevelDB
from cablestore.index.local import DROP, DROPPED_HEAD, SWEPT, local_key
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.reader import Reader
from cablestore.moderation import Action, UserRole
from cablestore.protocol.body import LOCAL_ONLY
from cablestore.protocol.keys import after_prefix
from cablestore.store import ClosedStore, answers

NOW_MS = START_MS + 100_000_000
DAN = Person("dan")


def clock() -> int:
    return NOW_MS


def own(path: Path | None = None, *, moderated: bool = True) -> CableStore:
    if path is None:
        return CableStore.in_memory(identity=ANN.identity, clock=clock, verify_threads=1, moderated=moderated)
    return CableStore.open(path, identity=ANN.identity, clock=clock, verify_threads=1, moderated=moderated)


@pytest.fixture
def store() -> Iterator[CableStore]:
    with own() as opened:
        yield opened
        assert_clean(opened)


def assert_clean(store: CableStore) -> None:
    report = store.check()
    assert report.is_clean, [str(problem) for problem in report.problems]


def told(store: CableStore, *posts: Post) -> list[Verdict]:
    return [outcome.verdict for outcome in store.ingest(raws(*posts))]


def chain(*authors: Person, channel: str = "c") -> list[Post]:
    """Return texts of these authors, each linked to the one before."""
    posts: list[Post] = []
    for number, author in enumerate(authors):
        posts.append(author.text(channel, f"text {number}", links=(posts[-1].hash,) if posts else ()))
    return posts


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


def wanted(store: CableStore, *posts: Post) -> list[bytes]:
    with store.snapshot() as snapshot:
        return list(answers.worth_requesting(snapshot.reader, [post.hash for post in posts]))


def given(store: CableStore, *posts: Post) -> list[bytes]:
    with store.snapshot() as snapshot:
        return list(answers.post_request(snapshot.reader, [post.hash for post in posts]))


def is_sweeping(store: CableStore) -> bool:
    return store.moderation.is_sweeping


def local_keys(store: CableStore) -> list[bytes]:
    with store.snapshot() as snapshot:
        return [key for key, _ in snapshot.reader.prefix(LOCAL_PREFIX)]


# --- what is hidden (moderation.md 4.3, 5.1.3.4, 5.1.3.5) -----------------------------------------


def test_a_hidden_user_is_left_out_marked_or_shown(store: CableStore) -> None:
    posts = chain(BOB, CYD, BOB)
    told(store, *posts)
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
    assert len(given(store, *posts)) == 3  # stored, and given to peers
    late = BOB.text("c", "late")
    assert told(store, late) == [Verdict.ACCEPTED]
    assert store.resolve(late).is_hidden
    store.moderation.unhide(users=[BOB.key])
    assert len(store.messages("c").messages) == 4


def test_a_user_unhidden_in_one_channel_is_hidden_in_the_others(store: CableStore) -> None:
    told(store, BOB.text("c", "x"), BOB.text("d", "y"))
    store.moderation.hide(users=[BOB.key])
    store.moderation.unhide(users=[BOB.key], channel="d")
    assert texts(store.messages("c").messages) == []
    assert texts(store.messages("d").messages) == ["y"]
    assert store.user(BOB.key, "c").is_hidden
    assert not store.user(BOB.key, "d").is_hidden


def test_hiding_and_unhiding_one_post(store: CableStore) -> None:
    posts = chain(BOB, BOB)
    told(store, *posts)
    store.moderation.hide(posts=[posts[0].hash])
    assert texts(store.messages("c").messages) == ["text 1"]
    store.moderation.unhide(posts=[posts[0].hash])
    assert texts(store.messages("c").messages) == ["text 1", "text 0"]


def test_what_an_admin_hides_is_hidden_until_the_act_is_deleted(store: CableStore) -> None:
    told(store, CYD.text("c", "x"))
    store.moderation.set_role(BOB.key, UserRole.ADMIN)
    assert store.user(BOB.key).role is UserRole.ADMIN
    act = BOB.post(Moderation("rude", 0, "", (CYD.key,), Action.HIDE_USER), at=NOW_MS + 10)
    told(store, act)
    (message,) = store.messages("c", hidden="show").messages
    assert message.hidden_by is not None
    assert (message.hidden_by.author, message.hidden_by.hash) == (BOB.key, act.hash)
    told(store, BOB.delete(act, at=NOW_MS + 11))
    assert texts(store.messages("c").messages) == ["x"]


def test_a_page_reads_a_named_most_of_rows(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    told(store, *(BOB.text("c", f"b{number}") for number in range(30)), CYD.text("c", "seen", at=START_MS - 1))
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
    told(store, BOB.text("c", "x"))
    with store.snapshot() as before:
        store.moderation.hide(users=[BOB.key])
        assert texts(before.messages("c").messages) == ["x"]
    assert texts(store.messages("c").messages) == []


# --- drops (moderation.md 4.4.6) ------------------------------------------------------------------


@pytest.mark.parametrize("what", ["user", "channel", "posts"])
def test_dropped_posts_go_stay_away_and_come_back(store: CableStore, what: str) -> None:
    posts = chain(CYD, BOB, CYD, BOB)
    told(store, *posts)
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
        assert store.post(post.hash) is None
        assert store.links(post.hash) == post.links
    assert wanted(store, *posts) == []
    assert given(store, *mine) == []
    assert told(store, *mine) == [Verdict.DROPPED] * len(mine)
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
    assert wanted(store, *posts) == []
    store.moderation.undrop(**arguments)  # type: ignore[arg-type]
    assert wanted(store, *mine) == [post.hash for post in mine]
    assert told(store, *mine) == [Verdict.ACCEPTED] * len(mine)
    assert store.heads("c") == heads
    assert [key for key in local_keys(store) if b"dropped" in key] == []


def test_moderation_posts_and_deletions_stay_in_a_dropped_channel(store: CableStore) -> None:
    text, doomed = BOB.text("c", "x"), BOB.text("c", "y")
    deletion = BOB.delete(doomed)
    act = BOB.post(Moderation("", 0, "c", (CYD.key,), Action.HIDE_USER))
    told(store, text, doomed, deletion, act)
    store.moderation.drop(channel="c")
    assert store.post(text.hash) is None
    assert store.post(deletion.hash) == deletion
    assert store.post(act.hash) == act
    late = BOB.delete(text)
    assert told(store, late, BOB.post(Role("", 0, "c", CYD.key, 1))) == [Verdict.ACCEPTED] * 2
    store.moderation.undrop(channel="c")
    assert told(store, text, doomed) == [Verdict.DELETED] * 2
    assert wanted(store, text, doomed) == []


def test_an_admins_drop_hides_own_posts_and_keeps_them(store: CableStore) -> None:
    store.moderation.set_role(BOB.key, UserRole.MOD)
    mine = store.text("c", "mine")
    others = CYD.text("c", "theirs")
    told(store, others, BOB.post(Moderation("gone", 0, "c", (), Action.DROP_CHANNEL), at=NOW_MS + 50))
    assert store.post(others.hash) is None
    assert store.post(mine.hash) == mine
    assert texts(store.messages("c").messages) == []
    (message,) = store.messages("c", hidden="show").messages
    assert (message.text, message.hidden_by and message.hidden_by.reason) == ("mine", "gone")
    assert list(store.channels()) == []
    with store.snapshot() as snapshot:
        assert list(answers.channel_list(snapshot.reader)) == []


def test_an_unblock_that_keeps_the_drop_lets_new_posts_in(store: CableStore) -> None:
    old = BOB.text("c", "old")
    told(store, old)
    store.moderation.block([BOB.key], drop=True)
    assert told(store, old) == [Verdict.DROPPED]
    effect = store.moderation.unblock([BOB.key])
    assert [(change.what, change.after) for change in effect.changes] == [("blocked", False)]
    assert told(store, old, BOB.text("c", "new", at=NOW_MS + 1000)) == [Verdict.DROPPED, Verdict.ACCEPTED]
    assert texts(store.messages("c").messages) == ["new"]
    store.moderation.unblock([BOB.key], undrop=True)
    assert told(store, old) == [Verdict.ACCEPTED]


def test_a_large_drop_is_swept_in_batches(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    posts = chain(*[BOB] * 25, CYD)
    told(store, *posts, BOB.topic("c", "bob's"), CYD.topic("d", "x"))
    monkeypatch.setattr(limits, "MAX_BATCH_POSTS", 4)
    store.moderation.drop(users=[BOB.key])
    assert is_sweeping(store)
    with store.snapshot() as snapshot:
        going = [post for post in posts if snapshot.reader.post(post.hash) is not None and post.author == BOB.key]
        assert len(going) > 10
        assert list(answers.post_request(snapshot.reader, [post.hash for post in posts])) == [posts[-1].raw]
        assert list(answers.channel_time_range(snapshot.reader, "c", 0, 0)) == [posts[-1].hash]
        assert set(answers.channel_state(snapshot.reader, "c")) == set()
        assert snapshot.reader.local(SWEPT, b"") is None
    assert texts(store.messages("c", hidden="show").messages) == ["text 25"]
    assert [channel.members for channel in store.channels()] == [1, 1]
    assert [user.public_key for user in store.members("c")] == [CYD.key]
    assert store.topic_of("c") == ""
    assert list(store.posts_by(BOB.key)) == []
    assert store.post(going[0].hash) is None
    assert told(store, going[0]) == [Verdict.DROPPED]
    assert_clean(store)
    store.rebuild()
    done: list[int] = []
    assert store.moderation.sweep(done.append) == sum(done) > 10
    assert not is_sweeping(store)
    assert store.moderation.sweep() == 0
    with store.snapshot() as snapshot:
        assert all(snapshot.reader.post(post.hash) is None for post in posts[:-1])
    store.moderation.undrop(users=[BOB.key])
    store.moderation.sweep()
    assert len(wanted(store, *posts)) == 25


def test_an_answer_reads_no_drops_that_are_swept(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, *others = [person.text("c", "hello") for person in (CYD, BOB, DAN)]
    told(store, kept, *others)
    for person in (BOB, DAN):
        store.moderation.drop(users=[person.key])
        store.moderation.sweep()
    read: list[Reader] = []
    stored = drops.stored_drops

    def counted(reader: Reader) -> Iterator[tuple[bytes, drops.Drop]]:
        read.append(reader)
        return stored(reader)

    monkeypatch.setattr(drops, "stored_drops", counted)
    with store.snapshot() as snapshot:
        assert list(answers.channel_time_range(snapshot.reader, "c", 0, 0)) == [kept.hash]
        assert list(answers.post_request(snapshot.reader, [post.hash for post in (kept, *others)])) == [kept.raw]
        assert not read
        assert len(list(stored(snapshot.reader))) == 2
    store.moderation.undrop(users=[BOB.key, DAN.key])
    with store.snapshot() as snapshot:
        assert list(answers.channel_time_range(snapshot.reader, "c", 0, 0)) == [kept.hash]
    assert read


@pytest.mark.parametrize("is_swept", [True, False])
def test_a_store_that_does_not_say_truly_what_is_swept_says_so_when_opened(tmp_path: Path, is_swept: bool) -> None:
    path, swept = tmp_path / "s", local_key(SWEPT)
    with own(path) as store:
        told(store, *chain(BOB, CYD))
        store.moderation.drop(users=[BOB.key])
        store.moderation.sweep()
    folder = Folder.open(path, create=False, dialect=None)
    with closing(folder), closing(LevelDB(folder.database_path)) as database:
        rows = dict(database.live().scan(local_key(DROP), after_prefix(local_key(DROP))))
        assert len(rows) == 1
        if is_swept:  # as a version up to 0.12.0 leaves it
            database.write({swept: None}, sync=True)
        else:  # such a version began a further removal
            drop = next(drop for _, drop in drops.stored_drops(Reader(database.live(), LEGACY)))
            database.write({key: drops.encode_drop(replace(drop, place=b"")) for key in rows}, sync=True)
    with own(path) as store:
        store.moderation.sweep()
        with store.snapshot() as snapshot:
            assert snapshot.reader.get(swept) == b""
        store.moderation.undrop(users=[BOB.key])
        with store.snapshot() as snapshot:
            assert snapshot.reader.get(swept) is None
        assert_clean(store)


def test_refused_posts_are_remembered_up_to_a_limit(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REFUSED_REMEMBERED", 2)
    store.moderation.drop(users=[BOB.key])
    posts = chain(BOB, BOB, BOB)
    assert told(store, *posts) == [Verdict.DROPPED] * 3
    assert wanted(store, *posts) == [posts[2].hash]
    assert told(store, posts[2]) == [Verdict.DROPPED]
    store.moderation.undrop(users=[BOB.key])
    assert told(store, *posts) == [Verdict.ACCEPTED] * 3


def test_a_dropped_user_who_declined_roles_still_declines(store: CableStore) -> None:
    declines = BOB.post(Info.of(name="bob", accept_role=False))
    told(store, declines)
    store.moderation.drop(users=[BOB.key])
    assert store.post(declines.hash) is None
    assert store.user(BOB.key).name == BOB.key.hex()
    with pytest.raises(ModerationError, match="declines roles"):
        store.moderation.set_role(BOB.key, UserRole.MOD)
    store.rebuild()
    with pytest.raises(ModerationError, match="declines roles"):
        store.moderation.set_role(BOB.key, UserRole.MOD)
    told(store, BOB.delete(declines))
    store.moderation.set_role(BOB.key, UserRole.MOD)


def test_a_dropped_channel_is_not_written_to(store: CableStore) -> None:
    store.moderation.drop(channel="c")
    with pytest.raises(ModerationError, match="Undrop it first"):
        store.text("c", "x")
    assert store.moderation.decisions is not None


# --- databases that take over ---------------------------------------------------------------------


def test_exports_and_imports_revive_nothing(tmp_path: Path) -> None:
    posts = chain(BOB, CYD, BOB)
    with own() as store:
        told(store, *posts)
        store.export(tmp_path / "full")
        store.moderation.drop(users=[BOB.key])
        store.export(tmp_path / "after")
        store.import_exports([tmp_path / "full"])
        assert texts(store.messages("c").messages) == ["text 1"]
        assert_clean(store)
    with own() as other:
        other.import_exports([tmp_path / "after"])
        assert [other.post(post.hash) is not None for post in posts] == [False, True, False]
        assert [key for key in local_keys(other) if b"drop" in key] == []


def test_an_export_during_a_sweep_has_nothing_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posts = chain(BOB, BOB, BOB, CYD)
    with own(tmp_path / "store") as store:
        told(store, *posts)
        monkeypatch.setattr(limits, "MAX_BATCH_POSTS", 1)
        store.moderation.drop(users=[BOB.key])
        assert is_sweeping(store)
        store.export(tmp_path / "open")
    ClosedStore(tmp_path / "store", identity=ANN.identity).export(tmp_path / "closed")
    for folder in ("open", "closed"):
        with CableStore.in_memory() as other:
            other.import_exports([tmp_path / folder])
            assert [other.post(post.hash) is not None for post in posts] == [False, False, False, True]


def test_a_private_act_changes_no_answer(store: CableStore) -> None:
    told(store, BOB.text("c", "x"), CYD.text("c", "y"))

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


# --- blocks (moderation.md 4.6) -------------------------------------------------------------------


def test_posts_of_a_blocked_user_are_refused_and_old_ones_stay(store: CableStore) -> None:
    old, new = chain(BOB, BOB)
    told(store, old)
    store.moderation.block([BOB.key])
    assert told(store, new, old, BOB.named("bob")) == [Verdict.BLOCKED, Verdict.DUPLICATE, Verdict.BLOCKED]
    assert texts(store.messages("c").messages) == ["text 0"]
    assert store.user(BOB.key).is_blocked
    store.rebuild()
    assert texts(store.messages("c").messages) == ["text 0"]
    assert told(store, BOB.delete(old)) == [Verdict.ACCEPTED]
    store.moderation.unblock([BOB.key])
    assert told(store, new) == [Verdict.ACCEPTED]


def test_posts_of_a_user_who_blocks_the_local_user_are_refused_once_it_is_notified(store: CableStore) -> None:
    told(store, BOB.post(Block("", 0, (ANN.key,), 0, 0)))
    assert told(store, BOB.text("c", "x")) == [Verdict.ACCEPTED]
    told(store, BOB.post(Block("", 0, (ANN.key,), 0, 1)))
    assert told(store, BOB.text("c", "y"), CYD.text("c", "z")) == [Verdict.BLOCKED, Verdict.ACCEPTED]
    told(store, BOB.post(Unblock("", 0, (ANN.key,), 0)))
    assert told(store, BOB.text("c", "w")) == [Verdict.ACCEPTED]


def test_a_block_by_a_moderator_counts_as_an_own_block(store: CableStore) -> None:
    store.moderation.set_role(BOB.key, UserRole.MOD)
    told(store, BOB.post(Block("", 0, (CYD.key, DAN.key), 1, 0), at=NOW_MS + 10))
    assert told(store, CYD.text("c", "x")) == [Verdict.DROPPED]
    store.moderation.unblock([CYD.key], undrop=True)  # the local user's act comes first (4.4.5)
    assert told(store, CYD.text("c", "y"), DAN.text("c", "z")) == [Verdict.ACCEPTED, Verdict.DROPPED]


def test_a_block_counts_for_later_posts_of_its_batch(store: CableStore) -> None:
    mine = CYD.text("c", "x")
    block = ANN.post(Block("", 0, (CYD.key,), 1, 0))
    assert told(store, mine, block) == [Verdict.DROPPED, Verdict.ACCEPTED]


# --- writing ---------------------------------------------------------------------------------------


def test_acts_that_the_specification_forbids_are_refused(store: CableStore) -> None:
    text, topic = BOB.text("c", "x"), BOB.topic("c", "t")
    told(store, text, topic, CYD.post(Info.of(accept_role=False)))
    moderation, sequence = store.moderation, store.last_sequence
    keys = [bytes([number]) * 32 for number in range(17)]
    with pytest.raises(ModerationError, match="oneself"):
        moderation.set_role(ANN.key, UserRole.MOD)
    with pytest.raises(ModerationError, match="declines"):
        moderation.set_role(CYD.key, UserRole.MOD)
    for users in ([], keys):
        with pytest.raises(ModerationError, match="1 to 16"):
            moderation.block(users)
        with pytest.raises(ModerationError):
            moderation.hide(users=users)
    with pytest.raises(ModerationError, match="32 bytes"):
        moderation.block([b"short"])
    with pytest.raises(ModerationError, match="yourself"):
        moderation.block([ANN.key])
    with pytest.raises(ModerationError, match="post/text alone"):
        moderation.hide(posts=[topic.hash])
    with pytest.raises(ModerationError, match="not stored"):
        moderation.hide(posts=[bytes(32)])
    with pytest.raises(ModerationError, match="either"):
        moderation.hide(users=[BOB.key], posts=[text.hash])
    with pytest.raises(ModerationError, match="either"):
        moderation.drop()
    with pytest.raises(ModerationError, match="notified"):
        moderation.block([BOB.key], private=True, notify=True)
    with pytest.raises(InvalidPostError, match="reason"):
        moderation.hide(users=[BOB.key], reason="x" * 129)
    with pytest.raises(InvalidPostError, match="channel name"):
        moderation.hide(users=[BOB.key], channel="x" * 65)
    assert store.last_sequence == sequence
    assert store.moderation.in_force() == []


def test_private_acts_are_undone_privately_only(store: CableStore) -> None:
    told(store, BOB.text("c", "x"))
    store.moderation.hide(users=[BOB.key], private=True)
    with pytest.raises(ModerationError, match="privately"):
        store.moderation.unhide(users=[BOB.key])
    store.moderation.unhide(users=[BOB.key], private=True)
    assert texts(store.messages("c").messages) == ["x"]
    store.moderation.unhide(users=[BOB.key])
    store.moderation.block([BOB.key], private=True)
    with pytest.raises(ModerationError, match="privately"):
        store.moderation.unblock([BOB.key])
    store.moderation.unblock([BOB.key], private=True)
    store.moderation.drop(users=[BOB.key])
    (post,) = store.moderation.undrop(users=[BOB.key]).posts
    assert isinstance(post.body, Unblock)
    assert post.body.privacy == LOCAL_ONLY


def test_posts_of_two_channels_are_acted_on_in_two_posts_and_one_write(store: CableStore) -> None:
    one, two = BOB.text("c", "x"), BOB.text("D", "y")
    told(store, one, two)
    posts = store.moderation.drop(posts=[one.hash, two.hash]).posts
    assert [(post.channel, getattr(post.body, "recipients", ())) for post in posts] == [
        ("c", (one.hash,)),
        ("D", (two.hash,)),
    ]
    assert list(store.channels()) == []


def test_a_dry_run_tells_and_changes_nothing(store: CableStore) -> None:
    told(store, CYD.text("c", "x"), CYD.text("c", "y"))
    told(store, BOB.post(Role("", 0, "", DAN.key, UserRole.MOD.in_post), at=NOW_MS + 1000))
    digest, sequence = store.dump_digest(), store.last_sequence
    effect = store.moderation.drop(users=[CYD.key], dry_run=True)
    assert (effect.posts, effect.dropped_posts) == ((), 2)
    assert {change.what for change in effect.changes} == {"dropped", "blocked"}
    effect = store.moderation.set_role(BOB.key, UserRole.ADMIN, dry_run=True)
    roles = {change.target: change.after for change in effect.changes}
    assert roles == {BOB.key: UserRole.ADMIN, DAN.key: UserRole.MOD}
    assert (store.dump_digest(), store.last_sequence) == (digest, sequence)
    assert store.user(BOB.key).role is UserRole.USER


def test_the_seed_is_kept_until_it_is_revoked(tmp_path: Path) -> None:
    seed = bytes([UserRole.ADMIN]) + BOB.key
    with own(tmp_path) as store:
        effect = store.moderation.join_with_seed(seed)
        assert [(change.what, change.target, change.after) for change in effect.changes] == [
            ("role", BOB.key, UserRole.ADMIN)
        ]
        told(store, CYD.text("c", "x"), BOB.post(Block("", 0, (CYD.key,), 1, 0)))
        with pytest.raises(ModerationError, match="another"):
            store.moderation.join_with_seed(bytes([UserRole.MOD]) + CYD.key)
    with own(tmp_path) as store:
        store.rebuild()
        assert store.user(BOB.key).role is UserRole.ADMIN
        assert texts(store.messages("c").messages) == []
        store.moderation.revoke_seed()
        assert store.user(BOB.key).role is UserRole.USER
        assert told(store, CYD.text("c", "y")) == [Verdict.DROPPED]  # what was applied stays (4.7.2)
        with pytest.raises(ModerationError, match="no moderation seed"):
            store.moderation.revoke_seed()
        assert_clean(store)


# --- lists and events ------------------------------------------------------------------------------


def test_lists_say_who_when_and_why(store: CableStore) -> None:
    told(store, CYD.text("c", "x"))
    store.moderation.set_role(BOB.key, UserRole.MOD, reason="helps")
    store.moderation.hide(users=[CYD.key], channel="c", reason="rude")
    store.moderation.unhide(users=[CYD.key], channel="c")
    found = [
        (judged.act.author, judged.act.reason, judged.target, judged.outcome)
        for judged in store.moderation.history("c")
    ]
    assert found == [
        (ANN.key, "helps", BOB.key, "applies"),
        (ANN.key, "rude", CYD.key, "undone"),
        (ANN.key, "", CYD.key, "applies"),
    ]
    assert len(store.moderation.in_force("c")) == 2
    assert len(store.moderation.in_force()) == 1
    assert store.moderation.contexts() == ["c"]


def test_followers_are_told_of_changes(store: CableStore) -> None:
    told(store, CYD.text("c", "x"))
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
    while not found:  # the first act may come before the thread reads the present decisions
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
        told(store, BOB.text("c", "x"), ANN.post(Block("", 0, (BOB.key,), 1, 0)))
        assert texts(store.messages("c").messages) == ["x"]
        assert told(store, BOB.text("c", "y")) == [Verdict.ACCEPTED]
        assert store.moderation.decisions is None


def test_a_store_that_gets_an_identity_decides_for_it(tmp_path: Path) -> None:
    with CableStore.open(tmp_path, clock=clock) as store:
        told(store, BOB.text("c", "x"), ANN.post(Moderation("", 0, "", (BOB.key,), Action.HIDE_USER)))
        assert texts(store.messages("c").messages) == ["x"]
        store.import_identity(ANN.identity)
        assert texts(store.messages("c").messages) == []


def test_going_back_to_an_earlier_database_revives_nothing(tmp_path: Path) -> None:
    """What this store dropped since stays away, and what only the earlier database has is removed when it opens."""
    path = tmp_path / "store"
    posts = chain(BOB, CYD, BOB, DAN)
    with own(path) as store:
        told(store, *posts)
    lost = BOB.text("c", "only in the earlier database")
    copied = tmp_path / "copied"
    shutil.copytree(path, copied)
    with own(copied) as store:
        told(store, lost)
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
        assert [store.post(post.hash) is not None for post in [*posts, lost]] == [False, True, False, True, False]
        assert texts(store.messages("c").messages) == ["text 3"]
        store.moderation.sweep()
        with store.snapshot() as snapshot:
            assert snapshot.reader.post(lost.hash) is None
        assert wanted(store, *posts, lost) == []
        assert_clean(store)


def test_an_unmoderated_session_is_judged_when_a_moderated_one_opens(tmp_path: Path) -> None:
    posts = chain(BOB, CYD)
    with own(tmp_path) as store:
        store.moderation.hide(users=[DAN.key])
    with own(tmp_path, moderated=False) as store:
        told(store, *posts, ANN.post(Block("", 0, (BOB.key,), 1, 0)))
        assert store.post(posts[0].hash) is not None
    with own(tmp_path) as store:
        assert store.post(posts[0].hash) is None
        store.moderation.sweep()
        assert wanted(store, *posts) == []
        assert_clean(store)


def test_what_refused_infos_say_of_roles_is_remembered_up_to_a_limit(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_CONSENTS_REMEMBERED", 3)
    store.moderation.block([BOB.key])
    infos = [BOB.post(Info.of(accept_role=number % 2 == 0)) for number in range(5)]
    assert told(store, *infos) == [Verdict.BLOCKED] * 5
    assert sum(b"!consent!" in key for key in local_keys(store)) == 3


def test_a_check_finds_a_dropped_post_that_is_stored(tmp_path: Path) -> None:
    text, other = chain(BOB, CYD)
    with own(tmp_path / "a") as store:
        told(store, text, other)
        store.moderation.drop(posts=[text.hash])
    with own(tmp_path / "b") as store:
        told(store, text)
        rows = {key: value for key, value in store.dump() if text.hash_hex in key}
    folder = Folder.open(tmp_path / "a", create=False, dialect=None)
    with closing(folder), closing(LevelDB(folder.database_path)) as database:
        database.write({b"!data!" + text.hash_hex: rows[b"!data!" + text.hash_hex]}, sync=True)
        database.write({local_key(DROPPED_HEAD, b"c!" + other.hash_hex): b""}, sync=True)
    found = [problem.what for problem in ClosedStore(tmp_path / "a", identity=ANN.identity).check().problems]
    assert "a dropped post that is stored" in found
    assert "a row of a dropped post that is not remembered" in found


def test_heads_of_a_channel_whose_last_posts_are_dropped(store: CableStore) -> None:
    """New posts go on where the dropped ones ended, and history has no second head."""
    posts = chain(CYD, BOB, BOB)
    told(store, *posts)
    store.moderation.drop(users=[BOB.key])
    assert store.heads("c") == [posts[2].hash]
    mine = store.text("c", "goes on")
    join = store.post(mine.links[0])
    assert join is not None
    assert join.links == (posts[2].hash,)
    assert store.heads("c") == [mine.hash]
    assert [message.text for message in store.causal_messages("c", 0)] == ["text 0", "goes on"]
    assert list(store.missing("c")) == []


def test_the_wrong_clock_of_an_author_does_not_bring_dropped_posts_back(store: CableStore) -> None:
    store.moderation.block([BOB.key], drop=True)
    early, late = BOB.text("c", "early", at=1), BOB.text("c", "late", at=NOW_MS + limits.MAX_FUTURE_MS - 10)
    assert told(store, early, late) == [Verdict.DROPPED] * 2
    store.moderation.unblock([BOB.key])
    assert told(store, early) == [Verdict.DROPPED]
