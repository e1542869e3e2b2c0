"""A folder that must be on a mounted disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from cablestore.errors import ArgumentError
from cablestore.files import folder_of
from cablestore.files.mounts import require_mount
from cablestore.files.remote import RemoteFolder


def test_a_folder_below_a_mount_point_is_accepted() -> None:
    for mounted in (Path("/proc"), Path("/proc/missing/folder"), folder_of("/proc")):
        require_mount(mounted)
    require_mount(RemoteFolder("s3://bucket/folder"))


def test_a_folder_on_the_root_disk_is_rejected() -> None:
    for unmounted in (Path("/missing"), Path("/missing/folder"), folder_of("/missing/folder")):
        with pytest.raises(ArgumentError, match="is not on a mounted disk: only / is mounted above it"):
            require_mount(unmounted)


def test_a_folder_that_cannot_be_accessed_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ArgumentError, match=r"cannot access .*Mount its disk first"):
        require_mount(tmp_path / "loop" / "below")
