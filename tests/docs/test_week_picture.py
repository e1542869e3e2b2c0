"""The picture of a week of two servers is drawn from the samples of a run, some of which lack values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from folders import ROOT

pytest.importorskip("duckdb")
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_line_for_each_value_and_a_mark_for_each_event(tmp_path: Path) -> None:
    server = {"private_mb": 50.0, "memory_mb": 90.0, "disk_mb": 25.0, "posts": 17_000}
    samples = [
        {"at_s": 0.0, "requests": 0, "a": server, "b": server},
        {"at_s": 60.0, "requests": 9, "p50_ms": 2.0, "p99_ms": 30.0, "a": server},
        {"at_s": 120.0, "requests": 9, "p50_ms": 2.5, "p99_ms": 35.0, "a": server, "b": server},
    ]
    events = [{"at_s": 30.0, "name": "kill a"}, {"at_s": 60.0, "name": "upgrade"}, {"at_s": 90.0, "name": "day 1"}]
    file = tmp_path / "samples.json"
    file.write_text(json.dumps({"duration_s": 120.0, "samples": samples, "events": events}))
    command = [
        sys.executable,
        str(ROOT / "docs" / "img" / "served_week.py"),
        str(file),
        "--out",
        str(tmp_path / "week.svg"),
    ]
    subprocess.run(command, check=True)
    drawn = ET.fromstring((tmp_path / "week.svg").read_text())
    points = [len(str(line.get("points")).split()) for line in drawn.iter(f"{SVG}polyline")]
    assert points == [3, 2] * 3 + [2, 2], "memory, disk and posts of both servers, then both percentiles"
    marks = [rectangle.get("fill") for rectangle in drawn.iter(f"{SVG}rect") if rectangle.get("width") == "1.0"]
    assert marks == ["#c53030", "#2f855a"]
