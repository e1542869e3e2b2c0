"""Defects that were reproduced in the existing implementations of Cable, one test each.

Each docstring describes the defect. Defects of the wire format, requests and peers are tested elsewhere.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from people import ANN, BOB, CYD, START_MS, raws
from stores import channels_of

from cablestore import DRAFT8, Block, CableStore, Info, Moderation, Post, Role, Text, Verdict, encode_post
from cablestore.errors import StorageError, StoreLockedError
from cablestore.index.leveldb import LevelDB
from cablestore.protocol.body import LOCAL_ONLY
from cablestore.store import answers


def texts(store: CableStore, channel: str = "default") -> list[str]:
    return [message.text for message in store.messages(channel, 1000, newest_first=False).messages]


def time_range(store: CableStore, channel: str, start: int = 0, end: int = 0, limit: int = 0) -> list[bytes]:
    with store.snapshot() as snapshot:
        return list(answers.channel_time_range(snapshot.reader, channel, start, end, limit))


def channel_list(store: CableStore, offset: int = 0, limit: int = 0) -> list[str]:
    with store.snapshot() as snapshot:
        return list(answers.channel_list(snapshot.reader, offset, limit))


# --- wrong results ---------------------------------------------------------------------------------


def test_a_deleted_post_is_neither_requested_nor_displayed_again(store: CableStore) -> None:
    """When a peer offered a deleted post again, it was requested again and displayed."""
    post = ANN.text("default", "x")
    store.ingest(raws(post, ANN.delete(post)))
    with store.snapshot() as snapshot:
        assert not list(answers.worth_requesting(snapshot.reader, [post.hash]))
    assert store.ingest(raws(post))[0].verdict is Verdict.DELETED
    assert texts(store) == []


def test_a_deletion_may_arrive_before_its_target(store: CableStore) -> None:
    """A deletion that arrived before its target was lost."""
    post = ANN.text("default", "x")
    store.ingest(raws(ANN.delete(post)))
    store.ingest(raws(post))
    assert texts(store) == []


def test_the_latest_name_is_stored(store: CableStore) -> None:
    """The second nickname was never stored."""
    for name in ("first", "second", "third"):
        store.ingest(raws(ANN.named(name)))
        assert store.user(ANN.key).name == name


def test_an_older_topic_that_arrives_later_does_not_replace_the_newer_one(store: CableStore) -> None:
    """An older topic that arrived later replaced the newer one."""
    older, newer = ANN.topic("default", "older"), BOB.topic("default", "newer")
    store.ingest(raws(newer))
    store.ingest(raws(older))
    assert store.topic("default") == "newer"


def test_an_older_leave_that_arrives_later_does_not_end_the_membership(store: CableStore) -> None:
    """An older leave that arrived later ended the membership."""
    leave, join = ANN.leave("default"), ANN.join("default")
    store.ingest(raws(join))
    store.ingest(raws(leave))
    assert [user.public_key for user in store.members("default")] == [ANN.key]


def test_joined_channels_are_those_of_one_user(store: CableStore) -> None:
    """The list of joined channels included the channels of all users."""
    store.ingest(raws(ANN.join("mine"), BOB.join("theirs")))
    assert channels_of(store, ANN.key) == ["mine"]


def test_joined_channels_may_have_names_outside_ascii(store: CableStore) -> None:
    """Channels whose names sort after `~` disappeared."""
    names = ["~", "ä", "日本", "🐈", "\x7f"]
    store.ingest(raws(*(ANN.join(name) for name in names)))
    assert sorted(channels_of(store, ANN.key)) == sorted(names)


def test_channel_names_with_exclamation_marks_are_listed(store: CableStore) -> None:
    """The channel "a!b" was listed as "a"."""
    store.ingest(raws(ANN.join("a!b"), ANN.join("!"), ANN.join("!!a!")))
    assert channel_list(store) == ["!", "!!a!", "a!b"]


def test_channel_names_with_exclamation_marks_are_distinguished(store: CableStore) -> None:
    """Reading "a" returned posts of "a!1"."""
    store.ingest(raws(ANN.text("a", "in a"), ANN.text("a!1", "in a!1"), ANN.text("a!1700000000000", "in another")))
    assert texts(store, "a") == ["in a"]
    assert texts(store, "a!1") == ["in a!1"]
    assert len(time_range(store, "a")) == 1


def test_posts_of_one_millisecond_are_displayed_after_a_restart(tmp_path: Path) -> None:
    """After a restart, a post with the channel and millisecond of an earlier post was stored but never displayed."""
    for text in ("one", "two", "three"):
        with CableStore.open(tmp_path) as store:
            store.ingest(raws(ANN.text("default", text, at=START_MS)))
    with CableStore.open(tmp_path) as store:
        assert sorted(texts(store)) == ["one", "three", "two"]
        assert store.check().is_clean


def test_many_posts_may_have_one_timestamp(store: CableStore) -> None:
    """A thousand posts with the same timestamp crashed the process."""
    store.ingest(raws(*(ANN.text("default", str(i), at=START_MS) for i in range(1100))), verify=False)
    assert len(time_range(store, "default", START_MS, START_MS + 1)) == 1100


def test_a_time_range_includes_small_timestamps(store: CableStore) -> None:
    """A post dated 80 was missing from the range 0 to 100."""
    post = ANN.text("default", "x", at=80)
    store.ingest(raws(post))
    assert time_range(store, "default", 0, 100) == [post.hash]


def test_timestamps_of_different_lengths_are_in_order(store: CableStore) -> None:
    """Timestamps with fewer digits sorted after current ones."""
    times = [0, 9, 10, 999_999_999_999, 1_000_000_000_000, START_MS]
    store.ingest(raws(*(ANN.text("default", str(at), at=at) for at in reversed(times))))
    assert texts(store) == [str(at) for at in times]


@pytest.mark.thorough("True-1")
@pytest.mark.parametrize("batch_posts", [1, 100, 1000])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_linear_chain_has_one_head(store: CableStore, batch_posts: int, backwards: bool) -> None:
    """After a chain arrived in batches, it had one head per batch."""
    posts: list[Post] = []
    for i in range(1000):
        posts.append(ANN.text("default", str(i), links=tuple(post.hash for post in posts[-1:])))
    last = posts[-1].hash
    store.ingest(raws(*(reversed(posts) if backwards else posts)), batch_posts=batch_posts, verify=False)
    assert store.heads("default") == [last]


def test_unlinked_posts_are_all_heads(store: CableStore) -> None:
    """After 10,000 unlinked posts, only 112 were heads: updates were lost."""
    posts = [ANN.text("default", str(i)) for i in range(2000)]
    store.ingest(raws(*posts), verify=False)
    assert set(store.heads("default")) == {post.hash for post in posts}


def test_every_post_of_a_batch_has_a_verdict_even_if_it_is_not_a_head(store: CableStore) -> None:
    """The callback for a post that is not a head was never called, so its caller waited forever."""
    old = ANN.join("default")
    new = ANN.text("default", "x", links=(old.hash,))
    assert [outcome.verdict for outcome in store.ingest(raws(new, old))] == [Verdict.ACCEPTED] * 2


def test_a_duplicate_in_a_response_is_stored_once(store: CableStore) -> None:
    """A post that occurred three times in one response was indexed three times."""
    post = ANN.text("default", "x")
    found = [outcome.verdict for outcome in store.ingest(raws(post, post, post))]
    assert found == [Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.DUPLICATE]
    assert time_range(store, "default") == [post.hash]
    assert store.stats().posts == {"text": 1}


def test_a_post_written_immediately_after_opening_has_links(tmp_path: Path) -> None:
    """A post written immediately after opening had no links."""
    with CableStore.open(tmp_path) as store:
        first = store.post("default", "first")
    with CableStore.open(tmp_path) as store:
        assert store.post("default", "second").links == (first.hash,)


def test_a_deletion_of_several_posts_is_listed_once(store: CableStore) -> None:
    """A deletion of several posts of one channel was listed several times in a time range."""
    posts = [ANN.text("default", str(i)) for i in range(5)]
    deletion = ANN.delete(*posts)
    store.ingest(raws(*posts, deletion))
    assert time_range(store, "default") == [deletion.hash]
    assert time_range(store, "default", limit=1) == [deletion.hash]


def test_the_posts_of_a_channel_state_can_be_requested(store: CableStore) -> None:
    """getChannelState raised a TypeError."""
    store.ingest(raws(ANN.join("default"), ANN.named("ann"), ANN.topic("default", "t")))
    with store.snapshot() as snapshot:
        state = list(answers.channel_state(snapshot.reader, "default"))
        assert len(list(answers.post_request(snapshot.reader, state))) == 3


def test_a_user_without_a_name_is_named_by_the_key(store: CableStore) -> None:
    """Reading a name that was never set failed."""
    assert store.user(ANN.key).name == ANN.key.hex()


def test_a_limited_time_range_has_the_newest_posts(store: CableStore) -> None:
    """cable.rs answered in ascending order, so a limit kept the oldest posts."""
    posts = [ANN.text("default", str(i)) for i in range(5)]
    store.ingest(raws(*posts))
    assert time_range(store, "default", limit=2) == [posts[4].hash, posts[3].hash]


def test_a_time_range_has_no_joins_leaves_or_topics(store: CableStore) -> None:
    """A time range contains texts and deletions, but not joins, leaves and topics."""
    text = ANN.text("default", "x")
    store.ingest(raws(ANN.join("default"), text, ANN.topic("default", "t"), ANN.leave("default")))
    assert time_range(store, "default") == [text.hash]


def test_a_channel_list_may_have_any_offset(store: CableStore) -> None:
    """Offset 2 with limit 2 returned nothing; an offset beyond the end crashed the process."""
    store.ingest(raws(*(ANN.join(name) for name in "abcdef")))
    assert channel_list(store, 2, 2) == ["c", "d"]
    assert channel_list(store, 10, 2) == []


def test_posts_of_one_millisecond_do_not_overwrite_each_other(store: CableStore) -> None:
    """cable.rs used milliseconds as keys of topics and names. Equal ones overwrote each other for good."""
    topics = [ANN.topic("default", str(i), at=START_MS) for i in range(3)]
    names = [ANN.named(str(i), at=START_MS) for i in range(3)]
    store.ingest(raws(*topics, *names))
    for _ in range(3):
        [topic] = [t for t in topics if t.body == ANN.topic("default", store.topic("default")).body]
        [name] = [n for n in names if n.body == Info.of(name=store.user(ANN.key).name)]
        store.ingest(raws(ANN.delete(topic, name)))
        topics.remove(topic)
        names.remove(name)
    assert (store.topic("default"), store.user(ANN.key).name) == ("", ANN.key.hex())


def test_a_member_has_one_row(store: CableStore) -> None:
    """cable.rs kept a row for every join of a member."""
    store.ingest(raws(*(ANN.join("default") for _ in range(4))))
    assert len(list(store.members("default"))) == 1
    assert next(store.channels()).members == 1


def test_an_answer_follows_its_question_in_causal_order(store: CableStore) -> None:
    """Messages were in order of time even with wrong clocks, so an answer preceded its question."""
    question = ANN.text("default", "question", at=START_MS + 60_000)
    answer = BOB.text("default", "answer", at=START_MS, links=(question.hash,))
    store.ingest(raws(answer, question))
    assert [message.text for message in store.causal_messages("default", 0)] == ["question", "answer"]


# --- crashes ---------------------------------------------------------------------------------------


def test_a_post_with_a_bad_signature_is_rejected(store: CableStore) -> None:
    """One invalid signature in a response crashed the process."""
    forged = ANN.text("default", "x").raw[:-1] + b"y"
    assert store.ingest([forged])[0].verdict is Verdict.BAD_SIGNATURE


def test_an_unknown_info_key_is_accepted(store: CableStore) -> None:
    """A post/info with an unknown key crashed the process."""
    post = ANN.post(Info((("pronouns", b"they"), ("name", b"ann"))))
    assert store.ingest(raws(post))[0].verdict is Verdict.ACCEPTED
    assert dict(store.user(ANN.key).info.pairs) == {"pronouns": b"they", "name": b"ann"}


def test_a_post_of_an_unknown_type_is_rejected(store: CableStore) -> None:
    """A post of an unknown type crashed the process."""
    assert store.ingest([bytes(96) + b"\x00\xc8\x01\x50"])[0].verdict is Verdict.UNKNOWN_TYPE


def test_channels_may_have_the_names_of_internal_keys(store: CableStore) -> None:
    """Channels with the names of the implementation's own keys crashed the process."""
    for name in ("reqid-to-channels", "__proto__", "constructor", "!data!", "!arrival!next", "\x00"):
        post = ANN.text(name, name)
        assert store.ingest(raws(post))[0].verdict is Verdict.ACCEPTED
        assert texts(store, name) == [name]


