"""Folder of a community: appended archives, its state, its only writer, and the limit of its index."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cablestore.archive import folder as folders
from cablestore.archive.folder import SCRATCH_PREFIX, ArchiveFolder
from cablestore.archive.format.period import Period
from cablestore.archive.format.profile import Entry
from cablestore.errors import ArchiveError


@pytest.fixture
def folder(tmp_path: Path) -> ArchiveFolder:
    found = ArchiveFolder(tmp_path)
    found.append([b"abc", b"def"], 0)
    found.write_index(b"index")
    return found


def stored(folder: ArchiveFolder, offset_bytes: int, size_bytes: int) -> bytes:
    return folder.stored(Entry("id", Period(0, 1), (), offset_bytes, size_bytes))


def test_an_append_replaces_the_bytes_after_its_position(folder: ArchiveFolder) -> None:
    folder.append([b"x", b"y"], 2)
    assert folder.data_path.read_bytes() == b"abxy"
    assert folder.data_size_bytes() == 4
    assert stored(folder, 1, 3) == b"bxy"
    with pytest.raises(ArchiveError, match="truncated within archive id"):
        stored(folder, 1, 4)


def copied(path: Path) -> None:
    """Replace a file with a copy that has the same times."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def longer(path: Path) -> None:
    """Append to a file, without a change of its times."""
    before = path.stat()
    os.truncate(path, before.st_size + 1)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def later(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    ("name", "change"), [("data", copied), ("data", longer), ("index", copied), ("index", longer), ("index", later)]
)
def test_the_state_changes_with_each_change_of_a_file(
    folder: ArchiveFolder, name: str, change: Callable[[Path], None]
) -> None:
    before = folder.state()
    assert folder.state() == before is not None
    change(folder.path / name)
    assert folder.state() not in (before, None)
    (folder.path / name).unlink()
    assert folder.state() is None


def test_a_folder_has_one_writer_that_removes_what_a_killed_one_left(folder: ArchiveFolder) -> None:
    (folder.path / f"{SCRATCH_PREFIX}1").mkdir()
    (folder.path / f"{SCRATCH_PREFIX}1" / "posts").write_bytes(b"posts")
    assert not folder.is_claimed()
    with folder.claimed():
        assert {path.name for path in folder.path.iterdir()} == {"data", "index"}
        assert folder.is_claimed()
        with pytest.raises(ArchiveError, match="another process is writing archives"), folder.claimed():
            pass
    assert not folder.is_claimed()


def test_an_index_of_the_largest_size_is_read(folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_INDEX_SIZE_BYTES."""
    monkeypatch.setattr(folders, "MAX_INDEX_SIZE_BYTES", 5)
    assert folder.index_bytes() == b"index"
    folder.write_index(b"index.")
    with pytest.raises(ArchiveError, match="has 6 bytes, the maximum is 5"):
        folder.index_bytes()
