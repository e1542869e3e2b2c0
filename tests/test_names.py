"""One word for one thing: no class name is used for two classes of the product. And no word that is read twice."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from folders import ROOT

READ_TWICE = re.compile(r"\b(behind|so many|anew|whoever|stands|is to be|the disk refuses)\b", re.IGNORECASE)
NATURAL = ("share one behind a router", "whoever wrote the post", "stands for")


def sources() -> Iterator[Path]:
    for top in ("cablestore", "views", "reindex"):
        for path in (ROOT / top).rglob("*.py"):
            if not path.name.endswith("_pb2.py") and path.resolve() == path:
                yield path


def test_no_class_name_is_used_twice() -> None:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_sentences_are_read_once() -> None:
    lines = [line for path in sources() for line in path.read_text().splitlines()]
    assert len(lines) > 10_000
    found = [line.strip() for line in lines if READ_TWICE.search(line)]
    assert [line for line in found if not any(words in line for words in NATURAL)] == []