def test_truncated_posts_are_rejected(store: CableStore) -> None:
    """Any malformed message crashed the process."""
    whole = ANN.text("default", "hello").raw
    found = store.ingest([whole[:size] for size in range(len(whole))])
    assert {outcome.verdict for outcome in found} <= {Verdict.MALFORMED, Verdict.UNKNOWN_TYPE}


def test_a_deleted_info_removes_the_name(store: CableStore) -> None:
    """Deleting a post/info crashed the process."""
    post = ANN.named("ann")
    store.ingest(raws(post, ANN.delete(post)))
    assert store.user(ANN.key).name == ANN.key.hex()


def test_the_only_topic_of_a_channel_can_be_deleted(store: CableStore) -> None:
    """Deleting a channel's only topic crashed the process."""
    post = ANN.topic("default", "t")
    store.ingest(raws(post, ANN.delete(post)))
    assert store.topic("default") == ""


def test_an_older_join_counts_after_the_latest_one_is_deleted(store: CableStore) -> None:
    """Deleting a join crashed the process if an older join existed."""
    older, newer = ANN.join("default"), ANN.join("default")
    store.ingest(raws(older, newer, ANN.delete(newer)))
    assert [user.public_key for user in store.members("default")] == [ANN.key]


def test_a_failed_write_raises_an_error_and_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write was only logged, or crashed the process. Here it raises, and no post counts as stored."""
    with CableStore.open(tmp_path) as store:
        store.post("default", "before")
        before = store.dump_digest()

        def refuse(*_: object, **__: object) -> None:
            raise StorageError("the disk refused")

        monkeypatch.setattr(LevelDB, "write", refuse)
        with pytest.raises(StorageError):
            store.ingest(raws(ANN.text("default", "x")))
        with pytest.raises(StorageError):
            store.post("default", "y")
        monkeypatch.undo()
        assert store.dump_digest() == before
        assert store.last_sequence == 2
        assert store.post("default", "after").links
        assert store.check().is_clean


def test_a_second_open_reports_that_the_store_is_locked(tmp_path: Path) -> None:
    """A second process on the same folder crashed with LevelDB's error message."""
    with CableStore.open(tmp_path):
        code = f"import cablestore\ntry: cablestore.CableStore.open({str(tmp_path)!r})\nexcept cablestore.errors.StoreLockedError as e: print(e)"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert "Only one process at a time" in found.stdout
        with pytest.raises(StoreLockedError):
            CableStore.open(tmp_path)


