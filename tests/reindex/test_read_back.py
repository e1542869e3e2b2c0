"""Damage between deriving and swapping: reading back finds it, and a full check also finds a wrong derivation."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import msgpack
import pytest
from history import Model
from hypothesis import given
from hypothesis import strategies as st
from people import ANN
from reindex_tasks import job_over, run_tasks, segments_of
from reindexing import conversation, digest_of, digest_of_all, export_of, store_at

pytest.importorskip("pyarrow")

from cablestore import CableStore
from cablestore.errors import ExportError, ReindexError, StorageError
from cablestore.files import folder_of
from cablestore.index import arrival_log
from cablestore.index.database import Database, Row
from cablestore.index.leveldb import LevelDB
from cablestore.index.leveldb_manifest import join_tables
from cablestore.index.memory import MemoryDB
from cablestore.index.runs import AFTER_ALL
from cablestore.index.takeover import take_over as real_take_over
from cablestore.reindex import load, new_generation, prepare, read_back, row_segments, tasks
from cablestore.reindex.job import claim_folder
from cablestore.reindex.load import load as real_load
from cablestore.reindex.prepare import read_sources
from cablestore.reindex.read_back import RecordedDatabase, compare_range
from cablestore.reindex.row_segments import RowDigest, RowRange, RowSegment, RowSegmentWriter, WrittenRanges, read_rows
from cablestore.reindex.stages import DerivedRows

POSTS = conversation(60)
LATE = [ANN.text("default", f"late {number}") for number in range(5)]


@pytest.fixture
def exports(tmp_path: Path) -> list[Path]:
    """Create a store and its export. Later the store gets more posts."""
    store_at(tmp_path / "store", POSTS)
    with CableStore.open(tmp_path / "store") as store:
        store.export(tmp_path / "export", segment_size_bytes=5_000)
    store_at(tmp_path / "store", LATE)
    return [tmp_path / "export"]


@pytest.fixture
def derived(exports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DerivedRows:
    """Derive all rows in this process, without Spark. Reindexing uses them."""
    monkeypatch.setattr(prepare, "MAX_BUCKET_SIZE_BYTES", 20_000)
    monkeypatch.setattr(load, "PART_ROWS", 300)
    (tmp_path / "work").mkdir()
    sources = read_sources(exports)
    job = job_over(sources.inputs, tmp_path / "work", sources.dialect)
    _, reports, _ = run_tasks(job, Random("derived"))
    found = DerivedRows(
        job.folder, tmp_path / "work", job.dialect, segments=segments_of(reports), posts=Counter(Model(POSTS).counts())
    )
    monkeypatch.setattr(new_generation, "derive_rows", lambda *_, **__: found)
    return found


def run(exports: list[Path], path: Path, *, check: bool = False) -> new_generation.ReindexReport:
    return new_generation.reindex(exports, path / "store", work=path / "work", keep_work=True, check=check)


@pytest.mark.thorough("True")
@pytest.mark.parametrize("check", [False, True])
def test_an_undamaged_database_replaces_the_live_one(
    derived: DerivedRows, exports: list[Path], tmp_path: Path, check: bool
) -> None:
    report = run(exports, tmp_path, check=check)
    assert report.succession.arrived_since == len(LATE)
    with CableStore.open(tmp_path / "store") as store:
        rows = sum(1 for _ in store.dump())
    assert report.rows <= report.checked.rows >= rows
    assert digest_of(tmp_path / "store") == digest_of_all([*POSTS, *LATE])
    assert derived.sizes


# --- damage to the loaded database -----------------------------------------------------------------


def lose(rows: list[Row]) -> dict[bytes, bytes | None]:
    return {rows[0][0]: None}


def change(rows: list[Row]) -> dict[bytes, bytes | None]:
    key, value = rows[0]
    return {key: value[:-1] + bytes([value[-1] ^ 1])}


def exchange(rows: list[Row]) -> dict[bytes, bytes | None]:
    """Swap the values of two rows."""
    one = rows[0]
    other = next(row for row in rows if row[1] != one[1])
    return {one[0]: other[1], other[0]: one[1]}


def double(rows: list[Row]) -> dict[bytes, bytes | None]:
    key, value = rows[0]
    return {key + b"0": value}


def misplace(rows: list[Row]) -> dict[bytes, bytes | None]:
    """Move a row to another view."""
    key, value = rows[0]
    return {key: None, b"!zzz" + key: value}


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [lose, change, exchange, double, misplace])
@pytest.mark.parametrize("when", ["loaded", "caught up"])
def test_a_wrong_row_is_found(
    derived: DerivedRows,
    exports: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[list[Row]], dict[bytes, bytes | None]],
    when: str,
) -> None:
    before = digest_of(tmp_path / "store")

    def damaged(database: LevelDB) -> None:
        with database.snapshot() as state:
            rows = [row for row in state.scan(b"", AFTER_ALL) if row[1]]
        database.write(damage(rows[len(rows) // 2 :]), sync=False)

    def load_damaged(*arguments: object, **named: object) -> Path:
        path = real_load(*arguments, **named)  # type: ignore[arg-type] # passed on unchanged
        if when == "loaded":
            with closing(LevelDB(path)) as database:
                damaged(database)
        return path

    def take_over_damaged(live: object, target: RecordedDatabase, *rest: object) -> object:
        report = real_take_over(live, target, *rest)  # type: ignore[arg-type] # passed on unchanged
        if when == "caught up":
            damaged(target._database)  # type: ignore[arg-type] # a LevelDB
        return report

    monkeypatch.setattr(new_generation, "load", load_damaged)
    monkeypatch.setattr(new_generation, "take_over", take_over_damaged)
    with pytest.raises(ReindexError, match="does not contain"):
        run(exports, tmp_path)
    assert digest_of(tmp_path / "store") == before
    monkeypatch.setattr(new_generation, "load", real_load)
    monkeypatch.setattr(new_generation, "take_over", real_take_over)
    run(exports, tmp_path)
    assert digest_of(tmp_path / "store") == before
    assert derived.segments


@pytest.mark.thorough
def test_a_lost_entry_of_the_catch_up_is_found(
    derived: DerivedRows, exports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_over(live: object, target: RecordedDatabase, *rest: object) -> object:
        report = real_take_over(live, target, *rest)  # type: ignore[arg-type] # passed on unchanged
        target._database.write({b"!data!" + LATE[0].hash_hex: None}, sync=False)
        return report

    monkeypatch.setattr(new_generation, "take_over", take_over)
    with pytest.raises(ReindexError, match="last written value of !data!" + LATE[0].hash_hex.decode()):
        run(exports, tmp_path)
    assert derived.segments


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("join", "error"),
    [
        (lambda parts, path: join_tables(parts[:-1], path), "does not contain"),
        (lambda parts, path: join_tables([parts[0], *parts[:-1]], path), "overlap"),
    ],
    ids=["missing", "twice"],
)
def test_a_missing_or_repeated_part_is_found(
    join: Callable[[list[Path], Path], None],
    error: str,
    derived: DerivedRows,
    exports: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(load.share_out(derived.segments)) > 1
    monkeypatch.setattr(load, "join_tables", join)
    with pytest.raises((ReindexError, StorageError), match=error):
        run(exports, tmp_path)


@pytest.mark.thorough
def test_the_log_of_a_new_store_has_its_posts_even_after_a_damaged_load(
    derived: DerivedRows, exports: list[Path], tmp_path: Path
) -> None:
    """The loader writes the hashes for the log. If they are damaged or missing, the part is loaded again."""
    scratch = tmp_path / "new.loading"
    claim_folder(folder_of(scratch))
    real_load(derived.segments, derived.folder, scratch)
    left = sorted(scratch.glob("*.hashes"), key=lambda path: -path.stat().st_size)
    left[0].write_bytes(bytes(left[0].stat().st_size))
    left[1].unlink()
    new_generation.reindex(exports, tmp_path / "new", work=tmp_path / "work", keep_work=True)
    with CableStore.open(tmp_path / "new") as store, store.snapshot() as snapshot:
        held = [bytes.fromhex(key[len(b"!data!") :].decode()) for key, _ in snapshot.reader.prefix(b"!data!")]
        assert [entry.hash for entry in arrival_log.entries(snapshot.reader, 0)] == held
        assert {entry.kind for entry in arrival_log.entries(snapshot.reader, 0)} == {arrival_log.EventKind.ACCEPTED}


def test_several_processes_find_a_wrong_row(
    derived: DerivedRows, exports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_back, "PART_ROWS", 100)

    def load_damaged(*arguments: object, **named: object) -> Path:
        path = real_load(*arguments, **named)  # type: ignore[arg-type] # passed on unchanged
        with closing(LevelDB(path)) as database:
            database.write({derived.segments[-1].last: None}, sync=False)
        return path

    monkeypatch.setattr(new_generation, "load", load_damaged)
    with pytest.raises(ReindexError, match=f"does not contain the rows of {derived.segments[-1].file}"):
        run(exports, tmp_path)
    assert not (tmp_path / "store.loading").exists(), "the next run would reuse the loaded parts"


# --- damage to files between the steps ---------------------------------------------------------------


def exchange_files(one: Path, other: Path) -> None:
    shutil.move(one, one.with_suffix(".moved"))
    shutil.move(other, one)
    shutil.move(one.with_suffix(".moved"), other)


def test_a_swapped_segment_is_found(derived: DerivedRows, exports: list[Path], tmp_path: Path) -> None:
    one, other = derived.segments[1:3]
    exchange_files(derived.local / one.file, derived.local / other.file)
    with pytest.raises(ExportError, match="is damaged"):
        run(exports, tmp_path)


@pytest.mark.parametrize("damage", ["none", "exchanged", "of another bucket", "empty"])
def test_a_swapped_run_is_found(tmp_path: Path, damage: str) -> None:
    export = export_of(POSTS, tmp_path / "export", segment_size_bytes=5_000)
    (tmp_path / "job").mkdir()
    sources = read_sources([export])
    job = job_over(sources.inputs, tmp_path / "job", sources.dialect)
    real_build = tasks.build

    def build(job_: object, runs: tuple[str, ...]) -> object:
        paths = sorted(tmp_path / "job" / run for run in runs)
        if damage == "exchanged":
            exchange_files(paths[0], paths[1])
        elif damage == "of another bucket":
            shutil.copy(paths[0], paths[1])
        elif damage == "empty":
            paths[1].write_bytes(_empty_run(len(job.wanted)))
        return real_build(job_, runs)  # type: ignore[arg-type] # passed on unchanged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "build", build)
        _, reports, _ = run_tasks(replace(job, partitions=3), Random(damage))
    written = [report for report in reports if "run" in report]
    built = [report for report in reports if "bucket" in report]
    assert len(written) == 3
    if damage == "none":
        tasks.check_pieces(written, built, job.folder)
    else:
        with pytest.raises(ReindexError, match="were damaged or changed"):
            tasks.check_pieces(written, built, job.folder)


def _empty_run(buckets: int) -> bytes:
    """Return a run without pieces."""
    return (8 * buckets).to_bytes(8) * buckets


# --- a wrong derivation ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_only_a_full_check_finds_a_wrong_derivation(derived: DerivedRows, exports: list[Path], tmp_path: Path) -> None:
    """The row was never derived, so that digests and sizes agree."""
    place = next(at for at, each in enumerate(derived.segments) if "author" in each.sizes)
    old = derived.segments[place]
    rows = [row for block in read_rows(derived.folder, old) for row in block]
    name, (count, size_bytes) = next((name, size) for name, size in old.sizes.items() if name == "author")
    left_out = len(rows[5][0]) + len(rows[5][1])
    del rows[5]
    with RowSegmentWriter(derived.folder, old.file) as writer:
        writer.write(rows)
        fields = writer.finish({**old.sizes, name: (count - 1, size_bytes - left_out)})
    derived.segments[place] = RowSegment.of(fields)
    with pytest.raises(ReindexError, match=r"Problems: 1. The first: author: a missing row"):
        run(exports, tmp_path, check=True)
    run(exports, tmp_path)
    with CableStore.open(tmp_path / "store") as store:
        assert [problem.view for problem in store.check().problems] == ["author"]


# --- the comparison ------------------------------------------------------------------------------------

_keys = st.sampled_from([b"!a!%d" % number for number in range(12)])
_rows = st.dictionaries(_keys, st.binary(max_size=3))
_changes = st.lists(st.dictionaries(_keys, st.none() | st.binary(max_size=3), min_size=1), max_size=4)


@given(_rows, _changes, st.dictionaries(_keys, st.none() | st.binary(max_size=3), max_size=1))
def test_a_range_equals_the_written_rows_with_the_recorded_changes(
    rows: dict[bytes, bytes], changes: list[dict[bytes, bytes | None]], damage: dict[bytes, bytes | None]
) -> None:
    database, recorded = MemoryDB(), MemoryDB()
    database.write(rows, sync=False)
    target = RecordedDatabase(database, recorded)
    for each in changes:
        target.write(each, sync=False)
    before = dict(scan(database))
    database.write(damage, sync=False)
    is_same = dict(scan(database)) == before
    packed = sorted(rows.items())
    digest = RowDigest()
    if packed:
        digest.add(msgpack.packb(packed), len(packed))
    written = RowRange(b"", len(rows), digest.hexdigest(), "rows.seg")
    with database.snapshot() as state, recorded.snapshot() as changed:
        if is_same:
            assert compare_range(state, changed, written, AFTER_ALL) == len(before)
        else:
            with pytest.raises(ReindexError):
                compare_range(state, changed, written, AFTER_ALL)


@given(_rows, st.integers(1, 4), st.integers(1, 5))
def test_ranges_cover_exactly_the_written_rows(rows: dict[bytes, bytes], size: int, most: int) -> None:
    """Rows are written in any batches. Each range ends with the batch that fills it."""
    ordered = sorted(rows.items())
    database = MemoryDB()
    database.write(rows, sync=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_segments, "PART_ROWS", most)
        written = WrittenRanges("rows")
        for at in range(0, len(ordered), size):
            written.add(ordered[at : at + size])
        ranges = written.ranges()
    assert sum(each.rows for each in ranges) == len(rows)
    assert all(each.rows >= most for each in ranges[:-1])
    assert all(each.rows < most + size for each in ranges)
    stops = [*(each.first for each in ranges[1:]), AFTER_ALL]
    with database.snapshot() as state, MemoryDB().snapshot() as changed:
        assert [compare_range(state, changed, *each) for each in zip(ranges, stops, strict=True)] == [
            each.rows for each in ranges
        ]


def scan(database: Database) -> Iterator[Row]:
    with database.snapshot() as state:
        yield from state.scan(b"", AFTER_ALL)


def test_a_database_with_recorded_changes_is_flushed_and_closed(tmp_path: Path) -> None:
    database = LevelDB(tmp_path / "database", create=True)
    target = RecordedDatabase(database, MemoryDB())
    target.put([(b"!a!1", b"one"), (b"!a!2", b"two")])
    assert not list((tmp_path / "database").glob("*.ldb"))
    target.flush()
    assert len(list((tmp_path / "database").glob("*.ldb"))) == 1
    assert dict(scan(database)) == {b"!a!1": b"one", b"!a!2": b"two"}
    target.close()
    with closing(LevelDB(tmp_path / "database")) as again:  # the lock is free
        assert again.live().get(b"!a!2") == b"two"
