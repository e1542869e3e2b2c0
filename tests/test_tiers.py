"""The list of tests that only `make test-all` runs has tests that exist."""

from __future__ import annotations

import re

from folders import TESTS


def test_every_thorough_test_is_there() -> None:
    lines = (TESTS / "thorough.txt").read_text().split("\n")[1:-1]
    assert lines == sorted(set(lines))
    for line in lines:
        path, *_, name = re.split("::", line.split("[")[0])
        assert re.search(rf"\b(def|class) {name}\b|\b{name}\b = ", (TESTS / path).read_text()) or name == "runTest", (
            line
        )
