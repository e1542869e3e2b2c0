"""Files of tables without Spark's Java: this process runs the tasks, and the settled tables are a store's answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from exporting import forge
from history import Model
from people import ANN, BOB, raws
from reindexing import conversation, export_of

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from spark_here import Frame, SparkHere, Task, spark_here
from table_answers import answers

from cablestore import CableStore, Post, StoreOptions
from cablestore.errors import ExportError, ReindexError
from cablestore.protocol.body import Delete
from cablestore.reindex import table_files
from cablestore.reindex.columns import SETTLED, schema_of
from cablestore.reindex.job import Drops
from cablestore.reindex.prepare import read_sources
from cablestore.reindex.settled import Tables, found_deletions, found_posts
from cablestore.reindex.stages import shares_for
from cablestore.reindex.table_files import write_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., tuple[int, str, str]]

JAN_2024_MS = 1_704_067_200_000
FEB_2024_MS = 1_706_745_600_000
AFTER_9999_MS = 253_402_300_800_000
POSTS = [
    *(ANN.text("default", str(number), at=JAN_2024_MS - 2 + number) for number in range(4)),
    *(BOB.text("default", f"later {number}", at=FEB_2024_MS + number) for number in range(5)),
    ANN.named("Ann", at=AFTER_9999_MS - 1),
    ANN.text("other", "far", at=AFTER_9999_MS),
]


def settled(posts: list[Post]) -> Tables:
    """Return the settled tables of posts. Their rows are in reverse order, in two partitions."""
    options = StoreOptions(verify_threads=1, clock=lambda: AFTER_9999_MS)
    with CableStore.in_memory(options=options) as store:
        store.ingest(raws(*posts), verify=False)
        rows = {name: found[::-1] for name, found in answers(store).items()}
    tables = {name: pa.Table.from_pylist(rows[name], schema_of(SETTLED[name])) for name in SETTLED}
    return Tables(**{name: Frame.of(table[:3], table[3:]) for name, table in tables.items()})  # type: ignore[arg-type] # in place of DataFrames


@pytest.fixture(autouse=True)
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkHere]:
    """Return a session whose settled tables do not contain the authors to drop."""

    def settle(found: Frame, said: Frame, drops: Drops) -> Tables:
        assert sorted(row.hash for row in found.collect()) == sorted(post.hash.hex() for post in POSTS)
        assert said.collect() == []
        return settled([post for post in POSTS if post.author not in drops.authors])

    monkeypatch.setattr(table_files, "settle", settle)
    with spark_here() as session:
        yield session


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forge(tmp_path_factory.mktemp("source") / "export", POSTS, [])


def test_files_are_divided_by_month_and_size_sorted_and_listed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that does not grow with the history has one file."""
    monkeypatch.setattr(table_files, "_FILE_ROWS", 4)
    out = tmp_path / "tables"
    report = write_tables([source, source], out, work=tmp_path / "work")
    assert report.tables["posts"].files == {
        "posts/month=2023-12/part-00000.parquet": 2,
        "posts/month=2024-01/part-00000.parquet": 1,
        "posts/month=2024-01/part-00001.parquet": 1,
        "posts/month=2024-02/part-00001.parquet": 3,
        "posts/month=2024-02/part-00002.parquet": 2,
        "posts/month=9999-12/part-00002.parquet": 1,
        "posts/month=later/part-00002.parquet": 1,
    }
    assert report.tables["deletions"].files == {"deletions/month=later/part-00000.parquet": 0}
    assert report.tables["topics"].files == {"topics/part-00000.parquet": 0}
    assert report.tables["members"].files == {"members/part-00000.parquet": 3}
    assert (report.tables["posts"].rows, report.tables["members"].rows) == (11, 3)
    by = {"topics": ("timestamp", "hash"), "members": ("channel", "author"), "users": ("author",)}
    by |= {"channels": ("channel",)}
    expected = settled(POSTS)
    for name, of in report.tables.items():
        read = [pq.read_table(out / file, partitioning=None) for file in of.files]
        assert [len(table) for table in read] == list(of.files.values())
        assert all(table.schema.equals(schema_of(SETTLED[name])) for table in read)
        due = [row.asDict() for row in getattr(expected, name).collect()]
        due.sort(key=lambda row, name=name: [row[column] for column in by.get(name, ("timestamp", "hash"))])  # type: ignore[misc] # a lambda
        assert [row for table in read for row in table.to_pylist()] == due, name
    listed = json.loads((out / "tables.json").read_text())
    assert listed["tables"] == {name: {"files": of.files} for name, of in report.tables.items()}
    assert (listed["format"], listed["dialect"]) == (1, "legacy")
    files = {path.relative_to(out).as_posix() for path in out.rglob("*.*") if path.is_file()}
    assert files == {"tables.json", *(file for of in report.tables.values() for file in of.files)}


