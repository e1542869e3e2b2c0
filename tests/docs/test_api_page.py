"""The API page lists only existing modules, classes and members."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
from folders import ROOT

_PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
_ENTRY = re.compile(r"^::: (\S+)\n((?:    .*\n|\n(?=    ))*)", re.MULTILINE)


def documented(path: str) -> Any:
    """Return the module, class or value with a dotted path."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise LookupError(path)


@pytest.mark.parametrize(("path", "options"), _ENTRY.findall(_PAGE), ids=lambda value: value.split("\n")[0].strip())
def test_documented_names_exist(path: str, options: str) -> None:
    found = documented(path)
    for name in re.findall(r"\b\w+\b", options.partition("members:")[2]):
        assert hasattr(found, name) or name in getattr(found, "__annotations__", {}), f"{path}.{name}"


def test_the_page_has_entries() -> None:
    assert len(_ENTRY.findall(_PAGE)) > 40
