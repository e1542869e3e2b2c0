"""Closing a store for asyncio: all waits end, threads end, and the process exits."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from folders import SUPPORT
from people import ANN, BOB, raws
from waiting import LIMIT_S, wait_until

from cablestore import CableStore
from cablestore.aio import AsyncCableStore
from cablestore.aio.arrivals import Arrivals
from cablestore.aio.threads import Threads
from cablestore.errors import StoreClosedError
from cablestore.moderation import UserRole


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("cablestore-aio")]


async def all_of(items: object) -> list[object]:
    return [each async for each in items]  # type: ignore[attr-defined] # any async iterator


def test_closing_ends_all_waiting_tasks_and_threads(tmp_path: Path) -> None:
    async def use() -> None:
        store = await AsyncCableStore.open(tmp_path)
        await store.ingest(raws(*(ANN.text("c", str(number)) for number in range(600))))
        half_read, snapshot = store.posts_by(ANN.key), await store.snapshot()
        await anext(half_read)
        last = store.last_sequence
        waiting = [
            asyncio.create_task(each)
            for each in (
                all_of(store.events(last)),
                all_of(store.changes()),
                all_of(store.moderation.follow()),
            )
        ]
        await asyncio.sleep(0)
        text = asyncio.create_task(store.post("c", "asked for before the end"))
        await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S):
            await store.close()
            assert (await text).hash
            heard = [await each for each in waiting]
        assert heard[2] == [], "no action of moderation was written"
        assert store.is_closed
        with pytest.raises(StoreClosedError):
            await all_of(half_read)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.post("c", "late"),
            lambda: store.messages("c"),
            lambda: snapshot.messages("c"),
            store.compact,
            lambda: all_of(store.channels()),
            lambda: store.local.get("name"),
            store.moderation.in_force,
        ]
        for call in calls:
            with pytest.raises(StoreClosedError):
                await call()
        assert await all_of(store.events()) == []
        await snapshot.close()
        await store.close()
        wait_until(lambda: not own_threads())

    asyncio.run(use())
    with CableStore.open(tmp_path) as store:
        assert store.messages("c", 1).messages[0].text == "asked for before the end"


@pytest.mark.thorough
def test_thousands_of_followers_use_no_threads() -> None:
    async def use() -> None:
        async with AsyncCableStore.in_memory() as store:
            await store.join("c")
            after, cursor = store.last_sequence, await store.cursor
            heard = [asyncio.create_task(anext(store.events(after))) for _ in range(1_000)]
            heard += [asyncio.create_task(anext(store.changes("c", cursor))) for _ in range(1_000)]  # type: ignore[arg-type] # the list has tasks of both
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(own_threads()) <= 3
            post = await store.post("c", "to all")
            async with asyncio.timeout(LIMIT_S):
                found = await asyncio.gather(*heard)
            assert {event.hash for event in found[:1_000]} == {post.hash}
            assert len(found) == 2_000
            assert len(own_threads()) <= 3

    asyncio.run(use())


def test_followers_of_moderation_are_notified_of_actions() -> None:
    async def use() -> None:
        async with AsyncCableStore.in_memory() as store:
            await store.ingest(raws(BOB.text("c", "hello")))
            following = asyncio.create_task(anext(store.moderation.follow()))
            await asyncio.sleep(0)
            effect = await store.moderation.set_role(BOB.key, UserRole.MOD)
            async with asyncio.timeout(LIMIT_S):
                assert await following == effect.changes[0]

    asyncio.run(use())


def test_several_loops_use_one_store_sequentially_and_concurrently(tmp_path: Path) -> None:
    store = AsyncCableStore(CableStore.open(tmp_path))

    async def write(text: str) -> None:
        await store.post("c", text)

    async def hear(number: int) -> list[bytes]:
        events = store.events()
        async with asyncio.timeout(LIMIT_S):
            return [(await anext(events)).hash for _ in range(number)]

    asyncio.run(write("first"))
    asyncio.run(write("second"))
    heard: list[list[bytes]] = []
    listeners = [threading.Thread(target=lambda: heard.append(asyncio.run(hear(5)))) for _ in range(2)]
    for listener in listeners:
        listener.start()
    for text in ("third", "fourth"):
        asyncio.run(write(text))
    for listener in listeners:
        listener.join()
    expected = [event.hash for event in store.blocking.events(timeout_s=0)]
    assert heard == [expected, expected]
    asyncio.run(store.close())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how", ["raises", "leaves it open", "ctrl-c", "ctrl-c while it writes", "ctrl-c while it exports"]
)
def test_a_process_exits_regardless_of_waiting_tasks(tmp_path: Path, how: str) -> None:
    child = subprocess.Popen(
        [sys.executable, str(SUPPORT / "aio_child.py"), str(tmp_path), how],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "waiting\n"
        if how.startswith("ctrl-c"):
            child.send_signal(signal.SIGINT)
        _, output = child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
    expected = {"raises": 1, "leaves it open": 0}.get(how, -signal.SIGINT)
    assert child.returncode == expected, output
    last_line = {"raises": "ValueError: of the program", "leaves it open": ""}.get(how, "KeyboardInterrupt")
    assert output.strip().rpartition("\n")[2] == last_line
    assert "never awaited" not in output
    assert "never retrieved" not in output
    assert "exception calling callback" not in output
    with CableStore.open(tmp_path / "store", create=False) as store:
        assert store.messages("c", 1000, newest_first=False).messages[0].text == "first"
        assert store.check().is_clean


def test_closing_ends_a_task_that_begins_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use() -> None:
        blocking = CableStore.in_memory()
        store = AsyncCableStore(blocking)
        begin = Arrivals._next

        def after_the_end(arrivals: Arrivals) -> asyncio.Event:
            blocking.close()
            return begin(arrivals)

        monkeypatch.setattr(Arrivals, "_next", after_the_end)
        async with asyncio.timeout(LIMIT_S):
            assert await all_of(store.events()) == []
            await store.close()

    asyncio.run(use())


def test_queued_long_work_does_not_start_after_the_store_is_closed() -> None:
    async def use() -> None:
        threads, begun, go, ran = Threads(), threading.Event(), threading.Event(), list[str]()

        def first() -> None:
            begun.set()
            go.wait(LIMIT_S)

        works = [asyncio.create_task(threads.work(first)), asyncio.create_task(threads.work(ran.append, "second"))]
        await asyncio.to_thread(begun.wait, LIMIT_S)
        closing = asyncio.create_task(threads.close(lambda: None))
        await asyncio.sleep(0.1)
        go.set()
        await closing
        await works[0]
        with pytest.raises(StoreClosedError):
            await works[1]
        assert ran == []

    asyncio.run(use())
