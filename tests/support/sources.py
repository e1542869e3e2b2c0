"""The product's modules, as text and as syntax trees."""

from __future__ import annotations

import ast
from functools import cache

from folders import ROOT

TOPS = ("cablestore", "views", "reindex")


@cache
def sources() -> dict[str, str]:
    """Return the text of each module that people write, by its path below the checkout."""
    paths = [path for top in TOPS for path in (ROOT / top).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths) if path.resolve() == path}


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each of these modules."""
    return {path: ast.parse(text) for path, text in sources().items()}


@cache
def imported(path: str) -> set[str]:
    """Return the modules that a module imports, also where only type checkers do, and the names it takes from them."""
    found = set()
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} | {f"{node.module}.{name.name}" for name in node.names}
    return found
