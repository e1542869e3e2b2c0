"""Writing, reading, following and pruning: the daily use of a store by a chat client."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from people import ANN, BOB, CYD, START_MS, raws
from stores import channels_of

from cablestore import DRAFT8, LEGACY, CableStore, Channel, Delete, Dialect, Info, Post, StoreOptions, Verdict, limits
from cablestore.errors import ArgumentError, CableStoreError, CursorError, StoreClosedError
from cablestore.protocol.body import DELETE, INFO, JOIN, TEXT
from cablestore.store.cursor import ChangesCursor, MessageCursor

# --- writing ---------------------------------------------------------------------------------------


def test_posts_of_every_type_can_be_written(store: CableStore) -> None:
    me = store.identity.public_key
    store.join("default")
    store.set_info(name="me", accept_role=False, others={"colour": b"green"})
    hello = store.post("default", "hello")
    store.set_topic("default", "greetings")
    assert [channel.name for channel in store.channels()] == ["default"]
    assert channels_of(store, me) == ["default"]
    assert [channel.is_joined for channel in store.channels()] == [True]
    assert store.topic("default") == "greetings"
    assert store.user(me).name == "me"
    assert not store.user(me).info.accepts_role
    assert dict(store.user(me).info.pairs)["colour"] == b"green"
    [deletion] = store.delete(hello.hash)
    assert deletion.body == Delete((hello.hash,))
    store.leave("default")
    assert channels_of(store, me) == []
    assert [channel.is_joined for channel in store.channels()] == [False]
    assert store.stats().posts == {"delete": 1, "info": 1, "topic": 1, "join": 1, "leave": 1}


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=str)
def test_changing_a_part_of_the_info_keeps_the_rest(dialect: Dialect) -> None:
    with CableStore.in_memory(dialect=dialect) as store:
        me = store.identity.public_key

        def pairs() -> dict[str, bytes]:
            return dict(store.user(me).info.pairs)

        assert store.set_info() is store.set_name("") is None
        assert store.stats().posts == {}
        store.set_info(accept_role=False, others={"colour": b"green", "shape": b""})
        named = store.set_name("me")
        assert named is not None
        assert store.get(named.hash) is not None
        assert pairs() == {"accept-role": b"\x00", "colour": b"green", "shape": b"", "name": b"me"}
        assert store.set_name("me") is store.set_info(accept_role=False, others={"shape": b"", "x": None}) is None
        assert store.stats().posts == {"info": 2}
        store.set_info(others={"colour": b"red", "shape": None, "size": b"1"})
        assert pairs() == {"accept-role": b"\x00", "colour": b"red", "size": b"1", "name": b"me"}
        store.set_info(name="", accept_role=True)
        assert (store.user(me).info.name, store.user(me).info.accepts_role) == (None, True)
        assert pairs() == {"accept-role": b"\x01", "colour": b"red", "size": b"1"}
        with pytest.raises(ArgumentError, match="33 code points"):
            store.set_name("x" * 33)
        assert store.user(me).name == me.hex()
        store.write(Info.of(name="new"))
        assert pairs() == {"name": b"new"}
        assert store.check().is_clean


def test_concurrent_changes_of_different_parts_of_the_info_are_kept(store: CableStore) -> None:
    keys = [str(number) for number in range(8)]

    def change(key: str) -> None:
        for number in range(20):
            store.set_info(others={key: str(number).encode()}, sync=False)

    with ThreadPoolExecutor(len(keys)) as pool:
        list(pool.map(change, keys))
    assert dict(store.user(store.identity.public_key).info.pairs) == dict.fromkeys(keys, b"19")


def test_posts_link_to_all_heads_and_become_the_head(store: CableStore) -> None:
    first, second = ANN.text("default", "a"), BOB.text("default", "b")
    store.ingest(raws(first, second, CYD.text("elsewhere", "c")))
    post = store.join("default")
    assert set(post.links) == {first.hash, second.hash}
    assert store.heads("default") == [post.hash]
    assert store.set_topic("default", "t").links == (post.hash,)


def test_infos_and_deletions_have_no_links(store: CableStore) -> None:
    post = store.post("default", "x")
    assert store.write(Info.of(name="me")).links == ()
    named = store.set_info(name="mine")
    assert named is not None
    assert named.links == ()
    assert store.delete(post.hash)[0].links == ()


def test_more_heads_than_a_post_may_link_to_are_joined_by_several_posts(store: CableStore) -> None:
    posts = [ANN.text("default", str(i)) for i in range(limits.MAX_LINKS_WRITTEN + 10)]
    store.ingest(raws(*posts))
    assert len(store.join("default").links) == limits.MAX_LINKS_WRITTEN
    assert len(store.heads("default")) == 11
    store.post("default", "y")
    assert len(store.heads("default")) == 1


def test_own_posts_keep_their_order_when_the_clock_stops_or_is_set_back(tmp_path: Path) -> None:
    now = START_MS
    with CableStore.open(tmp_path, options=StoreOptions(clock=lambda: now)) as store:
        times = [store.post("default", str(i)).timestamp_ms for i in range(3)]
        now -= 30_000
        times.append(store.post("default", "3").timestamp_ms)
        assert times == [START_MS, START_MS + 1, START_MS + 2, START_MS + 3]
    with CableStore.open(tmp_path, options=StoreOptions(clock=lambda: now)) as store:  # also after reopening
        assert store.post("default", "4").timestamp_ms == START_MS + 4
    now -= 10 * limits.MAX_OWN_CLOCK_STEP_MS  # after a large correction, the store follows the clock
    with CableStore.open(tmp_path, options=StoreOptions(clock=lambda: now)) as store:
        assert store.post("default", "5").timestamp_ms == now


@pytest.mark.parametrize("way", ["ingest", "replace"])
def test_own_posts_are_dated_after_those_of_another_device(way: str) -> None:
    """The other device's clock is ahead by a few seconds, or by so much that its posts do not count."""
    with CableStore.in_memory(identity=ANN.identity, options=StoreOptions(clock=lambda: START_MS)) as store:

        def sync(*posts: Post) -> None:
            if way == "ingest":
                store.ingest(raws(*posts))
            else:
                store.parts.writer.replace(store.parts.intake.admit(posts), lambda _: [], sync=True)

        store.post("default", "the time of the last own post is known")
        sync(ANN.named("theirs", at=START_MS + 5_000))
        post = store.set_name("ours")
        assert post is not None
        assert post.timestamp_ms == START_MS + 5_001
        assert store.user(ANN.key).name == "ours"
        sync(ANN.text("default", "x", at=START_MS + limits.MAX_OWN_CLOCK_STEP_MS))
        assert store.post("default", "y").timestamp_ms == START_MS + 5_002


