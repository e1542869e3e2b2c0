"""Search in a store: results, their order, pages, and texts that are no longer found."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest
from people import ANN, BOB, CYD, START_MS, raws

from cablestore import CableStore, Post, limits
from cablestore.errors import ArgumentError, StoreClosedError
from cablestore.store.cursor import SearchCursor
from cablestore.store.searching import Order, SearchPage


@pytest.fixture(params=["disk", "memory"])
def searched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CableStore]:
    with CableStore.in_memory() if request.param == "memory" else CableStore.open(tmp_path / "store") as opened:
        yield opened
        assert opened.check().is_clean


def texts(page: SearchPage) -> list[str]:
    assert page.pending == 0
    return [hit.message.text for hit in page.hits]


def test_words_phrases_and_prefixes_are_found_and_filtered(searched: CableStore) -> None:
    searched.ingest(
        raws(
            ANN.named("Ann"),
            ANN.text("default", "the borrow checker", at=START_MS),
            BOB.text("default", "checker of borrow", at=START_MS + 1),
            ANN.text("other", "borrowed, and checker", at=START_MS + 2),
            ANN.topic("default", "borrow"),
        )
    )
    first, second, third = "the borrow checker", "checker of borrow", "borrowed, and checker"
    assert texts(searched.search("borrow checker")) == [second, first]
    assert texts(searched.search('"Borrow checker"')) == [first]
    assert texts(searched.search("BORROW* chéck*")) == [third, second, first]
    assert texts(searched.search("checker", channel="other")) == [third]
    assert texts(searched.search("checker", author=ANN.key)) == [third, first]
    assert texts(searched.search("checker", author=ANN.key, channel="default")) == [first]
    assert texts(searched.search("checker", channel="nowhere")) == texts(searched.search("nothing")) == []
    assert texts(searched.search("checker", after_ms=START_MS + 1)) == [third, second]
    assert texts(searched.search("checker", before_ms=START_MS + 1)) == [first]
    assert texts(searched.search("checker", after_ms=START_MS + 1, before_ms=START_MS + 2)) == [second]
    [hit] = searched.search("the").hits
    assert (hit.message.name, hit.marks, hit.excerpt.text) == ("Ann", ((0, 3),), first)


def test_channels_authors_and_operators_are_not_words(searched: CableStore) -> None:
    """Other content of the index is not found, and texts are not interpreted as FTS5's language."""
    from cablestore.search.documents import author_word, channel_word

    searched.ingest(raws(ANN.text("default", "one")))
    for text in ("default", channel_word("default"), author_word(ANN.key), "place", "one AND two", "one NOT two"):
        assert texts(searched.search(text)) == []
    assert texts(searched.search("{text} : one*")) == []
    assert texts(searched.search("^one -()")) == ["one"]


def test_chinese_japanese_and_korean_are_found_by_one_or_more_characters(searched: CableStore) -> None:
    written = ["我们用中文写", "東京タワーに行く", "안녕하세요 여러분"]
    searched.ingest(raws(*(ANN.text("default", text) for text in written)))
    for text in written:
        for size in (1, 2, 3):
            for at in range(len(text) - size + 1):
                if " " not in text[at : at + size]:
                    assert texts(searched.search(text[at : at + size])) == [text], text[at : at + size]
    assert texts(searched.search("文中")) == texts(searched.search("京東")) == []


def test_the_ranked_order_starts_with_the_best_match(searched: CableStore) -> None:
    searched.ingest(
        raws(
            ANN.text("default", "needle"),
            *(ANN.text("default", f"hay {i}") for i in range(20)),
            ANN.text("default", "a needle in a long text about hay and much else that is in it"),
            BOB.text("other", "needle needle hay"),
        )
    )
    assert texts(searched.search("needle", order="ranked"))[-1].startswith("a needle in a long")
    assert texts(searched.search("needle", order="newest"))[-1] == "needle"
    assert texts(searched.search("needle", order="ranked", channel="other")) == ["needle needle hay"]


