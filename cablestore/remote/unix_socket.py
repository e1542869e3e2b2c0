"""The Unix socket of an open store, over which other processes of the same user reach the process that has it open.

STORE/control.sock   a stream socket, mode 0600, while a process serves the store
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
from cablestore.errors import StorageError

NAME: Final = "control.sock"
"""Name of the socket in the store's folder."""

_MODE: Final = 0o600
_MAX_ADDRESS_SIZE_BYTES: Final = 100
"""The address of a unix socket has 108 bytes on Linux and 104 on macOS, with a zero byte at the end."""
_TIMEVAL: Final = struct.Struct("ll")
_CONNECT_TIMEOUT: Final = _TIMEVAL.pack(1, 500_000)
"""Seconds and microseconds for a connection. A stopped process accepts no more than fit into its queue."""
_NO_TIMEOUT: Final = _TIMEVAL.pack(0, 0)


def listen(path: Path) -> socket.socket:
    """Return a listening socket. It replaces one of a killed process, for only one process has the store open."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            path.unlink()
        with short_address(path) as address:
            listener.bind(address)
        path.chmod(_MODE)  # before it listens: nobody can connect yet
        listener.listen(limits.MAX_CONTROL_CONNECTIONS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StorageError(f"no control socket can be created at {path}: {error.strerror or error}") from None
    return listener


def connect(folder: Path) -> socket.socket | None:
    """Connect to the process of this user that has the store in `folder` open. Returns None if there is none."""
    path = folder.absolute() / NAME
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.lstat().st_uid == os.geteuid():
            # Not `settimeout`: a connect that does not block fails at once while the other process's queue is full.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _CONNECT_TIMEOUT)
            with short_address(path) as address:
                connection.connect(address)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _NO_TIMEOUT)
            if is_same_user(connection):
                return connection
    except OSError:  # no socket, or one that a killed process left
        pass
    connection.close()
    return None


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yield a path of the socket that fits into an address: through a link if the folder's path is long."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS_SIZE_BYTES:
        yield str(path)
        return
    with tempfile.TemporaryDirectory(prefix="cablestore-") as scratch:
        link = Path(scratch) / "s"
        link.symlink_to(path.parent, target_is_directory=True)
        yield str(link / path.name)


def inode(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a socket, which identify it; None if the path is not a socket."""
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
    """Return the ids of the other process and of its user. None on systems other than Linux."""
    if sys.platform != "linux":
        return None
    ids = struct.Struct("3i")
    pid, uid, _ = ids.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ids.size))
    return pid, uid


def owner_of(connection: socket.socket) -> str:
    """Return what errors call the other process: its number, where the system knows it."""
    found = credentials(connection)
    return "the other process" if found is None else f"process {found[0]}"
