"""Free space on a disk, and the space that a folder uses."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class DiskUsage(NamedTuple):
    """Free space that this user can use on a folder's disk, and the size of the folder's files."""

    free_size_bytes: int
    store_size_bytes: int


def disk_usage(folder: Path) -> DiskUsage | None:
    """Return the usage of a folder's disk, or None if it cannot be read. Files may be created and removed meanwhile."""
    try:
        return DiskUsage(shutil.disk_usage(folder).free, _size_bytes(folder))
    except OSError:
        return None


def _size_bytes(folder: Path | str) -> int:
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                is_folder = entry.is_dir(follow_symlinks=False)
                total += _size_bytes(entry.path) if is_folder else entry.stat(follow_symlinks=False).st_size
    return total
