"""Writing many rows: one thread writes a batch while the caller creates the next batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, Self, TypeVar

from cablestore.index.database import Row


class RowBatch(Protocol):
    """Rows that are written together."""

    def put(self, key: bytes, value: bytes, /) -> None:
        """Add a row to the batch."""


B = TypeVar("B", bound=RowBatch)


class BulkWriter(Generic[B]):
    """Writer of many rows.

    A thread writes one batch while the caller creates the next. Writes are not synced. LevelDB writes without Python's
    lock, so creating rows and writing them can use two cores.
    """

    def __init__(
        self,
        new_batch: Callable[[], B],
        write: Callable[[B], None],
    ) -> None:
        self._new_batch = new_batch
        self._write = write
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cablestore-write")
        self._written: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        """Wait until all rows are written. Raises the error of a failed write, unless the body raised."""
        with self._thread:
            if kind is None:
                self._wait()

    def put(self, rows: Iterable[Row]) -> None:
        """Wait for the previous batch, then let the thread write `rows`. Raises the error of the previous batch."""
        batch = self._new_batch()
        put = batch.put
        for key, value in rows:
            put(key, value)
        self._wait()
        self._written = self._thread.submit(self._write, batch)

    def _wait(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.result()
