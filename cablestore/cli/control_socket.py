"""The control socket of an open store: the process that has it open runs commands for other processes of the same user.

    STORE/control.sock   a unix stream socket, mode 0600, while a ControlServer runs

A client sends one line of JSON, a `ControlRequest`. While the command runs, the server sends lines of JSON with one
field each: `out` and `err`, text to print unchanged; `note`, a remark that the client prints in its own style; `usage`,
an error in the command line; and at the end `exit`, the exit status. Without an `exit` the command was cut off.

A request may have a deadline. The server then sends `alive` before it begins the command and twice a second until the
command ends. After the first `alive` it compares the deadline with the clock, and does not begin a command that is late.
So a client that has no `alive` at its deadline knows that the command never runs, however long the server was stopped.

This module knows no commands: the server is given a function that runs them.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from cablestore import limits
from cablestore.closable import Closable
from cablestore.errors import StoreClosedError
from cablestore.forks import ProcessBound, bind
from cablestore.remote.unix_socket import NAME, inode, is_same_user, listen

if TYPE_CHECKING:
    from cablestore.serving import StoreServer

Kind = Literal["out", "err", "note", "usage"]
Param: TypeAlias = "str | int | bool | list[str] | None"
"""Types of a command's parameter on the wire."""

MAX_WIDTH: Final = 10_000
"""Largest width in columns that a client may have."""
_COLOURS: Final = (None, "standard", "256", "truecolor")
_ALIVE: Final = b'{"alive": true}\n'
_ALIVE_EVERY_S: Final = 0.5
_CLOSING_WAIT_S: Final = 10.0
"""How long `close` waits for running commands."""
_ACCEPT_AGAIN_S: Final = 0.1
_LEAST_WAIT_S: Final = 0.001
RECEIVED_SIZE_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """Command to run, and properties of the client's terminal. The fields are those on the wire."""

    command: str
    params: dict[str, Param]
    json: bool
    width: int
    """Columns of the client's standard output."""
    terminal: bool
    """Whether standard output is a terminal."""
    colours: str | None = None
    """Colour system of the terminal: standard, 256, truecolor. None: neither colours nor bold."""
    no_colours: bool = False
    """Bold but no colours, as NO_COLOR asks."""
    zone: str | None = None
    """Name of the time zone for times on the terminal. None: that of the machine."""
    deadline_s: float | None = None
    """Time of `time.monotonic`, which all processes share, until which the command must begin. None: at any time."""

    def encode(self) -> bytes:
        """Return the line to send."""
        return json.dumps(asdict(self)).encode("ascii") + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Decode a line. Raises ValueError if it is not a request."""
        if len(line) > limits.MAX_CONTROL_REQUEST_SIZE_BYTES:
            raise ValueError(
                f"the command has more than {limits.MAX_CONTROL_REQUEST_SIZE_BYTES:,} bytes, the maximum that the "
                "process with the open store accepts"
            )
        try:
            request = cls(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            raise ValueError(
                'a request is one line of JSON: {"command": "...", "params": {...}, "json": false, "width": 80, '
                '"terminal": false}'
            ) from None
        for name, is_right in request._rules().items():
            if not is_right:
                raise ValueError(f"the field {name} of the request is not valid: see cablestore.cli.control_socket")
        return request

    def _rules(self) -> dict[str, bool]:
        return {
            "command": isinstance(self.command, str),
            "params": isinstance(self.params, dict) and all(map(_is_param, self.params.values())),
            "json": isinstance(self.json, bool),
            "width": type(self.width) is int and 1 <= self.width <= MAX_WIDTH,
            "terminal": isinstance(self.terminal, bool),
            "colours": self.colours in _COLOURS,
            "no_colours": isinstance(self.no_colours, bool),
            "zone": self.zone is None or isinstance(self.zone, str),
            "deadline_s": self.deadline_s is None or type(self.deadline_s) in (int, float),
        }


def _is_param(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    if isinstance(value, int):
        return abs(value) <= limits.MAX_TIMESTAMP_MS
    return value is None or isinstance(value, str)


class ControlReply:
    """Channel for the output to one client."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._is_running = False
        """True while the client gets signs of life."""

    def begin(self) -> None:
        """Tell the client that its command begins. From now on `keep_alive` sends signs of life."""
        self._send({"alive": True})
        self._is_running = True

    def keep_alive(self) -> None:
        """Send a sign of life, unless output is being sent or the client does not read. Called in another thread."""
        if self._is_running and self._sending.acquire(blocking=False):
            with suppress(OSError):  # the client is gone, or reads slowly
                self._connection.send(_ALIVE, socket.MSG_DONTWAIT)
            self._sending.release()

    def write(self, kind: Kind, text: str) -> None:
        """Send a piece of output. Raises ConnectionAbortedError if the client is gone."""
        self._send({kind: text})

    def end(self, status: int) -> None:
        """Send the exit status, the last line."""
        self._is_running = False
        self._send({"exit": status})

    def is_wanted(self) -> bool:
        """Return True while the client is connected. Data after its request is discarded."""
        try:
            while self._connection.recv(RECEIVED_SIZE_BYTES, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _send(self, fields: dict[str, Any]) -> None:
        try:
            with self._sending:
                self._connection.sendall(json.dumps(fields).encode("ascii") + b"\n")
        except OSError:
            # Not BrokenPipeError: rich would take that for an error of our own standard output.
            raise ConnectionAbortedError("the client is gone") from None


@dataclass(frozen=True, slots=True)
class _Client:
    thread: threading.Thread
    reply: ControlReply


Run = Callable[[ControlRequest, ControlReply], int]
"""Function that runs a command, sends its output and returns its exit status. Called in a thread per client."""


class ControlServer(Closable, ProcessBound):
    """Server that runs commands for other processes of this user.

    Create it after opening the store, close it before the store.
    """

    def __init__(
        self,
        folder: Path,
        run: Run,
        *,
        programs: StoreServer | None = None,
        request_timeout_s: float = limits.CONTROL_REQUEST_TIMEOUT_S,
    ) -> None:
        """Listen in a store's folder. Raises StorageError if no socket can be created there.

        `programs` serves those that use the store by `cablestore.connect`. It is closed with this.
        """
        self._run = run
        self._programs = programs
        self._request_timeout_s = request_timeout_s
        self._path = folder.absolute() / NAME
        self._listener = listen(self._path)
        self._made = inode(self._path)
        self._woken, self._wake = socket.socketpair()
        self._clients: dict[socket.socket, _Client] = {}
        """With those that have just ended, whose threads `close` has to wait for too."""
        self._changing = threading.Lock()
        """Guards `_clients`, and keeps sockets in it from being closed."""
        self._accepting = threading.Thread(target=self._accept_all, name="control", daemon=True)
        self._accepting.start()
        bind(self)

    def _sockets(self) -> Iterable[int]:
        """Return the descriptors of the socket and its connections."""
        return [each.fileno() for each in (self._listener, self._wake, *self._clients) if each.fileno() >= 0]

    def close(self) -> None:
        """Remove the socket and end all connections. Running commands get some seconds to end."""
        if self._listener.fileno() < 0:
            return
        if inode(self._path) == self._made:
            self._path.unlink(missing_ok=True)
        self._wake.close()
        self._accepting.join()
        self._listener.close()
        self._woken.close()
        with self._changing:
            threads = [client.thread for client in self._clients.values()]
            for connection in self._clients:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        until = time.monotonic() + _CLOSING_WAIT_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if self._programs is not None:
            self._programs.close()

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(_ALIVE_EVERY_S if self._clients else None)]
                if self._woken in ready:
                    return
                self._keep_clients_alive()
                if not ready:
                    continue
                try:
                    connection, _ = self._listener.accept()
                except BlockingIOError:
                    continue  # the client went away
                except OSError:
                    time.sleep(_ACCEPT_AGAIN_S)  # too many open files: wait until some are closed
                    continue
                self._begin(connection)

    def _keep_clients_alive(self) -> None:
        """Forget the clients whose threads have ended, and send the others a sign of life."""
        with self._changing:
            self._clients = {known: client for known, client in self._clients.items() if client.thread.is_alive()}
            for client in self._clients.values():
                client.reply.keep_alive()

    def _begin(self, connection: socket.socket) -> None:
        connection.settimeout(self._request_timeout_s)
        if not is_same_user(connection):
            connection.close()
            return
        reply = ControlReply(connection)
        with self._changing:
            is_full = len(self._clients) >= limits.MAX_CONTROL_CONNECTIONS
            if not is_full:
                work = partial(self._serve, connection, reply)
                thread = threading.Thread(target=work, name="control client", daemon=True)
                try:
                    thread.start()
                    self._clients[connection] = _Client(thread, reply)
                except RuntimeError:  # the system has no more threads
                    is_full = True
        if is_full:
            with connection, suppress(ConnectionAbortedError):
                _refuse(
                    reply,
                    f"{limits.MAX_CONTROL_CONNECTIONS} commands are already running: stop some, or wait",
                )

    def _serve(self, connection: socket.socket, reply: ControlReply) -> None:
        try:
            line = _read_line(connection, self._request_timeout_s)
            if self._programs is None or not self._programs.adopt(connection, line):
                _answer(line, connection, reply, self._run)
        except (ConnectionAbortedError, StoreClosedError):
            pass  # the client is gone; or the store is closed, and a reply without an exit status says so
        finally:
            with self._changing:
                connection.close()


