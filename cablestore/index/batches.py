"""Work on many items: bounded batches, merged sources, and callbacks for progress."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TypeVar

from cablestore.limits import MAX_BATCH_POSTS, MAX_BATCH_SIZE_BYTES

S = TypeVar("S", bytes, tuple[bytes, bytes])
T = TypeVar("T")

Progress = Callable[[int], None]
"""A function that is called with the number of posts processed since its last call."""


def no_progress(_: int) -> None:
    """Do nothing. This is the default callback of functions that report progress."""


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
    """Yield the items of all `sources` in order. Each source yields its own items in order, in lists.

    Joining the lists and sorting the result takes a third of the time of `heapq.merge`, which compares single items.
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
