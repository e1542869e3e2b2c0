"""The client's side of the control socket: a request to the process that has a store open, and the wait for its reply.

That process may hang. `cablestore.cli.control_socket` says what a request and a reply are.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cablestore import limits
from cablestore.cli.control_socket import (
    NAME,
    RECEIVED_SIZE_BYTES,
    ControlRequest,
    credentials,
    is_same_user,
    short_address,
)
from cablestore.errors import CableStoreError, OwnerGoneError

_SILENCE_S: Final = 1.5
"""Silence after which a client says what it waits for."""
_CTRL_C_SEEN_S: Final = 0.5


def connect(folder: Path) -> socket.socket | None:
    """Connect to the process of this user that has the store in `folder` open. Returns None if there is none."""
    path = folder.absolute() / NAME
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_SILENCE_S)  # a stopped process accepts no more than fit into its queue
    try:
        if path.lstat().st_uid == os.geteuid():
            with short_address(path) as address:
                connection.connect(address)
            if is_same_user(connection):
                return connection
    except OSError:  # there is no socket, or a killed process left it
        pass
    connection.close()
    return None


def ask(
    connection: socket.socket, request: ControlRequest, on_silence: Callable[[str], object] | None = None
) -> Iterator[tuple[str, Any]]:
    """Send a request with a deadline and yield the fields of the reply, `exit` last.

    `on_silence` gets a sentence when the other process does not answer for a while. Raises OwnerGoneError if it does not
    answer for CONTROL_TIMEOUT_S, or ended.
    """
    deadline_s = time.monotonic() + limits.CONTROL_TIMEOUT_S
    _send(connection, replace(request, deadline_s=deadline_s))
    waiting = _Waiting(connection, deadline_s, on_silence)
    for line in waiting.lines():
        try:
            [(kind, value)] = json.loads(line).items()
        except (ValueError, AttributeError, RecursionError):
            break
        if kind == "alive":
            continue
        yield kind, value
        if kind == "exit":
            return
    raise OwnerGoneError(
        "the process that has the store open ended before this command. Stored posts stay stored: check them "
        "before you repeat the command"
    )


def begin_conversation(connection: socket.socket, request: ControlRequest) -> None:
    """Send a request and wait until its conversation begins. Nothing that is sent later was read.

    Raises OwnerGoneError if there is no answer, and CableStoreError with the server's reason if it refuses.
    """
    waiting = _Waiting(connection, time.monotonic() + limits.CONTROL_TIMEOUT_S)
    line = bytearray()
    _send(connection, request)
    while not line.endswith(b"\n"):
        line += waiting.receive(1) or b"\n"
    try:
        [(kind, value)] = json.loads(line).items()
    except (ValueError, AttributeError, RecursionError):
        raise OwnerGoneError("the process that has the store open ended before it answered") from None
    if kind != "begin":
        raise CableStoreError(str(value).strip().removeprefix("cablestore: "))


def _send(connection: socket.socket, request: ControlRequest) -> None:
    connection.settimeout(limits.CONTROL_TIMEOUT_S)
    with suppress(OSError):  # a server that stops reading says why in its reply
        connection.sendall(request.encode())


class _Waiting:
    """Wait of a client for the bytes of a server, which may have stopped."""

    def __init__(
        self, connection: socket.socket, deadline_s: float, on_silence: Callable[[str], object] | None = None
    ) -> None:
        self._connection = connection
        self._deadline_s = deadline_s
        self._on_silence = on_silence
        self._has_begun = False
        connection.settimeout(_CTRL_C_SEEN_S)  # Python handles a Ctrl-C from just before a wait only after it

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that come until the end. After the first one the command has begun."""
        begun: list[bytes] = []
        while received := self.receive(RECEIVED_SIZE_BYTES):
            first, *more = received.split(b"\n")
            begun.append(first)
            for line in more:
                self._has_begun = True
                yield b"".join(begun)
                begun = [line]
            if self._has_begun:
                self._deadline_s = time.monotonic() + limits.CONTROL_TIMEOUT_S

    def receive(self, size_bytes: int) -> bytes:
        """Return what comes next, b"" at the end. Raises OwnerGoneError at the deadline."""
        silent_s, began_s = self._on_silence, time.monotonic()
        while True:
            is_over = time.monotonic() >= self._deadline_s
            try:
                return self._connection.recv(size_bytes)
            except TimeoutError:
                if is_over:
                    raise OwnerGoneError(self._given_up()) from None
                if silent_s is not None and time.monotonic() - began_s >= _SILENCE_S:
                    silent_s(f"waiting for {self._owner()}, which has the store open and does not answer")
                    silent_s = None
            except OSError:
                return b""

    def _given_up(self) -> str:
        state = "may have run: look whether it is done before you repeat it" if self._has_begun else "was not run"
        return f"{self._owner()} has the store open and does not answer. The command {state}"

    def _owner(self) -> str:
        found = credentials(self._connection)
        return "the other process" if found is None else f"process {found[0]}"
