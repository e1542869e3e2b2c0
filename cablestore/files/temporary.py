"""Temporary folders: creating them on a disk with enough space, and removing folders that killed processes left.

A folder is locked while it is used. So the next process can detect unused folders.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cablestore.errors import StorageError
from cablestore.files.local import try_lock

_PREFIX: Final = "cablestore-reading-"
"""Prefix of the names of temporary folders."""
_MARGIN_SIZE_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class TemporaryFolder:
    """Private folder that this process removes. `lock` is None if the folder is inside another temporary folder."""

    path: Path
    lock: int | None
    owner: int = field(default_factory=os.getpid)
    """Id of the process that created the folder. A forked child does not remove it."""

    def remove(self) -> None:
        """Remove the folder if this process is the owner. Targets of links in the folder are kept."""
        if os.getpid() != self.owner:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)


def make_temporary(size_bytes: int, *, outside: Path) -> TemporaryFolder:
    """Create a temporary folder on a disk with at least `size_bytes` of free space.

    The folder is not inside `outside`. It is in TMPDIR, or on another disk or in memory if TMPDIR is full or read-only.
    Raises StorageError if no disk has enough space.
    """
    for place in _places(outside):
        remove_unused(place, _PREFIX)
        with suppress(OSError):
            if shutil.disk_usage(place).free >= size_bytes + _MARGIN_SIZE_BYTES:
                return make_locked(place, _PREFIX)
    raise StorageError(
        f"no temporary folder has {size_bytes + _MARGIN_SIZE_BYTES:,} bytes of free space. Set TMPDIR to a folder on "
        "another disk"
    )


def _places(outside: Path) -> Iterator[Path]:
    """Yield writable folders for temporary files that are not inside `outside`, the best first."""
    places = [os.environ.get("TMPDIR"), "/tmp", os.environ.get("XDG_RUNTIME_DIR"), "/var/tmp", "/dev/shm"]  # noqa: S108 - `mkdtemp` makes private folders
    for place in dict.fromkeys(Path(place).absolute() for place in places if place):
        if os.access(place, os.W_OK | os.X_OK) and not place.resolve().is_relative_to(outside.resolve()):
            yield place


def make_locked(place: Path, prefix: str) -> TemporaryFolder:
    """Create and lock a folder in `place`, with a name that begins with `prefix`. Raises OSError.

    `remove_unused` keeps the folder while it is locked.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with suppress(FileNotFoundError):  # another process removed it as left over
            descriptor = os.open(path, os.O_RDONLY)
            if try_lock(descriptor) and path.exists():
                return TemporaryFolder(path, descriptor)
            os.close(descriptor)


def remove_unused(place: Path, prefix: str) -> None:
    """Remove this user's unlocked folders whose names begin with `prefix`, which killed processes left in `place`."""
    for path in place.glob(f"{prefix}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid() and path.is_dir() and try_lock(descriptor):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
