"""The lists of tests that only `make test-all` runs, and of its longest files, name what exists.

`make test` runs into every limit.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

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


def test_every_long_file_is_there() -> None:
    long = (TESTS / "long.txt").read_text().split("\n")[1:-1]
    assert len(set(long)) == len(long) > 10
    assert [file for file in long if not (TESTS / file).is_file()] == []


def test_every_limit_is_hit_by_a_test_of_the_short_tier() -> None:
    """By its name, in a test or in what its file has for all tests."""
    words: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        if path.name not in ("test_docs.py", "test_tiers.py"):
            words |= words_of_the_short_tier(path)
    short = " ".join(words)
    names = [name for name in vars(limits) if name.isupper()]
    assert len(names) > 100
    assert [name for name in names if not re.search(rf"(\b|_){name.lower()}(\b|_)", short)] == []


def words_of_the_short_tier(path: Path) -> set[str]:
    text = path.read_text()
    lines = text.split("\n")
    found: set[str] = set()
    for node in ast.parse(text).body:
        marks = getattr(node, "decorator_list", [])
        source = "\n".join(lines[min(each.lineno for each in (*marks, node)) - 1 : node.end_lineno])
        is_long = f"{path.relative_to(TESTS)}::{getattr(node, 'name', '')}" in LINES or "@pytest.mark.soak" in source
        if not is_long and not isinstance(node, ast.Import | ast.ImportFrom):
            found |= set(re.findall(r"\w+", source.lower()))
    return found
