"""Cutting a stream into batches that are bounded both in number and in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from cablestore.limits import MAX_BATCH_POSTS, MAX_BATCH_SIZE_BYTES

T = TypeVar("T")


def batches(
    items: Iterable[T],
    size_bytes: Callable[[T], int],
    most: int = MAX_BATCH_POSTS,
    most_bytes: int = MAX_BATCH_SIZE_BYTES,
) -> Iterator[list[T]]:
    """Yield lists of at most `most` items and about `most_bytes`; an item larger than that comes alone."""
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
