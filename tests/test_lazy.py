"""Packages load their names on first use: every name that type checkers see exists, and no other."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import cablestore

PACKAGES = ("cablestore", "cablestore.export", "cablestore.reindex", "cablestore.store")


def typed_names(source: str) -> set[str]:
    """Return the names that a module imports for type checkers."""
    blocks = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.asname or name.name for node in imports for name in node.names}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_the_names_that_type_checkers_see(name: str) -> None:
    if name == "cablestore.reindex":
        pytest.importorskip("pyspark")
    package = import_module(name)
    assert package.__file__ is not None
    typed = typed_names(Path(package.__file__).read_text())
    assert typed
    assert typed <= set(package.__all__)
    assert typed >= {each for each in package.__all__ if each != "__version__" and each not in vars(package)}
    for each in typed:
        found = getattr(package, each)
        assert vars(package)[each] is found, "a name is loaded once"
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nonsense'"):
        _ = package.nonsense


def test_names_that_are_not_loaded_are_listed() -> None:
    assert {*cablestore.__all__, "__doc__"} <= set(dir(cablestore))
    assert dir(cablestore) == sorted(dir(cablestore))
