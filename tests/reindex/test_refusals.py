"""What a job finds before it starts Spark: exports of another store, foreign folders, and finished tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from exporting import export
from people import ANN
from reindexing import conversation, digest_of, export_of, store_at

from cablestore import LEGACY, CableStore
from cablestore.errors import ExportError, ReindexError
from cablestore.export import Filters
from cablestore.reindex.columns import SETTLED
from cablestore.reindex.job import Drops
from cablestore.reindex.table_files import TablesReport, write_tables

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


def test_finished_tables_are_reported_for_the_same_sources_and_drops_alone(tmp_path: Path) -> None:
    """A foreign work folder ends each run before Spark starts."""
    sources = [export(POSTS[:count], tmp_path / f"export {count}", LEGACY).folder for count in (20, 21)]
    out, work = tmp_path / "tables", tmp_path / "work"
    (work / "mine").mkdir(parents=True)
    drops = Drops(frozenset([ANN.key]), frozenset(["b", "a"]), 5)

    def write(drops: Drops | None = None, source: int = 0) -> TablesReport:
        return write_tables([sources[source]], out, drops=drops, work=work)

    def noted(dropped: Drops | None, source: int = 0) -> dict[str, object]:
        with pytest.raises(ReindexError, match="work is not a work folder"):
            write(dropped, source)
        found: dict[str, object] = json.loads((out / "unfinished.json").read_text())
        return found

    about = noted(drops)
    names = {"authors": [ANN.key.hex()], "channels": ["a", "b"], "before_ms": 5}
    assert about == {"format": 1, "dialect": "legacy", "sources": about["sources"], "drops": names, "tables": {}}
    assert noted(drops, 1) == {**about, "sources": noted(drops, 1)["sources"]} != about
    about = noted(None)  # no table was finished: begins again
    assert about["drops"] == {"authors": [], "channels": [], "before_ms": 0}
    files = {name: {"files": {f"{name}/part-00000.parquet": 1, f"{name}/part-00001.parquet": 2}} for name in SETTLED}
    (out / "unfinished.json").write_text(json.dumps({**about, "tables": {"posts": files["posts"]}}))
    assert noted(None)["tables"] == {"posts": files["posts"]}
    for other in (drops, Drops(before_ms=1)):
        with pytest.raises(ExportError, match="contains tables of other sources or drops"):
            write(other)
    (out / "unfinished.json").unlink()
    (out / "tables.json").write_text(json.dumps({**about, "tables": files}))
    report = write()
    assert (report.uri, report.seconds) == (str(out), {})
    assert {name: (list(table.files), table.rows) for name, table in report.tables.items()} == {
        name: (list(files[name]["files"]), 3) for name in SETTLED
    }
    assert not (out / "unfinished.json").exists()
    with pytest.raises(ExportError, match="contains tables of other sources or drops"):
        write(source=1)
