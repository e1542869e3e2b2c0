"""Whole jobs without Spark's Java: its part is only to run the tasks and to move batches. This process does that."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from history import Model
from people import ANN, BOB, START_MS, raws
from reindexing import conversation, digest_of, digest_of_all, export_of, store_at

pytest.importorskip("pyspark")

from archives import CONTROL, archived, plan_of, some_weeks
from archives import store_of as store_of_weeks
from pyarrow import RecordBatch
from spark_here import Frame, SparkHere, Task, spark_here

from cablestore import Block, CableStore, encode_post
from cablestore.archive.folder import ArchiveFolder
from cablestore.errors import ExportError, ReindexError
from cablestore.index.leveldb import LevelDB
from cablestore.reindex.compare import verify_store
from cablestore.reindex.stages import DerivedRows, derive_rows
from cablestore.store.key_file import save_identity
from cablestore.views import CATALOG

Run = Callable[..., tuple[int, str, str]]

POSTS = conversation(40)


@pytest.fixture(autouse=True)
def spark() -> Iterator[SparkHere]:
    with spark_here() as session:
        yield session


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two exports that share some posts, of several segments."""
    folder = tmp_path_factory.mktemp("exports")
    return [
        export_of(share, folder / str(number), segment_size_bytes=4_000)
        for number, share in enumerate((POSTS[:40], POSTS[20:]))
    ]


def damaged(export: Path, folder: Path, file: str = "posts-000000.seg") -> Path:
    """Return a copy of an export with a damaged segment of the right size."""
    copy = Path(shutil.copytree(export, folder))
    data = bytearray((copy / file).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / file).write_bytes(data)
    return copy


# --- a store ---------------------------------------------------------------------------------------


def test_the_command_creates_a_store_of_all_exports_and_reports_it(
    run: Run, exports: list[Path], spark: SparkHere, tmp_path: Path
) -> None:
    status, output, errors = run("reindex", *exports, "--out", tmp_path / "store", "--json")
    assert status == 0, errors
    said = json.loads(output)
    assert digest_of(tmp_path / "store") == digest_of_all(POSTS)
    with CableStore.open(tmp_path / "store") as store:
        stats = store.stats()
    assert (said["posts"], said["left_out"], said["generation"]) == (stats.posts, {}, "generation-000001")
    assert {name: (of["rows"], of["size_bytes"]) for name, of in said["views"].items()} == {
        name: tuple(size) for name, size in stats.views.items()
    }
    assert (said["arrived_since"], said["local_only"]) == (0, 0)
    assert said["counts"]["tombstones: of a dead post"] == len(Model(POSTS).dead)
    stages = ["inspect", "derive", "build", "add up"]
    assert spark.groups == stages
    assert list(said["seconds"]) == [*stages, "load", "catch up", "check", "swap"]
    assert {path.name for path in tmp_path.iterdir()} == {"store"}


def test_the_command_prints_counts_views_and_later_changes(run: Run, tmp_path: Path) -> None:
    store_at(tmp_path / "store", POSTS)
    with CableStore.open(tmp_path / "store") as store:
        store.export(tmp_path / "export")
    store_at(tmp_path / "store", [ANN.text("default", "later")])
    status, output, errors = run(
        "reindex", tmp_path / "export", "--out", tmp_path / "store", "--keep-work", "--drop-author", BOB.key.hex()
    )  # fmt: skip
    assert status == 0, errors
    texts = sum(post.type_name == "text" and post.author != BOB.key for post in Model(POSTS).live.values())
    assert f"live post/text {texts} " in " ".join(output.split()) + " "
    assert "dropped: by an author to drop" in output
    assert " and 1 log entry after the export; " in output.replace("\n", " ")
    assert " now uses generation-000002, which was checked" in output.replace("\n", " ")
    assert (tmp_path / "store.reindex" / "job.json").exists()
    assert not (tmp_path / "store.loading").exists()
    with CableStore.open(tmp_path / "store") as store:
        assert {post.type_name for post in store.posts_by(BOB.key)} == {"delete"}


