"""Unread texts and mentions match a simple model, whichever posts arrive, are removed, hidden or shown again."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from history import AUTHORS, NOW_MS
from hypothesis import given
from hypothesis import strategies as st
from inside import engine_of, live_database, reload
from people import raws
from stores import scratch_folder
from unread_model import UnreadModel, assert_agrees, moment_of

from cablestore import (
    LEGACY,
    Block,
    Body,
    CableStore,
    Delete,
    Info,
    Join,
    Moderation,
    Post,
    StoreOptions,
    Text,
    Unblock,
    encode_post,
    limits,
)
from cablestore.errors import CursorError
from cablestore.index.local import (
    LATE,
    MENTION,
    MENTION_IN,
    MENTION_RULES,
    MENTION_SEARCH,
    MENTIONING,
    READ,
    UNSEEN,
    local_key,
)
from cablestore.index.takeover import take_over
from cablestore.moderation import Action
from cablestore.store import ClosedStore
from cablestore.store.changes import UnreadChanged
from cablestore.store.cursor import MessageCursor
from cablestore.store.mentions import Search
from cablestore.views import CATALOG

OWN, BOB, CYD = AUTHORS
CHANNELS = ("default", "a!b")
WORDS = ("x", "hi ann", "@Ann: hello", "annex", "for ANNA", OWN.public_key.hex()[:9], OWN.public_key.hex()[:7])
NAMES = ("ann", "Anna", None)
CYD_SAYS = Text("default", "hello")


def written(body: Body, by: int, at: int, links: tuple[bytes, ...] = ()) -> Post:
    return encode_post(body, links=links, timestamp_ms=NOW_MS + at, identity=AUTHORS[by], dialect=LEGACY)


def spread(at: int) -> int:
    """Return a time before the present, in steps shorter than the tolerance for names."""
    return (at - 20) * 2 * limits.MENTION_TOLERANCE_MS // 3


times = st.sampled_from([*range(10), -120]).map(spread)
"""Times, some within the tolerance of others, and one more than a week earlier."""

texts = st.builds(
    lambda by, at, channel, word: written(Text(channel, word), by, at),
    st.integers(0, 2),
    times,
    st.sampled_from(CHANNELS),
    st.sampled_from(WORDS),
)
joins = st.builds(lambda by, at: written(Join("default"), by, at), st.integers(0, 2), times)
names = st.builds(lambda at, name: written(Info.of(name=name), 0, at), times, st.sampled_from(NAMES))


@st.composite
def pools(draw: st.DrawFn) -> list[Post]:
    """Draw distinct posts: linked texts, names of the user, deletions, and the user's actions with their undoing."""
    said = draw(st.lists(texts, min_size=3, max_size=10))
    linked = [*said, *draw(st.lists(joins, max_size=3))]
    for _ in range(draw(st.integers(3, 6))):
        links = tuple(post.hash for post in draw(st.lists(st.sampled_from(linked), min_size=1, max_size=2)))
        body = Text(draw(st.sampled_from(CHANNELS)), draw(st.sampled_from(WORDS)))
        said.append(written(body, draw(st.integers(0, 2)), draw(times), links))
        linked.append(said[-1])
    posts = [*dict.fromkeys([*linked, *said]), *draw(st.lists(names, min_size=1, max_size=4))]
    targets = st.sampled_from(said)
    for post in draw(st.lists(targets, min_size=1, max_size=3)):
        by = next(number for number, author in enumerate(AUTHORS) if author.public_key == post.author)
        posts.append(written(Delete((post.hash,)), by, draw(st.integers(0, 9))))
    for what in draw(st.lists(st.sampled_from(list(Action)), max_size=4)):
        post, at = draw(targets), draw(st.integers(0, 20).map(spread))
        on_channel = what >= Action.DROP_CHANNEL
        target = post.author if what < Action.HIDE_POST else post.hash
        context = post.channel or "" if what >= Action.HIDE_POST or draw(st.booleans()) else ""
        posts.append(written(Moderation("", 0, context, () if on_channel else (target,), what), 0, at))
    for drop in draw(st.lists(st.booleans(), max_size=2)):
        posts.append(written(Block("", 0, (BOB.public_key,), int(drop), 0), 0, draw(st.integers(0, 20).map(spread))))
        posts.append(written(Unblock("", 0, (BOB.public_key,), int(drop)), 0, draw(st.integers(0, 20).map(spread))))
    return draw(st.permutations(list(dict.fromkeys(posts))))


