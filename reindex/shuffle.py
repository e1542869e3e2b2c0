"""Shuffle of rows to the partitions that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRIES: Final = 64
"""Number of candidates per partition. The probability that Spark hashes none of them to a partition is about 10^-28."""


def to_partitions(table: DataFrame, count: int) -> DataFrame:
    """Move each row to one of `count` partitions, which its integer column "partition" names.

    Use `repartitionById`, which is experimental in Spark, or `by_hashed_number` if Spark lacks it.
    """
    if hasattr(table, "repartitionById"):
        return table.repartitionById(count, "partition")
    return by_hashed_number(table, count)


def by_hashed_number(table: DataFrame, count: int) -> DataFrame:
    """Do the same as `to_partitions` with `repartition`, on numbers that Spark hashes to the partitions."""
    numbers = table.sparkSession.range(_TRIES * count).selectExpr("id", f"pmod(hash(id), {count}) AS partition")
    found = numbers.groupBy("partition").min("id").collect()
    chosen = ", ".join(f"{number}L" for _, number in sorted(map(tuple, found)))
    named = table.selectExpr("*", f"array({chosen})[partition] AS number")
    return named.repartition(count, "number").drop("number")
