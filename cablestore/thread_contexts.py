"""Contexts that threads enter and exit for a task of asyncio, because they read or write files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def entered_in_thread(make: Callable[[], AbstractContextManager[T]]) -> AsyncIterator[T]:
    """Create, enter and exit a context in threads of the loop's executor.

    A thread continues after its task was cancelled. So a task that is cancelled while the thread enters the context
    waits for the thread, and then exits the context.
    """
    stack = ExitStack()
    entering = asyncio.ensure_future(asyncio.to_thread(lambda: stack.enter_context(make())))

    async def leave() -> None:
        await asyncio.gather(entering, return_exceptions=True)  # its error was raised, unless the task was cancelled
        await asyncio.to_thread(stack.close)

    try:
        yield await asyncio.shield(entering)
    finally:
        await asyncio.shield(asyncio.ensure_future(leave()))  # also if the task is cancelled again
