"""Requests for many files of one folder: concurrent in an object store, one by one on this disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from cablestore.files.folder import ObjectFolder
from cablestore.files.remote import request
from cablestore.interruptible import awaited

Result = TypeVar("Result")

REQUESTS_AT_ONCE: Final = 8
"""Number of concurrent requests of one task to an object store."""


def for_each(folder: ObjectFolder, work: Callable[[str], Result], names: Iterable[str]) -> Iterator[Result]:
    """Yield the result of `work` for each of these names in a folder, in order. Raises the first error of `work`.

    An error is raised after all requests have ended. Ctrl-C ends the wait immediately, but requests may continue.
    """
    if folder.is_local:
        yield from map(work, names)
        return
    under_way: deque[Future[Result]] = deque()
    try:
        for name in names:
            if len(under_way) == REQUESTS_AT_ONCE:
                yield awaited(under_way.popleft())
            under_way.append(request(partial(work, name)))
        while under_way:
            yield awaited(under_way.popleft())
    except Exception:
        for answer in under_way:  # wait for them: the caller may repeat the requests at once
            with suppress(Exception):
                awaited(answer)
        raise


def remove(folder: ObjectFolder, names: Iterable[str]) -> None:
    """Remove these files of a folder."""
    for _ in for_each(folder, folder.remove, names):
        pass
