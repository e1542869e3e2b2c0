"""Following a store: events in order, across restarts, without loss or repetition."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inside import engine_of
from people import ANN, raws
from waiting import LIMIT_S

from cablestore import CableStore, EventKind, limits
from cablestore.aio import AsyncCableStore
from cablestore.errors import CursorError


def test_subscribing_across_restarts_neither_loses_nor_repeats_events(tmp_path: Path) -> None:
    seen: list[bytes] = []
    after = 0
    sent: list[bytes] = []
    for round_ in range(4):
        with CableStore.open(tmp_path) as store:
            posts = [ANN.text("default", f"{round_} {i}") for i in range(7)]
            store.ingest(raws(*posts), batch_posts=3)
            sent += [post.hash for post in posts]
            for event in store.events(after, timeout_s=0):
                seen.append(event.hash)
                after = event.sequence
                if len(seen) % 5 == 0:
                    break  # in the middle of a batch
            if round_ == 2:
                store.rebuild()
    with CableStore.open(tmp_path) as store:
        seen += [event.hash for event in store.events(after, timeout_s=0)]
    assert seen == sent


def test_events_are_reported_in_order(store: CableStore) -> None:
    a, b = ANN.text("default", "a"), ANN.text("default", "b")
    deletion = ANN.delete(a)
    store.ingest(raws(a, b))
    store.ingest(raws(deletion))
    store.discard([b.hash])
    events = list(store.events(timeout_s=0))
    assert [(event.sequence, event.kind, event.hash) for event in events] == [
        (1, EventKind.ACCEPTED, a.hash),
        (2, EventKind.ACCEPTED, b.hash),
        (3, EventKind.ACCEPTED, deletion.hash),
        (4, EventKind.DELETED, a.hash),
        (5, EventKind.DISCARDED, b.hash),
    ]
    assert [event.post for event in events] == [None, None, deletion, None, None]
    assert store.last_sequence == 5
    assert [event.sequence for event in store.events(after=3, timeout_s=0)] == [4, 5]
    assert list(store.events(after=5, timeout_s=0)) == []
    assert len(list(store.events(after=-1, timeout_s=0))) == 5
    with store.snapshot() as state:
        store.join("default")
        assert list(state.events()) == events  # the snapshot does not change, and does not wait


def test_a_subscriber_receives_the_posts_of_other_threads(store: CableStore) -> None:
    store.join("default")
    after = store.last_sequence
    heard: list[bytes] = []

    def listen() -> None:
        for event in store.events(after):
            heard.append(event.hash)
            if len(heard) == 30:
                return

    listener = threading.Thread(target=listen)
    listener.start()
    sent = [store.post("default", str(i), sync=False).hash for i in range(30)]
    listener.join(LIMIT_S)
    assert heard == sent


def test_closing_the_store_ends_a_waiting_subscriber(tmp_path: Path) -> None:
    store = CableStore.open(tmp_path)
    listening, ended = threading.Event(), threading.Event()

    def listen() -> None:
        listening.set()
        list(store.events())
        ended.set()

    thread = threading.Thread(target=listen)
    thread.start()
    assert listening.wait(LIMIT_S)
    store.close()
    assert ended.wait(LIMIT_S)
    thread.join()


FOLLOWERS = pytest.mark.parametrize(
    "follow",
    [
        lambda store: store.events(store.last_sequence, timeout_s=1),
        lambda store: store.changes(timeout_s=1),
        lambda store: store.moderation.follow(timeout_s=1),
    ],
    ids=["events", "changes", "follow"],
)


@FOLLOWERS
def test_a_close_between_a_wait_and_the_read_after_it_ends_a_follower(
    follow: Callable[[CableStore], Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CableStore.in_memory()
    wait = engine_of(store).wait

    def wait_and_close(after: int, timeout_s: float | None) -> bool:
        store.post("default", "another thread writes this")
        found = wait(after, timeout_s)
        store.close()
        return found

    monkeypatch.setattr(engine_of(store), "wait", wait_and_close)
    assert list(follow(store)) == []
    assert store.is_closed


@FOLLOWERS
def test_a_follower_of_a_closed_store_ends(follow: Callable[[CableStore], Iterator[object]]) -> None:
    store = CableStore.in_memory()
    store.close()
    assert list(follow(store)) == []


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "asyncio"])
def test_a_rebuild_during_a_read_does_not_end_followers(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a cursor of changes becomes invalid, and raises CursorError."""
    store = CableStore.in_memory()
    store.ingest(raws(text := ANN.text("default", "x")))
    position, cursor = store.moderation.position, store.cursor
    store.moderation.hide(posts=[text.hash])

    def rebuilt_in_the_next_read() -> None:
        reading = engine_of(store).reading

        def taken() -> object:
            reader = reading()
            monkeypatch.undo()
            store.rebuild()
            return reader

        monkeypatch.setattr(engine_of(store), "reading", taken)

    def read() -> None:
        rebuilt_in_the_next_read()
        assert len(list(store.events(timeout_s=0))) == 2
        rebuilt_in_the_next_read()
        assert [change.what for change in store.moderation.since(position)[0]] == ["hidden"]
        rebuilt_in_the_next_read()
        with pytest.raises(CursorError, match="the store was rebuilt"):
            list(store.changes(after=cursor, timeout_s=0))

    async def read_async() -> None:
        async with AsyncCableStore(store) as later:
            rebuilt_in_the_next_read()
            assert len([event async for event in later.events(timeout_s=0)]) == 2
            rebuilt_in_the_next_read()
            assert [change.what for change in (await later.moderation.since(position))[0]] == ["hidden"]
            rebuilt_in_the_next_read()
            with pytest.raises(CursorError, match="the store was rebuilt"):
                await later.next_changes(cursor, timeout_s=0)

    if is_async:
        asyncio.run(read_async())
    else:
        read()


def test_a_subscription_ends_after_its_timeout(store: CableStore) -> None:
    assert list(store.events(timeout_s=0.05)) == []


def test_a_watcher_is_called_after_each_write_and_at_the_end(tmp_path: Path) -> None:
    calls: list[tuple[int, bool]] = []
    other_calls: list[int] = []
    with CableStore.open(tmp_path) as store:
        store.watch(lambda: calls.append((store.last_sequence, store.is_closed)))
        unwatch = store.watch(lambda: other_calls.append(store.last_sequence))
        store.join("default")
        store.post("default", "text")
        unwatch()
        store.post("default", "another")
    assert calls == [(1, False), (2, False), (3, False), (3, True)]
    assert other_calls == [1, 2]


def test_all_events_are_reported_if_they_exceed_one_read(store: CableStore) -> None:
    number = limits.MAX_EVENTS_READ + 10
    store.ingest(raws(*(ANN.text("default", str(i)) for i in range(number))), verify=False)
    assert [event.sequence for event in store.events(timeout_s=0)] == list(range(1, number + 1))