def test_rows_are_written_in_groups(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_GROUP_ROWS", 4)
    write_tables([source], tmp_path / "tables", work=tmp_path / "work")
    found = pq.ParquetFile(tmp_path / "tables" / "posts" / "month=2024-02" / "part-00000.parquet").metadata
    assert [found.row_group(number).num_rows for number in range(found.num_row_groups)] == [4, 1]


def test_an_interrupted_run_continues(source: Path, spark: SparkHere, tmp_path: Path) -> None:
    """Finished tables are kept, unfinished ones are written again, and their old files are removed."""
    out, work = tmp_path / "tables", tmp_path / "work"
    spark.interrupted = "write topics"
    with pytest.raises(KeyboardInterrupt):
        write_tables([source], out, work=work)
    assert not (out / "tables.json").exists()
    (out / "topics").mkdir()
    (out / "topics" / "part-99999.parquet").write_bytes(b"of the run before")
    with pytest.raises(ExportError, match="other sources or drops"):
        write_tables([source], out, work=work, drops=Drops(before_ms=5))
    notes = (out / "unfinished.json").read_bytes()
    for damaged in (b"{", b"[" * 100_000, b'{"tables": {"posts": {"files": {"a": "many"}}}}'):
        (out / "unfinished.json").write_bytes(damaged)
        with pytest.raises(ExportError, match=r"unfinished\.json is damaged: .*\. Remove"):
            write_tables([source], out, work=work)
    (out / "unfinished.json").write_bytes(notes)
    spark.interrupted = ""
    spark.groups.clear()
    report = write_tables([source], out, work=work)
    assert [name for name in spark.groups if name.startswith("write")] == [
        f"write {name}" for name in ("topics", "members", "users", "channels", "deletions")
    ]
    assert [path.name for path in (out / "topics").iterdir()] == ["part-00000.parquet"]
    assert not (out / "unfinished.json").exists()
    assert (report.tables["posts"].rows, list(report.tables)) == (11, list(SETTLED))
    spark.groups.clear()
    again = write_tables([source], out, work=work)
    assert (again.tables, again.seconds, spark.groups) == (report.tables, {}, [])
    with pytest.raises(ExportError, match="other sources or drops"):
        write_tables([source], out, work=work, drops=Drops(channels=frozenset({"default"})))


def test_a_run_without_a_finished_table_is_restarted(source: Path, spark: SparkHere, tmp_path: Path) -> None:
    """Other drops may be chosen, also after a kill while the run marked its folder."""
    out, work = tmp_path / "tables", tmp_path / "work"
    out.mkdir()
    (out / "unfinished.json.1234.tmp").touch()
    spark.interrupted = "write posts"
    with pytest.raises(KeyboardInterrupt):
        write_tables([source], out, work=work)
    spark.interrupted = ""
    assert write_tables([source], out, work=work, drops=Drops(frozenset([BOB.key]))).tables["messages"].rows == 5


def test_the_command_prints_the_tables_and_removes_its_own_files(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    arguments = ("tables", source, "--out", tmp_path / "tables", "--drop-author", BOB.key.hex())
    status, output, errors = run(*arguments, "--json")
    assert status == 0, errors
    said = json.loads(output)
    assert said["out"] == str(tmp_path / "tables")
    assert {name: (of["rows"], len(of["files"])) for name, of in said["tables"].items()} == {
        "posts": (6, 4), "messages": (5, 3), "topics": (0, 1), "members": (2, 1), "users": (1, 1), "channels": (2, 1),
        "deletions": (0, 1),
    }  # fmt: skip
    assert "write posts" in said["seconds"]
    assert list((tmp_path / "scratch").iterdir()) == []
    status, output, _ = run(*arguments, "--work", tmp_path / "work")
    assert status == 0
    assert ["posts", "6", "4"] in [line.split() for line in output.splitlines()]
    assert f"the tables are in {tmp_path / 'tables'}" in output.replace("\n", "")


def test_a_folder_of_tables_that_workers_do_not_share_is_rejected(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the workers are in another folder with the same path."""
    run_tasks = Frame.mapInArrow

    def apart(frame: Frame, task: Task, schema: str) -> Frame:
        def written() -> list[list[pa.RecordBatch]]:
            found = run_tasks(frame, task, schema).partitions()
            shutil.rmtree(tmp_path / "tables" / "posts", ignore_errors=True)
            return found

        return Frame(written)

    monkeypatch.setattr(Frame, "mapInArrow", apart)
    with pytest.raises(
        ReindexError, match=r"does not see part-00000\.parquet, which a worker wrote to \S+month=2023-12"
    ):
        write_tables([source], tmp_path / "tables", work=tmp_path / "work")


def test_every_input_is_read_if_tasks_share_them(tmp_path: Path) -> None:
    posts = conversation(40)
    model, session = Model(posts), cast("SparkSession", SparkHere())
    sources = read_sources(
        [forge(tmp_path / "posts", posts, []), export_of(posts, tmp_path / "x", segment_size_bytes=500)]
    )
    assert len(sources.inputs) > 3 * shares_for(()) // 2
    found: Any = found_posts(session, sources)
    rows = {row.hash: row for row in found.collect()}
    assert rows.keys() == {post.hash.hex() for post in posts}
    live = next(post for post in model.live.values() if post.links)
    row = rows[live.hash.hex()]
    assert (row.author, row.type, row.timestamp) == (live.author.hex(), live.type_name, live.timestamp_ms)
    assert (row.channel, row.links, row.targets) == (live.channel, [each.hex() for each in live.links], [])
    said: Any = found_deletions(session, sources)
    told = {(row.target, row.author, row.hash, row.timestamp) for row in said.collect() if row.is_signed}
    assert told == {
        (target.hex(), post.author.hex(), post.hash.hex(), post.timestamp_ms)
        for post in posts
        if isinstance(post.body, Delete)
        for target in post.body.hashes
    }
    skeletons = {
        row.target: (row.type, row.channel, row.target_timestamp) for row in said.collect() if not row.is_signed
    }
    gone = {
        post.hash.hex(): (post.type_name, post.channel, post.timestamp_ms) for post in posts if post.hash in model.dead
    }
    assert skeletons == gone


def test_the_command_needs_an_input(run: Run, tmp_path: Path) -> None:
    status, _, error = run("tables", "--out", tmp_path / "tables")
    assert (status, "missing input: pass an export" in error) == (2, True)
