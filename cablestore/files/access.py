"""Access to written files: only for the user, or also for the group of a shared folder.

A new folder has mode 0700 and a new file 0600, regardless of the umask. A folder with exactly mode 0750 is shared:
files in it have 0640. `share` sets that mode. The user of an existing file or folder never gets more permissions: a
read-only folder remains read-only. LevelDB chooses the modes of its files, so they are corrected when it is opened and
closed. Meanwhile, the mode of its folder protects them.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600
SHARED_FOLDER: Final = 0o750
SHARED_FILE: Final = 0o640
SECRETS: Final = frozenset({"identity", "control.sock"})
"""Names that are never shared: a key, and the socket for commands to a running store."""

_LOG: Final = logging.getLogger("cablestore.files")


def is_shared(folder: Path) -> bool:
    """Return True if only the user and the group may read a folder."""
    try:
        return stat.S_IMODE(folder.stat().st_mode) == SHARED_FOLDER
    except OSError:
        return False


def file_mode(folder: Path) -> int:
    """Return the mode of a new file in a folder."""
    return SHARED_FILE if is_shared(folder) else PRIVATE_FILE


def make_folder(path: Path) -> None:
    """Create a folder that only the user can access, and its parents. Do not change an existing folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(PRIVATE_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        _set_mode(path, PRIVATE_FOLDER)  # the umask may take permissions from the user too


def make_part(path: Path) -> None:
    """Create a folder inside the folder of a store, with the same access. Raises OSError."""
    make_folder(path)
    if is_shared(path.parent):
        _set_mode(path, SHARED_FOLDER)


def restrict(folder: Path, is_own: Callable[[str], object], *, notify: bool = True) -> None:
    """Make a folder of the user, and the entries whose names `is_own` accepts, private if other users had access to it.

    A folder that is shared with its group is not changed. With `notify`, a change is logged. Errors are ignored.
    """
    with suppress(OSError):
        status = folder.stat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid() or not mode & 0o077 or mode == SHARED_FOLDER:
            return
        set_access(folder, is_own, shared=False)
        if notify and stat.S_IMODE(folder.stat().st_mode) != mode:
            _LOG.warning(
                "%s was readable by other users (mode %04o) and is now private. `cablestore share` lets its group "
                "read it",
                folder,
                mode,
            )


def set_access(folder: Path, is_own: Callable[[str], object], *, shared: bool) -> None:
    """Share a folder with its group, or make it private if `shared` is False.

    This sets the modes of the folder, of its entries whose names `is_own` accepts, and of everything in them. Links and
    SECRETS are not changed. Raises OSError.
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(SHARED_FOLDER if shared else mode & PRIVATE_FOLDER)
    for entry in os.scandir(folder):
        if is_own(entry.name) and entry.name not in SECRETS and not entry.is_symlink():
            if entry.is_dir():
                set_access(Path(entry), lambda _: True, shared=shared)
            else:
                _narrow(entry, SHARED_FILE if shared else PRIVATE_FILE)


def set_files(folder: Path) -> None:
    """Set the modes of the files in a folder. Errors are ignored."""
    wanted = file_mode(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            _narrow(entry, wanted)


def create(path: str, flags: int) -> int:
    """Open a file for writing, with the mode of new files in its folder. This is an `opener` for `open`."""
    descriptor = os.open(path, flags, PRIVATE_FILE)
    with suppress(OSError):  # some file systems do not support modes
        os.fchmod(descriptor, file_mode(Path(path).parent))
    return descriptor


def _narrow(entry: os.DirEntry[str], most: int) -> None:
    """Remove permissions of a file: the user keeps those that are in `most`, and other users lose all permissions.

    If `most` lets the group read, the group may read the file exactly if the user may.
    """
    with suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        wanted = mode & most & stat.S_IRWXU
        wanted |= (wanted & stat.S_IRUSR) >> 3 & most
        if stat.S_ISREG(status.st_mode) and mode != wanted:
            _set_mode(Path(entry), wanted)


def _set_mode(path: Path, mode: int) -> None:
    with suppress(OSError):  # it belongs to another user, or its file system does not support modes
        path.chmod(mode)