@pytest.mark.parametrize("order", ["newest", "ranked"])
def test_pages_contain_all_messages_once(searched: CableStore, order: Order, rng: random.Random) -> None:
    """Equal times and times in any order, more of one time than there are ids, and arrival in any order."""
    times = [*rng.sample(range(10**6), 40), *[5000] * 40, 0, limits.MAX_FUTURE_MS // 2]
    posts = [ANN.text("default", f"word {i}", at=START_MS + at) for i, at in enumerate(times)]
    rng.shuffle(posts)
    searched.ingest(raws(*posts[:50]))
    searched.search("word")
    searched.ingest(raws(*posts[50:]))
    found, cursor = [], None
    while True:
        page = searched.search("word", limit=7, cursor=cursor, order=order)
        assert len(page.hits) <= 7
        found += page.hits
        cursor = page.cursor
        if cursor is None:
            break
        assert re.fullmatch(rf"{order}-[0-9a-f]{{32}}", cursor)
    assert sorted(hit.message.hash for hit in found) == sorted(post.hash for post in posts)
    if order == "newest":
        assert [hit.message.hash for hit in found] == in_order(posts)


def in_order(posts: Iterable[Post]) -> list[bytes]:
    """Return the hashes of posts, newest first; posts of one time are sorted by their hashes."""
    return [post.hash for post in sorted(posts, key=lambda post: (post.timestamp_ms, post.hash), reverse=True)]


@pytest.mark.parametrize("many", [2, 17, 120])
def test_texts_of_one_millisecond_are_found_in_order_after_any_arrival(
    searched: CableStore, many: int, rng: random.Random
) -> None:
    """Many texts of the same time use ids of later ones, without effect on results."""
    crowd = [ANN.text("default", f"word {i}", at=START_MS) for i in range(many)]
    other = [BOB.text("default", f"word {i}", at=START_MS + 3) for i in range(many // 2)]
    alone = [BOB.text("other", f"word {i}", at=START_MS + i) for i in range(-3, 9)]
    posts = [*crowd, *other, *alone]
    rng.shuffle(posts)
    for at in range(0, len(posts), 50):
        searched.ingest(raws(*posts[at : at + 50]))
        searched.search("word")
    for after, before in ((None, None), (0, 1), (None, 1), (1, None), (1, 3), (3, 4), (1, 4), (-3, 0), (9, None)):
        limits_ms = {name: START_MS + ms for name, ms in (("after_ms", after), ("before_ms", before)) if ms is not None}
        chosen = [
            post
            for post in posts
            if limits_ms.get("after_ms", 0) <= post.timestamp_ms < limits_ms.get("before_ms", limits.MAX_TIMESTAMP_MS)
        ]
        assert all_pages(searched, "newest", **limits_ms) == in_order(chosen)
        assert sorted(all_pages(searched, "ranked", **limits_ms)) == sorted(post.hash for post in chosen)
    gone = crowd[::2]
    searched.discard(post.hash for post in gone)
    left = {post.hash for post in gone}
    assert all_pages(searched, "newest") == in_order(post for post in posts if post.hash not in left)
    searched.ingest(raws(*gone))
    assert all_pages(searched, "newest") == in_order(posts)


def test_ranked_texts_of_one_millisecond_are_sorted_by_hash(searched: CableStore, rng: random.Random) -> None:
    posts = [ANN.text("default", f"word {i:03}", at=START_MS) for i in range(60)]
    rng.shuffle(posts)
    for post in posts:
        searched.ingest(raws(post))
    assert all_pages(searched, "ranked") == in_order(posts)


def all_pages(store: CableStore, order: Order, **limits_ms: int) -> list[bytes]:
    found, cursor = list[bytes](), None
    while True:
        page = store.search("word", order=order, limit=7, cursor=cursor, **limits_ms)  # type: ignore[arg-type] # times
        found += (hit.message.hash for hit in page.hits)
        cursor = page.cursor
        if cursor is None:
            return found


def test_texts_of_equal_times_are_sorted_by_hash(searched: CableStore) -> None:
    posts = [ANN.text("default", f"word {i}", at=START_MS) for i in range(2)]
    while posts[0].hash[0] >> 4 == posts[1].hash[0] >> 4:
        posts[1] = ANN.text("default", posts[1].hash.hex() + " word", at=START_MS)
    searched.ingest(raws(*posts))
    expected = sorted((post.hash for post in posts), reverse=True)
    assert [hit.message.hash for hit in searched.search("word").hits] == expected


@pytest.mark.thorough("disk")
def test_the_index_follows_the_store(searched: CableStore, rng: random.Random) -> None:
    """After any posts, deletions and discards, search finds the texts of the store."""
    numbers, held = count(), []
    for step in range(25):
        new = [ANN.text("default", f"word {next(numbers)}") for _ in range(rng.randrange(4))]
        searched.ingest(raws(*new))
        held += new
        rng.shuffle(held)
        gone = [held.pop() for _ in range(min(len(held), rng.randrange(3)))]
        if step % 2:
            searched.ingest(raws(*([ANN.delete(*gone)] if gone else [])))
        else:
            searched.discard(post.hash for post in gone)
        if rng.random() < 0.6:
            found = searched.search("word", limit=1000)
            assert sorted(hit.message.hash for hit in found.hits) == sorted(post.hash for post in held)


def test_a_discarded_text_is_found_after_it_is_stored_again(searched: CableStore) -> None:
    post = ANN.text("default", "word")
    for _ in range(3):
        searched.ingest(raws(post))
        assert texts(searched.search("word")) == ["word"]
        searched.discard([post.hash])
        assert texts(searched.search("word")) == []


def test_hidden_and_dropped_messages_are_not_found(searched: CableStore) -> None:
    hidden, dropped = ANN.text("default", "word by ann"), BOB.text("default", "word by bob")
    searched.ingest(raws(hidden, dropped, CYD.text("default", "word by cyd")))
    assert len(searched.search("word").hits) == 3
    searched.moderation.hide(posts=[hidden.hash])
    assert sorted(texts(searched.search("word"))) == ["word by bob", "word by cyd"]
    searched.moderation.drop(users=[BOB.key])
    assert texts(searched.search("word")) == ["word by cyd"]
    searched.moderation.unhide(posts=[hidden.hash])
    assert sorted(texts(searched.search("word"))) == ["word by ann", "word by cyd"]


def test_a_page_of_mostly_hidden_messages_ends_with_a_cursor(
    searched: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PAGE_ROWS_READ", 10)
    searched.ingest(raws(CYD.text("default", "word"), *(BOB.text("default", f"word {i}") for i in range(25))))
    searched.moderation.hide(users=[BOB.key])
    first = searched.search("word", limit=5)
    second = searched.search("word", limit=5, cursor=first.cursor)
    third = searched.search("word", limit=5, cursor=second.cursor)
    assert (texts(first), texts(second), texts(third)) == ([], [], ["word"])
    assert third.cursor is None
    searched.ingest(raws(*(CYD.text("default", f"word {i}") for i in range(4))))
    monkeypatch.setattr(limits, "MAX_PAGE_MESSAGES", 3)
    assert len(searched.search("word", limit=4).hits) == 3


def test_the_ranked_order_considers_only_the_newest_matches(
    searched: CableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SEARCH_RANKED", 10)
    searched.ingest(raws(*(ANN.text("default", f"word {i}") for i in range(30))))
    found = searched.search("word", order="ranked").hits
    assert {hit.message.text for hit in found} == {f"word {i}" for i in range(20, 30)}


@pytest.mark.parametrize(
    "cursor", ["", "newest", "newest-", "newest--1", "ranked-5", "newest-1x", "newest-" + "9" * 30]
)
def test_an_invalid_cursor_is_rejected(searched: CableStore, cursor: str) -> None:
    with pytest.raises(ArgumentError, match="invalid cursor of a search in the order 'newest'"):
        searched.search("word", cursor=SearchCursor(cursor))


def test_a_closed_store_is_not_searched(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store:
        store.search("word")
    with pytest.raises(StoreClosedError):
        store.search("word")
