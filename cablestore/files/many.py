"""Requests for many files of one folder: several at once, where each has to wait for an object store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from cablestore.files.folder import ObjectFolder
from cablestore.files.remote import give_up
from cablestore.interruptible import awaited, in_thread

Result = TypeVar("Result")

REQUESTS_AT_ONCE: Final = 8
"""How many requests to an object store one task makes at once."""


def for_each(folder: ObjectFolder, work: Callable[[str], Result], names: Iterable[str]) -> Iterator[Result]:
    """Yield what `work` returns for each of these names in a folder, in their order. Raises its first error.

    After an error nothing is under way any more. Ctrl-C ends the wait at once, and requests may go on.
    """
    if folder.is_local:
        yield from map(work, names)
        return
    under_way: deque[Future[Result]] = deque()
    try:
        for name in names:
            if len(under_way) == REQUESTS_AT_ONCE:
                yield _next(under_way)
            under_way.append(in_thread(partial(work, name)))
        while under_way:
            yield _next(under_way)
    except Exception:
        for answer in under_way:  # the caller may begin again
            with suppress(Exception):
                awaited(answer)
        raise
    finally:
        give_up(under_way)


def _next(under_way: deque[Future[Result]]) -> Result:
    """Return the first result. It is under way until it is there, also for Ctrl-C."""
    result = awaited(under_way[0])
    under_way.popleft()
    return result


def remove(folder: ObjectFolder, names: Iterable[str]) -> None:
    """Remove these files."""
    for _ in for_each(folder, folder.remove, names):
        pass