def test_a_forged_post_does_not_affect_the_dates_of_own_posts() -> None:
    with CableStore.in_memory(identity=ANN.identity, options=StoreOptions(clock=lambda: START_MS)) as store:
        first = store.post("default", "x")
        raw = bytearray(ANN.text("default", "forged", at=START_MS + 5_000).raw)
        raw[-1] ^= 1
        store.ingest([bytes(raw)])
        assert store.post("default", "y").timestamp_ms == first.timestamp_ms + 1


def test_invalid_posts_are_rejected_and_not_stored(store: CableStore) -> None:
    before = store.dump_digest()
    refused: list[Callable[[], object]] = [
        lambda: store.post("default", "x" * 4097),
        lambda: store.post("", "x"),
        lambda: store.set_topic("default", "x" * 513),
        lambda: store.set_info(name="x" * 33),
        lambda: store.write(Info.of(name="")),
        lambda: store.join("c" * 65),
        lambda: store.set_info(name="\ud800"),
        lambda: store.set_name("\ud800"),
        lambda: store.set_info(others={"\ud800": b""}),
        lambda: store.post("default", "\ud800"),
        lambda: store.post("\udcff", "x"),
        lambda: store.set_topic("\udcff", "x"),
        lambda: store.join("\udcff"),
        lambda: store.leave("\udcff"),
        lambda: store.moderation.hide(users=[ANN.key], channel="\udcff"),
        lambda: store.moderation.unhide(users=[ANN.key], channel="\udcff"),
    ]
    for write in refused:
        with pytest.raises(ArgumentError, match=r"cannot write this post|cannot be encoded (in|as) UTF-8"):
            write()
    assert store.dump_digest() == before


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=str)
def test_every_read_rejects_an_invalid_channel_name(dialect: Dialect) -> None:
    with CableStore.in_memory(dialect=dialect) as store:
        store.post("default", "hello")
        channel = "default\udcff"
        refused: list[Callable[[], object]] = [
            lambda: store.messages(channel),
            lambda: store.causal_messages(channel, 0),
            lambda: store.mentions(channel=channel),
            lambda: store.search("hello", channel=channel),
            lambda: store.topic(channel),
            lambda: list(store.members(channel)),
            lambda: store.user(ANN.key, channel),
            lambda: list(store.posts_by(ANN.key, channel=channel)),
            lambda: store.heads(channel),
            lambda: list(store.missing(channel)),
            lambda: store.mark_read(channel),
            lambda: store.next_changes(store.cursor, channel, timeout_s=0),
            lambda: list(store.changes(channel, timeout_s=0)),
            lambda: store.moderation.history(channel),
            lambda: store.moderation.in_force(channel),
        ]
        for read in refused:
            with pytest.raises(ArgumentError, match=r"a channel's name cannot be encoded in UTF-8: 'default\\udcff'"):
                read()


