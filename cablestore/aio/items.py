"""Async iterators over the items of a blocking store. If an `anext` is cancelled, the next one returns its item."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from cablestore import limits

T = TypeVar("T")
PositionT = TypeVar("PositionT")

_FIRST_ITEMS = 16


class _Taking(AsyncIterator[T]):
    """Base class of the iterators: the items that were fetched and not returned yet."""

    def __init__(self) -> None:
        self._taken: deque[T] = deque()

    async def next_items(self, most: int) -> list[T]:
        """Wait for the next item. Return up to `most` items that are available then, or [] at the end."""
        try:
            found = [await anext(self)]
        except StopAsyncIteration:
            return []
        while self._taken and len(found) < most:
            found.append(self._taken.popleft())
        return found


class Items(_Taking[T]):
    """Async iterator over a blocking iterator. A thread fetches several items at a time, first few and then more."""

    def __init__(
        self,
        run: Callable[[Callable[[], None]], Awaitable[None]],
        iterate: Callable[[], Iterator[T]],
        at_once: int = limits.MAX_ITEMS_AHEAD,
    ) -> None:
        """`iterate` returns the blocking iterator. `run` fetches in a thread, up to `at_once` items at a time."""
        super().__init__()
        self._run = run
        self._iterate = iterate
        self._source: Iterator[T] | None = None
        self._at_once = at_once
        self._next_count = min(_FIRST_ITEMS, at_once)
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._is_over = False

    async def __anext__(self) -> T:
        while not self._taken:
            if self._is_over:
                error, self._error = self._error, None
                raise error or StopAsyncIteration
            await self._run(self._take)
        return self._taken.popleft()

    async def aclose(self) -> None:
        """End the iteration. Calling it is optional: an unused iterator holds no resources."""
        self._is_over, self._source = True, None
        self._taken.clear()

    def _take(self) -> None:
        """Fetch the next items, unless fetched items are left. Runs in a thread."""
        with self._lock:
            if self._taken or self._is_over:
                return  # the items were fetched for a caller that was cancelled meanwhile
            count = 0
            try:
                source = self._source = self._source or self._iterate()
                for count, item in enumerate(islice(source, self._next_count), 1):  # noqa: B007 - counted for below
                    self._taken.append(item)
            except Exception as error:  # noqa: BLE001 - the `anext` that reaches it raises it
                self._error, self._is_over = error, True
                return
            self._is_over = count < self._next_count
            self._next_count = min(self._next_count * 4, self._at_once)


class Feed(_Taking[T], Generic[T, PositionT]):
    """Async iterator over stored and then new events. It waits for new events without occupying a thread."""

    def __init__(
        self, place: PositionT, after: Callable[[PositionT], Awaitable[tuple[list[T], PositionT] | None]]
    ) -> None:
        """Yield the items after the position `place`.

        `after` waits for items after a given position. It returns them and the position after them, or None at the end.
        """
        super().__init__()
        self._place = place
        self._after = after

    async def __anext__(self) -> T:
        while not self._taken:
            found = await self._after(self._place)
            if found is None:
                raise StopAsyncIteration
            items, self._place = found
            self._taken.extend(items)
        return self._taken.popleft()
