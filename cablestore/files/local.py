"""Files on this disk: write a whole one, sync it, lock a folder, turn errors of the system into StorageError."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cablestore import forks
from cablestore.errors import CableStoreError, StorageError
from cablestore.files.access import create
from cablestore.forks import close_released, open_released, released_in_child


@contextmanager
def storage_errors(what: object) -> Iterator[None]:
    """Turn an OSError in a `with` into a StorageError that names the file, or says what failed."""
    try:
        yield
    except StorageError:  # a missing file of an object store is an OSError too, and says already what to do
        raise
    except OSError as error:
        raise StorageError(
            f"{what}: {error.strerror or error}. Check that it is there, free space and permissions"
        ) from None


@contextmanager
def whole_file(path: Path, suffix: str = ".tmp", *, sync: bool = True) -> Iterator[BinaryIO]:
    """Write a file under its name with `suffix`, and rename it when the `with` ends.

    With `sync` the file is on the disk before it is renamed. After an exception the unfinished file is removed. Raises
    OSError.
    """
    unfinished, opened_at = path.with_name(f"{path.name}{suffix}"), forks.ancestors
    try:
        with open(unfinished, "wb", opener=create) as file, released_in_child(file.fileno()):
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if forks.ancestors == opened_at:  # a forked child leaves the file to its parent
            unfinished.replace(path)
    except BaseException:
        if forks.ancestors == opened_at:
            unfinished.unlink(missing_ok=True)
        raise


def unique_suffix() -> str:
    """Return a suffix for an unfinished file that no other process uses."""
    return f".{uuid.uuid4().hex}.tmp"


def write_whole(path: Path, data: bytes, suffix: str = ".tmp") -> None:
    """Write a small file as a whole and sync it and its name to the disk. Raises StorageError."""
    with storage_errors(path):
        with whole_file(path, suffix) as file:
            file.write(data)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path, refused: Callable[[str], CableStoreError]) -> int:
    """Lock a file, made if missing, and return its descriptor. `unlock`, or the end of the process, unlocks it.

    Raises `refused(owner)` if another process has the lock: `owner` is the process id that `sign_lock` wrote, or
    "unknown".
    """
    descriptor = open_released(path, os.O_RDWR | os.O_CREAT)
    try:
        if try_lock(descriptor):
            return descriptor
        owner = os.pread(descriptor, 20, 0).decode("ascii", errors="replace").strip() or "unknown"
    except BaseException:
        close_released(descriptor)
        raise
    close_released(descriptor)
    raise refused(owner)


def unlock(descriptor: int) -> None:
    """Unlock a file or folder and close it. A process that was started without Python's fork may share the lock."""
    with suppress(OSError):  # some network file systems cannot
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    close_released(descriptor)


def sign_lock(descriptor: int) -> None:
    """Write the id of this process into a locked file."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder. Returns False if another process has locked it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open a folder so that it can be locked in the `with`. Raises StorageError."""
    with storage_errors(path):
        descriptor = open_released(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        unlock(descriptor)
