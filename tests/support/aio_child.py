"""A process that uses a store with asyncio, says "waiting", and ends in one of several ways: `aio_child.py FOLDER HOW`."""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path

from people import ANN, raws

from cablestore.aio import AsyncCableStore


async def listen(store: AsyncCableStore) -> None:
    async for _ in store.events(store.last_sequence):
        pass


async def watch(store: AsyncCableStore) -> None:
    async for _ in store.changes():
        pass


def say() -> None:
    print("waiting", flush=True)


async def wait_forever(store: AsyncCableStore, folder: Path, how: str) -> None:
    waiting = [asyncio.create_task(each) for each in (listen(store), watch(store))]
    await asyncio.sleep(0.05)
    if how.endswith("writes"):
        say()
        for number in count():
            await store.post("c", str(number))
    if how.endswith("exports"):
        await store.ingest(raws(*(ANN.text("d", str(number)) for number in range(3000))), verify=False)
        say()
        for number in count():
            await store.export(folder / f"export-{number}")
    say()
    if how == "raises":
        raise ValueError("of the program")
    await asyncio.gather(*waiting)


async def main(folder: Path, how: str) -> None:
    async with AsyncCableStore.open(folder / "store") as store:
        await store.post("c", "first")
        await wait_forever(store, folder, how)


async def leave_open(folder: Path) -> None:
    store = await AsyncCableStore.open(folder / "store")
    await store.post("c", "first")
    tasks = [asyncio.create_task(each) for each in (listen(store), watch(store))]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in tasks)
    say()


folder, how = Path(sys.argv[1]), sys.argv[2]
asyncio.run(leave_open(folder) if how == "leaves it open" else main(folder, how))
