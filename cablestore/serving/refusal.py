"""Answer of a process that has a store open and cannot serve it yet: other programs receive the reason at once."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cablestore import limits
from cablestore.closable import Closable
from cablestore.remote.messages import VERSIONS, Offer, line, own_version
from cablestore.remote.unix_socket import Listener, is_same_user

_HELLO_TIMEOUT_S: Final = 1.0


class Refusal(Closable):
    """Socket in a store's folder, at which programs receive only a reason. Close it before the store is served."""

    def __init__(self, folder: Path, reason: Callable[[], str]) -> None:
        """`reason` is called in a thread for each program. Raises StorageError if no socket can be created."""
        self._listener = Listener(folder)
        self._reason = reason
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="cablestore-refusal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the socket."""
        self._wake.close()
        self._thread.join()
        self._woken.close()
        self._listener.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for each in (self._listener.socket, self._woken):
                selector.register(each, selectors.EVENT_READ)
            while not any(key.fileobj is self._woken for key, _ in selector.select()):
                with suppress(OSError):  # the program is gone
                    self._refuse(self._listener.socket.accept()[0])

    def _refuse(self, program: socket.socket) -> None:
        with program:
            if is_same_user(program):
                program.settimeout(_HELLO_TIMEOUT_S)
                program.recv(limits.MAX_REMOTE_HELLO_SIZE_BYTES)
                program.sendall(line(Offer(own_version(), VERSIONS, err=self._reason())))
