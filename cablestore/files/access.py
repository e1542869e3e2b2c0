"""Who may read what is written: the user alone, or also the group of a folder that the user shares with it.

A new folder has mode 0700 and a new file 0600, whatever the umask lets others do. A folder with exactly mode 0750 is
shared: files in it have 0640. `share` sets that mode. What exists only loses permissions: a folder that its user must
not write stays so. LevelDB chooses the modes of its files itself, so they are set when it is opened and closed;
meanwhile its folder keeps others out.
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
"""Names that are never shared: a key, and the socket on which a running store takes commands."""

_LOG: Final = logging.getLogger("cablestore.files")


def is_shared(folder: Path) -> bool:
    """Return True if the group may read a folder and nobody else may."""
    try:
        return stat.S_IMODE(folder.stat().st_mode) == SHARED_FOLDER
    except OSError:
        return False


def file_mode(folder: Path) -> int:
    """Return the mode of a new file in a folder."""
    return SHARED_FILE if is_shared(folder) else PRIVATE_FILE


def make_folder(path: Path) -> None:
    """Make a folder for the user alone, with those above it. An existing one stays as it is. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(PRIVATE_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        _set_mode(path, PRIVATE_FOLDER)  # the umask may take permissions from the user too


def make_part(path: Path) -> None:
    """Make a folder in one of ours, with the same access. Raises OSError."""
    make_folder(path)
    if is_shared(path.parent):
        _set_mode(path, SHARED_FOLDER)


def restrict(folder: Path, is_own: Callable[[str], object], *, notify: bool = True) -> None:
    """Make a folder of the user's private if others could read it, with the entries whose names are our own.

    A folder that is shared with its group stays so. Where modes cannot be changed, nothing happens.
    """
    with suppress(OSError):
        status = folder.stat()
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid() or not mode & 0o077 or mode == SHARED_FOLDER:
            return
        set_access(folder, is_own, shared=False)
        if notify and stat.S_IMODE(folder.stat().st_mode) != mode:
            _LOG.warning(
                "other users could read %s (mode %04o): it is private now. `cablestore share` lets its group read it",
                folder,
                mode,
            )


def set_access(folder: Path, is_own: Callable[[str], object], *, shared: bool) -> None:
    """Set the modes of a folder, and of all below it whose names in the folder are our own. Raises OSError."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(SHARED_FOLDER if shared else mode & PRIVATE_FOLDER)
    for entry in os.scandir(folder):
        if is_own(entry.name) and entry.name not in SECRETS and not entry.is_symlink():
            if entry.is_dir():
                set_access(Path(entry), lambda _: True, shared=shared)
            else:
                _narrow(entry, SHARED_FILE if shared else PRIVATE_FILE)


def set_files(folder: Path) -> None:
    """Set the modes of the files in a folder, as far as they are the user's."""
    wanted = file_mode(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            _narrow(entry, wanted)


def create(path: str, flags: int) -> int:
    """Open a file for writing, as `opener` of `open` does, with the access of its folder."""
    descriptor = os.open(path, flags, PRIVATE_FILE)
    with suppress(OSError):  # some file systems have no modes
        os.fchmod(descriptor, file_mode(Path(path).parent))
    return descriptor


def _narrow(entry: os.DirEntry[str], most: int) -> None:
    """Take the permissions from a file that are not in `most`. With `most` 0640 the group may read what its user may."""
    with suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        wanted = mode & most & stat.S_IRWXU
        wanted |= (wanted & stat.S_IRUSR) >> 3 & most
        if stat.S_ISREG(status.st_mode) and mode != wanted:
            _set_mode(Path(entry), wanted)


def _set_mode(path: Path, mode: int) -> None:
    with suppress(OSError):  # it belongs to another user, or its file system has no modes
        path.chmod(mode)
