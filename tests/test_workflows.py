"""The workflows of GitHub: they match its schema, and only a tag publishes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from folders import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def errors_in(path: Path) -> str:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if found.returncode == 0 else found.stdout + found.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_match_the_schema(path: Path, tmp_path: Path) -> None:
    assert errors_in(path) == ""
    (tmp_path / "wrong.yml").write_text(path.read_text().replace("runs-on", "runs-under"))
    assert "runs-under" in errors_in(tmp_path / "wrong.yml")


def test_wheels_are_published_only_for_a_tag_after_all_are_built() -> None:
    found: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert found[True]["push"] == {"tags": ["v*"]}  # YAML reads `on` as True
    publish = found["jobs"]["publish"]
    assert publish["needs"] == ["sdist", "wheels"]
    assert publish["if"] == "github.event_name == 'push'"
    assert publish["permissions"] == {"id-token": "write"}
    assert found["permissions"] == {"contents": "read"}
