"""Spark's part of a job without Java: this process runs the tasks, and moves batches between partitions.

It checks what the program gives to Spark and does with the results. `test_reindex.py` and `test_table_files.py` run the
same jobs on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads
from pyspark.sql import Row

from cablestore.reindex import stages

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_BATCH_ROWS = 2
"""Maximum number of rows of a batch, so that small tasks have several."""


class Frame:
    """Table of `partitions`, each a list of batches. Like a DataFrame, it is computed when it is collected."""

    def __init__(self, partitions: Callable[[], list[list[pa.RecordBatch]]]) -> None:
        self.partitions = partitions

    @classmethod
    def of(cls, *tables: pa.Table) -> Frame:
        """Return a table with these partitions."""
        return cls(lambda: [table.to_batches(_BATCH_ROWS) for table in tables])

    def mapInArrow(self, task: Task, _schema: str) -> Frame:  # noqa: N802 - Spark's name
        """Run a task on each partition, with its number in the context. Like every task, it is pickled."""

        def run(number: int, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
            context = SimpleNamespace(partitionId=lambda: number)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(TaskContext, "get", lambda: context)
                return list(loads(dumps(task))(iter(batches)))  # type: ignore[no-untyped-call] # PySpark has no types for it

        return Frame(lambda: [run(number, batches) for number, batches in enumerate(self.partitions())])

    def repartitionById(self, count: int, column: str) -> Frame:  # noqa: N802 - Spark's name
        """Move each row to the partition that its column names."""

        def moved() -> list[list[pa.RecordBatch]]:
            batches = [batch for partition in self.partitions() for batch in partition]
            return [[batch.filter(pc.equal(batch[column], number)) for batch in batches] for number in range(count)]

        return Frame(moved)

    def collect(self) -> list[Any]:
        """Return all rows."""
        return [Row(**row) for partition in self.partitions() for batch in partition for row in batch.to_pylist()]

    # --- tables of results -------------------------------------------------------------------------

    def table(self) -> pa.Table:
        """Return all rows as one table, which must not be empty."""
        return pa.Table.from_batches([batch for partition in self.partitions() for batch in partition])

    def select(self, *names: str) -> Frame:
        """Keep these columns."""
        return Frame(lambda: [[batch.select(names) for batch in partition] for partition in self.partitions()])

    def groupBy(self) -> Frame:  # noqa: N802 - Spark's name
        """Return the group of all rows, for `count`."""
        return self

    def count(self) -> Frame:
        """Return a table with the number of rows."""
        return Frame(lambda: [[pa.record_batch({"count": [len(self.collect())]})]])

    def coalesce(self, count: int) -> Frame:
        """Join all partitions."""
        assert count == 1
        return Frame(lambda: [[batch for partition in self.partitions() for batch in partition]])

    def repartitionByRange(self, count: int, *by: str) -> Frame:  # noqa: N802 - Spark's name
        """Sort all rows, and divide them into `count` partitions of about the same size."""

        def divided() -> list[list[pa.RecordBatch]]:
            if not any(self.partitions()):
                return [[]] * count
            ordered = self.table().sort_by([(name, "ascending") for name in by])
            edges = [len(ordered) * number // count for number in range(count + 1)]
            return [ordered[start:stop].to_batches(_BATCH_ROWS) for start, stop in pairwise(edges)]

        return Frame(divided)

    def sortWithinPartitions(self, *by: str) -> Frame:  # noqa: N802 - Spark's name
        """Sort the rows of each partition."""
        order = [(name, "ascending") for name in by]

        def ordered(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
            found = pa.Table.from_batches(batches).sort_by(order) if batches else None
            return [] if found is None else list(found.to_batches(_BATCH_ROWS))

        return Frame(lambda: [ordered(batches) for batches in self.partitions()])

    def dropDuplicates(self, names: Sequence[str]) -> Frame:  # noqa: N802 - Spark's name
        """Keep one row of each value of a column."""
        (name,) = names

        def distinct() -> list[list[pa.RecordBatch]]:
            rows = {row[name]: row for row in self.table().to_pylist()}
            return [pa.Table.from_pylist(list(rows.values()), self.table().schema).to_batches(_BATCH_ROWS)]

        return Frame(distinct)

    def persist(self, _level: object) -> Frame:
        """Return this table."""
        return self

    def unpersist(self) -> None:
        """Do nothing."""


class SparkHere:
    """Session that runs tasks in this process, on a cluster.

    `groups` are the names of the queries, in order. Ctrl-C interrupts the query with the name `interrupted`. `sent` are
    the files for the workers.
    """

    def __init__(self) -> None:
        self.sparkContext = self
        self.groups: list[str] = []
        self.interrupted = ""
        self.master = "spark://127.0.0.1:7077"
        self.sent: list[str] = []
        self.cancelled = Event()

    def range(self, start: int, end: int, step: int, partitions: int) -> Frame:
        """Return a table of numbers, divided evenly."""
        numbers = range(start, end, step)
        edges = [len(numbers) * number // partitions for number in range(partitions + 1)]
        shares = [numbers[first:last] for first, last in pairwise(edges)]
        return Frame.of(*(pa.table({"id": pa.array(share, pa.int64())}) for share in shares))

    def setJobGroup(self, _group: str, name: str, *, interruptOnCancel: bool) -> None:  # noqa: N802, N803 - Spark's names
        """Name the following queries of this thread."""
        assert interruptOnCancel
        self.groups.append(name.removeprefix("cablestore: "))
        if self.groups[-1] == self.interrupted:
            raise KeyboardInterrupt

    def cancelJobGroup(self, _group: str) -> None:  # noqa: N802 - Spark's name
        """Cancel queries."""
        self.cancelled.set()

    def addArtifacts(self, *paths: str, pyfile: bool) -> None:  # noqa: N802 - Spark's name
        """Send modules to the workers."""
        assert pyfile
        self.sent += paths

    def statusTracker(self) -> None:  # noqa: N802 - Spark's name
        """Return nothing: jobs here end before their progress is read."""


@contextmanager
def spark_here() -> Iterator[SparkHere]:
    """Run all jobs of the body in this process."""
    spark = SparkHere()

    @contextmanager
    def session(*_: object, **__: object) -> Iterator[SparkHere]:
        yield spark

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "session", session)
        patch.setattr(stages, "starts_driver", lambda *_: False)
        yield spark
