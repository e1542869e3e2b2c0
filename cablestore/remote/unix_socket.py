"""Unix socket in a folder, over which other processes of the same user reach the process that uses the folder.

STORE/control.sock        a stream socket, mode 0600, while a process serves the store
COMMUNITY/control.sock    the socket of the process that seeds the archives of a community
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cablestore import limits
from cablestore.closable import Closable
from cablestore.errors import StorageError
from cablestore.files import storage_errors

NAME: Final = "control.sock"
"""Name of the socket in its folder."""

_MODE: Final = 0o600
_MAX_ADDRESS_SIZE_BYTES: Final = 100
"""Longest path used as an address. Linux allows 108 bytes and macOS 104, including a zero byte at the end."""
_DESCRIPTORS: Final = Path("/proc/self/fd")
"""Folder on Linux with a link to each open file."""
_TIMEVAL: Final = struct.Struct("ll")
_CONNECT_TIMEOUT: Final = _TIMEVAL.pack(1, 500_000)
"""Connection timeout, in seconds and microseconds. It matters if the other process is stopped and its queue of
connections is full."""
_NO_TIMEOUT: Final = _TIMEVAL.pack(0, 0)


class Listener(Closable):
    """Listening socket in a folder."""

    def __init__(self, folder: Path) -> None:
        """Create the socket and listen. Raises StorageError if it cannot be created in the folder.

        It replaces the socket of a killed process, because only one process can have the store in the folder open.
        """
        self._path: Final = folder.absolute() / NAME
        self.socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self._path.is_socket():
                self._path.unlink()
            with short_address(self._path) as address:
                self.socket.bind(address)
            self._path.chmod(_MODE)  # before `listen`, so that other users cannot connect
            self.socket.listen(limits.MAX_REMOTE_CLIENTS)
            self.socket.setblocking(False)
        except OSError as error:
            self.socket.close()
            raise StorageError(f"cannot create a socket at {self._path}: {error.strerror or error}") from None
        self._made: Final = _inode(self._path)

    def withdraw(self) -> None:
        """Remove the socket from the folder, unless a later process replaced it."""
        if _inode(self._path) == self._made:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the socket from the folder, and close it."""
        self.withdraw()
        self.socket.close()


def connect(folder: Path) -> socket.socket | None:
    """Connect to the process of this user that listens in a folder. Return None if no process listens.

    Raises StorageError if this process has too many open files.
    """
    path = folder.absolute() / NAME
    with storage_errors("cannot create a socket"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.lstat().st_uid == os.geteuid():
            # Not `settimeout`: a non-blocking connect fails at once while the other process's queue is full.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _CONNECT_TIMEOUT)
            with short_address(path) as address:
                connection.connect(address)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _NO_TIMEOUT)
            if is_same_user(connection):
                return connection
    except OSError:  # no socket, or the socket of a killed process
        pass
    connection.close()
    return None


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yield a path of the socket `path` that is short enough for an address. It is valid within the context."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS_SIZE_BYTES:
        yield str(path)
    elif _DESCRIPTORS.is_dir():
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            yield f"{_DESCRIPTORS}/{folder}/{path.name}"
        finally:
            os.close(folder)
    else:  # macOS: descriptors are not paths there
        with tempfile.TemporaryDirectory(prefix="cablestore-") as scratch:
            link = Path(scratch) / "s"
            link.symlink_to(path.parent, target_is_directory=True)
            yield str(link / path.name)


def _inode(path: Path) -> tuple[int, int] | None:
    """Return device and inode, which identify a socket, or None if the path is not a socket."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def is_same_user(connection: socket.socket) -> bool:
    """Return True if the other process runs as this user. Systems other than Linux rely on the socket's mode."""
    found = credentials(connection)
    return found is None or found[1] == os.geteuid()


def credentials(connection: socket.socket) -> tuple[int, int] | None:
    """Return the process id and the user id of the other process, None on systems other than Linux."""
    if sys.platform != "linux":
        return None
    ids = struct.Struct("3i")
    pid, uid, _ = ids.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ids.size))
    return pid, uid


def owner_of(connection: socket.socket) -> str:
    """Return the name of the other process for errors, with its process id on Linux."""
    found = credentials(connection)
    return "the other process" if found is None else f"process {found[0]}"
