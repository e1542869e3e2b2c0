"""Arguments that a job rejects before it starts Spark: exports of another store, and a foreign folder for its tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from exporting import export
from people import ANN
from reindexing import conversation, digest_of, export_of, store_at

from cablestore import LEGACY, CableStore
from cablestore.errors import ExportError
from cablestore.export import Filters
from cablestore.reindex.table_files import write_tables

Run = Callable[..., tuple[int, str, str]]
POSTS = conversation(200)


def test_an_export_of_another_store_is_rejected(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS[:50])
    other = export_of([post for post in POSTS if post not in POSTS[20:30]], tmp_path / "other")
    before = digest_of(path)
    status, _, errors = run("reindex", other, "--out", path)
    assert status == 2
    assert "none of the exports is a complete export of the store" in errors
    with CableStore.open(path) as store:
        store.export(tmp_path / "part", filters=Filters(authors=frozenset([ANN.key])))
    assert run("reindex", tmp_path / "part", "--out", path)[0] == 2
    assert digest_of(path) == before


def test_a_folder_that_holds_only_folders_is_rejected(tmp_path: Path) -> None:
    """Folders of other programs may have the names of tables: a blog has posts, a chat has users."""
    source, out = export(POSTS[:80], tmp_path / "export", LEGACY).folder, tmp_path / "blog"
    essay = out / "posts" / "essay.md"
    essay.parent.mkdir(parents=True)
    essay.write_text("mine")
    with pytest.raises(ExportError, match="contains other files or folders"):
        write_tables([source], out, work=tmp_path / "work")
    assert essay.read_text() == "mine"
    assert [path.name for path in out.iterdir()] == ["posts"]