def test_only_own_posts_can_be_deleted(store: CableStore) -> None:
    foreign = ANN.text("default", "x")
    own = store.post("default", "mine")
    store.ingest(raws(foreign))
    with pytest.raises(ArgumentError, match="Only the author can delete it"):
        store.delete([own.hash, foreign.hash])
    for unknown, named in ((1, ""), (2, " and 1 more")):
        hashes = [bytes([number]) * 32 for number in range(unknown)]
        with pytest.raises(ArgumentError, match=rf"^post {'00' * 32}{named} not found\."):
            store.delete([own.hash, *hashes])
    assert store.get(own.hash) == own
    [deletion] = store.delete(own.hash)
    with pytest.raises(ArgumentError, match="Deletions cannot be deleted"):
        store.delete(deletion.hash)


def test_many_deletions_are_divided_into_several_posts(store: CableStore) -> None:
    hashes = [i.to_bytes(32, "big") for i in range(2 * limits.MAX_DELETIONS_WRITTEN + 1)]
    sizes = [len(post.body.hashes) for post in store.delete(hashes, force=True) if isinstance(post.body, Delete)]
    assert sizes == [limits.MAX_DELETIONS_WRITTEN, limits.MAX_DELETIONS_WRITTEN, 1]


def test_an_own_deletion_may_precede_its_target(store: CableStore) -> None:
    post = store.post("default", "x")
    store.discard([post.hash])
    store.delete(post.hash, force=True)
    assert [o.verdict for o in store.ingest(raws(post))] == [Verdict.DELETED]


# --- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 4, 25, 26, 100])
@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_go_through_a_channel_in_both_directions(chat: CableStore, limit: int, newest_first: bool) -> None:
    found: list[str] = []
    cursor = None
    while True:
        page = chat.messages("default", limit, newest_first=newest_first, cursor=cursor)
        assert len(page.messages) <= limit
        found += [message.text for message in page.messages]
        cursor = page.cursor
        if cursor is None:
            break
    expected = [str(i) for i in range(25)]
    assert found == (expected[::-1] if newest_first else expected)


def test_pages_continue_from_a_message_in_both_directions(chat: CableStore) -> None:
    middle = chat.messages("default", 1, after_ms=START_MS + 12_000, before_ms=START_MS + 13_000).messages[0]
    older = chat.messages("default", 3, cursor=middle.cursor)
    newer = chat.messages("default", 3, cursor=middle.cursor, newest_first=False)
    assert [message.text for message in older.messages] == ["11", "10", "9"]
    assert [message.text for message in newer.messages] == ["13", "14", "15"]


def test_pages_can_be_bounded_by_time(chat: CableStore) -> None:
    page = chat.messages("default", after_ms=START_MS + 3000, before_ms=START_MS + 6000)
    assert [message.text for message in page.messages] == ["5", "4", "3"]
    assert chat.messages("default", after_ms=2**60).messages == []
    assert chat.messages("default", before_ms=0).messages == []


def test_messages_have_the_names_of_their_authors(chat: CableStore) -> None:
    first = chat.messages("default", 2, newest_first=False).messages
    assert [(message.name, message.author) for message in first] == [("Ann", ANN.key), (BOB.key.hex(), BOB.key)]
    assert chat.resolve(ANN.text("x", "y")).name == "Ann"


def test_pages_have_50_messages_by_default(store: CableStore) -> None:
    own = store.identity.public_key.hex()[:8]
    store.ingest(raws(*(BOB.text("default", f"hello {own} {number}") for number in range(101))), verify=False)
    store.find_mentions()
    with store.snapshot() as state:
        for source in (store, state):
            assert len(source.messages("default").messages) == len(source.mentions().messages) == 50
            assert len(source.rows()) == 100
            assert len(source.find_hashes("")) == 10
    assert len(store.search("hello").hits) == 50


