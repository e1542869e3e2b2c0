"""The database: LevelDB and the database in memory behave the same."""

from __future__ import annotations

import gc
import random
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import LIMIT_S, wait_until

from cablestore.errors import CorruptStoreError, StorageError, StoreClosedError
from cablestore.index.database import Database, Row
from cablestore.index.leveldb import LevelDB, Tuning
from cablestore.index.leveldb_binding import plyvel
from cablestore.index.leveldb_manifest import read_readable
from cablestore.index.memory import MemoryDB
from cablestore.index.overlay import Overlay
from cablestore.index.read_only import open_read_only
from cablestore.index.reader import Reader
from cablestore.protocol.dialect import LEGACY

keys = st.text("abc!", min_size=1, max_size=3).map(str.encode)
BATCH_KEYS = sorted("".join(key).encode() for length in (1, 2, 3) for key in product("abc!", repeat=length))
changes = st.dictionaries(keys, st.one_of(st.none(), st.binary(max_size=2)), max_size=8)


@pytest.fixture(params=["leveldb", "memory"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    opened: Database = LevelDB(tmp_path / "db", create=True) if request.param == "leveldb" else MemoryDB()
    yield opened
    opened.close()


ROWS: dict[bytes, bytes | None] = {b"a": b"1", b"b": b"2", b"b!x": b"", b"c": b"3"}


def test_written_rows_are_read(database: Database) -> None:
    database.write(ROWS, sync=True)
    with database.snapshot() as state:
        assert state.get(b"a") == b"1"
        assert state.get(b"b!x") == b""
        assert state.get(b"x") is None
        assert list(state.scan(b"", b"\xff")) == sorted(ROWS.items())
        assert list(state.scan(b"b", b"c")) == [(b"b", b"2"), (b"b!x", b"")]
        assert list(state.scan(b"c", b"b")) == []


@given(changes, st.lists(keys))
def test_reads_in_order_equal_single_reads(rows: dict[bytes, bytes | None], asked: list[bytes]) -> None:
    database = MemoryDB()
    database.write({b"a!" + key: value for key, value in rows.items()} | {b"Z": b"", b"b": b""}, sync=False)
    with database.snapshot() as state:
        value = Reader(state, LEGACY).in_order(b"a!")
        assert [value(key) for key in sorted(asked)] == [state.get(b"a!" + key) for key in sorted(asked)]


def test_a_reverse_scan_includes_its_first_row(database: Database) -> None:
    database.write(ROWS, sync=False)
    with database.snapshot() as state:
        assert list(state.scan(b"b", b"c", reverse=True)) == [(b"b!x", b""), (b"b", b"2")]
        assert list(state.scan(b"a", b"b", reverse=True)) == [(b"a", b"1")]
        assert list(state.scan(b"a", b"z", reverse=True)) == sorted(ROWS.items(), reverse=True)
        assert list(state.scan(b"d", b"z", reverse=True)) == []
        assert list(state.scan(b"", b"a", reverse=True)) == []


def test_a_long_scan_is_complete_in_both_directions(database: Database) -> None:
    rows: dict[bytes, bytes | None] = {b"%06d" % i: b"%d" % i for i in range(3000)}
    database.write(rows, sync=False)
    with database.snapshot() as state:
        assert [k for k, _ in state.scan(b"000010", b"002990")] == sorted(rows)[10:2990]
        assert [k for k, _ in state.scan(b"000010", b"002990", reverse=True)] == sorted(rows)[10:2990][::-1]


def test_writes_do_not_change_a_snapshot(database: Database) -> None:
    database.write(ROWS, sync=False)
    with database.snapshot() as before:
        database.write({b"a": b"new", b"b": None, b"d": b"4"}, sync=False)
        assert list(before.scan(b"", b"\xff")) == sorted(ROWS.items())
        assert before.get(b"d") is None
    with database.snapshot() as after:
        assert dict(after.scan(b"", b"\xff")) == {b"a": b"new", b"b!x": b"", b"c": b"3", b"d": b"4"}


def test_after_close_every_call_raises_an_error(database: Database) -> None:
    database.write(ROWS, sync=False)
    state = database.snapshot()
    scan = state.scan(b"", b"\xff")
    next(scan)
    database.close()
    database.close()
    with pytest.raises(StoreClosedError):
        database.snapshot()
    with pytest.raises(StoreClosedError):
        database.write({b"x": b""}, sync=False)
    for call in (database.live, database.compact, database.sync):
        with pytest.raises(StoreClosedError):
            call()
    with pytest.raises(StoreClosedError):
        database.approximate_size_bytes(b"", b"\xff")
    with pytest.raises(StoreClosedError):
        state.get(b"a")
    with pytest.raises(StoreClosedError):
        list(scan)
    with pytest.raises(StoreClosedError):
        list(state.blocks(b"", b"\xff"))


def test_an_older_snapshot_raises_an_error_after_the_database_is_closed(database: Database) -> None:
    database.write(ROWS, sync=False)
    older = database.snapshot()
    scan = older.scan(b"", b"\xff")
    next(scan)
    database.write({b"a": b"new"}, sync=False)
    with database.snapshot():
        database.write({b"a": b"newer"}, sync=False)
    assert older.get(b"a") == b"1"
    database.close()
    with pytest.raises(StoreClosedError):
        older.get(b"a")
    with pytest.raises(StoreClosedError):
        list(scan)
    with pytest.raises(StoreClosedError):
        list(older.scan(b"", b"\xff"))


def test_closed_snapshots_are_freed(database: Database) -> None:
    database.write(ROWS, sync=False)
    states = [database.snapshot() for _ in range(10)]
    held = [weakref.ref(state) for state in states]
    for state in states:
        state.close()
    del state
    states.clear()
    gc.collect()
    assert [reference() for reference in held] == [None] * 10


def test_closing_while_others_read_is_safe(database: Database) -> None:
    """LevelDB would crash the process if a reader were still active."""
    database.write({b"%06d" % i: bytes(100) for i in range(5000)}, sync=False)
    started, ended = threading.Barrier(5), []

    def read() -> None:
        started.wait()
        try:
            while True:
                with database.snapshot() as state:
                    sum(1 for _ in state.scan(b"", b"\xff"))
                    state.get(b"000001")
        except StoreClosedError:
            ended.append(True)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    database.close()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(ended) == 4


class SlowCompaction:
    """LevelDB whose compaction does not end before the test permits it."""

    def __init__(self, database: LevelDB) -> None:
        self._db = database._db
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.was_closed_early = False
        database._db = self

    def compact_range(self, **bounds: bytes) -> None:
        if bounds["stop"] == b"\xff":
            self.begun.set()
            assert self.may_end.wait(LIMIT_S)
            self.was_closed_early = self._db.closed
        self._db.compact_range(**bounds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


@pytest.fixture
def compacting(tmp_path: Path) -> Iterator[tuple[LevelDB, SlowCompaction]]:
    """Yield a database that another thread compacts."""
    database = LevelDB(tmp_path / "db", create=True)
    database.write(ROWS, sync=False)
    slow = SlowCompaction(database)
    thread = threading.Thread(target=database.compact)
    thread.start()
    assert slow.begun.wait(LIMIT_S)
    yield database, slow
    slow.may_end.set()
    thread.join(LIMIT_S)
    database.close()
    assert not slow.was_closed_early


def test_reads_and_writes_continue_during_a_compaction(compacting: tuple[LevelDB, SlowCompaction]) -> None:
    database, _ = compacting
    found: list[bytes | None] = []

    def use() -> None:
        database.write({b"d": b"4"}, sync=True)
        with database.snapshot() as state:
            found.append(state.get(b"d"))
        database.approximate_size_bytes(b"", b"\xff")
        found.append(b"measured")

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    wait_until(lambda: found == [b"4", b"measured"], lambda: found)


def test_closing_waits_for_a_compaction(compacting: tuple[LevelDB, SlowCompaction]) -> None:
    """LevelDB would crash the process if it were closed meanwhile."""
    database, slow = compacting
    closing = threading.Thread(target=database.close)
    closing.start()
    with database.snapshot() as state:
        assert state.get(b"a") == b"1"
    slow.may_end.set()
    closing.join(LIMIT_S)
    with pytest.raises(StoreClosedError):
        database.compact()


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    for missing in (tmp_path / "db", tmp_path):
        with pytest.raises(CorruptStoreError, match="no database found"):
            LevelDB(missing)
        with pytest.raises(CorruptStoreError, match="no database found"):
            open_read_only(missing)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        LevelDB(tmp_path / "file", create=True)


def test_a_read_only_database_rejects_writes(tmp_path: Path) -> None:
    with closing(LevelDB(tmp_path / "db", create=True)) as database:
        database.write(ROWS, sync=True)
        before = {file.name for file in (tmp_path / "db").iterdir()}
    with closing(open_read_only(tmp_path / "db")) as database:
        for call in (database.compact, database.remove_unused_tables, lambda: database.write({b"x": b""}, sync=False)):
            with pytest.raises(StorageError, match="it is open read-only"):
                call()
        with database.snapshot() as state:
            assert dict(state.scan(b"", b"\xff")) == ROWS
        database.close()
    assert before & {"CURRENT"} == {file.name for file in (tmp_path / "db").iterdir()} & {"CURRENT"} == {"CURRENT"}


def test_the_size_of_a_range_is_about_the_size_of_its_rows(database: Database) -> None:
    database.write({b"%06d" % number: random.Random(number).randbytes(1_000) for number in range(300)}, sync=False)
    database.compact()
    assert 250_000 < database.approximate_size_bytes(b"", b"\xff") < 400_000
    assert database.approximate_size_bytes(b"x", b"\xff") == 0


def test_an_overlay_has_the_blocks_of_its_scan() -> None:
    database = MemoryDB()
    database.write(ROWS, sync=False)
    overlay = Overlay(database.live())
    overlay.changes.update({b"a": None, b"d": b"4"})
    assert list(chain.from_iterable(overlay.blocks(b"", b"d"))) == [(b"b", b"2"), (b"b!x", b""), (b"c", b"3")]


@given(st.lists(changes, max_size=5), changes, keys, keys)
def test_an_overlay_equals_the_database_after_the_write(
    before: list[dict[bytes, bytes | None]], on_top: dict[bytes, bytes | None], start: bytes, stop: bytes
) -> None:
    database = MemoryDB()
    for rows in before:
        database.write(rows, sync=False)
    with database.snapshot() as state:
        overlay = Overlay(state)
        overlay.changes.update(on_top)
        forwards, backwards = list(overlay.scan(start, stop)), list(overlay.scan(start, stop, reverse=True))
        values = {key: overlay.get(key) for key in on_top}
    database.write(on_top, sync=False)
    with database.snapshot() as state:
        assert forwards == list(state.scan(start, stop))
        assert backwards == list(state.scan(start, stop, reverse=True))
        assert values == {key: state.get(key) for key in on_top}


@given(st.lists(changes, max_size=6), keys, keys)
def test_the_mirror_has_the_same_rows(batches: list[dict[bytes, bytes | None]], start: bytes, stop: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        real, mirror = LevelDB(Path(folder), Tuning(write_buffer_size_bytes=65536), create=True), MemoryDB()
        for rows in batches:
            real.write(rows, sync=False)
            mirror.write(rows, sync=False)
        with real.snapshot() as a, mirror.snapshot() as b:
            for reverse in (False, True):
                expected = list(b.scan(start, stop, reverse=reverse))
                for at_once in (0, 1, 2, 1000):
                    assert list(a.scan(start, stop, reverse=reverse, at_once=at_once)) == expected
        real.close()


@given(st.lists(st.tuples(changes, st.booleans()), max_size=8))
def test_writes_do_not_change_any_older_snapshot(steps: list[tuple[dict[bytes, bytes | None], bool]]) -> None:
    """Each state has the rows of its time, before and after writes, in every kind of read and in begun scans."""
    rows: dict[bytes, bytes] = {}
    with tempfile.TemporaryDirectory() as folder, closing(LevelDB(Path(folder), create=True)) as database:
        states: list[tuple[Any, list[Row], list[Iterator[Row]]]] = []
        for batch, compacts in steps:
            database.write(batch, sync=False)
            rows = {key: value for key, value in {**rows, **batch}.items() if value is not None}
            if compacts:
                database.compact()
            state = database.snapshot()
            begun = [state.scan(b"", b"\xff"), state.scan(b"", b"\xff", reverse=True)]
            states.append((state, sorted(rows.items()), begun))
            for state, expected, (forwards, backwards) in states:
                assert [(key, value) for key in BATCH_KEYS if (value := state.get(key)) is not None] == expected
                for at_once in (0, 1, 1000):
                    assert list(state.scan(b"", b"\xff", at_once=at_once)) == expected
                    assert list(state.scan(b"", b"\xff", reverse=True, at_once=at_once)) == expected[::-1]
                assert list(chain.from_iterable(state.blocks(b"", b"\xff"))) == expected
                assert next(forwards, None) in {None, *expected}
                assert next(backwards, None) in {None, *expected}
        for number, (_, expected, (forwards, backwards)) in enumerate(states):
            read = min(len(steps) - number, len(expected))
            assert list(forwards) == expected[read:]
            assert list(backwards) == expected[::-1][read:]


def _merge_narrowly(database: Any, kept: list[bytes]) -> None:
    """Write to places all over a database, and merge the tables at each of them down to the last level."""
    chosen = random.Random("merge narrowly")
    for key in chosen.choices(kept, k=40):
        beside = key[:8] + b"!"
        database.put(beside, b"")
        database.compact_range(start=beside, stop=beside)


LONG_KEYS = [b"%06d" % number + bytes(900 + 7 * number % 200) for number in range(6000)]


def test_a_deleted_row_never_appears_again(tmp_path: Path) -> None:
    """A compaction under a snapshot of LevelDB would put a deletion and the older row into two tables."""
    database = LevelDB(tmp_path / "db", Tuning(write_buffer_size_bytes=2**18, table_size_bytes=2**20), create=True)
    database.write(dict.fromkeys(LONG_KEYS, b"old"), sync=False)
    database.compact()
    with database.snapshot() as state:
        database.write(dict.fromkeys(LONG_KEYS), sync=False)
        database.compact()
        assert sum(map(len, state.blocks(b"", b"\xff"))) == len(LONG_KEYS)
    _merge_narrowly(database._db, LONG_KEYS)
    with database.snapshot() as state:
        assert [key for key in LONG_KEYS if state.get(key) is not None] == []
    database.close()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_versions_in_two_tables_are_merged_when_a_database_is_opened(tmp_path: Path, is_deleted: bool) -> None:
    """Databases of earlier versions have such tables, because these used snapshots of LevelDB."""
    path = tmp_path / "db"
    older = plyvel.DB(str(path), create_if_missing=True, write_buffer_size=2**18, max_file_size=2**20, compression=None)
    new = None if is_deleted else b"new"
    snapshots = []
    for value in (b"old", new):
        snapshots.append(older.snapshot())
        with older.write_batch() as batch:
            for key in LONG_KEYS:
                batch.put(key, value) if value is not None else batch.delete(key)
        older.compact_range(start=b"\x00", stop=b"\xff")
    older.close()
    assert read_readable(path).shared_keys()
    database = LevelDB(path, Tuning(write_buffer_size_bytes=2**18, table_size_bytes=2**20))
    _merge_narrowly(database._db, LONG_KEYS)
    with database.snapshot() as state:
        assert {state.get(key) for key in LONG_KEYS} == {new}
    database.close()
    assert not read_readable(path).shared_keys()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_in_blocks_raises_an_error_at_damage(tmp_path: Path, reverse: bool) -> None:
    rows: dict[bytes, bytes | None] = {b"%06d" % i: b"%d" % i * 10 for i in range(5000)}
    database = LevelDB(tmp_path / "db", create=True)
    database.write(rows, sync=True)
    database.compact()
    database.close()
    [table] = [file for file in (tmp_path / "db").glob("*.ldb") if file.stat().st_size > 10_000]
    data = bytearray(table.read_bytes())
    for at in (100, len(data) // 2, len(data) * 9 // 10):
        data[at] ^= 0xFF
    table.write_bytes(data)
    database = LevelDB(tmp_path / "db", create=True)
    with database.snapshot() as state, pytest.raises(CorruptStoreError):
        list(state.scan(b"", b"\xff", reverse=reverse, at_once=10_000))
    database.close()


def test_a_folder_that_lost_its_current_file_is_not_overwritten(tmp_path: Path) -> None:
    """LevelDB would create a new database there and remove the files of the old one."""
    from cablestore.errors import CorruptStoreError

    LevelDB(tmp_path / "db", create=True).close()
    database = LevelDB(tmp_path / "db", create=True)
    database.write(ROWS, sync=True)
    database.close()
    before = {file.name for file in (tmp_path / "db").glob("*.ldb")}
    assert before
    (tmp_path / "db" / "CURRENT").unlink()
    with pytest.raises(CorruptStoreError):
        LevelDB(tmp_path / "db", create=True)
    assert {file.name for file in (tmp_path / "db").glob("*.ldb")} == before
