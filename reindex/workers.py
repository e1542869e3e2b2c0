"""Preparation of the Python processes in which Spark runs tasks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache

from cablestore.reindex.tasks import Batches


def in_worker(task: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """Return `task` for a worker process of Spark.

    PySpark collects garbage after each task. With all modules of this package in memory, that takes longer than a small
    task. So the objects that the first task leaves are excluded from collections. They live as long as the process.
    """

    def run(batches: Batches) -> Batches:
        yield from task(batches)
        _exclude_from_collections()

    return run


@cache
def _exclude_from_collections() -> None:
    """Exclude the objects of this process from garbage collections, once."""
    gc.collect()
    gc.freeze()
