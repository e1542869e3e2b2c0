"""Files on this disk: atomic writes, syncing, locks, and conversion of OSError to StorageError."""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from platformdirs import user_cache_path

from cablestore import forks, limits
from cablestore.advice import advice
from cablestore.errors import ArgumentError, CableStoreError, StorageError
from cablestore.files.access import create
from cablestore.files.uri import local_path, shown
from cablestore.forks import close_released, open_released, released_in_child

_IMPOSSIBLE: Final = {
    errno.ENOTDIR: "is not a possible path: one of its folders is a file",
    errno.ENAMETOOLONG: "is too long for a path on this file system",
    errno.ELOOP: "is not a possible path: it is a link to itself",
}
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def usable_path(location: str | os.PathLike[str]) -> Path:
    """Return the path of a local file or folder, which may not exist.

    Raises ArgumentError like `local_path`, and for a path that is impossible on the file system.
    """
    path = local_path(location)
    name = shown(os.fspath(location))
    try:
        path.stat()
    except FileNotFoundError:
        for part in (path, *path.parents):
            if part.is_symlink() and not part.exists():
                raise ArgumentError(
                    f"{name} is not a possible path: {part} is a link to {part.readlink()}, which does not exist"
                ) from None
        _require_current_folder(path)
    except UnicodeEncodeError:
        raise ArgumentError(f"{name} contains characters that a file name cannot contain") from None
    except OSError as error:
        if error.errno in _IMPOSSIBLE:
            raise ArgumentError(f"{name} {_IMPOSSIBLE[error.errno]}") from None
    return path


def _require_current_folder(path: Path) -> None:
    try:
        path.absolute()
    except OSError as error:
        raise ArgumentError(
            f"cannot use {path}, because the current folder is not accessible: {error.strerror}. Change to another "
            "folder, or use an absolute path"
        ) from None


def cache_folder() -> Path:
    """Return the folder for files that can be removed at any time. It may not exist. Raises StorageError."""
    try:
        return user_cache_path("cablestore")
    except RuntimeError:
        raise StorageError("no home folder found for temporary files. Set HOME or XDG_CACHE_HOME") from None


def read_small(path: Path) -> bytes:
    """Return the bytes of a small file that a user names. Raises OSError, also if it is too large.

    The file may also be a pipe, such as a shell's <(COMMAND), or by mistake an endless device.
    """
    with path.open("rb") as file:
        data = file.read(limits.MAX_TEXT_FILE_SIZE_BYTES + 1)
    if len(data) > limits.MAX_TEXT_FILE_SIZE_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def text_of(data: bytes) -> str:
    """Return the text of a file that a user may have edited: UTF-8, or UTF-16 with a byte order mark.

    The mark is removed. Raises UnicodeDecodeError.
    """
    return data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")


@contextmanager
def storage_errors(what: object) -> Iterator[None]:
    """Convert an OSError in the `with` block to a StorageError. `what` is the file's name or the failed operation."""
    try:
        yield
    except StorageError:  # MissingFileError is also an OSError, and its message is complete
        raise
    except OSError as error:
        reason = error.strerror or error
        usual = "Check the path, the free space on its disk and its permissions"
        raise StorageError(f"{what}: {reason}. {advice(reason, usual)}") from None


@contextmanager
def atomic_file(path: Path, suffix: str = ".tmp", *, sync: bool = True) -> Iterator[BinaryIO]:
    """Write a file under its name with `suffix`, and rename it at the end of the `with` block.

    With `sync`, the file is on the disk before it is renamed. After an exception, the unfinished file is removed.
    Raises OSError.
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


def write_atomically(path: Path, data: bytes, suffix: str = ".tmp") -> None:
    """Write a small file atomically, and sync the file and its name to the disk. Raises StorageError."""
    with storage_errors(path):
        with atomic_file(path, suffix) as file:
            file.write(data)
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Sync a file to the disk after it was written through another descriptor. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path, refused: Callable[[str], CableStoreError]) -> int:
    """Lock a file and return its descriptor. A missing file is created. `unlock` or the end of the process unlocks it.

    Raises `refused(owner)` if another process holds the lock. `owner` is the process id that `sign_lock` wrote,
    "unknown", or "" if other processes share the lock (`share_lock`).
    """
    descriptor = open_released(path, os.O_RDWR | os.O_CREAT)
    try:
        if try_lock(descriptor):
            return descriptor
        owner = "" if try_lock(descriptor, shared=True) else _owner(descriptor)
    except BaseException:
        close_released(descriptor)
        raise
    close_released(descriptor)
    raise refused(owner)


def unlock(descriptor: int) -> None:
    """Unlock a file or folder and close it. Closing is not enough: a child process may share the descriptor."""
    with suppress(OSError):  # some network file systems do not support it
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    close_released(descriptor)


def share_lock(path: Path, refused: Callable[[str], CableStoreError]) -> int | None:
    """Lock a file together with other readers, and return its descriptor. The file is not changed.

    Return None if it cannot be locked: the file is missing, or its file system is read-only and does not support locks.
    Raises `refused(owner)` like `lock`.
    """
    try:
        descriptor = open_released(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if try_lock(descriptor, shared=True):
            return descriptor
        owner = _owner(descriptor)
    except OSError:
        close_released(descriptor)
        if os.statvfs(path).f_flag & os.ST_RDONLY:  # processes of this machine cannot write to it
            return None
        raise
    close_released(descriptor)
    raise refused(owner)


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 20, 0).decode("ascii", errors="replace").strip() or "unknown"


def sign_lock(descriptor: int) -> None:
    """Write the id of this process into a locked file."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder and return True. Return False if another process has locked it.

    With `shared`, several processes can hold the lock at once.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open a folder so that it can be locked in the `with` block. Raises StorageError."""
    with storage_errors(path):
        descriptor = open_released(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        unlock(descriptor)
