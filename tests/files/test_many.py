"""Many files of a folder, and parts of files: the same on this disk and in an object store."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from faulty_proxy import faulty_proxy
from s3 import S3Server, environment_of

from cablestore.errors import MissingFileError
from cablestore.files import ObjectFolder, folder_of, for_each, remove
from cablestore.files.many import REQUESTS_AT_ONCE


def test_many_files_are_read_and_removed(place: ObjectFolder) -> None:
    assert place.is_empty()
    names = [f"{number:02d}" for number in range(3 * REQUESTS_AT_ONCE)]
    for name in names:
        place.write(name, name.encode(), sync=False)
    place.child("below").write("kept", b"")
    assert list(for_each(place, place.read, reversed(names))) == [name.encode() for name in reversed(names)]
    with pytest.raises(MissingFileError, match="missing"):
        list(for_each(place, place.read, [*names, "none"]))
    remove(place, [*names, "none"])
    assert place.names() == []
    assert not place.is_empty()
    place.remove_all()
    assert place.is_empty()


def test_several_processes_write_one_file(place: ObjectFolder) -> None:
    """It is always that of one of them, whole."""
    contents = [bytes([number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: place.write("report", content), contents))
    assert place.read("report") in contents
    assert place.names() == ["report"]


def test_parts_of_a_file_are_read(place: ObjectFolder) -> None:
    content = os.urandom(200_000)
    place.write("run", content)
    with place.open_parts("run") as file:
        for at, size in ((0, 8), (150_000, 50_000), (199_999, 9), (77, 0), (3, 100_000)):
            assert file.seek(at) == at
            assert file.read(size) == content[at : at + size]
    with pytest.raises(MissingFileError):
        place.open_parts("none")


def test_a_part_of_an_object_is_one_request(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("parts/run", bytes(10_000_000))
    with faulty_proxy(s3.port) as proxy:
        for name, value in environment_of(proxy.port).items():
            monkeypatch.setenv(name, value)
        with folder_of(s3.uri("parts")).open_parts("run") as file:
            before = len(proxy.requests)
            file.seek(5_000_000)
            assert len(file.read(3_000_000)) == 3_000_000
            file.seek(16)
            assert len(file.read(16)) == 16
    assert [method for method, _ in proxy.requests[before:]] == ["GET", "GET"]