steps = st.one_of(
    st.tuples(st.just("next"), st.integers(1, 6), st.integers(1, 4)),
    st.tuples(st.just("next"), st.integers(1, 6), st.integers(1, 4)),
    st.tuples(st.just("again"), st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 4)),
    st.tuples(st.just("mark"), st.sampled_from(CHANNELS), st.none() | st.integers(0, 40)),
    st.tuples(st.just("see"), st.sampled_from(CHANNELS), st.lists(st.integers(0, 40), max_size=4)),
    st.tuples(st.just("follow"), st.sampled_from(CHANNELS), st.lists(st.integers(0, 40), max_size=4)),
    st.tuples(st.just("discard"), st.integers(0, 40), st.none()),
    st.tuples(st.sampled_from(["reopen", "rebuild"]), st.none(), st.none()),
)


def opened(folder: Path) -> CableStore:
    return CableStore.open(folder, identity=OWN, options=StoreOptions(verify_threads=1, clock=lambda: NOW_MS + 100))


@pytest.mark.thorough
@given(pools(), st.lists(steps, min_size=5, max_size=10))
def test_the_store_agrees_with_the_model_at_every_step(
    pool: list[Post], todo: list[tuple[str, object, object]]
) -> None:
    model = UnreadModel(OWN.public_key)
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
                elif what in ("see", "follow") and isinstance(of, str) and isinstance(how, list):
                    said = store.messages(of, 1000, hidden="show").messages
                    seen = [said[number % len(said)] for number in how if said]
                    upto = max(seen, key=moment_of) if seen and what == "follow" else None
                    model.see(store, of, seen, upto)
                    cursors = [message.cursor for message in seen]
                    store.mark_seen(of, cursors, upto=None if upto is None else upto.cursor)
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
    ClosedStore(tmp_path, identity=OWN).rebuild()
    with opened(tmp_path) as store:
        assert [channel.unread for channel in store.channels()] == [1]
        store.mark_read("a")
        assert [channel.unread for channel in store.channels()] == [0]


def test_a_channel_with_own_texts_alone_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.ingest([written(Text("a", "own"), 0, 1).raw])
        assert [channel.unread for channel in store.channels()] == [0]


def test_own_and_hidden_texts_are_not_unread(tmp_path: Path) -> None:
    def unread(store: CableStore) -> int:
        return next(store.channels()).unread

    with opened(tmp_path) as store:
        store.ingest(raws(*(written(Text("a", "before"), by, by + 1) for by in range(3))))
        assert unread(store) == 2
        store.moderation.hide(users=[CYD.public_key])
        assert unread(store) == 1
        store.mark_read("a")
        assert unread(store) == 0
        store.ingest(raws(*(written(Text("a", "after"), by, by + 11) for by in range(3))))
        assert unread(store) == 1
        store.ingest(raws(written(Text("a", "own"), 0, 20)))
        assert unread(store) == 1


def test_an_own_text_that_is_hidden_does_not_count_twice(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        own = written(Text("a", "own"), 0, 0)
        store.ingest(raws(own, written(Text("a", "b"), 1, 1), written(Text("a", "c"), 1, 2)))
        store.moderation.hide(posts=[own.hash])
        assert [channel.unread for channel in store.channels()] == [2]
        assert len(store.read_state("a").unread) == 2


def test_a_text_of_1970_is_the_last_message(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.ingest(raws(written(Text("a", "first"), 1, -NOW_MS)))
        latest = next(store.channels()).last_message
        assert latest is not None
        assert latest.timestamp_ms == 0
        [without] = store.channels(with_latest=False)
        assert without.last_message is None
        assert without == next(store.channels())


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ((b"2", b"5"), (b"3", b"7"), (b"2", b"7")),
        ((b"2", b"5"), (b"1", b"3"), (b"1", b"5")),
        ((b"2", b""), (b"1", b"3"), (b"1", b"")),
        ((b"2", b"5"), (b"", b""), (b"", b"")),
    ],
)
def test_two_pending_searches_are_merged_into_one(
    one: tuple[bytes, bytes], other: tuple[bytes, bytes], both: tuple[bytes, bytes]
) -> None:
    """An empty end means no bound."""
    assert Search(*one).widened(*other) == Search(*other).widened(*one) == Search(*both)


