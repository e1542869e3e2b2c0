"""What is unread and what names the user agrees with a plain model, whatever comes, goes, is hidden or shown again."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from attention_model import AttentionModel, assert_agrees
from history import AUTHORS, NOW_MS
from hypothesis import given
from hypothesis import strategies as st
from people import raws
from stores import scratch_folder

from cablestore import (
    LEGACY,
    Block,
    Body,
    CableStore,
    Delete,
    Info,
    Moderation,
    Post,
    Text,
    Unblock,
    encode_post,
    limits,
)
from cablestore.errors import CursorError
from cablestore.index.local import LATE, MENTION, MENTION_IN, MENTION_SEARCH, MENTIONING, READ, UNSEEN, local_key
from cablestore.index.takeover import take_over
from cablestore.moderation import Action
from cablestore.store.changes import UnreadChanged
from cablestore.views import CATALOG

OWN, BOB, CYD = AUTHORS
CHANNELS = ("default", "a!b")
WORDS = ("x", "hi ann", "@Ann: hello", "annex", "for ANNA", OWN.public_key.hex()[:9], OWN.public_key.hex()[:7])
NAMES = ("ann", "Anna", None)
CYD_SAYS = Text("default", "hello")


def written(body: Body, by: int, at: int) -> Post:
    return encode_post(body, links=(), timestamp_ms=NOW_MS + at, identity=AUTHORS[by], dialect=LEGACY)


texts = st.builds(
    lambda by, at, channel, word: written(Text(channel, word), by, at),
    st.integers(0, 2),
    st.integers(0, 9),
    st.sampled_from(CHANNELS),
    st.sampled_from(WORDS),
)
names = st.builds(lambda at, name: written(Info.of(name=name), 0, at), st.integers(0, 9), st.sampled_from(NAMES))


@st.composite
def pools(draw: st.DrawFn) -> list[Post]:
    """Draw different posts: texts, names of the user, deletions, and acts by which the user hides, drops and undoes it."""
    said = draw(st.lists(texts, min_size=6, max_size=16))
    posts = [*said, *draw(st.lists(names, min_size=1, max_size=4))]
    targets = st.sampled_from(said)
    for post in draw(st.lists(targets, min_size=1, max_size=3)):
        by = next(number for number, author in enumerate(AUTHORS) if author.public_key == post.author)
        posts.append(written(Delete((post.hash,)), by, draw(st.integers(0, 9))))
    for what in draw(st.lists(st.sampled_from(list(Action)), max_size=4)):
        post, at = draw(targets), draw(st.integers(0, 20))
        on_channel = what >= Action.DROP_CHANNEL
        target = post.author if what < Action.HIDE_POST else post.hash
        context = post.channel or "" if what >= Action.HIDE_POST or draw(st.booleans()) else ""
        posts.append(written(Moderation("", 0, context, () if on_channel else (target,), what), 0, at))
    for drop in draw(st.lists(st.booleans(), max_size=2)):
        posts.append(written(Block("", 0, (BOB.public_key,), int(drop), 0), 0, draw(st.integers(0, 20))))
        posts.append(written(Unblock("", 0, (BOB.public_key,), int(drop)), 0, draw(st.integers(0, 20))))
    return draw(st.permutations(list(dict.fromkeys(posts))))


steps = st.one_of(
    st.tuples(st.just("next"), st.integers(1, 6), st.integers(1, 4)),
    st.tuples(st.just("next"), st.integers(1, 6), st.integers(1, 4)),
    st.tuples(st.just("again"), st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 4)),
    st.tuples(st.just("mark"), st.sampled_from(CHANNELS), st.none() | st.integers(0, 40)),
    st.tuples(st.just("discard"), st.integers(0, 40), st.none()),
    st.tuples(st.sampled_from(["reopen", "rebuild"]), st.none(), st.none()),
)


def opened(folder: Path) -> CableStore:
    return CableStore.open(folder, identity=OWN, verify_threads=1, clock=lambda: NOW_MS + 100)


@given(pools(), st.lists(steps, min_size=5, max_size=10))
def test_the_store_agrees_with_the_model_at_every_step(
    pool: list[Post], todo: list[tuple[str, object, object]]
) -> None:
    model = AttentionModel(OWN.public_key)
    coming = list(pool)
    with scratch_folder() as folder:
        store = opened(folder)
        try:
            for what, of, how in todo:
                if what == "next" and isinstance(of, int) and isinstance(how, int):
                    store.ingest(raws(*coming[:of]), batch_posts=how, verify=False)
                    coming = coming[of:]
                elif what == "again" and isinstance(of, list) and isinstance(how, int):
                    chosen = [pool[number % len(pool)] for number in of]
                    store.ingest(raws(*chosen), batch_posts=how, verify=False)
                elif what == "mark" and isinstance(of, str):
                    said = store.messages(of, 1000, hidden="show").messages
                    upto = said[how % len(said)] if isinstance(how, int) and said else None
                    model.mark(store, of, upto)
                    store.mark_read(of, None if upto is None else upto.cursor)
                elif what == "discard" and isinstance(of, int):
                    store.discard([pool[of % len(pool)].hash])
                elif what == "rebuild":
                    store.rebuild()
                elif what == "reopen":
                    store.close()
                    store = opened(folder)
                assert_agrees(store, model)
            assert store.check().is_clean
        finally:
            store.close()


def test_a_late_text_is_unread_until_the_next_mark(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.ingest([written(Text("a", "early"), 1, 5).raw])
        store.mark_read("a")
        store.ingest([written(Text("a", "late"), 1, 2).raw, written(Text("a", "own"), 0, 1).raw])
        assert [channel.unread for channel in store.channels()] == [1]
    CableStore.rebuild_closed(tmp_path, identity=OWN)
    with opened(tmp_path) as store:
        assert [channel.unread for channel in store.channels()] == [1]
        store.mark_read("a")
        assert [channel.unread for channel in store.channels()] == [0]


def test_a_mark_and_what_comes_are_told_as_changes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        said = [written(Text("a!b", "hello"), 1, 5), written(Text("a!b", "more"), 1, 6)]
        found = store.next_changes(store.cursor, timeout_s=0)
        for work, is_told in (
            (lambda: store.ingest(raws(*said)), True),
            (lambda: store.mark_read("a!b"), True),
            (lambda: store.mark_read("a!b"), False),
            (lambda: store.mark_read("a!b", said[0].sort_time.decode()), True),
            (lambda: store.ingest([written(Text("a!b", "late"), 1, 2).raw]), True),
            (lambda: store.mark_read("a!b", said[0].sort_time.decode()), True),
            (lambda: store.ingest([written(Delete((said[1].hash,)), 1, 9).raw]), True),
        ):
            work()
            found = store.next_changes(found.cursor, timeout_s=0)
            assert (UnreadChanged("a!b") in found.changes) is is_told


def test_a_deleted_text_leaves_no_row_that_names_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        name, early, late = written(Info.of(name="ann"), 0, 0), *(written(Text("a", "ann"), 1, at) for at in (9, 2))
        store.ingest(raws(name, early))
        store.mark_read("a")
        store.ingest([late.raw])
        rows = [local_key(LATE), local_key(MENTION), local_key(MENTION_IN)]
        with store.snapshot() as snapshot:
            assert [len(list(snapshot.reader.prefix(prefix))) for prefix in rows] == [1, 2, 2]
        store.ingest([written(Delete((early.hash, late.hash)), 1, 10).raw])
        with store.snapshot() as snapshot:
            assert [list(snapshot.reader.prefix(prefix)) for prefix in rows] == [[], [], []]


def test_what_a_takeover_adds_is_looked_at_when_the_store_opens(tmp_path: Path) -> None:
    """Texts that a reindexing brings from exports come without a write of the store."""
    name, first, later = (
        written(Info.of(name="ann"), 0, 0),
        written(Text("a", "x"), 1, 5),
        written(Text("a", "ann"), 1, 2),
    )
    with opened(tmp_path) as store, CableStore.in_memory(identity=OWN, clock=lambda: NOW_MS + 100) as other:
        store.ingest(raws(name, first))
        store.mark_read("a")
        other.ingest(raws(name, first, later))
        target = other._engine._database
        with store.snapshot() as snapshot:
            for _ in range(2):
                assert take_over(snapshot.reader, target, LEGACY, CATALOG, store.last_sequence).logged == 1
        other._engine._load()
        again = CableStore(other._engine, other._identity, lambda: NOW_MS + 100, 1)
        assert [(channel.unread, channel.mentions) for channel in again.channels()] == [(1, 1)]
        assert [message.hash for message in again.mentions().messages] == [later.hash]
        with again.snapshot() as snapshot:
            assert snapshot.reader.local(UNSEEN, b"") is None


def test_damaged_rows_of_the_user_are_as_if_they_were_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.ingest(raws(written(Info.of(name="ann"), 0, 0), written(Text("a", "ann"), 1, 5)))
        store.mark_read("a")
        with store._engine.transaction() as transaction:
            plan = transaction.plan()
            for name, key in ((READ, b"a"), (MENTIONING, b""), (MENTION_SEARCH, b"")):
                plan.set_local(name, key, b"\xc1")
            transaction.commit(plan.finish(), sync=False)
    with opened(tmp_path) as store:
        assert [channel.unread for channel in store.channels()] == [1]
        assert len(store.mentions().messages) == 1
        store.mark_read("a")
        assert [(channel.unread, channel.mentions) for channel in store.channels()] == [(0, 0)]


def test_numbers_are_exact_up_to_999(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        posts = [written(Text("a", f"ann {number}"), 1, number) for number in range(limits.MAX_UNREAD_COUNTED + 5)]
        store.ingest(raws(*posts), verify=False)
        assert [channel.unread for channel in store.channels()] == [limits.MAX_UNREAD_COUNTED]
        for read, unread in ((4, 1000), (5, 999), (6, 998)):
            upto = posts[read].sort_time.decode()
            store.mark_read("a", upto)
            assert [channel.unread for channel in store.channels()] == [unread]
        with store.snapshot() as snapshot:
            store.mark_read("a")
            assert [channel.unread for channel in snapshot.channels()] == [998]


def test_a_wrong_cursor_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for wrong in ("", "x", "0" * 49, "0" * 16 + "." + "G" * 32):
            with pytest.raises(CursorError):
                store.mark_read("a", wrong)
            with pytest.raises(CursorError):
                store.mentions(cursor=wrong)


def test_mentions_are_paged_over_all_channels(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.ingest([written(Info.of(name="ann"), 0, 0).raw])
        posts = [written(Text(CHANNELS[number % 2], f"ann {number}"), 1, number + 1) for number in range(25)]
        store.ingest(raws(*posts), verify=False)
        found, cursor = store.mentions(10)[:2]
        while cursor is not None:
            page = store.mentions(10, cursor=cursor)
            found, cursor = [*found, *page.messages], page.cursor
        assert [message.hash for message in found] == [post.hash for post in reversed(posts)]
        assert len(store.mentions(100, channel=CHANNELS[1]).messages) == 12


def test_a_name_that_comes_late_counts_for_the_texts_of_its_time(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.ingest([written(Text("a", "ann?"), 1, at).raw for at in (1, 5, 9)])
        assert store.mentions().messages == []
        store.ingest([written(Info.of(name="ann"), 0, 3).raw, written(Info.of(name="anna"), 0, 7).raw])
        assert [message.timestamp_ms - NOW_MS for message in store.mentions().messages] == [5]
        store.delete(next(store.posts_by(OWN.public_key)).hash)
        assert store.mentions().messages == []


def test_memory_of_a_list_of_channels_does_not_grow_with_the_users_own_texts() -> None:
    def peak(number: int) -> int:
        with CableStore.in_memory(identity=OWN, clock=lambda: NOW_MS) as store:
            store.ingest(raws(*(written(Text("default", "x"), 0, at) for at in range(number)), written(CYD_SAYS, 2, 0)))
            tracemalloc.start()
            try:
                assert [channel.unread for channel in store.channels()] == [1]
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    peak(10)
    assert peak(2_000) < peak(200) + 20_000
