"""Files of a LevelDB: checks for their existence and for free space, and links to its tables."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_CURRENT: Final = "CURRENT"
TABLE_SUFFIXES: Final = frozenset({".ldb", ".sst"})
"""Suffixes of table files. LevelDB before 1.14 wrote `.sst` files."""
_PROBE_SIZE_BYTES: Final = 2**20
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK})


def holds_database(path: Path) -> bool:
    """Return True if a folder contains a LevelDB, damaged or not. Raises OSError if it cannot be read."""
    return path.is_dir() and ((path / _CURRENT).exists() or holds_data(path))


def holds_data(path: Path) -> bool:
    """Return True if a folder contains rows of a LevelDB, in tables or a log."""
    return any(path.glob("[0-9]*.ldb")) or any(log.stat().st_size for log in path.glob("[0-9]*.log"))


def require_room(path: Path, size_bytes: int) -> None:
    """Raise OSError if a temporary file of this size cannot be written to a folder, because of its disk or limits."""
    free = os.statvfs(path)
    if free.f_bavail * free.f_frsize < size_bytes:
        raise _no_space()
    with tempfile.TemporaryFile(dir=path, buffering=0) as file:
        for left_bytes in range(size_bytes, 0, -_PROBE_SIZE_BYTES):
            chunk = bytes(min(left_bytes, _PROBE_SIZE_BYTES))
            if file.write(chunk) != len(chunk):
                raise _no_space()


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def link_table(table: Path, link: Path) -> None:
    """Link a table, or copy it if the file system does not support links."""
    try:
        link.hardlink_to(table)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(table, link)