def test_a_damaged_segment_stops_the_job_or_is_named(
    run: Run, exports: list[Path], spark: SparkHere, tmp_path: Path
) -> None:
    """Its work is not reused, so a job with the whole segment in its place succeeds."""
    copy, out = damaged(exports[0], tmp_path / "copy"), tmp_path / "store"
    segment = copy / "posts-000000.seg"
    status, _, error = run("reindex", copy, exports[1], "--out", out)
    assert (status, out.exists()) == (2, False)
    assert f"{segment} is damaged: its BLAKE3 is " in error
    assert "skip it with --skip-corrupt" in error
    status, output, _ = run("reindex", copy, exports[1], "--out", tmp_path / "some", "--skip-corrupt", "--json")
    assert (status, list(json.loads(output)["left_out"])) == (0, [str(segment)])
    shutil.copy(exports[0] / segment.name, segment)
    spark.groups.clear()
    assert run("reindex", copy, exports[1], "--out", out)[0] == 0
    assert "derive" in spark.groups
    assert digest_of(out) == digest_of_all(POSTS)


def test_a_store_keeps_posts_that_a_damaged_export_lacks(run: Run, tmp_path: Path) -> None:
    store_at(tmp_path / "store", POSTS)
    with CableStore.open(tmp_path / "store") as store:
        store.export(tmp_path / "export", segment_size_bytes=4_000)
    before = digest_of(tmp_path / "store")
    copy = damaged(tmp_path / "export", tmp_path / "copy")
    assert run("reindex", copy, "--out", tmp_path / "store", "--skip-corrupt")[0] == 0
    assert digest_of(tmp_path / "store") == before


def test_a_missing_segment_stops_the_job_or_is_named(exports: list[Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exports[0], tmp_path / "copy"))
    (copy / "posts-000000.seg").unlink()
    with pytest.raises(ExportError, match=r"posts-000000\.seg.*Copy it again, or skip it with --skip-corrupt"):
        derive(copy, exports[1], work=tmp_path / "work")
    found = derive(copy, exports[1], work=tmp_path / "work", skip_corrupt=True)
    assert list(found.left_out) == [str(copy / "posts-000000.seg")]
    assert not list((tmp_path / "work").glob("probe-*"))


def derive(*exports: Path, work: Path, **options: Any) -> DerivedRows:
    return derive_rows(exports, work, CATALOG, **options)


