"""The module that carries an idea explains it at its top, in up to 30 lines with a drawing, and names what is there."""

from __future__ import annotations

import ast
import re

import pytest
from sources import sources, trees


@pytest.mark.parametrize(
    "module",
    ["index/plan", "index/derive", "index/tree", "protocol/exchange", "reconcile/session", "sds/channel"],
)
def test_a_module_that_carries_an_idea_explains_it(module: str) -> None:
    theory = ast.get_docstring(trees()[f"cablestore/{module}.py"]) or ""
    assert 15 <= len(theory.splitlines()) <= 30
    assert len(re.findall(r"^ {4}", theory, re.MULTILINE)) >= 4
    code = "\n".join(sources().values()).replace(theory, "")
    named = re.findall(r"(?<!<)\b[A-Z]\w*[a-z]\w*[A-Z]\w*|(?<=`)\w+(?=`)", theory)
    assert named
    assert [name for name in named if not re.search(rf"\b{name}\b", code)] == []
