"""Folders in an object store, without a server: pyarrow's file system of this disk stands for the store."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem

from cablestore.errors import StorageError
from cablestore.files import MissingFileError, for_each, remote
from cablestore.files.many import REQUESTS_AT_ONCE
from cablestore.files.remote import RemoteFolder

CONTENT = bytes(range(256)) * 40


class Failing:
    """A file system whose first requests fail."""

    def __init__(self, failures: int, message: str = "AWS Error NETWORK_CONNECTION during a request: reset") -> None:
        self.left = failures
        self.message = message
        self.requests = 0
        self.system = LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        def request(*arguments: Any, **options: Any) -> Any:
            self.requests += 1
            if self.left:
                self.left -= 1
                raise OSError(errno.EIO, self.message)
            return getattr(self.system, name)(*arguments, **options)

        found = getattr(self.system, name)
        return request if callable(found) else found


@pytest.fixture(params=["s3", "hdfs"])
def scheme(request: pytest.FixtureRequest) -> str:
    """Return a scheme. Files of `hdfs` are renamed when they are complete."""
    return str(request.param)


def folder_at(path: Path, scheme: str = "s3", system: Any = None) -> RemoteFolder:
    path.mkdir(exist_ok=True)
    return RemoteFolder(f"{scheme}://bucket/a%20b", (system or LocalFileSystem(), str(path)))


def test_objects_are_written_read_and_removed(tmp_path: Path, scheme: str) -> None:
    folder = folder_at(tmp_path / "root", scheme)
    assert (folder.is_empty(), folder.names(), folder.folders()) == (True, [], [])
    folder.write("a", CONTENT)
    with folder.writing("b") as file:
        file.write(CONTENT[:5])
        assert not folder.exists("b")
    with folder.writing("empty"):
        pass
    assert {file.name for file in (tmp_path / "root").iterdir()} == {"a", "b", "empty"}
    assert folder.sizes() == {"a": len(CONTENT), "b": 5, "empty": 0}
    assert folder.sizes("[a-b]") == {"a": len(CONTENT), "b": 5}
    assert (folder.size("a"), folder.size("empty")) == (len(CONTENT), 0)
    (tmp_path / "root" / "deeper").mkdir()
    folder.child("deeper").write("c", b"c")
    assert folder.folders() == ["deeper"]
    assert folder.child("deeper").uri == f"{scheme}://bucket/a%20b/deeper"
    folder.remove("b")
    folder.remove("b")
    assert folder.names() == ["a", "empty"]
    for call in (folder.size, folder.read, folder.open_parts):
        with pytest.raises(MissingFileError, match="b is missing"):
            call("b")
    with pytest.raises(MissingFileError, match="deeper is missing"):
        folder.size("deeper")
    for name in ("a", "empty"):
        folder.remove(name)
    assert not folder.is_empty(), "an object below counts"
    folder.child("deeper").remove("c")
    (tmp_path / "root" / ".DS_Store").touch()
    assert folder.is_empty()
    folder.remove_all()
    folder.remove_all()
    assert not (tmp_path / "root").exists()


def test_parts_of_an_object_are_read(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    folder.write("a", CONTENT)
    for opened in (folder.open, folder.open_parts):
        with opened("a") as file:
            assert (file.read(3), file.seek(-2, os.SEEK_END), file.read()) == (
                CONTENT[:3],
                len(CONTENT) - 2,
                CONTENT[-2:],
            )
            assert (file.read(), file.read(5)) == (b"", b"")
            assert (file.seek(10), file.seek(5, os.SEEK_CUR), file.read(4)) == (10, 15, CONTENT[15:19])
            assert file.seek(len(CONTENT) + 9) > 0
            assert (file.read(1), file.read()) == (b"", b"")


def test_a_folder_is_pickled_without_its_connection(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    copy = pickle.loads(pickle.dumps(folder))
    assert (copy, copy.uri, hash(copy)) == (folder, "s3://bucket/a%20b", hash(folder))
    assert repr(copy) == "RemoteFolder('s3://bucket/a%20b')"
    assert copy != RemoteFolder("s3://bucket/another")
    with pytest.raises(StorageError, match="is not on this machine"):
        _ = folder.path


@pytest.mark.parametrize("failures", [0, 1, 3, 4])
def test_a_failed_request_is_repeated_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(remote, "_RETRY_S", 0.001)
    (tmp_path / "a").write_bytes(b"content")
    system = Failing(failures)
    folder = folder_at(tmp_path, system=system)
    if failures == 4:
        with pytest.raises(StorageError, match=r"a: .*reset\. Check the URI, its credentials"):
            folder.size("a")
        assert system.requests == 4
    else:
        assert folder.size("a") == 7
        assert system.requests == failures + 1


def test_a_rejected_request_is_not_repeated(tmp_path: Path) -> None:
    system = Failing(1, "AWS Error ACCESS_DENIED during GetObject operation: Access Denied")
    with pytest.raises(StorageError, match="Check the URI, its credentials"):
        folder_at(tmp_path, system=system).size("a")
    assert system.requests == 1


def test_an_error_among_many_requests_is_raised_after_all_have_ended(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    names = [f"{number:02d}" for number in range(2 * REQUESTS_AT_ONCE + 1)]
    for name in names:
        folder.write(name, name.encode())
    assert list(for_each(folder, folder.read, names)) == [name.encode() for name in names]
    done: list[str] = []

    def read(name: str) -> bytes:
        try:
            return folder.read(name)
        finally:
            done.append(name)

    with pytest.raises(MissingFileError, match="none is missing"):
        list(for_each(folder, read, ["none", *names]))
    assert sorted(done) == sorted(["none", *names[: REQUESTS_AT_ONCE - 1]])
