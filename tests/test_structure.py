"""How the product is cut, where import-linter does not see it: who knows whom, what is there once, what nothing uses."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections import Counter, defaultdict
from functools import cache

import pytest
from folders import ROOT
from sources import base_names, classes, imported, sources, trees

from cablestore.peers.connection import ConnectionOwner
from cablestore.peers.core import NodeCore
from cablestore.store import ClosedStore

CALLED_BY_A_LIBRARY = re.compile(
    r"(action|on|_on)_\w+|get_content_height|format_(commands|options)|readall|pushFilters|(pause|resume)_writing"
    r"|connection_(made|lost)|eof_received|handle_error|log_message|verify_request|service_actions"
)


def places_of(pattern: str) -> set[str]:
    """Return the modules in whose text this occurs."""
    return {path for path, text in sources().items() if re.search(pattern, text, re.MULTILINE)}


# --- what is there once ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "where"),
    [
        (r"\bfcntl\b|\bO_DIRECTORY\b", "cablestore/files/local.py"),
        (r"def (whole_file|write_whole|sync_folder|lock|try_lock)\(", "cablestore/files/local.py"),
        (r"^class \w*FrameReader:", "cablestore/protocol/message.py"),
        (r"def merge\(runs", "cablestore/export/sort.py"),
        (r"def \w*_field\(field: int", "cablestore/protocol/protobuf.py"),
        (r"add_signal_handler\(", "cablestore/cli/service.py"),
    ],
)
def test_what_several_need_is_written_once(what: str, where: str) -> None:
    assert places_of(what) == {where}


def test_a_module_that_syncs_a_file_itself_does_not_write_a_whole_one() -> None:
    assert places_of(r"\bfsync\(") == {
        "cablestore/archive/content/dataset.py",  # two files side by side, as the blocks come
        "cablestore/archive/content/partial.py",  # a download that is continued
        "cablestore/archive/folder.py",  # archives after others
        "cablestore/files/local.py",
        "cablestore/store/key_file.py",  # a file that replaces none and that nobody else reads
    }


# --- classes -----------------------------------------------------------------------------------------


@cache
def children() -> dict[str, set[str]]:
    """Return the direct subclasses of each base class, by names."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for _, node in classes():
        for base in base_names(node):
            found[base].add(node.name)
    return found


def test_an_abstract_class_has_several_implementations() -> None:
    abstract = {node.name for _, node in classes() if "ABC" in base_names(node)}
    assert len(abstract) >= 4
    assert {name for name in abstract if len(children().get(name, ())) < 2} == set()


def test_a_base_class_of_one_other_is_used_without_it() -> None:
    """It would be a mixin for one class."""
    uses: Counter[str] = Counter()
    for tree in trees().values():
        nodes = list(ast.walk(tree))
        bases = [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
        as_bases = {id(part) for base in bases for part in ast.walk(base)}
        elsewhere = [node for node in nodes if id(node) not in as_bases]
        uses.update(node.id for node in elsewhere if isinstance(node, ast.Name))
        uses.update(node.attr for node in elsewhere if isinstance(node, ast.Attribute))
    ours = {node.name for _, node in classes()}
    alone = {base for base, found in children().items() if base in ours and len(found) == 1}
    assert len(alone) > 5
    assert {base for base in alone if not uses[base]} == set()


def test_nothing_is_there_for_tests_alone() -> None:
    """Each function and class is named where it is used, or where the documents tell programs of it."""
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
    """Return the modules that import a module, also where only type checkers do."""
    return {path for path in trees() if module in imported(path)}


def test_what_a_node_is_made_of_does_not_know_the_node() -> None:
    served = "cablestore/peers/metrics_http.py"
    assert importers("cablestore.peers.core") == {served, "cablestore/peers/node.py"}
    assert {path for path in importers("cablestore.peers.node") if "/peers/" in path} == {
        served,
        "cablestore/peers/__init__.py",
    }
    holders = [
        path for path in trees() if "/peers/" in path and "cablestore.peers.context.PeerContext" in imported(path)
    ]
    assert len(holders) > 10
    assert places_of(r"\b_node\.") & set(holders) == set()


def test_a_connection_asks_its_owner_for_what_the_owner_declares() -> None:
    declared = {name for name in vars(ConnectionOwner) if not name.startswith("_")}
    assert declared <= set(dir(NodeCore))
    asked = set(re.findall(r"self\._owner\.(\w+)", sources()["cablestore/peers/connection.py"]))
    assert asked == declared


def test_the_parts_of_a_connection_do_not_know_it() -> None:
    """Its transport, its shares of time, and the queue of its answers."""
    parts = {f"cablestore/peers/{name}.py" for name in ("link", "shares", "answering")}
    assert {f"cablestore.peers.{name}" for name in ("link", "shares", "answering")} <= imported(
        "cablestore/peers/connection.py"
    )
    assert importers("cablestore.peers.connection") & parts == set()


# --- the store ---------------------------------------------------------------------------------------


def test_what_is_done_to_a_store_that_nobody_has_open_is_in_one_class() -> None:
    offered = {name for name, _ in inspect.getmembers(ClosedStore, callable) if not name.startswith("_")}
    assert offered == {"rebuild", "check", "export", "generations", "roll_back", "remove", "recover"}


def test_commands_go_through_it() -> None:
    """They import reports from the modules that do the work, no function."""
    for path in sources():
        if path.startswith(("cablestore/cli/", "cablestore/chat/", "cablestore/aio/")):
            names = re.findall(r"cablestore\.index\.(?:rebuild|check|takeover|engine)\.(\w+)", " ".join(imported(path)))
            assert [name for name in names if name.islower()] == [], path


# --- form ------------------------------------------------------------------------------------------


def test_each_mark_for_a_checker_has_its_reason_beside_it() -> None:
    tops = ("cablestore", "views", "reindex", "tests", "bench", "docs", "examples", "tools")
    files = [path for top in tops for path in (ROOT / top).rglob("*.py") if not path.name.endswith("_pb2.py")]
    lines = [f"{path.relative_to(ROOT)}: {line}" for path in files for line in path.read_text().splitlines()]
    mark = re.compile(r"# (?:noqa\b(?:: [A-Z\d, ]+\d)?|type: ignore\b(?:\[[\w, -]+\])?)(.*)")
    marks = {line: found for line in lines if (found := mark.search(line))}
    assert len(marks) > 100
    assert [line for line, found in marks.items() if not re.match(r" +[#-] +\S", found[1])] == []


def test_functions_fit_a_screen() -> None:
    lengths = {
        f"{path}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(lengths) > 3_000
    assert {name: lines for name, lines in lengths.items() if lines > 60} == {}


# --- the page that tells of it -----------------------------------------------------------------------


def test_the_page_on_the_architecture_is_two_pages_that_show_the_floors() -> None:
    page = (ROOT / "docs" / "explanation" / "ARCHITECTURE.md").read_text()
    assert len(page.splitlines()) <= 140
    drawings = re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(drawings) == 3
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    shown = [re.split(r" {2,}", line)[0] for line in drawings[0].splitlines()]
    assert shown == floors
    assert max(map(len, page.splitlines())) <= 120