def test_marks_and_new_texts_are_reported_as_changes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        said = [written(Text("a!b", "hello"), 1, 5), written(Text("a!b", "more"), 1, 6)]
        found = store.next_changes(store.cursor, timeout_s=0)
        for work, is_told in (
            (lambda: store.ingest(raws(*said)), True),
            (lambda: store.mark_read("a!b"), True),
            (lambda: store.mark_read("a!b"), False),
            (lambda: store.mark_read("a!b", MessageCursor(said[0].sort_time.decode())), True),
            (lambda: store.ingest([written(Text("a!b", "late"), 1, 2).raw]), True),
            (lambda: store.mark_read("a!b", MessageCursor(said[0].sort_time.decode())), True),
            (lambda: store.ingest([written(Delete((said[1].hash,)), 1, 9).raw]), True),
        ):
            work()
            found = store.next_changes(found.cursor, timeout_s=0)
            assert (UnreadChanged("a!b") in found.changes) is is_told


def test_a_deleted_text_leaves_no_rows(tmp_path: Path) -> None:
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


def test_texts_added_by_a_takeover_are_checked_when_the_store_opens(tmp_path: Path) -> None:
    """Texts that a reindexing adds from exports are not written by the store."""
    name, first, later = (
        written(Info.of(name="ann"), 0, 0),
        written(Text("a", "x"), 1, 5),
        written(Text("a", "ann"), 1, 2),
    )
    with (
        opened(tmp_path) as store,
        CableStore.in_memory(identity=OWN, options=StoreOptions(clock=lambda: NOW_MS + 100)) as other,
    ):
        store.ingest(raws(name, first))
        store.mark_read("a")
        other.ingest(raws(name, first, later))
        target = live_database(other)
        with store.snapshot() as snapshot:
            for _ in range(2):
                assert take_over(snapshot.reader, target, LEGACY, CATALOG, store.last_sequence).logged == 1
        reload(other)
        again = CableStore._made_of(engine_of(other), other._identity, StoreOptions(clock=lambda: NOW_MS + 100))
        assert [(channel.unread, channel.mentions) for channel in again.channels()] == [(1, 1)]
        assert [message.hash for message in again.mentions().messages] == [later.hash]
        with again.snapshot() as snapshot:
            assert snapshot.reader.local(UNSEEN, b"") is None


def test_a_text_that_an_action_hides_does_not_count_as_unread(tmp_path: Path) -> None:
    """Own texts do not count either. A text that is shown again counts again."""
    seen, hidden, shown = (written(Text("a", "ann"), by, at) for by, at in ((2, 1), (1, 2), (2, 3)))
    with opened(tmp_path) as store:
        store.ingest(raws(written(Info.of(name="ann"), 0, 0), seen))
        store.mark_read("a")
        store.ingest(raws(hidden, shown, written(Text("a", "my own"), 0, 4)))
        counts = []
        for act in (None, store.moderation.hide, store.moderation.unhide):
            if act is not None:
                act(posts=[hidden.hash])
            (channel,) = store.channels()
            counts.append((channel.unread, channel.mentions))
        assert counts == [(2, 2), (1, 1), (2, 2)]


def test_damaged_rows_of_the_user_count_as_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.ingest(raws(written(Info.of(name="ann"), 0, 0), written(Text("a", "ann"), 1, 5)))
        store.mark_read("a")
        with engine_of(store).transaction() as transaction:
            plan = transaction.plan()
            for name, key in ((READ, b"a"), (MENTIONING, b""), (MENTION_SEARCH, b"")):
                plan.set_local(name, key, b"\xc1")
            transaction.commit(plan.finish(), sync=False)
    with opened(tmp_path) as store:
        assert [channel.unread for channel in store.channels()] == [1]
        assert len(store.mentions().messages) == 1
        store.mark_read("a")
        assert [(channel.unread, channel.mentions) for channel in store.channels()] == [(0, 0)]


