"""Worker processes of Spark do not collect garbage in all modules after each task."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from reindexing import spark_session

pytest.importorskip("pyspark")

import pyarrow as pa

from cablestore.reindex.tasks import Batches
from cablestore.reindex.workers import in_worker


@pytest.mark.thorough
def test_modules_are_excluded_from_garbage_collection(tmp_path: Path) -> None:
    def count(batches: Batches) -> Batches:
        for batch in batches:
            assert batch.num_rows == 1
            counts = {"excluded": [gc.get_freeze_count()], "collected": [len(gc.get_objects())]}
            yield pa.record_batch(counts)

    with spark_session(tmp_path / "spark") as spark:
        table = spark.range(0, 20, 1, 20).mapInArrow(in_worker(count), "excluded long, collected long")
        found = table.collect()
    assert {row.excluded for row in found} > {0}, "no worker had a second task"
    assert all(row.excluded > 10 * row.collected for row in found if row.excluded)