def test_finished_stages_are_reused_by_the_same_job_alone(
    exports: list[Path], spark: SparkHere, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    first = derive(*exports, work=work)
    spark.groups.clear()
    again = derive(*exports, work=work)
    assert spark.groups == ["inspect"]
    assert (again.segments, again.posts, again.counts) == (first.segments, first.posts, first.counts)
    assert first.sizes
    (work / "built-000001.json").unlink()
    spark.groups.clear()
    assert derive(*exports, work=work).segments == first.segments
    assert spark.groups == ["inspect", "build"]
    spark.groups.clear()
    assert derive(exports[0], work=work).posts == Model(POSTS[:40]).counts()
    assert spark.groups == [f"{stage}" for stage in ("inspect", "derive", "build", "add up")]


def test_a_work_folder_that_workers_do_not_share_is_rejected(
    exports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probes of the workers are in another folder with the same path."""
    run_tasks = Frame.mapInArrow

    def apart(frame: Frame, task: Task, schema: str) -> Frame:
        def reports() -> list[list[RecordBatch]]:
            found = run_tasks(frame, task, schema).partitions()
            for probe in (tmp_path / "work").glob("probe-*"):
                probe.unlink()
            return found

        return Frame(reports)

    monkeypatch.setattr(Frame, "mapInArrow", apart)
    with pytest.raises(ReindexError, match=r"does not see the files that the worker on \S+ writes to \S+work"):
        derive(*exports, work=tmp_path / "work")


def test_verify_reports_missing_extra_and_different_rows(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS)
    status, output, _ = run("reindex", "--verify", path)
    assert (status, output.splitlines()[-1]) == (0, "the store equals a rebuilt store")
    with closing(LevelDB(path / "generation-000001")) as database:
        with database.snapshot() as state:
            texts = [key for key, _ in state.scan(b"!chat!text!", b'!chat!text"')]
            author = next(key for key, _ in state.scan(b"!author!", b'!author"'))
            topic = next(key for key, _ in state.scan(b"!channel!topic!", b'!channel!topic"'))
        planted = {author + b"x": b"extra", topic: b"different"}
        database.write({**dict.fromkeys(texts[:7]), **planted}, sync=True)
    status, output, _ = run("reindex", "--verify", path, "--json")
    said = [json.loads(line) for line in output.splitlines()]
    assert status == 1
    differing = [(row["view"], row["missing"], row["extra"], row["different"]) for row in said if row.get("rows")]
    assert sorted(row for row in differing if any(row[1:])) == [
        ("author", 0, 1, 0), ("channel_topic", 0, 0, 1), ("messages", 7, 0, 0)
    ]  # fmt: skip
    assert {row["view"]: row["rows"] for row in said if "rows" in row}["messages"] == len(texts)
    assert sorted((row["what"], bytes.fromhex(row["key"])) for row in said if "key" in row) == [
        ("different", topic), ("extra", author + b"x"), *(("missing", text) for text in texts[:5])
    ]  # fmt: skip
    status, output, _ = run("reindex", "--verify", path)
    assert (status, "Run `cablestore rebuild` to repair it" in output) == (1, True)
    assert f"✗ author: extra: {(author + b'x').decode()}" in output.replace("\n", "")
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_a_comparison_expects_local_only_posts_and_ignores_local_values(tmp_path: Path) -> None:
    """No export has either of them."""
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*POSTS[:10]))
        store.local.set_draft("default", "later")
        private = Block("", 1, (BOB.key,), 0, 1)
        post = encode_post(private, links=(), timestamp_ms=START_MS, identity=store.identity, dialect=store.dialect)
        store.ingest([post.raw])
        with store.snapshot() as state:
            assert list(state.reader.local_only_posts())
    report = verify_store(tmp_path / "store")
    assert report.is_equal, report.views


# --- archives --------------------------------------------------------------------------------------


def test_archives_are_those_of_a_node(run: Run, tmp_path: Path) -> None:
    posts = some_weeks(weeks=3, per_week=12)
    save_identity(CONTROL, tmp_path / "key")
    with store_of_weeks(posts) as store:
        store.export(tmp_path / "export")
        due = archived(store, tmp_path / "due", plan_of())
    options = ("--identity", tmp_path / "key", "--work", tmp_path / "work", "--keep-work", "--json")
    status, output, errors = run("archive", "make", tmp_path / "archives", tmp_path / "export", *options)
    assert status == 0, errors
    said = json.loads(output.splitlines()[-1])
    made = ArchiveFolder(tmp_path / "archives" / CONTROL.public_key.hex())
    assert (made.data_path.read_bytes(), made.index_path.read_bytes()) == (
        due.data_path.read_bytes(), due.index_path.read_bytes()
    )  # fmt: skip
    assert (said["archives"], said["counts"]["posts read"]) == (3, len(Model(posts).live))
    assert list(said["seconds"]) == ["inspect", "derive", "archive"]
    assert len(list((tmp_path / "work").glob("archived-*.json"))) == 3
    arguments = ("archive", "make", tmp_path / "others", tmp_path / "export", *options[:4])
    assert run(*arguments, "--profile", "status-go")[0] == 0
    assert not (tmp_path / "work").exists()
    others = ArchiveFolder(tmp_path / "others" / CONTROL.public_key.hex())
    with store_of_weeks(posts) as store:
        due = archived(store, tmp_path / "due-others", plan_of("status-go"))
    assert others.index_path.read_bytes() == due.index_path.read_bytes(), "work of another job was used"