def test_unread_counts_are_exact_up_to_999(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        posts = [written(Text("a", f"ann {number}"), 1, number) for number in range(limits.MAX_UNREAD_COUNTED + 5)]
        store.ingest(raws(*posts), verify=False)
        assert [channel.unread for channel in store.channels()] == [limits.MAX_UNREAD_COUNTED]
        for read, unread in ((4, 1000), (5, 999), (6, 998)):
            upto = MessageCursor(posts[read].sort_time.decode())
            store.mark_read("a", upto)
            assert [channel.unread for channel in store.channels()] == [unread]
        with store.snapshot() as snapshot:
            store.mark_read("a")
            assert [channel.unread for channel in snapshot.channels()] == [998]


def test_a_wrong_cursor_is_rejected(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for wrong in ("", "x", "0" * 49, "0" * 16 + "." + "G" * 32):
            with pytest.raises(CursorError):
                store.mark_read("a", MessageCursor(wrong))
            with pytest.raises(CursorError):
                store.mark_seen("a", [MessageCursor(wrong)])
            with pytest.raises(CursorError):
                store.mark_seen("a", [], upto=MessageCursor(wrong))
            with pytest.raises(CursorError):
                store.mentions(cursor=MessageCursor(wrong))


def test_mentions_are_paged_over_all_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        monkeypatch.setattr(limits, "MAX_PAGE_MESSAGES", 3)
        assert len(store.mentions(4).messages) == 3


def test_a_late_name_counts_for_the_texts_of_its_time(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        tolerance_ms, day_ms = limits.MENTION_TOLERANCE_MS, 86_400_000
        begin, end = -5 * day_ms, -day_ms
        at = [begin - tolerance_ms - 1, begin - tolerance_ms, end + tolerance_ms, end + tolerance_ms + 1]
        store.ingest([written(Text("a", "ann?"), 1, each).raw for each in at])
        assert store.mentions().messages == []
        store.ingest([written(Info.of(name="ann"), 0, begin).raw, written(Info.of(name="anna"), 0, end).raw])
        assert [channel.mentions for channel in store.channels()] == [2]
        assert [message.timestamp_ms - NOW_MS for message in store.mentions().messages] == [at[2], at[1]]
        store.delete(next(store.posts_by(OWN.public_key)).hash)
        assert store.mentions().messages == []


@pytest.mark.parametrize("own_ms", [0, 60_000, 3_600_000, 2 * 86_400_000, 604_000_000], ids="own {}".format)
@pytest.mark.parametrize("bob_ms", [0, -60_000, -3_600_000, -2 * 86_400_000], ids="bob {}".format)
@pytest.mark.parametrize("links_to", ["join", "text"])
@pytest.mark.parametrize("order", [-1, 1])
def test_an_answer_mentions_the_user_despite_differing_clocks(
    own_ms: int, bob_ms: int, links_to: str, order: int
) -> None:
    """The answer links to an earlier post of the user. Its author has therefore seen the name."""
    with CableStore.in_memory(identity=OWN, options=StoreOptions(clock=lambda: NOW_MS)) as store:
        store.mentions()
        name = written(Info.of(name="ann"), 0, own_ms)
        hello = written(Join("a") if links_to == "join" else Text("a", "hello"), 0, own_ms + 1)
        answer = written(Text("a", "welcome @ann"), 1, bob_ms + 20_000, (hello.hash,))
        before = written(Text("a", "ann, annex, anna"), 1, bob_ms - 30 * 86_400_000)
        for post in [before, name, hello, answer][::order]:
            store.ingest([post.raw])
        is_near = abs(own_ms - bob_ms - 20_000) < limits.MAX_FUTURE_MS
        assert [message.hash for message in store.mentions().messages] == [answer.hash] * is_near
        store.discard([hello.hash])
        by_time = own_ms - bob_ms - 20_000 <= limits.MENTION_TOLERANCE_MS
        assert [message.hash for message in store.mentions().messages] == [answer.hash] * by_time


def test_a_text_in_another_channel_is_not_an_answer(tmp_path: Path) -> None:
    """If links from other channels counted, anyone could make old names count there."""
    with opened(tmp_path) as store:
        store.mentions()
        hello = written(Text("a", "hello"), 0, 0)
        answer = written(Text("b", "welcome ann"), 1, -3 * limits.MENTION_TOLERANCE_MS, (hello.hash,))
        store.ingest(raws(written(Info.of(name="ann"), 0, 0), hello, answer))
        assert store.mentions().messages == []


def test_mentions_that_were_found_by_other_rules_are_found_again(tmp_path: Path) -> None:
    """An earlier version did not write the row of the rules, and missed mentions."""
    text = written(Text("a", "hi ann"), 1, -60_000)
    with opened(tmp_path) as store:
        store.ingest(raws(written(Info.of(name="ann"), 0, 0), text))
        store.mentions()
        with engine_of(store).transaction() as transaction:
            plan = transaction.plan()
            plan.set_local(MENTION_RULES, b"", None)
            plan.set_local(MENTION, text.sort_time, None)
            transaction.commit(plan.finish(), sync=False)
    with opened(tmp_path) as store:
        assert [message.hash for message in store.mentions().messages] == [text.hash]


def test_memory_of_a_list_of_channels_does_not_grow_with_the_users_own_texts() -> None:
    def peak(number: int) -> int:
        with CableStore.in_memory(identity=OWN, options=StoreOptions(clock=lambda: NOW_MS)) as store:
            store.ingest(raws(*(written(Text("default", "x"), 0, at) for at in range(number)), written(CYD_SAYS, 2, 0)))
            tracemalloc.start()
            try:
                assert [channel.unread for channel in store.channels()] == [1]
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    peak(10)
    assert peak(2_000) < peak(200) + 20_000


def test_texts_can_be_marked_as_read_in_any_order(tmp_path: Path) -> None:
    """A search displays a text in the middle; earlier texts stay unread. Displayed texts may be removed meanwhile."""
    with opened(tmp_path) as store:
        first, gone, third, fourth, last = posts = [written(Text("a", f"text {at}"), 1, at) for at in range(1, 6)]
        places = {post: MessageCursor(post.sort_time.decode()) for post in posts}
        store.ingest(raws(*posts))
        store.mark_seen("a", [places[third]])
        assert list(store.read_state("a")) == [places[third], [places[each] for each in (first, gone, fourth, last)]]
        store.mark_seen("a", [places[last]])
        assert list(store.read_state("a")) == [places[last], [places[each] for each in (first, gone, fourth)]]
        store.ingest([written(Delete((gone.hash,)), 1, 9).raw])
        store.mark_seen("a", [places[gone], places[first]])
        assert list(store.read_state("a").unread) == [places[fourth]]
        cursor = store.cursor
        store.mark_seen("a", [places[gone], places[first]], upto=places[third])
        assert store.next_changes(cursor, timeout_s=0).changes == []
        store.mark_read("a", places[third])
        assert list(store.read_state("a").unread) == [places[fourth], places[last]]
        store.mark_seen("a", [], upto=places[fourth])
        assert list(store.read_state("a")) == [places[fourth], [places[last]]]
        store.mark_seen("a", [], upto=places[last])
        assert [channel.unread for channel in store.channels()] == [0]


def test_a_text_far_ahead_of_the_mark_does_not_move_it(tmp_path: Path) -> None:
    """Moving the mark would make more texts late than MAX_UNREAD_COUNTED."""
    with opened(tmp_path) as store:
        posts = [written(Text("a", f"{number}"), 1, number - 2_000) for number in range(limits.MAX_UNREAD_COUNTED + 2)]
        store.ingest(raws(*posts), verify=False)
        store.mark_seen("a", [MessageCursor(posts[-1].sort_time.decode())])
        assert store.read_state("a").read_upto == ""
        store.mark_seen("a", [MessageCursor(posts[-2].sort_time.decode())])
        assert store.read_state("a").read_upto == posts[-2].sort_time.decode()
        assert [channel.unread for channel in store.channels()] == [limits.MAX_UNREAD_COUNTED]


def test_the_number_of_stored_late_texts_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless stream of old texts arrives in a channel that was read. The newest of them stay unread."""
    monkeypatch.setattr(limits, "MAX_LATE_TEXTS", 10)
    with opened(tmp_path) as store:
        store.ingest([written(Text("a", "now"), 1, 0).raw])
        store.mark_read("a")
        late: list[str] = []
        for number in range(25):
            text = written(Text("a", f"{number}"), 1, number - 10_000)
            store.ingest([text.raw])
            late.append(f"a!{text.sort_time.decode()}")
            late = late if len(late) <= 10 else late[-5:]
            with store.snapshot() as snapshot:
                assert [key.decode() for key, _ in snapshot.reader.local_rows(LATE)] == late
        assert [channel.unread for channel in store.channels()] == [len(late)]
        store.mark_read("a")
        assert [channel.unread for channel in store.channels()] == [0]
