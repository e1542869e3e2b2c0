"""The limits are what the documentation says, and each has one value."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path

from cablestore import limits

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([A-Z_0-9]+)` \| ([\d,.]+) \|", re.MULTILINE)


def test_the_documented_values_are_those_of_the_code() -> None:
    """Each file is run for itself: a limit that two files define would hide one of its values."""
    found: dict[str, float] = {}
    for path in (ROOT / "cablestore" / "limits").glob("[!_]*.py"):
        values = {name: value for name, value in run_path(str(path)).items() if name.isupper()}
        assert not found.keys() & values.keys()
        found |= values
    rows = ROW.findall((ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8"))
    assert {name: float(value.replace(",", "")) for name, value in rows} == found
    assert found == {name: value for name, value in vars(limits).items() if name.isupper()}
