"""Mirrors: awaitable versions of the methods of a blocking object, with the same parameters and types.

A mirror class lists each method and the thread in which it runs:

    class AsyncQueries(Mirror):
        messages = on_reader(Queries.messages)
        channels = each_on_reader(Queries.channels)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from cablestore.aio.items import Items
from cablestore.aio.threads import Threads, to_the_end

P = ParamSpec("P")
T = TypeVar("T")


class Mirror:
    """Base class of the mirrors: a blocking object, and the threads in which its methods run."""

    def __init__(self, blocking: Any, threads: Threads) -> None:
        self._blocking = blocking
        self._threads = threads


Method = Callable[Concatenate[Any, P], T]
"""Method of a blocking object."""
Awaited = Callable[Concatenate[Mirror, P], Coroutine[Any, Any, T]]
"""Awaitable mirror of a method."""
Iterated = Callable[Concatenate[Mirror, P], Items[T]]
"""Mirror of a method that yields items."""


def on_reader(method: Method[P, T]) -> Awaited[P, T]:
    """Return the mirror of a short method that reads."""

    @wraps(method)
    async def call(self: Mirror, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.read(_bound(self, method, *args, **kwargs))

    return call


def on_writer(method: Method[P, T]) -> Awaited[P, T]:
    """Return the mirror of a short method that writes."""

    @wraps(method)
    async def call(self: Mirror, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.write(_bound(self, method, *args, **kwargs))

    return call


def on_worker(method: Method[P, T]) -> Awaited[P, T]:
    """Return the mirror of a method that may take long."""

    @wraps(method)
    async def call(self: Mirror, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.work(getattr(self._blocking, method.__name__), *args, **kwargs)

    return call


def each_on_reader(method: Method[P, Iterator[T]], whole: Callable[[T], T] | None = None) -> Iterated[P, T]:
    """Return the mirror of a method that reads and yields items. A thread fetches many items at a time.

    `whole` loads the lazy values of an item.
    """

    @wraps(method)
    def call(self: Mirror, /, *args: P.args, **kwargs: P.kwargs) -> Items[T]:
        found = _bound(self, method, *args, **kwargs)
        return Items(self._threads.read, found if whole is None else lambda: map(whole, found()))

    return call


def _bound(self: Mirror, method: Callable[..., T], /, *args: Any, **kwargs: Any) -> Callable[[], T]:
    return partial(getattr(self._blocking, method.__name__), *args, **kwargs)


class Closing(Protocol):
    """Object with an awaitable `close`."""

    async def close(self) -> None:
        """Release all resources."""


ClosingT = TypeVar("ClosingT", bound=Closing)


class Opening(Generic[ClosingT]):
    """Store or snapshot to be opened. Use `await` to open it, or `async with` to open and close it."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, ClosingT]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, ClosingT]:
        return self._begin().__await__()

    async def __aenter__(self) -> ClosingT:
        self._opened = await self._begin()
        return self._opened

    async def __aexit__(self, *exc_info: object) -> None:
        await to_the_end(self._opened.close())
