"""Temporary folders: their location, their removal, and what is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from disks import full_disk

from cablestore.errors import StorageError
from cablestore.files import make_temporary


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "place"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    return path


def test_the_targets_of_links_are_kept(tmp_path: Path, place: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("text")
    folder = make_temporary(0, outside=tmp_path / "store")
    assert folder.path.parent == place
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "link").symlink_to(tmp_path / "kept")
    folder.remove()
    assert [*place.iterdir()] == []
    assert (tmp_path / "kept" / "file").read_text() == "text"


def test_folders_in_use_and_foreign_entries_are_kept(tmp_path: Path, place: Path) -> None:
    used = make_temporary(0, outside=tmp_path / "store")
    (place / "cablestore-other").mkdir()
    (place / "cablestore-reading-link").symlink_to(tmp_path)
    os.mkfifo(place / "cablestore-reading-pipe")
    other = make_temporary(0, outside=tmp_path / "store")
    assert used.path.exists()
    other.remove()
    used.remove()
    assert {path.name for path in place.iterdir()} == {
        "cablestore-other",
        "cablestore-reading-link",
        "cablestore-reading-pipe",
    }


def test_a_forked_child_does_not_remove_the_folder_of_its_parent(tmp_path: Path, place: Path) -> None:
    folder = make_temporary(0, outside=tmp_path / "store")
    child = os.fork()
    if child == 0:
        folder.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.path.exists()
    folder.remove()
    assert [*place.iterdir()] == []


def test_a_location_in_the_store_or_on_a_full_disk_is_not_used(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_temporary(0, outside=place)
    assert not folder.path.is_relative_to(place)
    folder.remove()
    (tmp_path / "store").mkdir()
    with full_disk(tmp_path / "store", tmp_path / "disk") as disk:
        monkeypatch.setenv("TMPDIR", str(disk.parent))
        folder = make_temporary(0, outside=disk)
        assert not folder.path.is_relative_to(tmp_path)
        folder.remove()


def test_too_little_disk_space_raises_an_error(tmp_path: Path, place: Path) -> None:
    with pytest.raises(StorageError, match=r"bytes of free space\. Set TMPDIR"):
        make_temporary(2**60, outside=tmp_path)
    assert [*place.iterdir()] == []