def _answer(line: bytes, connection: socket.socket, reply: ControlReply, run: Run) -> None:
    try:
        request = ControlRequest.decode(line)
    except ValueError as error:
        _refuse(reply, str(error))
        return
    connection.settimeout(None)  # a client may read slowly: a pager
    if request.deadline_s is not None:
        reply.begin()
        if time.monotonic() > request.deadline_s or not reply.is_wanted():
            return  # the client has given the command up
    reply.end(run(request, reply))


def _refuse(reply: ControlReply, reason: str) -> None:
    reply.write("err", f"cablestore: {reason}\n")
    reply.end(2)


def _read_line(connection: socket.socket, timeout_s: float) -> bytes:
    """Read a line, within `timeout_s` in all, however few bytes come at a time."""
    line = bytearray()
    until_s = time.monotonic() + timeout_s
    while not line.endswith(b"\n"):
        try:
            connection.settimeout(max(until_s - time.monotonic(), _LEAST_WAIT_S))
            received = connection.recv(RECEIVED_SIZE_BYTES)
            if time.monotonic() > until_s:
                raise TimeoutError
        except OSError:
            raise ConnectionAbortedError("the client sent no request in time, or is gone") from None
        line += received
        if len(line) > limits.MAX_CONTROL_REQUEST_SIZE_BYTES:
            return bytes(line)  # `_answer` refuses it
        if not received:
            break
        at = line.find(b"\n")
        if at >= 0:
            del line[at + 1 :]
    return bytes(line)
