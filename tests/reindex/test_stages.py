"""Stages of a job: finished tasks are not run again, and only by the same job. The tests run without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cablestore import LEGACY
from cablestore.errors import ExportError, ReindexError
from cablestore.files import folder_of
from cablestore.reindex.job import ReindexJob
from cablestore.reindex.row_segments import RowSegment
from cablestore.reindex.stages import JobReport, Stages, begin, in_order
from cablestore.views import CATALOG


def test_finished_tasks_are_not_run_again(tmp_path: Path) -> None:
    """The reports of finished tasks are read, in order of their numbers."""
    folder = folder_of(tmp_path)
    reports: list[dict[str, Any]] = [{"number": number, "counts": {}, "problems": []} for number in (0, 7, 12)]
    for report in reversed(reports):
        folder.write(f"built-{report['number']:06}.json", json.dumps(report).encode())
    without_spark: Any = None
    stages = Stages(without_spark, JobReport(folder, tmp_path, LEGACY), lambda *_: None)
    assert stages.each("build", "built", [0, 7, 12], without_spark) == reports
    assert stages.each("build", "other", [], without_spark) == []
    folder.write("built-000007.json", b"[]")
    with pytest.raises(ExportError, match=r"built-000007\.json is damaged: .*\. Remove its folder"):
        stages.each("build", "built", [0, 7, 12], without_spark)


def test_derived_partitions_are_counted_and_their_damaged_inputs_are_named(tmp_path: Path) -> None:
    """Partitions without content have no report."""
    folder = folder_of(tmp_path)
    for number, read in ((0, 3), (2, 4)):
        report = {"counts": {"read": read}, "problems": []}
        folder.write(f"derived-{number:06}.json", json.dumps(report).encode())
    folder.write("derived.done", b"")
    without_spark: Any = None
    ran = JobReport(folder, tmp_path, LEGACY)
    job = ReindexJob(folder, LEGACY, (), 4, CATALOG, (), (True,))
    found = Stages(without_spark, ran, lambda *_: None).derive(job, without_spark, skip_corrupt=False)
    assert [report["counts"]["read"] for report in found] == [3, 4]
    assert (ran.counts, ran.left_out, ran.seconds) == ({"read": 7}, {}, {})


def test_the_work_of_another_job_is_removed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    job = ReindexJob(folder, LEGACY, (), 4, CATALOG, (), (True,))
    begin(job)
    made = ["a.archives", "a.seg", "a.tmp", "built-000000.json", "derived.done", "run-000000"]
    for name in [*made, "spark.log"]:
        (tmp_path / name).touch()
    begin(job)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["job.json", "spark.log", *made])
    begin(replace(job, partitions=5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.json", "spark.log"]
    assert folder.read("job.json").decode() == replace(job, partitions=5).fingerprint() != job.fingerprint()


def test_overlapping_segments_are_rejected() -> None:
    one, two, three = (
        RowSegment(f"{first}.seg", first.encode(), last.encode(), 2, 9, "", "", {})
        for first, last in (("a", "b"), ("c", "e"), ("e", "g"))
    )
    assert in_order([two, one]) == [one, two]
    with pytest.raises(ReindexError, match=r"c\.seg and e\.seg overlap"):
        in_order([three, one, two])
