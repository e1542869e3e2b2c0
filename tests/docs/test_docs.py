"""The documents: their examples run, and they quote the product's messages and names correctly."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from documents import blocks, command_lines
from folders import ROOT
from waiting import LIMIT_S

import cablestore
from cablestore import limits
from cablestore.cli.commands import load_all

TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/how-to/asyncio.md",
        "docs/how-to/search.md",
        "docs/how-to/write-a-view.md",
        "docs/how-to/serve.md",
        "docs/explanation/SDS.md",
    ],
)
def test_python_in_the_documents_runs(document: str, tmp_path: Path) -> None:
    """All code blocks of a document run in order, as one program in an empty folder."""
    code = "\n".join(blocks(document))
    assert code
    found = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.thorough("async_client.py", "history_archives.py", "sds_udp.py")
@pytest.mark.parametrize(
    "example",
    sorted({*(ROOT / "examples").glob("*.py")} - {ROOT / "examples" / "terminal_chat.py"}),
    ids=lambda p: p.name,
)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout


COMMANDS = load_all()
DOCUMENTS = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if command_lines(name)])
def test_the_commands_in_the_documents_exist_with_their_options(document: str) -> None:
    for words in command_lines(document):
        if words[0] in ("--help", "--version"):
            continue
        assert words[0] in COMMANDS, words
        command = COMMANDS[words.pop(0)]
        while isinstance(command, click.Group):
            two_words = " ".join(words[:2])
            name = two_words if two_words in command.commands else words[0]
            assert name in command.commands, words
            command = command.commands[name]
            del words[: 1 + name.count(" ")]
        known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        assert {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)} <= known, words


def test_the_overview_lists_each_command() -> None:
    overview = (ROOT / "docs" / "reference" / "commands.md").read_text()
    for name in COMMANDS:
        assert f"`{name}" in overview, name


WORDS_OF_THE_SYSTEM = {"Permission denied", "Too many open files", "AccessDenied"}
"""Phrases in "you see" tables that libraries and the system print."""


@pytest.mark.parametrize("document", ["archives.md", "reindex.md", "repair.md"])
def test_the_product_contains_the_messages_that_the_documents_quote(document: str) -> None:
    """The sources contain the longest part of each quoted message without names and numbers."""
    modules = (path for folder in ("cablestore", "views", "reindex") for path in (ROOT / folder).rglob("*.py"))
    printed = " ".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in modules)
    text = (ROOT / "docs" / "how-to" / document).read_text(encoding="utf-8")
    rows = [row for table in text.split("| you see |")[1:] for row in table.partition("\n\n")[0].splitlines()[2:]]
    quoted = {phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert len(quoted) > 5
    parts = {max(re.split(r"\S*\.\.\.|\b[A-Z]+\b|\S*\d\S*|which", phrase), key=len).strip(" ,") for phrase in quoted}
    assert {part for part in parts if part not in printed} <= WORDS_OF_THE_SYSTEM


def test_the_changelog_begins_with_the_current_version() -> None:
    """The first heading that is a version is the current one."""
    first = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert first is not None
    assert first[1] == cablestore.__version__


def test_every_limit_is_documented_and_named_by_a_test() -> None:
    names = [name for name in vars(limits) if name.isupper()]
    assert len(names) > 15
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_docs.py")
    document = (ROOT / "docs" / "reference" / "limits.md").read_text()
    for name in names:
        assert name in tests, f"no test names {name}"
        assert f"`{name}`" in document


def test_the_public_api_is_declared_consistently() -> None:
    source = ast.parse((ROOT / "cablestore" / "__init__.py").read_text())
    typed = {
        alias.asname or alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cablestore.")
        for alias in node.names
    }
    assert typed | {"__version__"} == set(cablestore.__all__)
    for name in cablestore.__all__:
        value = getattr(cablestore, name)
        assert name.startswith("__") or getattr(value, "__doc__", None) or name in ("LEGACY", "DRAFT8", "Body")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        cablestore.nonsense  # noqa: B018 - the access is the test


def test_the_root_package_has_few_names() -> None:
    assert len(cablestore.__all__) <= 40


@pytest.mark.parametrize(
    "package",
    [
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for path in sorted(ROOT.glob("cablestore/**/__init__.py"))
    ]
    + ["cablestore.views", "cablestore.reindex"],
)
def test_packages_contain_their_public_names(package: str) -> None:
    module = importlib.import_module(package)
    names = getattr(module, "__all__", ())
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(module, name) is not None


@pytest.mark.skipif(not TRACKED, reason="no git checkout")
def test_no_file_mentions_machine_paths_or_unfinished_work() -> None:
    # A character class of one letter keeps the pattern from matching itself.
    words = re.compile(
        r"/(?:[w]ork|root|home)/|[T]ODO|[F]IXME|[X]XX\b|raise [N]otImplementedError|\.\.[/]shared|\b[F]IGURES\b(?!\.md)"
    )
    for name in TRACKED:
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".yml", ""} and name not in (".ci/run", "LICENSE"):
            assert not words.search(path.read_text(errors="ignore")), name
