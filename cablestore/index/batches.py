"""Helpers for work on many items: bounded batches, progress, and a pause of the garbage collector."""

from __future__ import annotations

import gc
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import TypeVar

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
    """Pauses of the garbage collector in this process."""

    changing = threading.Lock()
    running = 0
    was_enabled = True


def _reset_lock() -> None:
    _Pauses.changing = threading.Lock()  # in a forked child, where the thread that holds it is missing


os.register_at_fork(after_in_child=_reset_lock)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector while the body runs. It can take a third of the time if there are many objects.

    The objects must not form reference cycles. Keep the body short in a process that also does other work. Several
    threads may pause it at once. It may run again when the first of them ends, and does when the last one ends.
    """
    with _Pauses.changing:
        if not _Pauses.running:
            _Pauses.was_enabled = gc.isenabled()
        _Pauses.running += 1
        gc.disable()
    try:
        yield
    finally:
        with _Pauses.changing:
            _Pauses.running -= 1
            if _Pauses.was_enabled:
                gc.enable()
