"""Each numbered rule of moderation.md is in the table of docs/reference/moderation.md, with tests that exist."""

from __future__ import annotations

import re

from folders import ROOT

PAGE = (ROOT / "docs" / "reference" / "moderation.md").read_text()
RULES = [
    "4.1",
    "4.1.1",
    "4.2",
    "4.2.1",
    "4.2.1.1",
    "4.2.1.1.1",
    "4.2.1.1.2",
    "4.2.2",
    "4.2.3",
    "4.2.4",
    "4.2.5",
    "4.2.5.1.1",
    "4.2.5.1.2",
    "4.2.5.1.3",
    "4.2.5.1.4",
    "4.3",
    "4.4",
    "4.4.1",
    "4.4.1.1",
    "4.4.2",
    "4.4.3",
    "4.4.4",
    "4.4.5",
    "4.4.6.1",
    "4.5",
    "4.5.1",
    "4.5.2",
    "4.6",
    "4.6.1",
    "4.7.2",
    "4.7.3",
    "5.1",
    "5.1.1",
    "5.1.2",
    "5.1.2.1",
    "5.1.2.2",
    "5.1.2.3",
    "5.1.3.1",
    "5.1.3.2",
    "5.1.3.3",
    "5.1.3.4",
    "5.1.3.7",
    "5.1.4",
    "5.1.4.1",
    "5.1.5",
    "5.2.1.1",
]


def test_each_rule_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| (\d(?:\.\d)+)", PAGE, re.MULTILINE))
    assert set(RULES) <= listed


def test_each_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 10
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
