"""The control socket of an open store: the process that has it open runs commands for other processes of the same user.

    STORE/control.sock   a unix stream socket, mode 0600, while a ControlServer runs

A client sends one line of JSON, a `ControlRequest`. While the command runs, the server sends lines of JSON with one
field each: `out` and `err`, text to print unchanged; `note`, a remark that the client prints in its own style; `usage`,
an error in the command line; and at the end `exit`, the exit status. Without an `exit` the command was cut off.

A request may have a deadline. The server then sends `alive` before it begins the command and twice a second until the
command ends. After the first `alive` it compares the deadline with the clock, and does not begin a command that is late.
So a client that has no `alive` at its deadline knows that the command never runs, however long the server was stopped.

A command may also begin a conversation: the server sends one line with the field `begin`, and what both send from then
on is between the command and the client.

This module knows no commands: the server is given a function that runs them.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from cablestore import limits
from cablestore.closable import Closable
from cablestore.errors import StorageError, StoreClosedError
from cablestore.forks import ProcessBound, bind

NAME: Final = "control.sock"
"""Name of the socket in the store's folder."""

Kind = Literal["out", "err", "note", "usage"]
Param: TypeAlias = "str | int | bool | list[str] | None"
"""Types of a command's parameter on the wire."""

_MODE: Final = 0o600
_MAX_ADDRESS_SIZE_BYTES: Final = 100
"""The address of a unix socket has 108 bytes on Linux and 104 on macOS, with a zero byte at the end."""
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
        self._is_conversation = False

    def begin_conversation(self) -> socket.socket:
        """Tell the client that a conversation begins, and return the connection. No line is sent any more."""
        self._send({"begin": True})
        self._is_conversation = True
        return self._connection

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
        if not self._is_conversation:
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

    def __init__(self, folder: Path, run: Run, *, request_timeout_s: float = limits.CONTROL_REQUEST_TIMEOUT_S) -> None:
        """Listen in a store's folder. Raises StorageError if no socket can be created there."""
        self._run = run
        self._request_timeout_s = request_timeout_s
        self._path = folder.absolute() / NAME
        self._listener = _listen(self._path)
        self._made = _inode(self._path)
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
        if _inode(self._path) == self._made:
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
            _answer(connection, reply, self._run, self._request_timeout_s)
        except (ConnectionAbortedError, StoreClosedError):
            pass  # the client is gone; or the store is closed, and a reply without an exit status says so
        finally:
            with self._changing:
                connection.close()


def _answer(connection: socket.socket, reply: ControlReply, run: Run, timeout_s: float) -> None:
    try:
        request = ControlRequest.decode(_read_line(connection, timeout_s))
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
            raise ValueError(
                f"the command has more than {limits.MAX_CONTROL_REQUEST_SIZE_BYTES:,} bytes, the maximum that the "
                "process with the open store accepts"
            )
        if not received:
            break
        at = line.find(b"\n")
        if at >= 0:
            del line[at + 1 :]
    return bytes(line)


# --- sockets --------------------------------------------------------------------------------------


def _listen(path: Path) -> socket.socket:
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


def _inode(path: Path) -> tuple[int, int] | None:
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
