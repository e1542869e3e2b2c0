"""One word for one thing: no class name is used for two classes of the product."""

from __future__ import annotations

import ast
from collections import defaultdict

from folders import ROOT


def test_no_class_name_is_used_twice() -> None:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for top in ("cablestore", "views", "reindex"):
        for path in (ROOT / top).rglob("*.py"):
            if path.name.endswith("_pb2.py") or path.resolve() != path:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].add(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
