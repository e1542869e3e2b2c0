"""The package's modules, as source text and as syntax trees."""

from __future__ import annotations

import ast
from functools import cache

from folders import ROOT

TOPS = ("cablestore", "views", "reindex")


@cache
def sources() -> dict[str, str]:
    """Return the text of each module that is not generated, by its path in the checkout."""
    paths = [path for top in TOPS for path in (ROOT / top).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths) if path.resolve() == path}


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each of these modules."""
    return {path: ast.parse(text) for path, text in sources().items()}


@cache
def imported(path: str) -> set[str]:
    """Return the modules that a module imports, also only for type checkers, and the imported names."""
    found = set()
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} | {f"{node.module}.{name.name}" for name in node.names}
    return found
