"""Folders on the local disk."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import pytest

from cablestore import limits
from cablestore.errors import StorageError
from cablestore.files import LocalFolder, MissingFileError, folder_of, read_small


@pytest.mark.parametrize("shape", ["path", "text", "file URI", "folder"])
def test_a_path_is_a_local_folder(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "a b"
    locations: dict[str, str | Path | LocalFolder] = {
        "path": path,
        "text": str(path),
        "file URI": path.as_uri(),
        "folder": LocalFolder(path),
    }
    folder = folder_of(locations[shape])
    assert folder == LocalFolder(path)
    assert (folder.is_local, folder.path, folder.uri, str(folder)) == (True, path, str(path), str(path))
    assert str(folder.file("x")) == str(path / "x")
    assert pickle.loads(pickle.dumps(folder)) == folder


def test_files_are_written_read_and_removed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "new" / "folder")
    assert (folder.names(), folder.exists("a")) == ([], False)
    folder.write("b", b"small")
    with folder.writing("a") as file:
        file.write(b"x" * 100_000)
        assert not folder.exists("a")
    folder.child("deeper").write("c", b"")
    assert folder.names() == ["a", "b"]
    assert folder.names("b*") == ["b"]
    assert folder.sizes() == {"a": 100_000, "b": 5}
    assert folder.read("b") == b"small"
    with folder.open("a") as stream:
        assert (stream.read(3), stream.seek(99_999), stream.read()) == (b"xxx", 99_999, b"x")
    folder.remove("a")
    folder.remove("a")
    assert folder.names() == ["b"]
    folder.remove_all()
    folder.remove_all()
    assert not folder.path.exists()


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    folder.write("kept", b"before")
    with pytest.raises(KeyboardInterrupt), folder.writing("kept") as file:  # noqa: PT012 - in the middle
        file.write(b"half")
        file.flush()
        raise KeyboardInterrupt
    assert folder.read("kept") == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_file_is_private_and_is_synced_before_its_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def seen_fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def seen_replace(self: Path, target: Path) -> Path:
        done.append("name")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    folder = folder_of(tmp_path)
    for write in ("write", "writing", "without sync"):
        done.clear()
        if write == "write":
            folder.write(write, b"x")
        else:
            with folder.writing(write, sync=write == "writing") as file:
                file.write(b"x")
        assert done == (["name"] if write == "without sync" else ["file", "name", "folder"])
        assert stat.S_IMODE((tmp_path / write).stat().st_mode) == 0o600


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = folder_of(tmp_path / "file")
    with pytest.raises(StorageError, match=r"/file: .*free space on its disk"):
        folder.write("x", b"")
    with pytest.raises(StorageError, match=r"/file: .*free space"):
        folder.names()
    for missing in (folder, folder_of(tmp_path)):
        for reading in (missing.read, missing.open, missing.size):
            with pytest.raises(MissingFileError, match="none is missing"):
                reading("none")
            with pytest.raises(FileNotFoundError):
                reading("none")


def test_the_size_of_a_text_file_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_bytes(b"#" * limits.MAX_TEXT_FILE_SIZE_BYTES)
    assert len(read_small(path)) == limits.MAX_TEXT_FILE_SIZE_BYTES
    path.write_bytes(b"#" * (limits.MAX_TEXT_FILE_SIZE_BYTES + 1))
    with pytest.raises(OSError, match="too large"):
        read_small(path)
