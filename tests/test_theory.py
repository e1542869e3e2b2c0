"""The module that carries an idea explains it at its top, in up to 30 lines."""

from __future__ import annotations

import ast

import pytest
from folders import ROOT


@pytest.mark.parametrize(
    "module",
    ["index/plan", "index/derive", "index/tree", "protocol/session", "reconcile/session", "sds/channel"],
)
def test_a_module_that_carries_an_idea_explains_it(module: str) -> None:
    source = (ROOT / "cablestore" / f"{module}.py").read_text()
    theory = ast.get_docstring(ast.parse(source)) or ""
    assert 15 <= len(theory.splitlines()) <= 30
