"""Files of a LevelDB that is not open: whether a folder has them, and copies by links."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Final

from cablestore.errors import StorageError
from cablestore.files import is_foreign, make_folder

_CURRENT: Final = "CURRENT"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK})


def holds_database(path: Path) -> bool:
    """Tell whether a folder has a LevelDB, or the remains of a damaged one. Raises OSError if it cannot be read."""
    return path.is_dir() and ((path / _CURRENT).exists() or holds_data(path))


def holds_data(path: Path) -> bool:
    """Tell whether a folder has rows of a LevelDB, in tables or a log."""
    return any(path.glob("[0-9]*.ldb")) or any(log.stat().st_size for log in path.glob("[0-9]*.log"))


def link_table(table: Path, link: Path) -> None:
    """Link a table, or copy it if the file system has no links."""
    try:
        link.hardlink_to(table)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(table, link)


def link_database(path: Path, copy: Path) -> None:
    """Copy a closed LevelDB. Its tables are linked, because a table never changes."""
    try:
        make_folder(copy)
        for file in path.iterdir():
            if is_foreign(file.name):
                continue
            if file.suffix == ".ldb":
                link_table(file, copy / file.name)
            elif file.name != "LOCK":
                shutil.copyfile(file, copy / file.name)
    except OSError as error:
        raise StorageError(f"{path} cannot be linked into {copy}: {error.strerror}") from None
