"""The client's side of the control socket: a request to the process that has a store open, and the wait for its reply.

That process may hang. `cablestore.cli.control_socket` says what a request and a reply are.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from cablestore import limits
from cablestore.cli.control_socket import RECEIVED_SIZE_BYTES, ControlRequest
from cablestore.errors import OwnerGoneError, StoreLockedError
from cablestore.remote.messages import Offer, read_line
from cablestore.remote.unix_socket import owner_of

_SILENCE_S: Final = 1.5
"""Silence after which a client says what it waits for."""
_CTRL_C_SEEN_S: Final = 0.5


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
        pair = _pair(connection, line)
        if pair is None:
            break
        kind, value = pair
        if kind == "alive":
            continue
        yield kind, value
        if kind == "exit":
            return
    raise OwnerGoneError(
        "the process that has the store open ended before this command. Stored posts stay stored: check them "
        "before you repeat the command"
    )


def _pair(connection: socket.socket, line: bytes | bytearray) -> tuple[str, Any] | None:
    """Return the field of one line of a reply, None if it is not one.

    Raises StoreLockedError if the other process offers its store to programs and runs no commands.
    """
    offer = read_line(bytes(line), Offer)
    if offer is not None and offer.cablestore:
        raise StoreLockedError(
            f"{owner_of(connection)} has the store open and runs no commands for others. End it, or use the store by "
            "cablestore.connect"
        )
    try:
        [(kind, value)] = json.loads(line).items()
    except (ValueError, AttributeError, RecursionError):
        return None
    return kind, value


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
                    silent_s(f"waiting for {owner_of(self._connection)}, which has the store open and does not answer")
                    silent_s = None
            except OSError:
                return b""

    def _given_up(self) -> str:
        state = "may have run: look whether it is done before you repeat it" if self._has_begun else "was not run"
        return f"{owner_of(self._connection)} has the store open and does not answer. The command {state}"
