"""The asyncio store: awaited calls in threads compared with direct ones: `aio.py [POSTS]`, 20,000 by default."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from pathlib import Path

from common import chat, print_result, size, size_given

from cablestore import CableStore
from cablestore.aio import AsyncCableStore

TASKS = 64
"""Tasks that call at the same time."""


def direct_us(call: Callable[[], object], times: int) -> float:
    """Return the duration of a call in microseconds."""
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times * 1e6


async def awaited_us(call: Callable[[], Awaitable[object]], times: int, tasks: int = 1) -> float:
    """Return the duration of a call in microseconds when several tasks call at the same time."""

    async def make(count: int) -> None:
        for _ in range(count):
            await call()

    started = time.perf_counter()
    await asyncio.gather(*(make(max(times // tasks, 1)) for _ in range(tasks)))
    return (time.perf_counter() - started) / max(times // tasks, 1) / tasks * 1e6


async def reads(blocking: CableStore, hashes: list[bytes], times: int) -> None:
    """Measure reads of posts and of pages, with 1, 2 and 4 reading threads."""
    rng = random.Random(1)

    def some() -> bytes:
        return rng.choice(hashes)

    kinds: list[tuple[str, Callable[[], object], Callable[[AsyncCableStore], Awaitable[object]], int]] = [
        ("a post", lambda: blocking.get(some()), lambda store: store.get(some()), times),
        (
            "a page of 50",
            lambda: blocking.messages("channel-0"),
            lambda store: store.messages("channel-0"),
            max(times // 20, 1),
        ),
    ]
    for what, in_place, awaited, count in kinds:
        alone_us = direct_us(in_place, count)
        print_result(f"{what}: direct", f"{alone_us:.0f} us", "")
        for threads in (1, 2, 4):
            store = AsyncCableStore(blocking, read_threads=threads)
            one_us = await awaited_us(partial(awaited, store), count)
            many_us = await awaited_us(partial(awaited, store), count, TASKS)
            value = f"{one_us:.0f} us, {many_us:.0f} us each"
            print_result(f"{what}: awaited, and by {TASKS} tasks; threads: {threads}", value, "")
    store = AsyncCableStore(blocking)
    count = size(10_000, tiny=20)
    started = time.perf_counter()
    taken = sum(1 for _ in islice(blocking.dump(), count))
    direct_s = time.perf_counter() - started
    items, started = store.dump(), time.perf_counter()
    for _ in range(taken):
        await anext(items)
    awaited_s = time.perf_counter() - started
    print_result(
        "a row of an iterator: direct, awaited",
        f"{direct_s / taken * 1e6:.1f} us, {awaited_s / taken * 1e6:.1f} us",
        "",
    )


async def writes(blocking: CableStore, times: int) -> None:
    """Measure single writes."""
    store = AsyncCableStore(blocking)
    for sync in (False, True):
        # Each way has a separate channel: a write costs more in a channel with many replaced heads.
        direct = direct_us(partial(blocking.post, f"direct {sync}", "text", sync=sync), times)
        one = await awaited_us(partial(store.post, f"awaited {sync}", "text", sync=sync), times)
        many = await awaited_us(partial(store.post, f"by many {sync}", "text", sync=sync), times, TASKS)
        what = f"a text written, {'on the disk' if sync else 'not synced'}"
        print_result(f"{what}: direct, awaited, by {TASKS} tasks", f"{direct:.0f}, {one:.0f}, {many:.0f} us", "")


async def following(blocking: CableStore, number: int) -> None:
    """Measure how long a write takes to reach many tasks that follow the store."""
    store, before = AsyncCableStore(blocking), threading.active_count()
    after = store.last_sequence
    waiting = [asyncio.create_task(anext(store.events(after))) for _ in range(number)]
    for _ in range(10):
        await asyncio.sleep(0)
    started = time.perf_counter()
    await store.post("bench", "to all", sync=False)
    await asyncio.gather(*waiting)
    spent_ms = (time.perf_counter() - started) * 1000
    more = threading.active_count() - before
    print_result(
        f"a text reaches {number:,} tasks that follow; threads", f"{spent_ms:.0f} ms; {more} more", "few threads"
    )


async def main() -> None:
    """Build a store and measure."""
    number, times = size_given(20_000, tiny=200), size(20_000, tiny=64)
    print(f"# the store for asyncio: {number:,} posts")
    with tempfile.TemporaryDirectory() as folder:
        opened = await AsyncCableStore.open(Path(folder))
        async with opened as store:
            stored = await store.ingest(chat(number), verify=False)
            hashes = [outcome.hash for outcome in stored if outcome.hash is not None]
            await reads(store.blocking, hashes, times)
            await writes(store.blocking, size(320, tiny=64))
            for tasks in (size(100, tiny=2), size(5_000, tiny=10)):
                await following(store.blocking, tasks)


if __name__ == "__main__":
    asyncio.run(main())
