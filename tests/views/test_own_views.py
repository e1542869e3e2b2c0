"""Third-party views: the recipe of docs/how-to/write-a-view.md, word for word.

It works on the command line, without the package, and in the tree.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

from cablestore import Catalog, Fold, Tally, View
from cablestore.errors import ArgumentError
from cablestore.index.view import Census, Tree
from cablestore.views import CATALOG, installed
from cablestore.views.installed import why_not_loaded

RECIPE = (ROOT / "docs" / "how-to" / "write-a-view.md").read_text()
Run = Callable[..., tuple[int, str, str]]
"""Runs a command; returns its status, output and errors."""


def block(language: str) -> str:
    """Return the first block of this language in the recipe."""
    found: str = re.findall(rf"```{language}\n(.*?)```", RECIPE, flags=re.DOTALL)[0]
    return found


def install(site: Path, module: str | None = None) -> None:
    """Put the recipe's package into a folder as pip does."""
    project = tomllib.loads(block("toml"))["project"]
    (site / "mentions.py").write_text(module or block("python"))
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)


def run_with(site: Path, *words: object) -> str:
    """Run a command in a separate process with the packages in this folder. Return its output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}
    command = [sys.executable, "-m", "cablestore", *map(str, words)]
    found = subprocess.run(command, env=environment, cwd=site, capture_output=True, text=True, check=False)
    return found.stdout + found.stderr


@pytest.fixture
def store_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CABLESTORE_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder)
    return folder


def mentioned(dump: str) -> list[str]:
    return re.findall(r"^!x!mentions!(\w+)!", dump, flags=re.MULTILINE)


def test_every_command_works_with_a_view_of_a_package(tmp_path: Path, store_folder: Path, site: Path, run: Run) -> None:
    assert run("init")[0] == 0
    assert "mentions (found none, expected 1)" in run_with(site, "post", "default", "too early")
    assert "rebuilt" in run_with(site, "rebuild")
    run_with(site, "post", "default", "@ann, have you seen @bob?")
    assert "no problems found" in run_with(site, "check")
    dump = run_with(site, "dump")
    assert mentioned(dump) == ["ann", "bob"]
    assert "rebuilt" in run_with(site, "rebuild")
    assert run("export", tmp_path / "export")[0] == 0
    run_with(site, "import", "-s", tmp_path / "imported", tmp_path / "export")
    assert mentioned(run("dump", "-s", tmp_path / "imported")[1]) == ["ann", "bob"]
    assert run("dump")[1] == dump


def test_without_the_package_a_store_is_read_only(tmp_path: Path, store_folder: Path, site: Path, run: Run) -> None:
    run_with(site, "init")
    run_with(site, "post", "default", "@ann, have you seen @bob?")
    dump = run("dump")[1]
    assert mentioned(dump) == ["ann", "bob"]
    assert "have you seen" in run("log", "default")[1]
    assert "default" in run("channels")[1]
    reading: list[tuple[object, ...]] = [("stats",), ("stats", "--json"), ("users",), ("export", tmp_path / "export")]
    for words in reading:
        assert run(*words)[0] == 0, words
    refused: list[tuple[object, ...]] = [
        ("post", "default", "x"),
        ("join", "x"),
        ("name", "ann"),
        ("prune", "--keep", "0"),
        ("check",),
        ("rebuild",),
        ("rebuild", "--drop-view", "nonsense"),
        ("import", tmp_path / "export"),
        ("sync", "127.0.0.1:9"),
    ]
    for words in refused:
        status, _, message = run(*words)
        assert status == 2, words
        assert "mentions" in message, words
    assert "not installed: mentions 1. Install the package" in run("rebuild")[2]
    assert "not installed can be dropped. These are: none" in run_with(site, "rebuild", "--drop-view", "mentions")
    assert run("dump")[1] == dump
    assert run("rebuild", "--drop-view", "mentions")[0] == 0
    assert run("post", "default", "@cyd, it is gone")[0] == 0
    assert mentioned(run("dump")[1]) == []
    run_with(site, "rebuild")
    assert mentioned(run("dump")[1]) == ["ann", "bob", "cyd"]


@pytest.mark.thorough
def test_spark_has_the_views_of_packages(tmp_path: Path, store_folder: Path, site: Path, run: Run) -> None:
    run_with(site, "init")
    run_with(site, "post", "default", "@ann, have you seen @bob?")
    dump = run("dump")[1]
    assert run("export", tmp_path / "export")[0] == 0
    status, _, message = run("reindex", tmp_path / "export", "--out", store_folder)
    assert (status, "not installed: mentions 1" in message) == (2, True), message
    message = run_with(site, "reindex", tmp_path / "export", "--out", store_folder, "--cores", "1")
    assert "generation-000002, which was checked" in message
    assert run("dump")[1] == dump
    assert mentioned(dump) == ["ann", "bob"]
    status, _, message = run("generations", "--back-to", "generation-000001")
    assert (status, "not installed: mentions 1" in message) == (2, True), message


def test_a_worker_without_the_package_or_with_another_version_reports_it(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import pickle, sys; from cablestore.views.installed import installed_catalog as i; "
        "sys.stdout.buffer.write(pickle.dumps(i()))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}
    sent = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout
    assert why_not_loaded(partial(pickle.loads, sent)) == "No module named 'mentions'"
    newer = Catalog((*CATALOG.views, replace(CATALOG.views[-1], name="own", prefixes=(b"!x!own!",), tree=None)))
    monkeypatch.setattr(installed, "installed_catalog", lambda: newer)
    assert why_not_loaded(lambda: newer) is None
    older = Catalog(
        tuple(view if view.name != "own" else replace(view, version=view.version + 1) for view in newer.views)
    )
    assert "the view own has version 2 here, expected version 3" in str(why_not_loaded(lambda: older))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("import nonsense", "ModuleNotFoundError: No module named 'nonsense'. Repair or remove the package"),
        ("VIEW = 3", "has the type int, expected a View or a list of views"),
        ("VIEW = [3]", "has the type list, expected a View or a list of views"),
        (block("python").replace('"mentions",', '"links",'), "the prefix !x!mentions! of the view links"),
        (block("python").replace("!x!", "!chat!"), "does not begin with !x!mentions!"),
    ],
    ids=["import", "not a view", "not views", "name", "prefix"],
)
def test_an_unusable_package_is_named(store_folder: Path, site: Path, module: str, message: str) -> None:
    install(site, module)
    found = run_with(site, "init")
    assert not store_folder.exists()
    assert message in found
    assert "Traceback" not in found


def view(name: str = "own", **fields: object) -> View:
    return replace(View(name=name, version=1, prefixes=(b"!x!own!",), answers=""), **fields)  # type: ignore[arg-type] # fields of many types


def no_rows(*_: object) -> list[Any]:
    return []


FOLD = Fold(prefix=b"!x!own!", types=frozenset(), parts=no_rows, refold=lambda *_: None)
ELSEWHERE = replace(FOLD, prefix=b"!x!elsewhere!")
TALLY = Tally(prefix=b"!x!own!", types=frozenset(), key=lambda _: b"")


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ([view("a b")], "invalid view name 'a b'"),
        ([view("")], "invalid view name ''"),
        ([view(prefixes=(b"!x!other!",))], "does not begin with !x!own!"),
        ([view(prefixes=(b"!x!own!", b"!x!own!a!"))], "overlaps with !x!own!"),
        ([view(), view()], "2 views have the name own"),
        ([view("sync", prefixes=(b"!x!sync!",))], "2 views have the name sync"),
        ([view(prefixes=(b"!x!own!a",))], "does not have the form !word!"),
        ([view(prefixes=(b"!x!own!\x01!",))], "does not have the form !word!"),
        (
            [view(folds=(ELSEWHERE,))],
            "the prefix !x!elsewhere! of a fold, tally, census or tree of the view own is used twice, or is not one of the view's prefixes",
        ),
        ([view(folds=(FOLD,), tallies=(TALLY,))], "is used twice"),
        ([view(folds=(replace(FOLD, census=Census(b"!x!own!n!", bool)),))], "one of the view's prefixes"),
        ([view(tree=Tree(b"!x!own!t!", no_rows, lambda *_: iter(()), ()))], "one of the view's prefixes"),
    ],
)
def test_invalid_views_are_rejected(views: list[View], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        CATALOG.extended(views)


@pytest.mark.parametrize("prefix", [b"!meta!", b"!sizes!", b"!arrival!log!", b"!local!own!"])
def test_keys_outside_of_views_are_reserved(prefix: bytes) -> None:
    with pytest.raises(ArgumentError, match="is reserved"):
        Catalog((view(prefixes=(prefix,)),))


def test_a_catalog_extended_by_no_views_is_the_same() -> None:
    assert CATALOG.extended([]) is CATALOG
    assert CATALOG.extended([view()]).versions == {**CATALOG.versions, "own": 1}


@pytest.mark.thorough
def test_a_view_becomes_part_of_cablestore_as_the_recipe_says(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    out = shutil.ignore_patterns("__pycache__", "released", "vectors")
    for name in ("cablestore", "views", "reindex", "docs", "tests"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=out)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tree)
    (tree / "views" / "mentions.py").write_text(block("python").replace("!x!mentions!", "!mention!"))
    package = tree / "views" / "__init__.py"
    listed = package.read_text().replace("    membership,\n", "    membership,\n    mentions,\n")
    package.write_text(listed.replace("        sync.VIEW,\n", "        sync.VIEW,\n        mentions.VIEW,\n"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        return subprocess.run(
            [sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, check=False
        )

    assert run("docs/tables.py").returncode == 0
    assert "`views/mentions.py` 1" in (tree / "docs" / "INDEXES.md").read_text()
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "tests/views/test_views.py")
    first = run(*tests)
    assert "wrote mentions-1.json: look at it and commit it" in first.stdout
    assert first.stdout.count("\nFAILED ") == 1
    again = run(*tests)
    assert again.returncode == 0, again.stdout
