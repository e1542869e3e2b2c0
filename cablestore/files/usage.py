"""Free space on a disk, and the space that a folder uses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class DiskUsage(NamedTuple):
    """Free space that this user can use on a folder's disk, and the size of the folder's files."""

    free_size_bytes: int
    store_size_bytes: int


def disk_usage(folder: Path, *, omitted: Container[str] = ()) -> DiskUsage | None:
    """Return the usage of a folder's disk, None if it cannot be read. Files may come and go meanwhile.

    A file with several hard links counts once. Files whose names are in `omitted` do not count.
    """
    try:
        return DiskUsage(shutil.disk_usage(folder).free, _size_bytes(folder, omitted, set()))
    except OSError:
        return None


def _size_bytes(folder: Path | str, omitted: Container[str], linked: set[int]) -> int:
    """Return the size of the files below `folder`. Add the inodes of files with several links to `linked`."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    total += _size_bytes(entry.path, omitted, linked)
                    continue
                status = entry.stat(follow_symlinks=False)
                if entry.name in omitted or status.st_ino in linked:
                    continue
                if status.st_nlink > 1:
                    linked.add(status.st_ino)
                total += status.st_size
    return total
