"""Helpers for work on many items: bounded batches, progress, and a pause of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from cablestore.limits import MAX_BATCH_POSTS, MAX_BATCH_SIZE_BYTES

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
    """Yield lists of at most `most` items and about `most_bytes` bytes; a larger item comes alone."""
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


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector while the body runs. It can take a third of the time if there are many objects.

    The objects must form no reference cycles. Keep the body short in a process that also does other work.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
