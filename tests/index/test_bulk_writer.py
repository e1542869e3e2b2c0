"""Batches of a bulk writer are written one after the other, and no error of one is lost."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cablestore.errors import StorageError
from cablestore.index.bulk_writer import BulkWriter


class Rows:
    """A batch that remembers its rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.rows.append((key, value))


ROW = st.tuples(st.binary(max_size=2), st.binary(max_size=2))


@given(st.lists(st.lists(ROW, max_size=3), max_size=8), st.integers(0, 8))
def test_batches_are_written_in_order_up_to_the_first_that_fails(
    batches: list[list[tuple[bytes, bytes]]], failing: int
) -> None:
    written: list[list[tuple[bytes, bytes]]] = []
    numbers = count()

    def write(batch: Rows) -> None:
        if next(numbers) == failing:
            raise StorageError("the disk is full")
        written.append(batch.rows)

    def write_all() -> None:
        with BulkWriter(Rows, write) as writer:
            for rows in batches:
                writer.put(rows)

    if failing < len(batches):
        with pytest.raises(StorageError, match="the disk is full"):
            write_all()
        assert written == batches[:failing]
    else:
        write_all()
        assert written == batches