def test_the_size_of_pages_is_limited(chat: CableStore) -> None:
    chat.ingest(raws(*(ANN.text("big", str(i)) for i in range(limits.MAX_PAGE_MESSAGES + 5))), verify=False)
    page = chat.messages("big", 10**9)
    assert len(page.messages) == limits.MAX_PAGE_MESSAGES
    assert len(chat.messages("big", 10**9, cursor=page.cursor).messages) == 5


@given(time_ms=st.integers(0, 10**16 - 1), digits=st.text("0123456789abcdef", min_size=32, max_size=32))
def test_any_cursor_is_harmless(time_ms: int, digits: str) -> None:
    with CableStore.in_memory() as store:
        store.post("a", "x")
        store.post("b", "y")
        for newest_first in (True, False):
            page = store.messages("a", cursor=MessageCursor(f"{time_ms:016}.{digits}"), newest_first=newest_first)
            assert all(message.channel == "a" for message in page.messages)


def test_a_cursor_of_another_kind_is_rejected(store: CableStore) -> None:
    """The type checker, which lint runs, refuses it too."""
    store.post("a", "x")
    page = store.messages("a")
    with pytest.raises(CableStoreError, match="invalid message cursor"):
        store.messages("a", cursor=page.changes_cursor)  # type: ignore[arg-type] # that is tested
    with pytest.raises(CableStoreError, match="invalid cursor of changes"):
        store.next_changes(page.messages[0].cursor)  # type: ignore[arg-type] # that is tested
    with pytest.raises(CableStoreError, match="invalid cursor of a search"):
        store.search("x", cursor=page.messages[0].cursor)  # type: ignore[arg-type] # that is tested
    saved = str(page.changes_cursor)
    assert store.next_changes(ChangesCursor(saved), timeout_s=0).changes == []


@pytest.mark.thorough
@given(cursor=st.text(max_size=60) | st.from_regex(r"\d{15,17}\.[0-9a-fA-F]{31,33}\n?", fullmatch=True))
@example("")
@example("\udcff")
@example("0" * 16 + "." + "0" * 32 + "~")
def test_an_invalid_cursor_is_rejected(cursor: str) -> None:
    with CableStore.in_memory() as store:
        post = store.post("a", "x")
        [message] = store.messages("a").messages
        assert message.cursor == f"{post.timestamp_ms:016}.{post.hash.hex()[:32]}"
        if re.fullmatch(r"[0-9]{16}\.[0-9a-f]{32}", cursor) is None:
            with store.snapshot() as state:
                for source in (store, state):
                    with pytest.raises(CursorError, match=r"invalid message cursor: .* Use the `cursor` of a `Page`"):
                        source.messages("a", cursor=MessageCursor(cursor))


def test_a_channel_without_messages_has_nothing_unread(store: CableStore) -> None:
    store.ingest(raws(ANN.join("a"), BOB.join("a"), BOB.leave("a")))
    store.join("b")
    assert list(store.channels()) == [
        Channel("a", "", 1, {"join": 2, "leave": 1}),
        Channel("b", "", 1, {"join": 1}, is_joined=True),
    ]
    assert [(each.unread, each.mentions, each.last_message) for each in store.channels()] == [(0, 0, None)] * 2
    with store.snapshot() as state:
        assert list(state.channels()) == list(store.channels())


def test_members_and_users_are_listed_with_their_names(chat: CableStore) -> None:
    assert {user.public_key for user in chat.members("default")} == {ANN.key, BOB.key}
    assert {user.public_key for user in chat.users()} == {ANN.key, BOB.key, CYD.key}
    assert chat.user(CYD.key).name == CYD.key.hex()
    assert chat.user(bytes(32)).name == bytes(32).hex()
    [channel] = chat.channels()
    assert (channel.name, channel.topic, channel.members) == ("default", "", 2)
    assert channel.posts == {"text": 25, "join": 2, "leave": 1}
    assert list(chat.members("nowhere")) == []


def test_posts_of_an_author_are_selected_by_type_and_channel(chat: CableStore) -> None:
    chat.ingest(raws(ANN.text("other", "x")))
    assert len(list(chat.posts_by(ANN.key))) == 13
    assert len(list(chat.posts_by(ANN.key, post_type=TEXT))) == 10
    assert len(list(chat.posts_by(ANN.key, channel="default"))) == 10
    assert [post.type for post in chat.posts_by(ANN.key, post_type=JOIN, channel="default")] == [JOIN]
    texts = list(chat.posts_by(ANN.key, post_type=TEXT, channel="default"))
    assert [post.timestamp_ms for post in texts] == sorted(post.timestamp_ms for post in texts)
    assert {post.type for post in chat.posts_by(ANN.key)} == {TEXT, DELETE, INFO, JOIN}
    assert list(chat.posts_by(bytes(32))) == []


