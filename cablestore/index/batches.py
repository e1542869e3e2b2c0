"""Helpers for work on many items: bounded batches, progress, and a pause of the garbage collector."""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import ClassVar, TypeVar

from cablestore.limits import MAX_BATCH_POSTS, MAX_BATCH_SIZE_BYTES

S = TypeVar("S", bytes, tuple[bytes, bytes])
T = TypeVar("T")

Progress = Callable[[int], None]
"""Called with the number of posts done since the last call."""


def no_progress(_: int) -> None:
    """Ignore progress."""


def batches(
    items: Iterable[T],
    size_bytes: Callable[[T], int],
    most: int = MAX_BATCH_POSTS,
    most_bytes: int = MAX_BATCH_SIZE_BYTES,
) -> Iterator[list[T]]:
    """Yield lists of at most `most` items and about `most_bytes` bytes. A larger item gets its own list."""
    batch: list[T] = []
    total = 0
    for item in items:
        size = size_bytes(item)
        if batch and (len(batch) >= most or total + size > most_bytes):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


def merged(sources: Iterable[Iterable[list[S]]]) -> Iterator[S]:
    """Yield the items of several sources of sorted lists in order.

    Sorting two sorted lists takes a third of the time of comparing items one by one, as `heapq.merge` does.
    """
    waiting = [(block, rest) for rest in map(iter, sources) for block in islice(filter(None, rest), 1)]
    while waiting:
        bound = min(block[-1] for block, _ in waiting)
        found: list[list[S]] = []
        after: list[tuple[list[S], Iterator[list[S]]]] = []
        for block, rest in waiting:
            place = bisect_right(block, bound)
            found += [block[:place]] if place else []
            left = block[place:] if place else block
            after += [(left, rest)] if left else [(following, rest) for following in islice(filter(None, rest), 1)]
        yield from found[0] if len(found) == 1 else sorted(chain.from_iterable(found))
        waiting = after


class _Pauses:
    """Pauses of the garbage collector in this process. Appending to a list and removing from it are atomic."""

    running: ClassVar[list[None]] = []
    was_enabled: ClassVar[bool] = True


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector while the body runs. It can take a third of the time if there are many objects.

    The objects must not form reference cycles. Keep the body short in a process that also does other work. Several
    threads may pause it at once. It may run again when the first of them ends, and does when the last one ends.
    """
    _Pauses.running.append(None)
    if len(_Pauses.running) == 1:  # no other thread has paused it
        _Pauses.was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _Pauses.was_enabled:
            gc.enable()  # before this pause ends: a new pause must not find it disabled
        _Pauses.running.pop()
