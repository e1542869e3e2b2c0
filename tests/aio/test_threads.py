"""Limits of threads and of items fetched in advance, independent of the number of calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count

import pytest
from people import ANN, raws
from waiting import LIMIT_S

from cablestore import CableStore, Channel, Post, limits
from cablestore.aio import AsyncCableStore, Items
from cablestore.aio.threads import Threads
from cablestore.errors import StorageError
from cablestore.index.engine import Engine
from cablestore.index.reader import Reader, SnapshotReader


def test_reads_use_at_most_read_threads_and_writes_use_one() -> None:
    """Calls wait in their threads until all allowed threads have started."""
    names: set[str] = set()
    all_there = threading.Event()

    def hold() -> None:
        names.add(threading.current_thread().name)
        if len(names) == limits.READ_THREADS + 1:
            all_there.set()
        assert all_there.wait(LIMIT_S)

    async def use() -> None:
        threads = Threads()
        await asyncio.gather(*(threads.read(hold) for _ in range(50)), *(threads.write(hold) for _ in range(50)))
        await threads.close(lambda: None)

    asyncio.run(use())
    assert len(names) == limits.READ_THREADS + 1


def test_an_error_of_closing_is_raised_in_every_task_that_waits_for_it() -> None:
    def fail() -> None:
        raise StorageError("the disk is full")

    async def use() -> None:
        threads = Threads()
        async with asyncio.timeout(LIMIT_S):
            for _ in range(2):
                with pytest.raises(StorageError, match="the disk is full"):
                    await threads.close(fail)

    asyncio.run(use())


def test_the_last_message_of_a_channel_is_not_read_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is readable after the store was closed, and is that of the snapshot's state."""
    readers: list[threading.Thread] = []
    reading, get = Engine.reading, Reader.post

    def watched_reading(self: Engine) -> SnapshotReader:
        readers.append(threading.current_thread())
        return reading(self)

    def watched_post(self: Reader, digest: bytes) -> Post | None:
        readers.append(threading.current_thread())
        return get(self, digest)

    async def last_texts(channels: AsyncIterator[Channel]) -> list[str | None]:
        return [each.last_message.text if each.last_message else None async for each in channels]

    async def use() -> None:
        async with AsyncCableStore.in_memory() as store:
            await store.ingest(raws(ANN.text("a", "first"), ANN.text("b", "other"), ANN.join("c")))
            async with store.snapshot() as state:
                await store.ingest(raws(ANN.text("a", "second")))
                monkeypatch.setattr(Engine, "reading", watched_reading)
                monkeypatch.setattr(Reader, "post", watched_post)
                assert await last_texts(state.channels()) == ["first", "other", None]
            assert await last_texts(store.channels()) == ["second", "other", None]
            assert await last_texts(store.channels(order="activity")) == ["second", "other", None]
            found = [each async for each in store.channels()]
        assert readers
        assert threading.current_thread() not in readers
        assert [each.last_message is None for each in found] == [False, False, True]

    asyncio.run(use())


def test_an_iterator_fetches_at_most_max_items_ahead() -> None:
    taken, steps = count(), []

    def endless() -> Iterator[int]:
        yield from taken

    async def run(take: Callable[[], None]) -> None:
        before = next(taken)
        take()
        steps.append(next(taken) - before - 1)

    async def use() -> None:
        items = Items(run, endless)
        for _ in range(4 * limits.MAX_ITEMS_AHEAD):
            await anext(items)
        await items.aclose()
        assert [each async for each in items] == []

    asyncio.run(use())
    assert max(steps) == limits.MAX_ITEMS_AHEAD
    assert sorted(steps) == steps


def test_an_iterator_yields_the_items_before_an_error() -> None:
    def damaged() -> Iterator[int]:
        yield from range(30)
        raise ValueError("a damaged row")

    async def run(take: Callable[[], None]) -> None:
        take()

    async def use() -> tuple[list[int], str]:
        found: list[int] = []
        try:
            async for each in Items(run, damaged):
                found.append(each)  # noqa: PERF401 - a comprehension would lose them
        except ValueError as error:
            return found, str(error)
        return found, ""

    assert asyncio.run(use()) == (list(range(30)), "a damaged row")


def test_posts_before_an_error_of_an_iterable_are_stored() -> None:
    def some() -> Iterator[bytes]:
        yield from raws(*(ANN.text("c", str(number)) for number in range(5)))
        raise ValueError("no more")

    async def use(store: CableStore) -> str:
        opened = AsyncCableStore(store)
        try:
            await opened.ingest(some(), batch_posts=2)
        except ValueError as error:
            return str(error)
        return ""

    with CableStore.in_memory() as store:
        assert asyncio.run(use(store)) == "no more"
        assert store.last_sequence in {2, 4}