def test_a_hash_is_found_by_its_first_digits(store: CableStore) -> None:
    post = store.post("default", "x")
    assert store.find_hashes(post.hash.hex()[:8]) == [post.hash]
    store.delete(post.hash)
    assert store.find_hashes(post.hash.hex()[:8]) == []
    assert store.find_hashes(post.hash.hex()[:8], with_deleted=True) == [post.hash]
    others = [store.post("default", f"{at}").hash for at in range(3)]
    assert {*others, post.hash} < {*store.find_hashes("", with_deleted=True)}
    assert len(store.find_hashes("", 2)) == len(store.find_hashes("", 2, with_deleted=True)) == 2
    assert store.find_hashes("zz") == []


def test_missing_links_are_reported(store: CableStore) -> None:
    missing = ANN.text("default", "not sent")
    store.ingest(raws(BOB.text("default", "x", links=(missing.hash,))))
    assert list(store.missing("default")) == [missing.hash]
    store.ingest(raws(missing))
    assert list(store.missing("default")) == []


def test_links_from_another_channel_do_not_affect_heads(store: CableStore) -> None:
    """If such links counted, a post in another channel could remove all heads of a channel."""
    head = ANN.text("default", "x")
    outside = BOB.text("outside", "y", links=(head.hash,))
    for posts in ([head, outside], [outside, head]):
        store.discard([head.hash, outside.hash])
        for post in posts:
            store.ingest(raws(post))
        assert store.heads("default") == [head.hash]
        assert store.heads("outside") == [outside.hash]
        assert store.links(head.hash, incoming=True) == (outside.hash,)
        assert list(store.missing("outside")) == []


def test_writes_do_not_change_a_snapshot(chat: CableStore) -> None:
    with chat.snapshot() as snapshot:
        before = snapshot.messages("default", 100)
        chat.post("default", "new")
        chat.prune(keep_newest=1)
        assert snapshot.messages("default", 100) == before
        assert len(chat.messages("default", 100).messages) == 1
    with pytest.raises(StoreClosedError):
        snapshot.messages("default")


def test_iterators_end_with_the_store(tmp_path: Path) -> None:
    store = CableStore.open(tmp_path)
    store.ingest(raws(*(ANN.text(f"c{i}", "x") for i in range(10))))
    channels = store.channels()
    next(channels)
    store.close()
    with pytest.raises(StoreClosedError):
        list(channels)


# --- removing --------------------------------------------------------------------------------------


def test_a_discarded_post_leaves_no_rows_and_can_be_received_again(store: CableStore) -> None:
    keep, drop = ANN.text("default", "keep"), ANN.text("default", "drop")
    store.ingest(raws(keep))
    before = store.dump_digest()
    store.ingest(raws(drop))
    assert [o.verdict for o in store.discard([drop.hash, drop.hash])] == [Verdict.DISCARDED, Verdict.UNKNOWN]
    assert store.dump_digest() == before
    assert store.deletion(drop.hash) is None
    assert [o.verdict for o in store.ingest(raws(drop))] == [Verdict.ACCEPTED]


def test_a_deletion_is_never_discarded(store: CableStore) -> None:
    post = ANN.text("default", "x")
    deletion = ANN.delete(post)
    store.ingest(raws(post, deletion))
    assert [o.verdict for o in store.discard([deletion.hash, post.hash])] == [Verdict.KEPT, Verdict.UNKNOWN]
    done: list[int] = []
    assert store.prune(before_ms=2**50, keep_newest=0, by_author=ANN.key, progress=done.append) == 0
    assert done == []
    assert [o.verdict for o in store.ingest(raws(post))] == [Verdict.DELETED]


