"""The table of post types: its invariants, and adding a type with one entry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from folders import ROOT, SUPPORT
from hypothesis import given
from hypothesis import strategies as st

from cablestore import DRAFT8, CableStore
from cablestore.errors import CorruptStoreError
from cablestore.index.packing import pack
from cablestore.index.view import decode_counts, encode_counts
from cablestore.protocol.body import POST_TYPES, TYPE_NAMES, TYPE_NUMBERS, Body
from cablestore.protocol.keys import TYPE_PARTS

Command = Callable[..., tuple[int, str, str]]
"""Runs a command; returns its status, output and errors."""
BODY = '''
@dataclass(frozen=True, slots=True)
class Reaction:
    """post/reaction: a mark on a post of a channel."""

    type: ClassVar[int] = 12
    channel: str
    target: bytes
    mark: str

    __repr__ = hex_repr


Body = Reaction | Text'''
ENTRY = """PostType(Unblock, (form.REASON, form.PRIVACY, form.USERS, form.UNDROP_FLAG)),
        PostType(Reaction, (form.CHANNEL, form.RECIPIENT, form.TOPIC_LINE), is_linkable=True, dialects=frozenset({"draft8"})),"""
EDITS = {
    "cablestore/protocol/body.py": [
        ("\nBody = Text", BODY),
        ("PostType(Unblock, (form.REASON, form.PRIVACY, form.USERS, form.UNDROP_FLAG)),", ENTRY),
    ],
    "cablestore/__init__.py": [
        (
            "    from cablestore.protocol.body import Role as Role",
            "    from cablestore.protocol.body import Reaction as Reaction, Role as Role",
        ),
        ("Moderation Role Text", "Moderation Reaction Role Text"),
    ],
}
"""The edits of the recipe in CONTRIBUTING.md for a post/reaction, a type with two digits in one dialect."""


def test_each_type_has_one_entry_for_each_field_of_its_body() -> None:
    assert [kind.body for kind in POST_TYPES.values()] == list(get_args(Body))
    assert list(POST_TYPES) == sorted(POST_TYPES) == list(range(10))
    assert {name: TYPE_NAMES[number] for name, number in TYPE_NUMBERS.items()} == {name: name for name in TYPE_NUMBERS}
    for kind in POST_TYPES.values():
        assert len(kind.fields) == len(fields(kind.body))


def test_types_in_keys_have_the_order_of_their_numbers() -> None:
    parts = [part + b"!" for part in TYPE_PARTS]
    assert parts == sorted(parts)
    assert len(parts) == 128
    assert parts[:10] == [b"%d!" % number for number in range(10)]
    assert not [(one, other) for one in parts for other in parts if one != other and other.startswith(one)]


@given(st.lists(st.integers(0, 2**63), min_size=10, max_size=10))
def test_a_tally_of_the_first_ten_types_has_ten_counts(counts: list[int]) -> None:
    encoded = encode_counts(counts)
    assert encoded == (pack(counts) if any(counts) else None)
    assert decode_counts(encoded) == counts


@pytest.mark.parametrize("row", [[0] * 9, [1] * 200, [1.0] * 10, [True] * 10, ["1"] * 10, {}, 10, None])
def test_invalid_lists_of_counts_are_reported_as_damage(row: object) -> None:
    with pytest.raises(CorruptStoreError, match="counts by type"):
        decode_counts(pack(row))


def tree_with_a_reaction(tmp_path: Path) -> Path:
    """Return a copy of the tree with one more type of post."""
    tree = tmp_path / "tree"
    for name in ("cablestore", "views", "reindex", "docs"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns("*"))
    shutil.copy(ROOT / "README.md", tree)
    for name, edits in EDITS.items():
        text = (tree / name).read_text()
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tree / name).write_text(text)
    return tree


def run_in(tree: Path, *words: str | Path) -> str:
    """Run a program with the package of this tree, and return its output."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a folder with stores and an export of a version with reactions, and their content."""
    folder = tmp_path_factory.mktemp("newer")
    return folder, json.loads(run_in(tree_with_a_reaction(folder), SUPPORT / "post_type_child.py", folder))


def test_a_post_type_becomes_part_of_cablestore_as_the_recipe_says(newer: tuple[Path, dict[str, Any]]) -> None:
    assert len(EDITS) <= 4
    left = {"text": 1, "delete": 1, "info": 1, "join": 1, "reaction": 1}
    assert (
        newer[1].items()
        >= {
            "other dialect": "unknown post type 12, True",
            "cable.js": False,
            "verdicts": ["accepted", "accepted"],
            "counts": [
                {"text": 1, "info": 1, "join": 1, "reaction": 2},
                {"a": {"text": 1, "join": 1, "reaction": 2}},
            ],
            "by type": True,
            "by author": ["info", "reaction", "reaction"],
            "members": [True],
            "heads": True,
            "after deletion": [left, True],
            "body": "-1",
            "is the same in any order": True,
            "left by prune": {"delete": 1, "info": 1, "join": 1, "reaction": 6},
            "column": ["join", "reaction"],
            "is counted by channel": True,
            "exported": left,
            "dumps": True,
        }.items()
    )


def test_a_store_without_posts_of_a_newer_type_is_the_same_in_both_versions(newer: tuple[Path, dict[str, Any]]) -> None:
    folder, found = newer
    with CableStore.open(folder / "known", dialect=DRAFT8) as store:
        assert store.dump_digest() == found["known"]
        assert store.check().is_clean


@pytest.mark.parametrize(
    "command", [("rebuild",), ("check",), ("export", "OUT"), ("export", "OUT", "--channel", "a"), ("import", "EXPORT")]
)
def test_posts_of_a_newer_type_are_not_reported_as_damage(
    command: tuple[str, ...], newer: tuple[Path, dict[str, Any]], tmp_path: Path, run: Command
) -> None:
    folder, found = newer
    path = shutil.copytree(folder / ("known" if command[0] == "import" else "store"), tmp_path / "store")
    places = {"OUT": tmp_path / "out", "EXPORT": folder / "export"}
    status, _, error = run(*(places.get(word, word) for word in command), "--store", path)
    assert (status in {2, 3}, error.count("\n")) == (True, 1)
    assert "Install a newer version" in error
    assert not (tmp_path / "out" / "manifest.json").exists()
    with CableStore.open(path, dialect=DRAFT8) as store:
        assert store.dump_digest() == found["known" if command[0] == "import" else "dump"]


@pytest.mark.thorough
def test_the_documents_of_a_post_type_are_generated(tmp_path: Path) -> None:
    tree = tree_with_a_reaction(tmp_path)
    run_in(tree, "docs/tables.py")
    assert "number of post/reaction in the channel" in (tree / "docs" / "reference" / "tables.md").read_text()
