"""Every name that a package imports from its modules is public: `__all__` lists it."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from folders import ROOT

PACKAGES = sorted(
    path.parent for path in (*(ROOT / "cablestore").glob("*/__init__.py"),) if "__all__ = [" in path.read_text()
)


def imported_in(source: str) -> set[str]:
    """Return the names that a package imports from modules of cablestore, at run time or for type checkers only."""
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    own = (
        node for node in imports if (node.module or "").startswith("cablestore.") and node.module != "cablestore.lazy"
    )
    return {name.asname or name.name for node in own for name in node.names}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_all_imported_names_are_public(package: Path) -> None:
    module = importlib.reload(importlib.import_module(f"cablestore.{package.name}"))
    assert set(module.__all__) == imported_in((package / "__init__.py").read_text())
