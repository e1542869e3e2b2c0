"""Programs that store their cursor in local values do not notify themselves.

The loops are those of the how-to guides. Each runs with real posts, and its iterations are counted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from documents import blocks
from people import ANN, raws

from cablestore import CableStore
from cablestore.aio import AsyncCableStore
from cablestore.store.changes import Change, DraftChanged, LocalChanged, MessageAdded
from cablestore.store.cursor import ChangesCursor

POSTS = 5
QUIET_S = 0.3
"""A program ends after this time without changes. A program that notifies itself never ends."""
MOST_ROUNDS = 200
"""A program that notifies itself is stopped after this number of iterations, so that its test fails."""


def loop_of(page: str) -> Callable[..., Any]:
    [program] = [block for block in blocks(page) if "def follow_from_last_time" in block]
    names: dict[str, Any] = {}
    exec("from cablestore.errors import CursorError\n" + program.split("\n\n\nfollow")[0], names)
    return names["follow_from_last_time"]  # type: ignore[no-any-return] # defined by the how-to guide


class Rounds:
    """Handler of changes that counts its calls. Up to a limit, each call writes a post of another user."""

    def __init__(self, store: CableStore) -> None:
        self.store = store
        self.count = 0
        self.texts: list[str] = []

    def __call__(self, changes: Sequence[Change]) -> None:
        self.count += 1
        assert self.count < MOST_ROUNDS, f"the program notifies itself: {changes}"
        self.texts += [each.message.text for each in changes if isinstance(each, MessageAdded)]
        if len(self.texts) < POSTS:
            self.store.ingest(raws(ANN.text("default", f"text {len(self.texts)}")))


def test_the_loop_of_the_guide_runs_once_per_post_and_continues_after_a_restart(tmp_path: Path) -> None:
    follow = loop_of("docs/how-to/write-a-client.md")
    for expected in (POSTS, POSTS + 1):
        with CableStore.open(tmp_path / "store") as store:
            rounds = Rounds(store)
            follow.__globals__["store"] = store
            if expected == POSTS:
                store.local.put_json("bot", "cursor", store.cursor)
            store.ingest(raws(ANN.text("default", "text 0")))
            follow(rounds, timeout_s=QUIET_S)
            assert rounds.count == POSTS
            assert len(rounds.texts) == POSTS
            store.ingest(raws(ANN.text("default", "while it is away")))
            before = rounds.count
            follow(rounds, timeout_s=0)
            assert (rounds.count - before, rounds.texts[-1]) == (1, "while it is away")


def test_the_loop_with_asyncio_runs_once_per_post() -> None:
    follow = loop_of("docs/how-to/asyncio.md")

    async def run() -> Rounds:
        async with AsyncCableStore.in_memory() as store:
            rounds = Rounds(store.blocking)
            await store.local.put_json("bot", "cursor", await store.cursor)
            await store.ingest(raws(ANN.text("default", "text 0")))
            await follow(store, rounds, timeout_s=QUIET_S)
            return rounds

    rounds = asyncio.run(run())
    assert (rounds.count, len(rounds.texts)) == (POSTS, POSTS)


def keep(store: CableStore, number: int) -> None:
    store.local.put_json("bot", "place", number)
    assert number < MOST_ROUNDS, "the program notifies itself"


def by_changes(store: CableStore, begin: ChangesCursor) -> int:
    rounds = 0
    for rounds, change in enumerate(store.changes(after=begin, timeout_s=QUIET_S), 1):
        assert not isinstance(change, LocalChanged)
        keep(store, rounds)
    return rounds


def by_events(store: CableStore, _: str) -> int:
    rounds = 0
    for rounds, _event in enumerate(store.events(timeout_s=QUIET_S), 1):
        keep(store, rounds)
    return rounds


def by_watching(store: CableStore, _: str) -> int:
    rounds, woken = 0, threading.Event()
    unwatch = store.watch(woken.set)
    woken.set()
    while woken.wait(QUIET_S):
        woken.clear()
        rounds += 1
        keep(store, rounds)
    unwatch()
    return rounds


@pytest.mark.parametrize(
    ("program", "most"),
    [
        (by_changes, 4 + POSTS),
        (by_events, POSTS),
        (by_watching, 1),
    ],
)
def test_a_program_that_stores_its_cursor_does_not_notify_itself(
    program: Callable[[CableStore, str], int], most: int
) -> None:
    with CableStore.in_memory() as store:
        begin = store.cursor
        store.ingest(raws(*texts()))
        assert 1 <= program(store, begin) <= most


def texts() -> list[Any]:
    return [ANN.text("default", f"text {number}") for number in range(POSTS)]


def test_an_asyncio_program_that_stores_its_cursor_does_not_notify_itself() -> None:
    async def run(store: AsyncCableStore, found: AsyncIterator[object]) -> int:
        rounds = 0
        async for _ in found:
            rounds += 1
            await store.local.put_json("bot", "place", rounds)
            assert rounds < MOST_ROUNDS
        return rounds

    async def both() -> list[int]:
        async with AsyncCableStore.in_memory() as store:
            cursor = await store.cursor
            await store.ingest(raws(*texts()))
            return [
                await run(store, store.events(timeout_s=QUIET_S)),
                await run(store, store.changes(after=cursor, timeout_s=QUIET_S)),
            ]

    by_events, by_changes = asyncio.run(both())
    assert by_events == POSTS
    assert 1 <= by_changes <= 4 + POSTS


def test_local_changes_are_reported_on_request() -> None:
    with CableStore.in_memory() as store:
        cursor, number, calls = store.cursor, store.last_sequence, list[str]()
        store.watch(lambda: calls.append("local"), local=True)
        store.watch(lambda: calls.append("posts"))
        store.local.put("theme", "colour", b"red")
        assert calls == ["local"]
        assert store.next_changes(cursor, timeout_s=0).changes == []
        assert store.next_changes(cursor, timeout_s=0, local=True).changes == [LocalChanged("theme", "colour")]
        assert next(store.changes(after=cursor, local=True)) == LocalChanged("theme", "colour")
        assert list(store.events(number, timeout_s=0)) == []
        store.local.set_draft("default", "I wa")
        assert calls == ["local", "local", "posts"]
        assert store.next_changes(cursor, timeout_s=0).changes == [DraftChanged("default")]


def test_local_changes_are_reported_to_awaiting_tasks_on_request() -> None:
    async def run() -> None:
        async with AsyncCableStore.in_memory() as store:
            cursor, number = await store.cursor, store.last_sequence
            following = asyncio.create_task(anext(store.changes(after=cursor, local=True)))
            await store.local.put("theme", "colour", b"red")
            assert await following == LocalChanged("theme", "colour")
            assert [event async for event in store.events(number, timeout_s=0)] == []
            assert (await store.next_changes(cursor, timeout_s=0)).changes == []

    asyncio.run(run())


def test_a_wait_ends_when_the_store_is_closed() -> None:
    store = CableStore.in_memory()
    store.local.put("theme", "colour", b"red")
    closer = threading.Timer(0.05, store.close)
    closer.start()
    assert list(store.events(timeout_s=60)) == []
    closer.join()
