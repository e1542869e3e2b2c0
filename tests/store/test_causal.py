"""Causal order: a message follows all messages that it links to. If clocks agree, it is the order by time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, BOB, CYD, START_MS, raws

from cablestore import CableStore, Post, limits


def test_an_answer_never_precedes_its_question(store: CableStore) -> None:
    """Uses the counterexample of wire.md 5.1.3: A links to B; A=1, B=10, C=5."""
    b = BOB.text("default", "b", at=10)
    a = ANN.text("default", "a", at=1, links=(b.hash,))
    c = CYD.text("default", "c", at=5)
    store.ingest(raws(a, b, c))
    assert [message.text for message in store.causal_messages("default", 0)] == ["c", "b", "a"]
    assert [message.text for message in store.messages("default").messages] == ["a", "b", "c"]


def test_causal_order_is_order_by_time_if_clocks_agree(chat: CableStore) -> None:
    causal = [message.hash for message in chat.causal_messages("default", 0)]
    by_time = [message.hash for message in chat.messages("default", 100, newest_first=False).messages]
    assert causal == by_time


def test_causal_order_follows_links_of_deleted_posts_and_joins(store: CableStore) -> None:
    first = ANN.text("default", "first", at=5000)
    gone = BOB.text("default", "gone", at=9000, links=(first.hash,))
    joined = CYD.post(ANN.join("default").body, at=100, links=(gone.hash,))
    last = CYD.text("default", "last", at=200, links=(joined.hash,))
    other = ANN.text("default", "other", at=8000)
    store.ingest(raws(first, gone, joined, last, other, BOB.delete(gone)))
    assert [message.text for message in store.causal_messages("default", 0)] == ["first", "other", "last"]


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 30), max_size=3)), min_size=1, max_size=20))
def test_causal_order_agrees_with_every_link(drafts: list[tuple[int, list[int]]]) -> None:
    posts: list[Post] = []
    for number, (at, links) in enumerate(drafts):
        linked = tuple({posts[i % len(posts)].hash for i in links}) if posts else ()
        posts.append(ANN.text("default", str(number), at=at, links=linked))
    with CableStore.in_memory() as store:
        store.ingest(raws(*posts), verify=False)
        place = {message.hash: i for i, message in enumerate(store.causal_messages("default", 0))}
    assert set(place) == {post.hash for post in posts}
    for post in posts:
        assert all(place[link] < place[post.hash] for link in post.links)


@pytest.mark.thorough
def test_a_long_chain_needs_no_deep_recursion(store: CableStore) -> None:
    links: tuple[bytes, ...] = ()
    posts = []
    for i in range(3000):
        posts.append(ANN.text("default", str(i), at=START_MS - i, links=links))
        links = (posts[-1].hash,)
    store.ingest(raws(*posts), verify=False, batch_posts=1000)
    assert [message.text for message in store.causal_messages("default", 0)] == [str(i) for i in range(3000)]


def test_ancestors_are_followed_within_the_skew_only(store: CableStore) -> None:
    skew_ms = limits.CAUSAL_SKEW_MS
    late = ANN.text("default", "late", at=START_MS + 100)
    old = BOB.text("default", "old", at=START_MS - skew_ms // 2, links=(late.hash,))
    a = CYD.text("default", "a", at=START_MS, links=(old.hash,))
    b = CYD.text("default", "b", at=START_MS + 50)
    store.ingest(raws(late, old, a, b))
    window = store.causal_messages("default", START_MS, START_MS + 60)
    assert [message.text for message in window] == ["b", "a"]  # a links to late, so it follows b
    near = store.causal_messages("default", START_MS, START_MS + 60, skew_ms=0)
    assert [message.text for message in near] == ["a", "b"]  # links are not followed beyond the window


def test_causal_order_has_a_limited_number_of_posts(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CAUSAL_POSTS", 5)
    chat = [ANN.text("default", str(i), at=START_MS + i) for i in range(9)]
    store.ingest(raws(*chat))
    assert [message.text for message in store.causal_messages("default", 0)] == list("45678")


def test_ancestors_at_the_limit_are_omitted_and_messages_are_not(
    store: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last message also links to a long history before the window."""
    monkeypatch.setattr(limits, "MAX_CAUSAL_POSTS", 6)
    history = [ANN.text("default", "old", at=START_MS - 9)]
    for at in range(START_MS - 8, START_MS - 2):
        history.append(ANN.text("default", "old", at=at, links=(history[-1].hash,)))
    window = [BOB.text("default", "0", at=START_MS)]
    for number in range(1, 6):
        links = (window[-1].hash, *([history[-1].hash] if number == 5 else []))
        window.append(BOB.text("default", str(number), at=START_MS + number, links=links))
    store.ingest(raws(*history, *window))
    assert [message.text for message in store.causal_messages("default", START_MS)] == list("012345")
