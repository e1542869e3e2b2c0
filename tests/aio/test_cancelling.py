"""Cancelled calls: a write that has begun completes, no item is lost, and long work stops and can resume."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from people import ANN, raws
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, Post, StoreOptions
from cablestore.aio import AsyncCableStore
from cablestore.errors import CableStoreError, StoreLockedError
from cablestore.store.changes import MessageAdded


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():  # noqa: ASYNC110 - waits for other threads
            await asyncio.sleep(0.001)


class HeldClock:
    """Clock that blocks a writer which has begun, until `may_go` is set."""

    def __init__(self) -> None:
        self.has_begun, self.may_go = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.has_begun.set()
        assert self.may_go.wait(LIMIT_S)
        return time.time_ns() // 1_000_000


def texts(store: CableStore) -> list[str]:
    return [message.text for message in store.messages("c", 1000, newest_first=False).messages]


def test_a_cancelled_write_completes_if_begun_and_is_skipped_if_waiting(tmp_path: Path) -> None:
    clock = HeldClock()

    async def use() -> None:
        async with AsyncCableStore.open(tmp_path, identity=ANN.identity, options=StoreOptions(clock=clock)) as store:
            begun = asyncio.create_task(store.post("c", "begun"))
            await until(clock.has_begun.is_set)
            waiting = asyncio.create_task(store.post("c", "waiting"))
            await asyncio.sleep(0)
            for task in (begun, waiting):
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await begun
            with pytest.raises(asyncio.CancelledError):
                await waiting
            clock.may_go.set()
            await store.post("c", "after")

    asyncio.run(use())
    with CableStore.open(tmp_path) as store:
        assert texts(store) == ["begun", "after"]
        assert store.check().is_clean


def test_writes_cancelled_at_any_time_are_complete_or_skipped(tmp_path: Path, rng: random.Random) -> None:
    done: set[str] = set()

    async def write(store: AsyncCableStore, number: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.choice([0, 0.001, 0.01, LIMIT_S])):
                await store.post("c", f"text {number}", sync=False)
                done.add(f"text {number}")

    async def use() -> None:
        async with AsyncCableStore.open(tmp_path) as store:
            for start in range(0, 60, 20):
                await asyncio.gather(*(write(store, start + number) for number in range(20)))

    asyncio.run(use())
    with CableStore.open(tmp_path) as store:
        stored = texts(store)
        assert done <= set(stored)
        assert len(stored) == len(set(stored))
        assert store.check().is_clean
        assert store.last_sequence == len(stored) + bool(stored)


async def cancelled_at_times(wanted: Callable[[], Awaitable[object]], rng: random.Random) -> object:
    """Return the result after some cancelled attempts."""
    while True:
        task = asyncio.ensure_future(wanted())
        if rng.random() < 0.5:
            return await task
        await asyncio.sleep(rng.choice([0, 0, 0.001]))
        task.cancel()
        with suppress(asyncio.CancelledError):
            return await task


def test_cancelled_steps_of_iterators_do_not_lose_items(rng: random.Random) -> None:
    async def use() -> None:
        async with AsyncCableStore.in_memory() as store:
            await store.ingest(raws(*(ANN.text("c", str(number)) for number in range(300))))
            posts, found = store.posts_by(ANN.key), []
            with suppress(StopAsyncIteration):
                while True:
                    found.append(await cancelled_at_times(lambda: anext(posts), rng))
            assert found == list(store.blocking.posts_by(ANN.key))
            events = store.events()
            heard = [await cancelled_at_times(lambda: anext(events), rng) for _ in range(300)]
            assert heard == list(store.blocking.events(timeout_s=0))

    asyncio.run(use())


def test_a_client_that_polls_with_a_time_limit_gets_every_change() -> None:
    async def use() -> None:
        async with AsyncCableStore.in_memory() as store:
            await store.join("c")
            changes = store.changes("c")
            heard: list[str] = []
            with suppress(TimeoutError):
                await asyncio.wait_for(anext(changes), 0.05)

            async def write() -> None:
                for number in range(20):
                    await store.post("c", str(number))
                    await asyncio.sleep(0.002)

            writing = asyncio.create_task(write())
            async with asyncio.timeout(LIMIT_S):
                while len(heard) < 20:
                    with suppress(TimeoutError):
                        change = await asyncio.wait_for(anext(changes), 0.003)
                        if isinstance(change, MessageAdded):
                            heard.append(change.message.text)
            await writing
            assert heard == [str(number) for number in range(20)]

    asyncio.run(use())


@pytest.mark.parametrize("delay_s", [None, 0, 0.002, 0.01, 0.03])
def test_a_store_is_closed_if_its_opening_is_cancelled(tmp_path: Path, delay_s: float | None) -> None:
    async def use() -> None:
        opening = asyncio.create_task(_opened(tmp_path))
        if delay_s is not None:
            await asyncio.sleep(delay_s)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await (await opening).close()

    asyncio.run(use())

    def is_free() -> bool:
        try:
            CableStore.open(tmp_path).close()
        except StoreLockedError:
            return False
        return True

    wait_until(is_free)


def test_a_cancelled_close_completes(tmp_path: Path) -> None:
    clock = HeldClock()

    async def use() -> None:
        store = await AsyncCableStore.open(tmp_path, identity=ANN.identity, options=StoreOptions(clock=clock))
        writing = asyncio.create_task(store.post("c", "begun"))
        await until(clock.has_begun.is_set)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not store.is_closed, "the write is not over"
        clock.may_go.set()
        assert (await writing).hash
        await store.close()
        assert store.is_closed

    asyncio.run(use())
    with CableStore.open(tmp_path) as store:
        assert texts(store) == ["begun"]


async def _opened(path: Path) -> AsyncCableStore:
    return await AsyncCableStore.open(path)


@pytest.mark.thorough
def test_cancelled_long_work_stops_and_can_resume(tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncCableStore.open(tmp_path / "store") as store:
            await store.ingest(raws(*(ANN.text("c", str(number)) for number in range(5_000))), verify=False)
            counts: list[int] = []
            loop_thread, threads = threading.get_ident(), set()

            def count_up(count: int) -> None:
                counts.append(count)
                threads.add(threading.get_ident())

            rebuilding = asyncio.create_task(store.rebuild(progress=count_up))
            await until(lambda: counts or rebuilding.done())
            rebuilding.cancel()
            with suppress(asyncio.CancelledError):
                await rebuilding
            assert threads == {loop_thread}, "progress is reported on the loop"
            assert len((await store.messages("c")).messages) == 50

            counts.clear()
            exporting = asyncio.create_task(store.export(tmp_path / "export", progress=count_up))
            await until(lambda: counts or exporting.done())
            exporting.cancel()
            with suppress(asyncio.CancelledError):
                await exporting
            manifest = await store.export(tmp_path / "export", progress=count_up)
            assert manifest.posts == {"text": 5_000}
            assert (await store.check()).is_clean

    asyncio.run(use())


def test_a_cancelled_exit_of_a_with_block_releases_the_folder(tmp_path: Path) -> None:
    clock = HeldClock()

    async def stay(left: asyncio.Event) -> None:
        async with AsyncCableStore.open(tmp_path, identity=ANN.identity, options=StoreOptions(clock=clock)) as store:
            writing.append(asyncio.create_task(store.post("c", "begun")))
            await until(clock.has_begun.is_set)
            left.set()

    async def use() -> None:
        left = asyncio.Event()
        staying = asyncio.create_task(stay(left))
        await left.wait()
        for _ in range(3):
            staying.cancel()
            await asyncio.sleep(0.01)
        assert not staying.done(), "the write is not over"
        clock.may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await staying
        with CableStore.open(tmp_path) as store:
            assert texts(store) == ["begun"]
        assert (await writing[0]).hash

    writing: list[asyncio.Task[Post]] = []
    asyncio.run(use())


def test_a_call_that_cannot_be_awaited_is_not_run() -> None:
    """An example is a call in a task of trio, which does not support asyncio futures."""
    with CableStore.in_memory() as blocking:
        store = AsyncCableStore(blocking)
        for call in (store.post("c", "from elsewhere"), store.channels().__anext__(), store.compact(), store.close()):
            with pytest.raises(CableStoreError, match="only be awaited in an asyncio task"):
                call.send(None)
        assert not blocking.last_sequence
        assert not blocking.is_closed
        asyncio.run(store.close())
