"""Stages of a job: finished tasks are not run again. The tests run without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cablestore import LEGACY
from cablestore.files import folder_of
from cablestore.reindex.stages import JobReport, Stages


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
