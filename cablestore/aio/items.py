"""Async iterators over what a blocking store yields. A cancelled `anext` loses no item: the next one returns it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

from cablestore import limits

T = TypeVar("T")
PlaceT = TypeVar("PlaceT")

_FIRST_ITEMS = 16


class _Taking(AsyncIterator[T]):
    """Base of the iterators: the items that were taken and not returned yet."""

    def __init__(self) -> None:
        self._taken: deque[T] = deque()

    async def next_items(self, most: int) -> list[T]:
        """Wait for the next item, and return it with up to `most` that are there already; [] at the end."""
        try:
            found = [await anext(self)]
        except StopAsyncIteration:
            return []
        while self._taken and len(found) < most:
            found.append(self._taken.popleft())
        return found


class Items(_Taking[T]):
    """Async iterator over a blocking one, from which a thread takes some items at a time, the first time few."""

    def __init__(
        self,
        run: Callable[[Callable[[], None]], Awaitable[None]],
        iterate: Callable[[], Iterator[T]],
        at_once: int = limits.MAX_ITEMS_AHEAD,
    ) -> None:
        """Make one. `run` calls a function in a thread, `iterate` begins, `at_once` is how many items are taken."""
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
        """End the iteration. It need not be called: an iterator that is not used any more holds nothing."""
        self._is_over, self._source = True, None
        self._taken.clear()

    def _take(self) -> None:
        """Take the next items, in a thread."""
        with self._lock:
            if self._taken or self._is_over:
                return  # they were taken for a caller that was cancelled
            count = 0
            try:
                source = self._source = self._source or self._iterate()
                for count, item in enumerate(islice(source, self._next_count), 1):  # noqa: B007 - counted for below
                    self._taken.append(item)
            except Exception as error:  # noqa: BLE001 - it is raised by the `anext` that comes to it
                self._error, self._is_over = error, True
                return
            self._is_over = count < self._next_count
            self._next_count = min(self._next_count * 4, self._at_once)


class Feed(_Taking[T], Generic[T, PlaceT]):
    """Async iterator over what happens, which waits for more at its end and needs no thread for this."""

    def __init__(self, place: PlaceT, after: Callable[[PlaceT], Awaitable[tuple[list[T], PlaceT] | None]]) -> None:
        """Make one that begins at a place. `after` waits for what happened after one, and returns None at the end."""
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
