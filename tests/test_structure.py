"""Structure of the product that import-linter cannot check: forbidden imports and unused names."""

from __future__ import annotations

import ast
import re
from collections import Counter

from folders import ROOT
from sources import imported, sources, trees

CALLED_BY_A_LIBRARY = re.compile(
    r"(action|on|_on)_\w+|get_content_height|get_selection|run_input_thread|replace_range"
    r"|format_(commands|options)|readall|pushFilters|(pause|resume)_writing|connection_(made|lost)|eof_received|handle_error|log_message|verify_request|service_actions|tell"
)


def places_of(pattern: str) -> set[str]:
    """Return the modules whose source matches a pattern."""
    return {path for path, text in sources().items() if re.search(pattern, text, re.MULTILINE)}


# --- classes -----------------------------------------------------------------------------------------


def test_every_function_and_class_is_used_outside_tests() -> None:
    """Each function and class is used in the product or named in the documents."""
    documents = [path for top in ("docs", "examples", "bench") for path in (ROOT / top).rglob("*.*")]
    texts = [path.read_text() for path in (*documents, ROOT / "README.md") if path.suffix in {".md", ".py"}]
    words = Counter(re.findall(r"\w+", "\n".join([*sources().values(), *texts])))
    unused = {
        f"{path}: {node.name}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and words[node.name] < 2
        and not node.name.startswith("__")
        and not CALLED_BY_A_LIBRARY.fullmatch(node.name)
        and not any(re.search(r"\.(command|group|callback)\b", ast.unparse(mark)) for mark in node.decorator_list)
    }
    assert unused == set()


# --- the node ----------------------------------------------------------------------------------------


def importers(module: str) -> set[str]:
    """Return the modules that import a module, including imports for type checkers."""
    return {path for path in trees() if module in imported(path)}


def test_the_parts_of_a_node_do_not_import_the_node() -> None:
    assert importers("cablestore.peers.parts") == {"cablestore/peers/node.py"}
    assert {path for path in importers("cablestore.peers.node") if "/peers/" in path} == {
        "cablestore/peers/metrics_http.py",
        "cablestore/peers/__init__.py",
    }
    holders = [
        path for path in trees() if "/peers/" in path and "cablestore.peers.context.PeerContext" in imported(path)
    ]
    assert len(holders) > 10
    assert places_of(r"\b_node\.") & set(holders) == set()


def test_the_parts_of_a_connection_do_not_import_it() -> None:
    """The parts are the transport, the shares of time, and the queue of answers."""
    parts = {f"cablestore/peers/{name}.py" for name in ("link", "shares", "answering")}
    assert {f"cablestore.peers.{name}" for name in ("link", "shares", "answering")} <= imported(
        "cablestore/peers/connection.py"
    )
    assert importers("cablestore.peers.connection") & parts == set()


def test_commands_import_no_functions_of_the_index() -> None:
    """Commands import only report classes from the modules that do the work, and no functions."""
    for path in sources():
        if path.startswith(("cablestore/cli/", "cablestore/chat/", "cablestore/aio/")):
            names = re.findall(r"cablestore\.index\.(?:rebuild|check|takeover|engine)\.(\w+)", " ".join(imported(path)))
            assert [name for name in names if name.islower()] == [], path


# --- form ------------------------------------------------------------------------------------------


def test_each_suppression_of_a_checker_has_a_reason() -> None:
    tops = ("cablestore", "views", "reindex", "tests", "bench", "docs", "examples", "tools")
    files = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    lines = [f"{path.relative_to(ROOT)}: {line}" for path in files for line in path.read_text().splitlines()]
    mark = re.compile(r"# (?:noqa\b(?:: [A-Z\d, ]+\d)?|type: ignore\b(?:\[[\w, -]+\])?)(.*)")
    marks = {line: found for line in lines if (found := mark.search(line))}
    assert len(marks) > 100
    assert [line for line, found in marks.items() if not re.match(r" +[#-] +\S", found[1])] == []
