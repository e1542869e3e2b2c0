"""The size of a folder."""

from __future__ import annotations

from pathlib import Path

from cablestore.files import disk_usage


def size_bytes(folder: Path, *omitted: str) -> int:
    usage = disk_usage(folder, omitted=omitted)
    assert usage is not None
    return usage.store_size_bytes


def test_a_file_with_several_links_counts_once(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "one").write_bytes(bytes(1_000))
    for name in ("two", "below/three"):
        (tmp_path / name).hardlink_to(tmp_path / "one")
    (tmp_path / "below" / "another").write_bytes(bytes(20))
    assert size_bytes(tmp_path) == 1_020


def test_omitted_files_and_the_targets_of_symbolic_links_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(bytes(1_000))
    (tmp_path / "left out").write_bytes(bytes(20))
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    assert size_bytes(tmp_path, "left out") == 1_000 + (tmp_path / "link").lstat().st_size


def test_a_missing_folder_has_no_size(tmp_path: Path) -> None:
    assert disk_usage(tmp_path / "missing") is None
