"""Answers to peers' requests: their contents and order, and the posts that they must not contain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from people import ANN, BOB, CYD, START_MS, raws

from cablestore import CableStore, Post, Snapshot
from cablestore.protocol.body import Role
from cablestore.store import answers


@pytest.fixture
def texts(store: CableStore) -> list[Post]:
    posts = [ANN.text("default", str(i), at=START_MS + i) for i in range(10)]
    store.ingest(raws(*posts, ANN.text("other", "x"), BOB.join("default"), ANN.topic("default", "t")))
    return posts


@pytest.fixture
def snapshot(store: CableStore, texts: list[Post]) -> Iterator[Snapshot]:
    with store.snapshot() as opened:
        yield opened


def time_range(snapshot: Snapshot, start: int, end: int, limit: int = 0) -> list[bytes]:
    return list(answers.channel_time_range(snapshot.reader, "default", start, end, limit))


def test_posts_are_returned_in_the_order_of_the_request(snapshot: Snapshot, texts: list[Post]) -> None:
    wanted = [texts[3].hash, bytes(32), texts[1].hash, texts[3].hash]
    assert list(answers.post_request(snapshot.reader, wanted)) == [texts[3].raw, texts[1].raw, texts[3].raw]
    assert list(answers.post_request(snapshot.reader, [])) == []


def test_a_time_range_is_half_open_and_newest_first(snapshot: Snapshot, texts: list[Post]) -> None:
    newest_first = [post.hash for post in reversed(texts)]
    assert time_range(snapshot, START_MS, START_MS + 10) == newest_first
    assert time_range(snapshot, START_MS + 1, START_MS + 9) == newest_first[1:-1]
    assert time_range(snapshot, START_MS + 3, START_MS + 4) == [texts[3].hash]
    assert time_range(snapshot, START_MS + 4, START_MS + 4) == []
    assert time_range(snapshot, START_MS + 5, START_MS + 4) == []


def test_a_time_range_may_have_no_end_and_a_limit(snapshot: Snapshot, texts: list[Post]) -> None:
    newest_first = [post.hash for post in reversed(texts)]
    assert time_range(snapshot, 0, 0) == newest_first
    assert time_range(snapshot, 0, 0, 3) == newest_first[:3]
    assert time_range(snapshot, START_MS, START_MS + 5, 2) == [texts[4].hash, texts[3].hash]
    assert time_range(snapshot, 0, 0, 10**9) == newest_first


def test_extreme_numbers_of_a_peer_are_accepted(snapshot: Snapshot) -> None:
    assert time_range(snapshot, 2**64 - 1, 2**64 - 1) == []
    assert len(time_range(snapshot, 0, 2**64 - 1, 2**64 - 1)) == 10
    assert list(answers.channel_list(snapshot.reader, 2**62, 2**62)) == []


def test_a_time_range_has_only_texts_and_deletions(store: CableStore, texts: list[Post]) -> None:
    deletion = ANN.delete(texts[0], texts[1], at=START_MS + 100)
    elsewhere = ANN.delete(next(iter(store.posts_by(ANN.key, channel="other"))))
    store.ingest(raws(deletion, elsewhere))
    with store.snapshot() as snapshot:
        assert time_range(snapshot, 0, 0, 2) == [deletion.hash, texts[9].hash]
        assert set(time_range(snapshot, 0, 0)) == {deletion.hash, *(post.hash for post in texts[2:])}
        assert list(answers.channel_time_range(snapshot.reader, "other", 0, 0)) == [elsewhere.hash]


def test_a_time_range_of_an_unknown_channel_is_empty_and_creates_no_channel(store: CableStore) -> None:
    with store.snapshot() as snapshot:
        assert list(answers.channel_time_range(snapshot.reader, "nowhere", 0, 0)) == []
        assert list(answers.channel_state(snapshot.reader, "nowhere")) == []
        assert list(answers.channel_list(snapshot.reader)) == []


def test_channel_state_has_the_latest_post_of_each_kind(store: CableStore) -> None:
    posts = {
        "ann joined": ANN.join("default"),
        "ann left": ANN.leave("default"),
        "ann rejoined": ANN.join("default"),
        "ann": ANN.named("ann"),
        "ann renamed": ANN.named("Ann"),
        "bob joined": BOB.join("default"),
        "bob": BOB.named("bob"),
        "bob left": BOB.leave("default"),
        "cyd wrote": CYD.text("default", "x"),
        "cyd": CYD.named("cyd"),
        "topic": ANN.topic("default", "old"),
        "new topic": BOB.topic("elsewhere", "other"),
        "last topic": ANN.topic("default", "new"),
    }
    store.ingest(raws(*posts.values()))
    with store.snapshot() as snapshot:
        state = list(answers.channel_state(snapshot.reader, "default"))
    named = {post.hash: name for name, post in posts.items()}
    assert sorted(named[digest] for digest in state) == sorted(
        ["last topic", "ann rejoined", "ann renamed", "bob left", "cyd"]
    )


def test_channel_state_does_not_read_the_history(store: CableStore) -> None:
    """O(members): the number of rows read does not grow with the posts that members write after they join."""

    def rows_read() -> int:
        count = 0
        with store.snapshot() as snapshot:
            reader = snapshot.reader
            get, scan = reader.get, reader.scan

            def counting_get(key: bytes) -> bytes | None:
                nonlocal count
                count += 1
                return get(key)

            def counting_scan(
                start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0
            ) -> Iterator[tuple[bytes, bytes]]:
                nonlocal count
                for row in scan(start, stop, reverse=reverse, at_once=at_once):
                    count += 1
                    yield row

            reader.get, reader.scan = counting_get, counting_scan
            list(answers.channel_state(reader, "default"))
        return count

    store.ingest(raws(ANN.join("default"), ANN.named("ann"), BOB.join("default")))
    few = rows_read()
    store.ingest(raws(*(ANN.text("default", str(i)) for i in range(500))), verify=False)
    assert rows_read() == few


def test_a_channel_list_is_sorted_by_bytes_and_paged(store: CableStore) -> None:
    names = ["b", "a", "a!b", "~", " ", "\x00", "ü", "日本", "B", '"', "🐈"]
    store.ingest(raws(*(ANN.join(name) for name in names)))
    expected = sorted(names, key=str.encode)
    with store.snapshot() as snapshot:
        assert list(answers.channel_list(snapshot.reader)) == expected
        assert list(answers.channel_list(snapshot.reader, 2, 3)) == expected[2:5]
        assert list(answers.channel_list(snapshot.reader, 4, 0)) == expected[4:]
        assert list(answers.channel_list(snapshot.reader, 10, 5)) == expected[10:]
        assert list(answers.channel_list(snapshot.reader, 50, 5)) == []


def test_a_role_in_a_channel_does_not_create_the_channel(store: CableStore) -> None:
    store.ingest(raws(ANN.post(Role("", 0, "ghost", BOB.key, 1))))
    with store.snapshot() as snapshot:
        assert list(answers.channel_list(snapshot.reader)) == []


def test_only_unknown_posts_are_worth_requesting(store: CableStore) -> None:
    here, gone, unknown, waiting = (ANN.text("default", name) for name in ("here", "gone", "unknown", "waiting"))
    store.ingest(raws(here, gone, ANN.delete(gone, waiting), BOB.delete(unknown)))
    with store.snapshot() as snapshot:
        offered = [here.hash, unknown.hash, gone.hash, unknown.hash, waiting.hash]
        assert list(answers.worth_requesting(snapshot.reader, offered)) == [unknown.hash, waiting.hash]


def test_an_answer_does_not_change_while_posts_arrive(store: CableStore, texts: list[Post]) -> None:
    with store.snapshot() as snapshot:
        answer = answers.channel_time_range(snapshot.reader, "default", 0, 0)
        first = next(answer)
        store.ingest(raws(ANN.text("default", "newer"), ANN.delete(texts[5])))
        assert [first, *answer] == [post.hash for post in reversed(texts)]
