"""Lists of tables: those of LevelDB can be read, LevelDB can open the written ones, and damage is an error."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cablestore.errors import CorruptStoreError, DecodeError, StorageError
from cablestore.index import leveldb_log, leveldb_manifest
from cablestore.index.leveldb import LevelDB, Tuning
from cablestore.index.leveldb_log import read_records, recorded
from cablestore.index.leveldb_manifest import LevelTable, TableList, join_tables, read_tables, write_database

Rows = dict[bytes, bytes]


def made(path: Path, rows: Rows) -> Path:
    """Write rows to a new database with many small tables, and close it."""
    database = LevelDB(path, create=True, tuning=Tuning(write_buffer_size_bytes=2**16, table_size_bytes=2**16))
    ordered = sorted(rows.items())
    with database.bulk_writer() as writer:
        for at in range(0, len(ordered), 100):
            writer.put(ordered[at : at + 100])
    database.close()
    return path


def rows_of(rng: random.Random, prefix: bytes, number: int) -> Rows:
    """Return rows of 300 random bytes, which are incompressible."""
    return {prefix + b"%08d" % rng.randrange(10**8): rng.randbytes(300) for _ in range(number)}


def held(path: Path) -> Rows:
    """Return all rows of a database."""
    database = LevelDB(path)
    with database.snapshot() as state:
        rows = dict(state.scan(b"", b"\xff"))
    database.close()
    return rows


def test_the_read_tables_are_those_that_leveldb_lists(tmp_path: Path, rng: random.Random) -> None:
    """The database was written, changed and compacted, so its manifest has tables that were removed."""
    path = made(tmp_path / "db", rows_of(rng, b"a", 3_000))
    database = LevelDB(path)
    database.write(rows_of(rng, b"a", 300), sync=False)
    database.compact()
    database.close()
    found = read_tables(path)
    assert {table.file for table in found.tables} == set(path.glob("*.ldb"))
    assert all(table.size_bytes == table.file.stat().st_size for table in found.tables)
    keys = sorted(held(path))
    assert min(table.first for table in found.tables)[:-8] == keys[0]
    assert max(table.last for table in found.tables)[:-8] == keys[-1]
    assert found.last_write >= 3_300


def test_a_joined_database_has_all_rows_and_accepts_writes(tmp_path: Path, rng: random.Random) -> None:
    """The keys are so long that the list needs several blocks of a manifest. Later writes override the joined rows."""
    parts = {prefix: rows_of(rng, prefix * 10_000, 500) for prefix in (b"a", b"b", b"c")}
    paths = [made(tmp_path / prefix.decode(), rows) for prefix, rows in parts.items()]
    join_tables(list(reversed(paths)), tmp_path / "joined")
    assert (tmp_path / "joined" / "MANIFEST-000001").stat().st_size > 2**15
    every = {key: value for rows in parts.values() for key, value in rows.items()}
    assert held(tmp_path / "joined") == every
    later = dict.fromkeys(rng.sample(sorted(every), 50), b"later") | {b"z": b"new"}
    database = LevelDB(tmp_path / "joined")
    database.write(later, sync=True)
    database.compact()
    database.close()
    assert held(tmp_path / "joined") == every | later
    assert {prefix: held(path) for prefix, path in zip(parts, paths, strict=True)} == parts


def test_no_table_is_on_the_first_level(tmp_path: Path, rng: random.Random) -> None:
    """On the first level, each read would search all tables."""
    join_tables([made(tmp_path / "part", rows_of(rng, b"a", 3_000))], tmp_path / "joined")
    database = LevelDB(tmp_path / "joined")
    assert int(database._db.get_property(b"leveldb.num-files-at-level0")) == 0
    database.close()


@pytest.mark.parametrize(
    ("size_bytes", "level"), [(0, 1), (10 * 2**20 - 1, 1), (10 * 2**20, 2), (2**40, 6), (2**50, 6), (2 * 10**9, 4)]
)
def test_the_level_depends_on_the_size(size_bytes: int, level: int) -> None:
    assert leveldb_manifest._level_of(size_bytes) == level


def test_a_part_with_rows_outside_its_tables_is_rejected(tmp_path: Path) -> None:
    """The last rows of a part could not be written, as in a copy of an open database."""
    database = LevelDB(tmp_path / "part", create=True)
    database.write({b"key": b"value"}, sync=True)
    shutil.copytree(tmp_path / "part", tmp_path / "refused")
    with pytest.raises(StorageError, match="not in its tables"):
        join_tables([tmp_path / "refused"], tmp_path / "joined")
    assert not (tmp_path / "joined").exists()
    database.close()
    join_tables([tmp_path / "part"], tmp_path / "joined")
    joined = LevelDB(tmp_path / "joined")
    with joined.snapshot() as state:
        assert state.get(b"key") == b"value"
    joined.close()


def test_joining_an_empty_part_creates_an_empty_database(tmp_path: Path) -> None:
    join_tables([made(tmp_path / "empty", {})], tmp_path / "joined")
    assert held(tmp_path / "joined") == {}


def test_ranges_that_overlap_are_rejected(tmp_path: Path, rng: random.Random) -> None:
    rows = rows_of(rng, b"a", 500)
    with pytest.raises(StorageError, match="overlap"):
        join_tables([made(tmp_path / "one", rows), made(tmp_path / "two", rows)], tmp_path / "joined")


def test_a_truncated_or_missing_table_is_rejected(tmp_path: Path, rng: random.Random) -> None:
    part = made(tmp_path / "part", rows_of(rng, b"a", 500))
    table = next(part.glob("*.ldb"))
    with table.open("r+b") as file:
        file.truncate(table.stat().st_size - 1)
    with pytest.raises(StorageError, match="bytes, expected"):
        join_tables([part], tmp_path / "cut")
    table.unlink()
    with pytest.raises(StorageError, match="cannot merge"):
        join_tables([part], tmp_path / "gone")


@given(cut=st.floats(0, 1), is_flipped=st.booleans())
def test_a_damaged_list_is_an_error(cut: float, is_flipped: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The error for a truncated list, or one with a changed byte, names the file."""
    path = tmp_path_factory.mktemp("damaged")
    table = LevelTable(path / "000002.ldb", 5, b"a" * 500, b"b" * 500)
    table.file.write_bytes(b"12345")
    (path / "made").mkdir()
    write_database([TableList([table], 7)], path / "made")
    assert read_tables(path / "made").last_write == 7
    manifest = path / "made" / "MANIFEST-000001"
    data = bytearray(manifest.read_bytes())
    at = int(cut * (len(data) - 1))
    if is_flipped:
        data[at] ^= 0x40
    else:
        del data[max(at, 1) :]
    manifest.write_bytes(data)
    with pytest.raises(CorruptStoreError, match="MANIFEST-000001 is damaged"):
        read_tables(path / "made")