def test_pruning_by_age_keeps_the_latest_three_posts_of_each_state(store: CableStore) -> None:
    assert limits.STATE_POSTS_KEPT == 3
    posts = [ANN.text("default", str(i), at=1000 * i) for i in range(10)]
    topics = [(ANN, BOB)[i % 2].topic("default", str(i), at=1000 * i) for i in range(8)]
    joins = [ANN.join("default", at=1000 * i) for i in range(6)]
    infos = [ANN.named(str(i), at=1000 * i) for i in range(6)]
    store.ingest(raws(*posts, *topics, *joins, *infos))
    assert store.prune(before_ms=4000) == 4 + 4 + 3 + 3
    assert [message.text for message in store.messages("default", newest_first=False).messages] == list("456789")
    assert store.prune(before_ms=10**9) == 6 + 1 + 0 + 0
    assert store.stats().posts == {"topic": 3, "join": 3, "info": 3}
    assert (store.topic("default"), store.user(ANN.key).name) == ("7", "5")


def test_posts_can_be_pruned_by_count_and_by_author(store: CableStore) -> None:
    store.ingest(
        raws(*(person.text(channel, "x") for person in (ANN, BOB) for channel in ("a", "b") for _ in range(4)))
    )
    done: list[int] = []
    assert store.prune(keep_newest=3, progress=done.append) == sum(done) == 10
    assert [len(store.messages(channel).messages) for channel in ("a", "b")] == [3, 3]
    store.ingest(raws(ANN.join("a"), ANN.named("Ann"), ANN.topic("b", "t")))
    left = len(list(store.posts_by(ANN.key)))
    assert store.prune(by_author=ANN.key) == left
    assert list(store.posts_by(ANN.key)) == []
    assert store.topic("b") == ""
    assert channels_of(store, ANN.key) == []


def test_earlier_state_returns_when_its_replacement_is_deleted(store: CableStore) -> None:
    posts = {
        "joined": ANN.join("default", at=1000),
        "topic": ANN.topic("default", "old", at=2000),
        "name": ANN.named("old", at=3000),
        "left": ANN.leave("default", at=4000),
        "new topic": ANN.topic("default", "new", at=3500),
        "new name": ANN.named("new", at=5000),
    }
    store.ingest(raws(*posts.values()))
    assert list(store.members("default")) == []
    store.ingest(raws(ANN.delete(posts["left"], posts["new topic"], posts["new name"])))
    assert [user.name for user in store.members("default")] == ["old"]
    assert store.topic("default") == "old"
    store.ingest(raws(ANN.delete(posts["joined"], posts["topic"], posts["name"])))
    assert list(store.members("default")) == []
    assert store.topic("default") == ""
    assert store.user(ANN.key).name == ANN.key.hex()
    assert list(store.channels()) == []


# --- maintenance -----------------------------------------------------------------------------------


def test_stats_and_channels_do_not_read_posts(chat: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from cablestore.index import reader

    def no_posts(*_: object) -> None:
        raise AssertionError("a post was decoded")

    monkeypatch.setattr(reader, "decode_post", no_posts)
    stats = chat.stats()
    assert stats.posts == {"text": 25, "delete": 1, "info": 1, "join": 2, "leave": 1}
    assert stats.channels == len(list(chat.channels())) == 1
    assert stats.views["messages"].rows == 26
    assert stats.last_sequence == 32  # 31 posts, and the event of one deletion
    assert sum(posts for _, posts in stats.days) == 30
    assert set(stats.disk_size_bytes) >= set(stats.views)


def test_the_sizes_of_views_are_those_of_their_rows(chat: CableStore) -> None:
    dumped = [(key, value) for key, value in chat.dump() if key.startswith(b"!author!")]
    assert chat.stats().views["author"] == (len(dumped), sum(len(k) + len(v) for k, v in dumped))


def test_dumps_of_equal_stores_are_equal(tmp_path: Path) -> None:
    posts = raws(*(ANN.text("default", str(i)) for i in range(20)))
    with CableStore.open(tmp_path / "a") as a, CableStore.open(tmp_path / "b") as b:
        a.ingest(posts)
        b.ingest(posts[::-1], batch_posts=3)
        assert a.dump_digest() == b.dump_digest()
        assert list(a.events(timeout_s=0)) != list(b.events(timeout_s=0))
        b.ingest(raws(BOB.text("default", "x")))
        assert a.dump_digest() != b.dump_digest()


def test_compacting_changes_nothing(chat: CableStore) -> None:
    before = chat.dump_digest()
    chat.compact()
    assert chat.dump_digest() == before


def test_a_store_continues_after_a_rebuild(chat: CableStore) -> None:
    sequence = chat.last_sequence
    report = chat.rebuild()
    assert (report.posts, report.tombstones, report.damaged) == (30, 1, {})
    post = chat.post("default", "after")
    assert chat.last_sequence == sequence + 2  # the text and a post/join
    assert chat.messages("default", 1).messages[0].hash == post.hash
