"""The list of tests that only `make test-all` runs has tests that exist, and `make test` runs into every limit."""

from __future__ import annotations

import ast
import re

from folders import TESTS

from cablestore import limits

LINES = (TESTS / "thorough.txt").read_text().split("\n")[1:-1]


def test_every_thorough_test_is_there() -> None:
    assert sorted(set(LINES)) == LINES
    for line in LINES:
        path, *_, name = re.split("::", line.split("[")[0])
        assert re.search(rf"\b(def|class) {name}\b|\b{name}\b = ", (TESTS / path).read_text()) or name == "runTest", (
            line
        )


def test_every_limit_is_hit_by_a_test_of_the_short_tier() -> None:
    """By its name, in a test or in what its file has for all tests."""
    short = "\n".join(
        ast.unparse(node)
        for path in TESTS.rglob("test_*.py")
        if path.name not in ("test_docs.py", "test_tiers.py")
        for node in ast.parse(path.read_text()).body
        if f"{path.relative_to(TESTS)}::{getattr(node, 'name', '')}" not in LINES
        and not isinstance(node, ast.Import | ast.ImportFrom)
        and not any("mark.soak" in ast.unparse(mark) for mark in getattr(node, "decorator_list", []))
    )
    names = [name for name in vars(limits) if name.isupper()]
    assert len(names) > 100
    assert [name for name in names if not re.search(rf"(\b|_){name}(\b|_)", short, re.IGNORECASE)] == []