@given(st.integers(0, 100_000))
def test_a_record_of_any_size_is_read_as_it_was_written(size: int) -> None:
    """The sizes include records that end some bytes before a block does."""
    record = bytes(number % 251 for number in range(size))
    assert list(read_records(recorded(record))) == [record]


@pytest.mark.parametrize("size", range(2**15 - 16, 2**15 + 2))
def test_a_record_that_ends_with_its_block_is_read(size: int) -> None:
    record = bytes(size)
    assert list(read_records(recorded(record))) == [record]


def test_the_checksum_matches_a_known_answer() -> None:
    """RFC 3720, B.4: 32 bytes of zeros. The mask is reverted."""
    masked = leveldb_log._masked_crc32c(bytes(32)) - 0xA282EAD8 & 0xFFFFFFFF
    assert (masked << 15 | masked >> 17) & 0xFFFFFFFF == 0x8A9136AA


def test_a_record_whose_end_is_missing_is_an_error() -> None:
    """The record is truncated at the end of a block, so each chunk is complete."""
    with pytest.raises(DecodeError, match="end within a record"):
        list(read_records(recorded(bytes(50_000))[: 2**15]))


def test_unknown_fields_are_an_error() -> None:
    with pytest.raises(DecodeError, match="unknown type 8"):
        list(leveldb_manifest._fields(b"\x08\x01"))
