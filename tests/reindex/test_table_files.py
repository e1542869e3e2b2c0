"""Files of tables: other tools read the answers of the store from them. Failed runs leave no wrong tables."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from exporting import export, forge, in_memory
from history import long_history
from people import ANN, raws
from reindexing import spark_session
from table_answers import Rows, answers, in_order

from cablestore import LEGACY, CableStore, Post, StoreOptions
from cablestore.cli.demo import sample
from cablestore.errors import ExportError, ReindexError
from cablestore.protocol.body import DELETE
from cablestore.reindex import table_files
from cablestore.reindex.columns import BY_MONTH, SETTLED
from cablestore.reindex.job import Drops
from cablestore.reindex.table_files import TablesReport, write_tables

Run = Callable[..., tuple[int, str, str]]
AFTER_9999_MS = 253_402_300_800_005


@pytest.fixture(scope="module", autouse=True)
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with spark_session(tmp_path_factory.mktemp("spark")):
        yield


@pytest.fixture(scope="module")
def posts() -> list[Post]:
    return [*long_history(random.Random("posts"), 500), ANN.text("default", "far", at=AFTER_9999_MS)]


@pytest.fixture(scope="module")
def written(posts: list[Post], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TablesReport]:
    """Return the tables of two overlapping exports, in files of few rows."""
    folder = tmp_path_factory.mktemp("written")
    exports = [
        forge(folder / "all", posts, []),
        export(posts[:300], folder / "half", LEGACY, segment_size_bytes=20_000).folder,
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "_FILE_ROWS", 100)
        return folder / "tables", write_tables(exports, folder / "tables", work=folder / "work")


def files_of(folder: Path, table: str) -> list[str]:
    return sorted(str(path) for path in (folder / table).rglob("*.parquet"))


def plain(rows: Rows) -> Rows:
    """Return rows in order without the month, with None and datetime values of Python."""
    found = [{name: _plain(value) for name, value in row.items() if name != "month"} for row in rows]
    return in_order(found)


# Readers are imported by the tests that use them: every process of a run imports this file.


def _plain(value: Any) -> Any:
    import pandas as pd

    if isinstance(value, pd.Timestamp):
        return value.to_pydatetime()
    if isinstance(value, list) or hasattr(value, "tolist"):
        return list(value) if not hasattr(value, "item") or getattr(value, "shape", None) else value.item()
    return None if value is pd.NaT or (isinstance(value, float) and value != value) else value  # noqa: PLR0124 - NaN


def of_duckdb(folder: Path, table: str) -> Rows:
    import duckdb

    with duckdb.connect() as connection:
        output = connection.execute(f"SELECT * FROM '{folder / table}/**/*.parquet'")
        return [dict(zip([column[0] for column in output.description], row, strict=True)) for row in output.fetchall()]


def of_pandas(folder: Path, table: str) -> Rows:
    import pandas as pd

    found: Rows = pd.read_parquet(folder / table).astype(object).to_dict("records")
    return found


def of_polars(folder: Path, table: str) -> Rows:
    import polars as pl

    return pl.read_parquet(f"{folder / table}/**/*.parquet").to_dicts()


@pytest.mark.thorough
@pytest.mark.parametrize("tool", [of_duckdb, of_pandas, of_polars])
def test_tools_read_the_answers_of_the_store(
    tool: Callable[[Path, str], Rows], posts: list[Post], written: tuple[Path, TablesReport]
) -> None:
    with CableStore.in_memory(options=StoreOptions(verify_threads=1, clock=lambda: AFTER_9999_MS)) as store:
        store.ingest(raws(*posts), verify=False)
        expected = answers(store)
    assert all(expected.values())
    for name, rows in expected.items():
        assert plain(tool(written[0], name)) == in_order(rows), name


def test_a_small_history_is_written_as_the_answers_of_the_store_and_only_once(tmp_path: Path) -> None:
    history = [*long_history(random.Random("small"), 60), ANN.text("default", "far", at=AFTER_9999_MS)]
    exports = [forge(tmp_path / "all", history, []), export(history[:30], tmp_path / "half", LEGACY).folder]
    out, work = tmp_path / "tables", tmp_path / "work"
    deleting = next(post.author for post in history if post.type == DELETE)
    drops = Drops(frozenset({deleting}), frozenset({"default"}))
    report = write_tables(exports, out, work=work, drops=drops)
    with CableStore.in_memory(options=StoreOptions(verify_threads=1, clock=lambda: AFTER_9999_MS)) as store:
        store.ingest(raws(*history), verify=False)
        store.discard([post.hash for post in history if drops.reason(post)])
        expected = answers(store)
    assert all(expected[name] for name in ("posts", "messages", "users", "deletions"))
    for name, rows in expected.items():
        listed = report.tables[name]
        assert files_of(out, name) == [str(out / file) for file in listed.files]
        read = [pq.read_table(out / file, partitioning=None) for file in listed.files]
        assert [len(table) for table in read] == list(listed.files.values())
        assert plain([row for table in read for row in table.to_pylist()]) == in_order(rows), name
        if name in BY_MONTH:
            times = [table.column("timestamp").to_pylist() for table in read]
            assert times == [sorted(each) for each in times]
            for file, table in zip(listed.files, read, strict=True):
                months = {f"month={time:%Y-%m}" if time else "month=later" for time in table.column("time").to_pylist()}
                assert months == {Path(file).parts[1]}
    assert sorted(path.name for path in out.iterdir()) == sorted([*SETTLED, "tables.json"])
    again = write_tables(exports, out, work=work, drops=drops)
    assert (again.tables, again.seconds) == (report.tables, {})
    for others, other_drops in ((exports[:1], drops), (exports, Drops())):
        with pytest.raises(ExportError, match="other sources or drops"):
            write_tables(others, out, work=work, drops=other_drops)


@pytest.mark.thorough
def test_files_are_divided_by_month_ordered_and_listed(posts: list[Post], written: tuple[Path, TablesReport]) -> None:
    folder, report = written
    assert json.loads((folder / "tables.json").read_text())["tables"].keys() == SETTLED.keys()
    for name in SETTLED:
        assert files_of(folder, name) == [str(folder / file) for file in report.tables[name].files]
        read = [pq.read_table(folder / file, partitioning=None) for file in report.tables[name].files]
        assert [len(table) for table in read] == list(report.tables[name].files.values())
        assert all(table.column_names == list(SETTLED[name]) for table in read)
    for name in BY_MONTH:
        months = {Path(file).parts[1] for file in report.tables[name].files}
        assert months <= {"month=1970-01", "month=2001-09", "month=2023-11", "month=later"}
        for file in report.tables[name].files:
            found = pq.read_table(folder / file, partitioning=None)
            times = found.column("timestamp").to_pylist()
            assert times == sorted(times)
            assert {time and f"month={time:%Y-%m}" for time in found.column("time").to_pylist()} <= {
                Path(file).parts[1],
                None,
            }
    assert len(report.tables["posts"].files) > len({Path(file).parts[1] for file in report.tables["posts"].files})
    assert "posts/month=later" in str(list(report.tables["posts"].files))
    found_files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found_files == {"tables.json", *(file for table in report.tables.values() for file in table.files)}


@pytest.mark.thorough
def test_a_store_without_deletions_has_empty_tables(tmp_path: Path) -> None:
    export([ANN.join("default", at=1)], tmp_path / "export", LEGACY)
    report = write_tables([tmp_path / "export"], tmp_path / "tables", work=tmp_path / "work")
    assert {name: table.rows for name, table in report.tables.items()} == {
        "posts": 1, "messages": 0, "topics": 0, "members": 1, "users": 1, "channels": 1, "deletions": 0
    }  # fmt: skip
    assert of_duckdb(tmp_path / "tables", "deletions") == []
    assert of_pandas(tmp_path / "tables", "messages") == []


@pytest.mark.thorough
def test_an_interrupted_run_continues(posts: list[Post], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished tables are kept, unfinished ones are written again, and their old files are removed."""
    source, out = export(posts[:80], tmp_path / "export", LEGACY).folder, tmp_path / "tables"
    whole = table_files._find

    def break_off(folder: Any, file: str) -> None:
        if file.startswith("topics"):
            raise KeyboardInterrupt
        whole(folder, file)

    monkeypatch.setattr(table_files, "_find", break_off)
    with pytest.raises(KeyboardInterrupt):
        write_tables([source], out, work=tmp_path / "work")
    assert not (out / "tables.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in (out / "posts").rglob("*.parquet")}
    assert kept
    (out / "topics" / "part-99999.parquet").write_bytes(b"of the run before")
    with pytest.raises(ExportError, match="other sources or drops"):
        write_tables([source], out, work=tmp_path / "work", drops=Drops(before_ms=5))
    notes = (out / "unfinished.json").read_bytes()
    for damaged in (b"{", b"[" * 100_000, b'{"tables": {"posts": {"files": {"a": "many"}}}}'):
        (out / "unfinished.json").write_bytes(damaged)
        with pytest.raises(ExportError, match=r"is damaged: .*\. Remove"):
            write_tables([source], out, work=tmp_path / "work")
    (out / "unfinished.json").write_bytes(notes)
    monkeypatch.setattr(table_files, "_find", whole)
    report = write_tables([source], out, work=tmp_path / "work")
    assert kept == {path: path.stat().st_mtime_ns for path in (out / "posts").rglob("*.parquet")}
    assert files_of(out, "topics") == [str(out / "topics" / "part-00000.parquet")]
    assert not (out / "unfinished.json").exists()
    again = write_tables([source], out, work=tmp_path / "work")
    assert (again.tables, again.seconds) == (report.tables, {})
    with in_memory(LEGACY, posts[:80]) as store:
        assert plain(of_duckdb(out, "messages")) == in_order(answers(store)["messages"])


@pytest.mark.thorough
def test_a_run_without_a_finished_table_is_restarted(
    posts: list[Post], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = export(posts[:80], tmp_path / "export", LEGACY).folder, tmp_path / "tables"

    def break_off(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(table_files, "_find", break_off)
        with pytest.raises(KeyboardInterrupt):
            write_tables([source], out, work=tmp_path / "work")
    assert files_of(out, "posts")
    before_all = write_tables([source], out, work=tmp_path / "work", drops=Drops(before_ms=AFTER_9999_MS + 1))
    assert before_all.tables["messages"].rows == 0


@pytest.mark.thorough
def test_a_run_that_was_killed_while_it_marked_its_folder_is_restarted(posts: list[Post], tmp_path: Path) -> None:
    source, out = export(posts[:80], tmp_path / "export", LEGACY).folder, tmp_path / "tables"
    out.mkdir()
    (out / "unfinished.json.1234.tmp").touch()
    assert write_tables([source], out, work=tmp_path / "work").tables.keys() == SETTLED.keys()


@pytest.mark.thorough
def test_a_damaged_segment_is_reported_in_one_line(posts: list[Post], tmp_path: Path) -> None:
    manifest = export(posts[:80], tmp_path / "export", LEGACY)
    segment = tmp_path / "export" / manifest.post_segments[-1].file
    segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    with pytest.raises(ReindexError, match=f"{segment} is damaged") as error:
        write_tables([manifest.folder], tmp_path / "tables", work=tmp_path / "work")
    assert "Traceback" not in str(error.value)
    assert not (tmp_path / "tables" / "tables.json").exists()


@pytest.mark.thorough
def test_the_command_writes_the_tables_of_a_real_log(run: Run, tmp_path: Path) -> None:
    """The sample conversation without one of its authors."""
    store = tmp_path / "store"
    for command in (["import-irc", sample()], ["export", tmp_path / "export"]):
        status, _, error = run(*command, "--store", store)
        assert status == 0, error
    with CableStore.open(store) as opened:
        dropped = next(iter(opened.users()))
    arguments = [tmp_path / "export", "--drop-author", dropped.public_key.hex(), "--drop-channel", "kitchen"]
    status, output, error = run("tables", *arguments, "--out", tmp_path / "tables", "--json")
    assert status == 0, error
    with CableStore.open(store) as opened:
        left_out = {post.hash for post in opened.posts_by(dropped.public_key)}
        for user in list(opened.users()):
            left_out |= {post.hash for post in opened.posts_by(user.public_key) if post.channel == "kitchen"}
        opened.discard(left_out)
        expected = answers(opened)
    assert left_out
    assert {name: of["rows"] for name, of in json.loads(output)["tables"].items()} == {
        name: len(rows) for name, rows in expected.items()
    }
    for name in ("posts", "messages", "members", "users", "channels"):
        assert plain(of_duckdb(tmp_path / "tables", name)) == in_order(expected[name]), name
    status, output, error = run("tables", *arguments, "--out", tmp_path / "tables")
    assert status == 0, error
    assert "messages" in output


@pytest.mark.thorough
def test_bad_input_prints_one_line(run: Run, tmp_path: Path) -> None:
    export([ANN.join("default", at=1)], tmp_path / "export", LEGACY)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").touch()
    for arguments, message in (
        (["--out", tmp_path / "tables"], "missing input: pass an export"),
        ([tmp_path / "nothing", "--out", tmp_path / "tables"], "is not an export"),
        ([tmp_path / "export", "--out", tmp_path / "other"], "contains other files"),
        ([tmp_path / "export", "--out", "ftp://somewhere"], "ftp"),
    ):
        status, _, error = run("tables", *arguments)
        assert (status, len(error.strip().splitlines()) <= 4) == (2, True), error
        assert message in error
        assert "Traceback" not in error
    assert not (tmp_path / "tables").exists()
