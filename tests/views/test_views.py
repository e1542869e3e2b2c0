"""The views: their documentation is correct, and their rows change only with their version."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from folders import ROOT, TESTS
from history import AUTHORS, Draft, build
from people import ANN, BOB, CYD, START_MS, raws

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Post, decode_post
from cablestore.index.census import census_key
from cablestore.index.database import Row
from cablestore.index.tombstone import Skeleton, Tombstone
from cablestore.index.tree import tree_rows
from cablestore.index.view import Tree, View
from cablestore.protocol.body import LOCAL_ONLY, Block, Body, Moderation, Role, Unblock
from cablestore.views import CATALOG

GOLDEN = TESTS / "golden"


def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("view", CATALOG.views, ids=lambda v: v.name)
def test_a_views_docstring_begins_with_its_keys(view: View) -> None:
    module = import_module(f"cablestore.views.{view.name}")
    layout = tables().layout(view)
    documented = [key.encode() for key, _ in layout]
    for prefix in view.prefixes:
        assert any(key.startswith(prefix) for key in documented), prefix
    assert all(key.startswith(view.prefixes) for key in documented)
    assert (module.__doc__ or "").index("\n    !") < 200
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and not name.startswith("_"):
            assert inspect.getdoc(function), name


def test_prefixes_do_not_overlap() -> None:
    prefixes = [prefix for view in CATALOG.views for prefix in view.prefixes]
    assert len(set(prefixes)) == len(prefixes)
    assert not any(a != b and a.startswith(b) for a in prefixes for b in prefixes)
    assert all(prefix.startswith(b"!") and prefix.endswith(b"!") for prefix in prefixes)


def test_the_documents_tables_are_generated_from_the_code() -> None:
    generator = tables()
    documents = generator.documents()
    assert len(documents) >= 4
    for document in documents:
        assert document.read_text() == generator.with_tables(document.read_text()), f"{document.name}: run `make docs`"
    indexes = (ROOT / "docs" / "INDEXES.md").read_text()
    assert all(f"`views/{view.name}.py` {view.version}" in indexes for view in CATALOG.views)


# --- golden rows -----------------------------------------------------------------------------------


def golden_posts(dialect: Dialect) -> list[Post]:
    """Return one or more posts of every type, always the same."""
    drafts = [Draft(kind, author, channel, 3 + author, word, (0, 1, 40)) for kind in (0, 4, 5, 3, 2, 1, 6, 8) for author, channel, word in ((0, 0, 1), (1, 2, 3))]  # fmt: skip
    return build(drafts, dialect)


def moderation_posts() -> list[Post]:
    """Return moderation posts that the golden posts lack: the cabal, actions on users, posts and channels, unblocking."""
    bodies: list[Body] = [
        Role("", 0, "", BOB.key, 2),
        Moderation("", 0, "", (BOB.key, CYD.key, BOB.key), 0),
        Moderation("", 0, "a!b", (bytes([7]) * 32,), 5),
        Moderation("", 0, "default", (), 6),
        Unblock("", 0, (BOB.key, CYD.key), 1),
        Block("", LOCAL_ONLY, (BOB.key,), 0, 0),
        Role("", LOCAL_ONLY, "", BOB.key, 2),
        Moderation("", LOCAL_ONLY, "", (BOB.key,), 0),
        Unblock("", LOCAL_ONLY, (BOB.key,), 0),
    ]
    return [ANN.post(body, at=START_MS) for body in bodies]


def golden_stones() -> list[Tombstone]:
    links = (bytes([7]) * 32, bytes([8]) * 32)
    dead = [
        Skeleton(kind, 1_700_000_000_000, channel, links)
        for kind, channel in ((0, "a!b"), (3, "default"), (2, None), (6, ""))
    ]
    return [Tombstone(bytes([1]) * 32, bytes([2]) * 32, 80, bytes([3]) * 32, skeleton) for skeleton in (None, *dead)]


def deleted_again() -> list[Tombstone]:
    """Return tombstones with more than one deletion."""
    return [replace(stone, later=((80, bytes([4]) * 32), (90, bytes([3]) * 32))) for stone in golden_stones()[:2]]


def tree_rows_of(tree: Tree) -> Iterator[Row]:
    items = [(name + b"!" + post.sort_time, post.hash) for post in golden_posts(LEGACY) for name in tree.sets(post)]
    return tree_rows(replace(tree, leaf_rows=2), sorted(items))


def rows_of(view: View) -> list[list[str]]:
    """Return all rows that a view derives from the golden posts and tombstones."""
    found: list[list[str]] = []
    for posts in (golden_posts(LEGACY), golden_posts(DRAFT8), moderation_posts() if view.name == "moderation" else []):
        for post in posts:
            if post.type in view.types:
                found += [["row", key.hex(), value.hex()] for key, value in view.rows(post)]
            for fold in view.folds:
                if post.type in fold.types:
                    found += [
                        ["part", key.hex(), part.hex(), (fold.stored_value(part) or b"").hex()]
                        for key, part in fold.parts(post)
                    ]
                    found += [
                        ["counts", census_key(fold, fold.census, key).hex(), str(fold.census.counts(part))]
                        for key, part in fold.parts(post)
                        if fold.census is not None
                    ]
            found += [["tally", tally.key(post).hex(), ""] for tally in view.tallies if post.type in tally.types]
    found += [["sum", key.hex(), value.hex()] for key, value in (tree_rows_of(view.tree) if view.tree else ())]
    for stone in (*golden_stones(), *(deleted_again() if view.name == "messages" else ())):
        found += [["dead row", key.hex(), value.hex()] for key, value in view.dead_rows(stone)]
        for fold in view.folds:
            found += [["dead part", key.hex(), part.hex()] for key, part in fold.dead_parts(stone)]
    if view.name == "deleted":
        found += [["tombstone", stone.encode().hex(), ""] for stone in (*golden_stones(), *deleted_again())]
    if view.name == "reverse":
        found += [
            ["row", key.hex(), value.hex()] for post in golden_posts(LEGACY) for key, value in CATALOG.rows(post)[-1:]
        ]
    return found


@pytest.mark.parametrize("view", CATALOG.views, ids=lambda v: v.name)
def test_rows_change_only_with_the_version(view: View) -> None:
    """If this fails, the view derives other rows than before.

    Increase its version, then write the new golden file: a run creates it if the version does not have one. Commit it
    with the change.
    """
    path = GOLDEN / f"{view.name}-{view.version}.json"
    found: Any = rows_of(view)
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=0) + "\n")
        pytest.fail(f"wrote {path.name}: look at it and commit it")
    assert found == json.loads(path.read_text())


def test_the_golden_posts_are_of_every_type_with_rows() -> None:
    assert {post.type for post in golden_posts(LEGACY)} == {0, 1, 2, 3, 4, 5, 6, 8}
    assert all(post.author in {author.public_key for author in AUTHORS} for post in golden_posts(LEGACY))


# --- purity and merging ----------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
def test_rows_are_a_function_of_the_bytes(dialect: Dialect) -> None:
    for post in golden_posts(dialect):
        again = decode_post(bytes(bytearray(post.raw)), dialect)
        assert CATALOG.rows(post) == CATALOG.rows(again)
        assert len({key for key, _ in CATALOG.rows(post)}) == len(CATALOG.rows(post))


def test_folds_merge_in_any_order_and_repeatedly() -> None:
    posts = [*golden_posts(LEGACY), *(p.text("default", str(i)) for i in range(3) for p in (ANN, BOB, CYD))]
    for view in CATALOG.views:
        for fold in view.folds:
            parts = [part for post in posts if post.type in fold.types for _, part in fold.parts(post)]
            for a in parts:
                assert fold.merge(a, a) == a
                for b in parts:
                    assert fold.merge(a, b) == fold.merge(b, a)
                    for c in parts[:4]:
                        assert fold.merge(a, fold.merge(b, c)) == fold.merge(fold.merge(a, b), c)


def test_refolding_has_the_stored_value_of_each_fold(store: CableStore) -> None:
    posts = [*golden_posts(LEGACY), ANN.text("default", "x"), ANN.named("ann"), BOB.topic("default", "t")]
    store.ingest(raws(*posts))
    with store.snapshot() as snapshot:
        for view in CATALOG.views:
            for fold in view.folds:
                rows = list(snapshot.reader.prefix(fold.prefix))
                assert rows
                for key, value in rows:
                    part = fold.refold(snapshot.reader, key)
                    assert part is not None
                    assert fold.stored_value(part) == value
