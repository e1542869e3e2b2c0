"""Copies of a database by links, and read-only opening: the original does not change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from cablestore.errors import CorruptStoreError, StorageError
from cablestore.index.leveldb import LevelDB, Tuning
from cablestore.index.leveldb_checkpoint import link_database, link_open_database
from cablestore.index.read_only import open_read_only

ROWS: dict[bytes, bytes | None] = {b"%06d" % number: bytes(200) for number in range(3000)}


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return a database whose process was killed: rows in its log, and a table that it had not listed yet."""
    database = LevelDB(tmp_path / "db", Tuning(write_buffer_size_bytes=2**18), create=True)
    database.write(ROWS, sync=True)
    database.compact()
    database.write({b"later": b""}, sync=True)
    path = tmp_path / "killed"
    shutil.copytree(tmp_path / "db", path)
    database.close()
    last = max(int(file.stem.removeprefix("MANIFEST-")) for file in path.iterdir() if file.stem[-1].isdigit())
    for number in range(last + 1, last + 4):
        (path / f"{number:06d}.ldb").write_bytes(b"not listed")
    return path


@contextmanager
def linked(path: Path) -> Iterator[LevelDB]:
    """Open a copy by links, which may write."""
    copy = path.with_name("copy")
    link_database(path, copy)
    with closing(LevelDB(copy)) as database:
        database.write(dict.fromkeys(ROWS), sync=True)
        database.compact()
        database.write(ROWS, sync=True)
        yield database


@contextmanager
def read_only(path: Path) -> Iterator[LevelDB]:
    with closing(open_read_only(path)) as database:
        yield database


@pytest.mark.parametrize("opened", [linked, read_only])
def test_tables_that_are_not_listed_are_not_overwritten(
    killed: Path, opened: Callable[[Path], AbstractContextManager[LevelDB]]
) -> None:
    before = {file.name: file.read_bytes() for file in killed.iterdir()}
    with opened(killed) as database, database.snapshot() as state:
        assert dict(state.scan(b"", b"\xff")) == {**ROWS, b"later": b""}
    assert {file.name: file.read_bytes() for file in killed.iterdir()} == before


def test_readers_report_a_lost_end_of_the_manifest(killed: Path) -> None:
    for log in killed.glob("*.log"):
        log.unlink()
    with pytest.raises(CorruptStoreError, match="the end of its manifest is missing"):
        open_read_only(killed)


# --- copies of an open database ----------------------------------------------------------------------


class Changing:
    """Database that is opened again before each of the next `changes` locks of its writers, with other rows and files."""

    def __init__(self, path: Path, changes: int) -> None:
        self.path = path
        self.changes = changes
        self.database = LevelDB(path, create=True)
        self.row: dict[bytes, bytes | None] = {b"key": b"first"}
        self.database.write(self.row, sync=True)

    def __enter__(self) -> None:
        if self.changes:
            self.row = {b"key": b"%d" % self.changes}
            self.changes -= 1
            self.database.write(self.row, sync=True)
            self.database.compact()
            self.database.close()
            self.database = LevelDB(self.path)

    def __exit__(self, *_: object) -> None:
        """Writers may write again."""


@pytest.mark.parametrize("changes", [0, 1, 3])
def test_a_copy_of_a_changing_database_has_its_rows_and_no_files_of_earlier_attempts(
    tmp_path: Path, changes: int
) -> None:
    changing = Changing(tmp_path / "db", changes)
    link_open_database(tmp_path / "db", tmp_path / "copy", changing)
    assert changing.changes == 0
    files = {file.name for file in (tmp_path / "db").iterdir()}
    assert {file.name for file in (tmp_path / "copy").iterdir()} <= files
    changing.database.close()
    with read_only(tmp_path / "copy") as database, database.snapshot() as state:
        assert dict(state.scan(b"", b"\xff")) == changing.row


def test_a_copy_of_a_database_that_keeps_changing_fails_and_leaves_no_files(tmp_path: Path) -> None:
    changing = Changing(tmp_path / "db", 10_000)
    with pytest.raises(StorageError, match="keep changing"):
        link_open_database(tmp_path / "db", tmp_path / "copy", changing)
    assert not (tmp_path / "copy").exists()
    changing.database.close()
