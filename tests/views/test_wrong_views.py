"""Faulty third-party views: the error names the view, the function and the post, and the store is not damaged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from people import ANN, raws

from cablestore import CableStore, Fold, Post, StoreOptions, Tally, Text, View
from cablestore.errors import ArgumentError, CableStoreError
from cablestore.index.database import Row
from cablestore.index.view import Census, Tree
from cablestore.protocol.body import DELETE, TEXT
from cablestore.views import CATALOG

PREFIX = b"!x!own!"
FOLDED = b"!x!own!folded!"
TYPES = frozenset({TEXT})
BAD = "bad"
"""The text of the message on which a faulty view fails."""


def is_bad(post: Post) -> bool:
    return isinstance(post.body, Text) and post.body.text == BAD


def row(post: Post) -> Row:
    return PREFIX + post.sort_time, post.hash


def wrong_on_bad(wrong: Callable[[Post], Any]) -> Callable[[Post], list[Row]]:
    """Return a function of a view that is correct for all posts but one."""
    return lambda post: wrong(post) if is_bad(post) else [row(post)]


def raising(*_: object) -> Any:
    raise KeyError("city")


def raising_late(post: Post) -> Iterator[Row]:
    yield row(post)
    raise KeyError("city")


def view(**fields: Any) -> View:
    return View(name="own", version=1, prefixes=(PREFIX,), answers="", types=TYPES, **fields)


def folding(**fields: Any) -> View:
    fold = Fold(prefix=PREFIX, types=TYPES, parts=part, refold=lambda *_: None)
    return View(name="own", version=1, prefixes=(PREFIX,), answers="", folds=(replace(fold, **fields),))


def part(post: Post) -> list[Row]:
    return [(PREFIX + b"all", post.hash)]


def only_bad(function: Callable[..., Any]) -> Callable[[Post], Any]:
    return lambda post: function(post) if is_bad(post) else part(post)


WRONG_ROWS: dict[str, tuple[Callable[[Post], Any], str]] = {
    "raises": (raising, "raised KeyError: 'city'"),
    "raises later": (raising_late, "raised KeyError: 'city'"),
    "another prefix": (lambda post: [(b"!x!other!", b"")], "returned the key !x!other!, which must begin with !x!own!"),
    "a view of cablestore": (lambda post: [(b"!data!" + post.hash_hex, b"")], "which must begin with !x!own!"),
    "a local row": (lambda post: [(b"!local!value!x", b"")], "which must begin with !x!own!"),
    "text": (lambda post: [("!x!own!a", b"")], "a row that is not a (key, value) of bytes"),
    "no value": (lambda post: [PREFIX], "a row that is not a (key, value) of bytes"),
    "number as value": (lambda post: [(PREFIX, 5)], "a row that is not a (key, value) of bytes"),
    "nothing": (lambda post: None, "returned NoneType, not a list"),
    "one key twice": (lambda post: [row(post), row(post)], "several rows with one key"),
    "a byte below 4": (lambda post: [(PREFIX + b"\x01", b"")], "with a byte from 0 to 3. Use `escape`"),
}
VIEWS = {name: (view(rows=wrong_on_bad(wrong)), "rows", message) for name, (wrong, message) in WRONG_ROWS.items()} | {
    "parts raise": (folding(parts=only_bad(raising)), "parts", "raised KeyError"),
    "parts elsewhere": (folding(parts=only_bad(lambda _: [(b"!x!other!", b"")])), "parts", "must begin with"),
    "merge gives a number": (folding(merge=lambda *_: 5), "merge", "returned int"),
    "tally elsewhere": (
        view(tallies=(Tally(PREFIX, TYPES, lambda post: b"!x!b!" if is_bad(post) else PREFIX + b"a"),)),
        "key",
        "returned !x!b!, which must begin with !x!own!",
    ),
    "sets raise": (
        view(tree=Tree(PREFIX, lambda post: raising() if is_bad(post) else [], lambda *_: iter(()), ())),
        "sets",
        "raised KeyError",
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_that_a_view_fails_on_changes_nothing(name: str, tmp_path: Path) -> None:
    wrong, function, message = VIEWS[name]
    catalog = CATALOG.extended([wrong])
    with CableStore.open(tmp_path / "s", options=StoreOptions(catalog=catalog), identity=ANN.identity) as store:
        store.post("default", "good")
        before = store.dump_digest(), store.last_sequence, store.cursor
        with pytest.raises(CableStoreError) as own:
            store.post("default", BAD)
        other = ANN.text("default", BAD)
        with pytest.raises(CableStoreError) as ingested:
            store.ingest(raws(ANN.text("default", "in one batch"), other))
        for caught in (own, ingested):
            assert type(caught.value) is CableStoreError
            assert str(caught.value).startswith("the view own failed")
            assert f"`{function}` " in str(caught.value)
            assert message in str(caught.value)
        assert name.startswith("merge") or f"on the post {other.hash.hex()}" in str(ingested.value)
        assert (store.dump_digest(), store.last_sequence, store.cursor) == before
        if not name.startswith("merge"):
            store.post("default", "good again")
        assert store.check().is_clean
    with CableStore.open(tmp_path / "s", options=StoreOptions(catalog=catalog)) as store:
        assert store.check().is_clean


@pytest.mark.parametrize(
    "wrong",
    [
        folding(refold=raising),
        folding(refold=lambda *_: "text"),
        view(rows=lambda post: [row(post)], dead_rows=raising),
        folding(dead_parts=lambda stone: [(b"!x!other!", b"")]),
    ],
    ids=["refold raises", "refold gives text", "dead_rows raise", "dead_parts elsewhere"],
)
def test_a_deletion_that_a_view_fails_on_changes_nothing(wrong: View) -> None:
    with CableStore.in_memory(options=StoreOptions(catalog=CATALOG.extended([wrong]))) as store:
        post = store.post("default", "good")
        before = store.dump_digest()
        with pytest.raises(CableStoreError, match="the view own failed") as caught:
            store.delete(post.hash)
        is_named = f"failed on the deletion of {post.hash.hex()}: `dead_" in str(caught.value)
        assert is_named is ("`dead_" in str(caught.value))
        assert store.dump_digest() == before
        assert store.get(post.hash) is not None


def test_a_census_that_fails_is_named() -> None:
    fold = folding().folds[0]
    own = View("own", 1, (FOLDED, b"!x!own!n!"), "", folds=(replace(fold, prefix=FOLDED, parts=folded),))
    own = replace(own, folds=(replace(own.folds[0], census=Census(b"!x!own!n!", raising)),))
    with CableStore.in_memory(options=StoreOptions(catalog=CATALOG.extended([own]))) as store:
        with pytest.raises(CableStoreError, match="the view own failed: `counts` raised KeyError"):
            store.post("default", "good")
        assert store.check().is_clean


def folded(post: Post) -> list[Row]:
    return [(FOLDED + b"a!b", post.hash)]


def test_a_store_whose_new_view_fails_is_unchanged(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "s") as store:
        post = store.post("default", BAD)
        digest = store.dump_digest()
    catalog = CATALOG.extended([VIEWS["another prefix"][0]])
    with pytest.raises(CableStoreError, match=f"the view own failed on the post {post.hash.hex()}"):
        CableStore.open(tmp_path / "s", options=StoreOptions(catalog=catalog), upgrade=True)
    with CableStore.open(tmp_path / "s") as store:
        assert store.dump_digest() == digest


def test_other_values_than_views_are_rejected() -> None:
    for wrong in (None, "mentions", 5, View):
        with pytest.raises(ArgumentError, match="invalid view: expected a View"):
            CATALOG.extended([wrong])  # type: ignore[list-item] # that is tested


def test_a_command_names_the_view_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "wrong_view.py").write_text(
        "from cablestore import View\n"
        f"VIEW = View('own', 1, ({PREFIX!r},), '', frozenset({{{DELETE - 1}}}), lambda post: [(b'!x!other!', b'')])\n"
    )
    info = tmp_path / "wrong-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[cablestore.views]\nown = wrong_view:VIEW\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from cablestore.cli import main; main()"
    command = [sys.executable, "-c", program, "post", "-s", str(tmp_path / "s"), "default", "hello"]
    init = [*command[:3], "init", "-s", str(tmp_path / "s")]
    assert subprocess.run(init, capture_output=True, check=False).returncode == 0
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "the view own failed on the post" in found.stderr
