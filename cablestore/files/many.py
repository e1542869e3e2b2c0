"""Requests for many files of one folder: several at once, where each has to wait for an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from cablestore.files.folder import ObjectFolder

Result = TypeVar("Result")

REQUESTS_AT_ONCE: Final = 8
"""How many requests to an object store one task makes at once."""


def for_each(folder: ObjectFolder, work: Callable[[str], Result], names: Iterable[str]) -> Iterator[Result]:
    """Yield what `work` returns for each of these names in a folder, in their order. Raises its first error."""
    if folder.is_local:
        yield from map(work, names)
        return
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "cablestore-storage") as pool:
        yield from pool.map(work, names)


def remove(folder: ObjectFolder, names: Iterable[str]) -> None:
    """Remove these files."""
    for _ in for_each(folder, folder.remove, names):
        pass
