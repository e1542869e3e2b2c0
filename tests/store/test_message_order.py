"""Reading order of a channel: a message follows the messages that it links to, even if clocks are wrong."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from people import START_MS

from cablestore import CableStore, Delete, Identity, Join, Message, StoreOptions, Text, limits
from cablestore.protocol.dialect import LEGACY
from cablestore.protocol.post import Post, encode_post

ANN, BOB, CYD = (Identity.derive("message order", name) for name in ("ann", "bob", "cyd"))
YEAR_MS = 365 * 86_400_000


def said(text: str, at_ms: int, *links: Post, by: Identity = ANN, channel: str = "default") -> Post:
    return encode_post(
        Text(channel, text), links=tuple(p.hash for p in links), timestamp_ms=at_ms, identity=by, dialect=LEGACY
    )


def holding(posts: Sequence[Post]) -> CableStore:
    store = CableStore.in_memory(options=StoreOptions(clock=lambda: START_MS))
    store.ingest([post.raw for post in posts])
    return store


def read(store: CableStore, size: int = 50, *, newest_first: bool = True) -> list[Message]:
    """Return all messages, oldest first, read in pages of `size`."""
    found, cursor = list[Message](), None
    while True:
        page = store.messages("default", size, cursor=cursor, newest_first=newest_first)
        found += page.messages
        cursor = page.cursor
        if cursor is None:
            return found[::-1] if newest_first else found


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


def model(posts: Sequence[Post]) -> list[bytes]:
    """Return the hashes of posts in the order that the module describes. `posts` must be sorted by links."""
    places: dict[bytes, tuple[int, int]] = {}
    for post in posts:  # each follows the posts that it links to
        before = [places[link] for link in post.links if link in places]
        time_ms = max([post.timestamp_ms, *(at for at, _ in before)])
        places[post.hash] = time_ms, max((steps + 1 for at, steps in before if at == time_ms), default=0)
    return [p.hash for p in sorted(posts, key=lambda p: (*places[p.hash], p.timestamp_ms, p.hash))]


@st.composite
def histories(draw: st.DrawFn) -> list[Post]:
    """Return posts that link to earlier ones, with clocks that agree, are years behind or days ahead."""
    posts: list[Post] = []
    for number in range(draw(st.integers(1, 14))):
        away = draw(st.sampled_from((0, 0, 0, -1, -3, -9, 9, -20 * YEAR_MS, 6 * 86_400_000)))
        linked = draw(st.lists(st.sampled_from(posts), max_size=3, unique_by=id)) if posts else []
        posts.append(said(f"{number}", START_MS + number + away, *linked, by=draw(st.sampled_from((ANN, BOB, CYD)))))
    return posts


@given(histories(), st.integers(1, 13))
def test_pages_of_any_size_have_every_message_once_after_its_links(posts: list[Post], size: int) -> None:
    with holding(sorted(posts, key=lambda post: post.hash)) as store:
        expected = model(posts)
        assert [m.hash for m in read(store, size)] == expected
        assert [m.hash for m in read(store, size, newest_first=False)] == expected
        at = size % len(expected)  # continue from any message in both directions, with an empty cache
        with store.snapshot() as state, holding(posts) as older_first, holding(posts) as newer_first:
            cursor = next(m.cursor for m in state.messages("default").messages if m.hash == expected[at])
            newer = newer_first.messages("default", cursor=cursor, newest_first=False).messages
            older = older_first.messages("default", cursor=cursor).messages
        assert [m.hash for m in older] == expected[:at][::-1]
        assert [m.hash for m in newer] == expected[at + 1 :]


def test_a_reply_with_a_slow_clock_follows_its_question() -> None:
    for behind_ms in (1, 60_000, 20 * YEAR_MS):
        old = said("yesterday", START_MS - 86_400_000)
        question = said("where is the rake?", START_MS, old, by=BOB)
        reply = said("in the shed", START_MS - behind_ms, question)
        more = said("behind the ladder", START_MS - behind_ms + 1, reply)
        after = said("thanks", START_MS + 10_000, more, by=BOB)
        expected = ["yesterday", "where is the rake?", "in the shed", "behind the ladder", "thanks"]
        for order in ([old, question, reply, more, after], [more, after, reply, old, question]):
            with holding(order) as store:
                for size in (1, 2, 50):
                    assert texts(read(store, size)) == expected
                    assert texts(read(store, size, newest_first=False)) == expected


def test_lines_of_one_millisecond_keep_their_order() -> None:
    lines = [said("0", START_MS)]
    for number in range(1, 2_000):
        lines.append(said(f"{number}", START_MS, lines[-1]))
    with holding(lines) as store:
        assert texts(read(store)) == texts(read(store, 70, newest_first=False)) == [f"{n}" for n in range(2_000)]


def test_a_day_after_a_message_from_tomorrow_is_read_in_order() -> None:
    """Each message is dated before the one from tomorrow, and reaches it by up to hundreds of links."""
    tomorrow = said("0", START_MS + 86_400_000, by=BOB)
    posts = [tomorrow]
    for number in range(1, 400):
        posts.append(said(f"{number}", START_MS + 1_000 * number, posts[-1]))
    with holding(posts) as store:
        assert texts(read(store, 30)) == [f"{number}" for number in range(400)]
        assert texts(read(store, 30, newest_first=False)) == [f"{number}" for number in range(400)]


def test_order_follows_deleted_posts_and_joins_but_not_other_channels() -> None:
    question = said("question", START_MS, by=BOB)
    gone = said("gone", START_MS - 50, question)
    join = encode_post(Join("default"), links=(gone.hash,), timestamp_ms=START_MS - 90, identity=CYD, dialect=LEGACY)
    reply = said("reply", START_MS - 80, join, by=CYD)
    elsewhere = said("elsewhere", START_MS + 99, channel="other")
    early = said("early", START_MS - 70, elsewhere)
    unknown = said("alone", START_MS - 60, said("never sent", START_MS + 5))
    delete = encode_post(Delete((gone.hash,)), links=(), timestamp_ms=START_MS, identity=ANN, dialect=LEGACY)
    with holding([question, gone, join, reply, elsewhere, early, unknown, delete]) as store:
        assert texts(read(store)) == ["early", "alone", "question", "reply"]


def test_late_messages_between_pages_do_not_change_the_later_pages() -> None:
    posts = [said("0", START_MS)]
    for number in range(1, 40):
        posts.append(said(f"{number}", START_MS + number, posts[-1]))
    with holding(posts) as store:
        first = store.messages("default", 10)
        store.ingest([said("late", START_MS + 5, by=BOB).raw, said("reply", START_MS - YEAR_MS, posts[35]).raw])
        rest, cursor = list[Message](), first.cursor
        while cursor is not None:
            page = store.messages("default", 10, cursor=cursor)
            rest, cursor = rest + page.messages, page.cursor
        found = texts([*first.messages, *rest])
        assert sorted(found) == sorted({*map(str, range(40)), "late"})
        assert texts(read(store))[36:39] == ["35", "reply", "36"]


def test_cached_positions_of_one_state_are_not_used_in_another() -> None:
    """An answer with a slow clock is at its own time before its question arrives, and after the question is removed."""
    question = said("question", START_MS, by=BOB)
    answer = said("answer", START_MS - 1000, question)
    deletion = encode_post(Delete((question.hash,)), links=(), timestamp_ms=START_MS + 1, identity=BOB, dialect=LEGACY)
    for newest_first in (True, False):
        with holding([answer]) as store, store.snapshot() as before:
            store.ingest([question.raw])
            assert texts(read(store, newest_first=newest_first)) == ["question", "answer"]
            page = before.messages("default", newest_first=newest_first)
            assert texts(page.messages) == ["answer"]
            store.ingest([deletion.raw])
            assert texts(read(store, newest_first=newest_first)) == ["answer"]
        with holding([question, answer]) as store:
            assert texts(read(store, newest_first=newest_first)) == ["question", "answer"]
            store.discard([question.hash])
            assert texts(read(store, newest_first=newest_first)) == ["answer"]


def test_texts_that_arrive_after_a_local_change_are_read() -> None:
    question = said("question", START_MS + 9, by=BOB)
    answer = said("answer", START_MS - 1000, question)
    for newest_first in (True, False):
        with holding([said("a", START_MS), answer]) as store:
            read(store, newest_first=newest_first)
            store.local.set_draft("default", "a draft")
            store.ingest([said("b", START_MS, by=BOB).raw, question.raw])
            assert sorted(texts(read(store, newest_first=newest_first))[:2]) == ["a", "b"]
            assert texts(read(store, newest_first=newest_first))[2:] == ["question", "answer"]


def test_a_page_follows_at_most_max_links_followed() -> None:
    """With one more link, the last text stays at its own time, until a page from the end is read."""
    for length, is_moved in ((limits.MAX_LINKS_FOLLOWED, True), (limits.MAX_LINKS_FOLLOWED + 1, False)):
        posts = [said("question", START_MS)]
        for number in range(length):
            posts.append(said(f"{number}", START_MS - YEAR_MS + number, posts[-1]))
        with holding(posts) as store:
            start_ms = posts[-1].timestamp_ms
            page = store.messages("default", newest_first=False, after_ms=start_ms, before_ms=start_ms + 1)
            assert texts(page.messages) == ([] if is_moved else [f"{length - 1}"])
            assert len(read(store)) == length + 1