# --- crash safety and memory -----------------------------------------------------------------------


def test_a_write_can_be_read_immediately(store: CableStore) -> None:
    """Reads were allowed when a write was issued, not when it was finished."""
    for i in range(50):
        post = store.post("default", str(i), sync=False)
        assert store.messages("default", 1).messages[0].hash == post.hash
        assert store.heads("default") == [post.hash]


def test_a_batch_is_one_write(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A post required eight batches, so a crash left it in some views and not in others."""
    writes = []
    write = LevelDB.write

    def counting(self: LevelDB, *args: object, **options: object) -> None:
        writes.append(args)
        write(self, *args, **options)  # type: ignore[arg-type] # passed on unchanged

    monkeypatch.setattr(LevelDB, "write", counting)
    a, b = ANN.text("default", "a"), ANN.named("ann")
    store.ingest(raws(a, b, ANN.join("c"), ANN.topic("c", "t"), ANN.delete(a), CYD.leave("c")))
    assert len(writes) == 1


def test_history_can_be_pruned(store: CableStore) -> None:
    """Old posts were never removed."""
    store.ingest(raws(*(ANN.text("default", str(i)) for i in range(100))), verify=False)
    assert store.prune(keep_newest=10) == 90
    assert len(texts(store)) == 10


# --- compliance with the specification -------------------------------------------------------------


def test_a_post_dated_years_ahead_is_rejected(store: CableStore) -> None:
    """Posts dated years in the future were accepted, and stayed the newest for years."""
    assert store.ingest(raws(ANN.text("default", "x", at=2**50)))[0].verdict is Verdict.TOO_FAR_AHEAD


def test_limits_are_counted_in_code_points(store: CableStore) -> None:
    """Limits were counted in bytes, so 40 times 日 was rejected as a channel name."""
    assert store.ingest(raws(ANN.join("日" * 64)))[0].verdict is Verdict.ACCEPTED
    assert channel_list(store) == ["日" * 64]


def test_draft8_channel_names_are_case_insensitive() -> None:
    """In the last draft, channel names are case-insensitive."""
    with CableStore.in_memory(dialect=DRAFT8) as store:
        post = encode_post(Text("cAbAL", "x"), links=(), timestamp_ms=80, identity=ANN.identity, dialect=DRAFT8)
        store.ingest(raws(post))
        assert texts(store, "CABAL") == ["x"]


def test_local_only_posts_are_sealed_and_not_sent() -> None:
    """Local-only posts were stored in plain text and sent to every peer that requested them."""
    private = ANN.post(Moderation("", LOCAL_ONLY, "", (BOB.key,), 0))
    with CableStore.in_memory(identity=ANN.identity) as store:
        store.ingest(raws(private))
        with store.snapshot() as snapshot:
            assert not list(answers.post_request(snapshot.reader, [private.hash]))
            assert not list(answers.moderation_state(snapshot.reader, ["default"]))
        assert all(private.raw not in value for _, value in store.dump())
    with CableStore.in_memory(identity=BOB.identity) as store:
        assert store.ingest(raws(private))[0].verdict is Verdict.LOCAL_ONLY


def moderation_state(store: CableStore, oldest_ms: int = 0) -> list[bytes]:
    with store.snapshot() as snapshot:
        return list(answers.moderation_state(snapshot.reader, ["default"], oldest_ms))


def test_blocks_older_than_oldest_are_sent(store: CableStore) -> None:
    """A block older than `oldest` was not sent to the requesting peer, against moderation.md 5.2.1.1."""
    block, role = ANN.post(Block("", 0, (BOB.key,), 0, 0), at=80), ANN.post(Role("", 0, "", BOB.key, 1), at=80)
    store.ingest(raws(block, role))
    assert moderation_state(store, START_MS) == [block.hash]


def test_roles_of_users_who_decline_them_are_not_sent(store: CableStore) -> None:
    """Roles of users who decline them were sent."""
    store.ingest(raws(ANN.post(Role("", 0, "", BOB.key, 1)), BOB.post(Info.of(accept_role=False))))
    assert moderation_state(store) == []


def test_a_deleted_action_is_undone(store: CableStore) -> None:
    """Deleting an action did not undo it."""
    hidden = ANN.post(Moderation("", 0, "default", (BOB.key,), 0))
    shown = ANN.post(Moderation("", 0, "default", (BOB.key,), 1))
    store.ingest(raws(hidden, shown, ANN.delete(shown)))
    assert moderation_state(store) == [hidden.hash]


def test_the_context_of_the_whole_cabal_is_not_a_channel_name(store: CableStore) -> None:
    """The name for "the whole cabal" was also a valid channel name."""
    whole, channel = ANN.post(Role("", 0, "", BOB.key, 0)), ANN.post(Role("", 0, "\x00", BOB.key, 0))
    store.ingest(raws(whole, channel, ANN.text("\x00", "x")))
    assert [post.channel for post in store.posts_by(ANN.key, post_type=6)] == ["", "\x00"]
    assert channel_list(store) == ["\x00"]


def test_moderation_posts_are_kept_by_author(store: CableStore) -> None:
    """cable.rs does not support these types. They are stored, indexed by author and returned on request."""
    posts = [
        ANN.post(Role("", 0, "", BOB.key, 1)),
        ANN.post(Moderation("spam", 0, "default", (BOB.key,), 0)),
        ANN.post(Block("", 0, (BOB.key,), 1, 1)),
    ]
    assert {o.verdict for o in store.ingest(raws(*posts))} == {Verdict.ACCEPTED}
    assert list(store.posts_by(ANN.key)) == posts
    assert store.stats().posts == {"role": 1, "moderation": 1, "block": 1}
