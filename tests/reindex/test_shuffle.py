"""Rows move to the partitions that they name, with the function of Spark and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from reindexing import spark_session

pytest.importorskip("pyspark")

from cablestore.reindex.shuffle import by_hashed_number, to_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.mark.thorough(
    "by_hashed_number-1",
    "by_hashed_number-300",
    "by_hashed_number-7",
    "to_partitions-1",
    "to_partitions-300",
    "to_partitions-7",
)
@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("shuffle", [to_partitions, by_hashed_number])
def test_each_row_is_in_its_partition(
    spark: SparkSession, shuffle: Callable[[DataFrame, int], DataFrame], count: int
) -> None:
    """The partitions include an empty one, which Spark could join to another."""
    rows = spark.range(0, 3 * count, 1, 3).selectExpr(f"CAST(id % {max(count - 1, 1)} AS INT) AS partition", "id")
    moved = shuffle(rows, count)
    assert moved.columns == ["partition", "id"]
    found = moved.selectExpr("partition", "id", "spark_partition_id() AS place").collect()
    assert sorted(row.id for row in found) == list(range(3 * count))
    assert all(row.place == row.partition for row in found)
