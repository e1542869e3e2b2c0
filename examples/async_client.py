"""A store in an asyncio program: calls that touch the disk run in a thread, so that the event loop never waits.

LevelDB and libsodium release Python's lock while they work, so threads cost little and block nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator

from cablestore import CableStore, Event, EventKind


async def events(store: CableStore, after: int = 0) -> AsyncIterator[Event]:
    """Yield the events after number `after`, old and new, until nothing happens for half a second."""
    while found := await asyncio.to_thread(store.next_events, after, 0.5):
        for event in found:
            yield event
        after = found[-1].sequence


async def listen(store: CableStore) -> int:
    """Print messages as they arrive."""
    count = 0
    async for event in events(store):
        if event.kind is EventKind.ACCEPTED and event.post is not None and event.post.type_name == "text":
            message = await asyncio.to_thread(store.resolve, event.post)
            print(f"{message.channel}  {message.text}")
            count += 1
    return count


async def main() -> None:
    """Write and listen at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        store = await asyncio.to_thread(CableStore.open, folder)
        try:
            listener = asyncio.create_task(listen(store))
            for number in range(5):
                await asyncio.to_thread(store.text, "default", f"message {number}")
            assert await listener == 5
        finally:
            await asyncio.to_thread(store.close)


asyncio.run(main())
