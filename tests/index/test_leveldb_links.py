"""Copies of a database by links, and read-only opening: the original does not change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
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


class Overtaken:
    """Database whose list of tables is copied shortly before it changes, in the first attempt to copy the database.

    A slow copy sees these files: the list of tables from before the change, and the other files from after it.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self.attempts = 0
        self.database = LevelDB(path, create=True)
        self.write(b"first")

    def write(self, value: bytes) -> None:
        self.row: dict[bytes, bytes | None] = {b"key": value}
        self.database.write(self.row, sync=True)

    def __enter__(self) -> None:
        self.attempts += 1
        if self.attempts == 1:
            self._change()
        elif self.attempts == 2:
            for name, real in self._real.items():
                (self.path / name).unlink()
                if real is not None:
                    real.rename(self.path / name)

    def __exit__(self, *_: object) -> None:
        """Writers may write again."""

    def _change(self) -> None:
        if self.what == "table":
            self.database.compact()  # a table that was not linked before writers were locked out
        manifest = (self.path / "CURRENT").read_text().strip()
        [log] = (file.name for file in self.path.glob("*.log"))
        before = {name: (self.path / name).read_bytes() for name in (manifest, log)}
        self.write(b"second")
        if self.what == "name":
            self.database.close()
            self.database = LevelDB(self.path)
        else:
            self.database.compact()
        if self.what == "log":
            del before[log]
        self._real: dict[str, Path | None] = {}
        for name, data in before.items():
            file, real = self.path / name, self.path.with_name(f"real {name}")
            is_left = file.exists()
            if is_left:
                file.rename(real)  # LevelDB continues to write to it
            file.write_bytes(data)
            self._real[name] = real if is_left else None


@pytest.mark.parametrize("what", ["log", "name", "table"])
def test_a_copy_with_an_earlier_list_of_tables_than_its_other_files_is_repeated(tmp_path: Path, what: str) -> None:
    overtaken = Overtaken(tmp_path / "db", what)
    link_open_database(tmp_path / "db", tmp_path / "copy", overtaken)
    assert overtaken.attempts == 2
    overtaken.database.close()
    with read_only(tmp_path / "copy") as database, database.snapshot() as state:
        assert dict(state.scan(b"", b"\xff")) == overtaken.row


def test_tables_written_until_writers_are_locked_out_are_copied_in_the_same_attempt(tmp_path: Path) -> None:
    database, locks = LevelDB(tmp_path / "db", create=True), []

    @contextmanager
    def writing() -> Iterator[None]:
        locks.append(True)
        database.write(ROWS, sync=True)
        database.compact()
        yield

    link_open_database(tmp_path / "db", tmp_path / "copy", writing())
    assert len(locks) == 1
    database.close()
    with read_only(tmp_path / "copy") as copy, copy.snapshot() as state:
        assert dict(state.scan(b"", b"\xff")) == ROWS


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with closing(LevelDB(tmp_path / "db", create=True)), pytest.raises(StorageError, match="file/copy"):
        link_open_database(tmp_path / "db", tmp_path / "file" / "copy", nullcontext())
    with pytest.raises(StorageError, match="file/copy"):
        link_database(tmp_path / "db", tmp_path / "file" / "copy")
