"""Report of a process that seeds archives, for `archive status`: one line of JSON over a socket in their folder."""

from __future__ import annotations

import json
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cablestore import limits
from cablestore.closable import Closable
from cablestore.forks import ProcessBound, bind
from cablestore.remote.unix_socket import Listener, connect, is_same_user

FIELDS: Final = ("seeding", "listening", "peers", "given_bytes")
"""Fields of a report: link, address, number of connected peers, uploaded bytes."""
_LOG: Final = logging.getLogger("cablestore.archive")
_ACCEPT_AGAIN_S: Final = 0.1
_MAX_REPORT_SIZE_BYTES: Final = 65_536


class SeedingReporter(Closable, ProcessBound):
    """Socket that sends a report to each connection and closes it."""

    def __init__(self, community_folder: Path, report: Callable[[], dict[str, Any]]) -> None:
        """Send the result of `report`. Raises StorageError if no socket can be created in the folder."""
        self._report = report
        self._listener = Listener(community_folder)
        self._woken, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="cablestore-seeding", daemon=True)
        self._thread.start()
        bind(self)

    def _sockets(self) -> Iterable[int]:
        """Return the descriptors that a child must not keep open."""
        return [each.fileno() for each in (self._listener.socket, self._woken, self._wake) if each.fileno() >= 0]

    def close(self) -> None:
        """Stop answering, and remove the socket."""
        self._wake.close()
        self._thread.join()
        self._listener.close()
        self._woken.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener.socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while self._woken not in [key.fileobj for key, _ in selector.select()]:
                try:
                    connection, _ = self._listener.socket.accept()
                except BlockingIOError:
                    continue  # the client disconnected
                except OSError:
                    time.sleep(_ACCEPT_AGAIN_S)  # too many open files: wait until some are closed
                    continue
                with connection:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        try:
            line = json.dumps(self._report()).encode("ascii") + b"\n"
        except Exception:  # noqa: BLE001 - later clients are still answered
            _LOG.exception("cannot report the state of seeding")
            return
        connection.setblocking(False)  # the line fits into the socket's buffer
        with suppress(OSError):
            if is_same_user(connection):
                connection.sendall(line)


def seeding_now(community_folder: Path) -> dict[str, Any]:
    """Return the FIELDS of the process that seeds the archives in a folder. All are None without such a process."""
    nothing = dict.fromkeys(FIELDS)
    connection = connect(community_folder)
    if connection is None:
        return nothing
    with connection:
        connection.settimeout(limits.REMOTE_TIMEOUT_S)
        try:
            with connection.makefile("rb") as file:
                found = json.loads(file.readline(_MAX_REPORT_SIZE_BYTES))
        except (OSError, ValueError, RecursionError):  # the process ended, hangs, or runs another version
            return nothing
    return nothing | found if isinstance(found, dict) else nothing
