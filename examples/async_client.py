"""A store in an asyncio program: calls are awaited, and the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import tempfile

from cablestore.aio import AsyncCableStore
from cablestore.store.changes import MessageAdded
from cablestore.store.cursor import ChangesCursor


async def listen(store: AsyncCableStore, after: ChangesCursor) -> int:
    """Print messages as they arrive, until half a second passes without a change. Return their number."""
    count = 0
    async for change in store.changes("default", after, timeout_s=0.5):
        if isinstance(change, MessageAdded):
            print(f"{change.channel}  {change.message.text}")
            count += 1
    return count


async def main() -> None:
    """Write messages to a store, and print them from its changes at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncCableStore.open(folder) as store:
            listener = asyncio.create_task(listen(store, await store.cursor))
            for number in range(5):
                await store.post("default", f"message {number}")
            assert await listener == 5


asyncio.run(main())
