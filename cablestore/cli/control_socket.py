"""The control socket of an open store: the process that has it open runs commands for other processes of the same user.

    STORE/control.sock   a unix stream socket, mode 0600, while a ControlServer runs

A client sends one line of JSON, a `ControlRequest`. While the command runs, the server sends lines of JSON with one
field each: `out` and `err`, text to print unchanged; `note`, a remark that the client prints in its own style; `usage`,
an error in the command line; and at the end `exit`, the exit status. Without an `exit` the command was cut off.

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
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from cablestore import limits
from cablestore.closable import Closable
from cablestore.errors import CableStoreError, OwnerGoneError, StorageError, StoreClosedError
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
_REQUEST_WAIT_S: Final = 10.0
"""Timeout for a client's request. Clients send it at once; one that does not must not keep others out."""
_CLOSING_WAIT_S: Final = 10.0
"""How long `close` waits for running commands."""
_ACCEPT_AGAIN_S: Final = 0.1
_RECEIVED_SIZE_BYTES: Final = 65_536
_BEGIN_WAIT_S: Final = 10.0
"""How long a client waits until a conversation begins."""
_CTRL_C_SEEN_S: Final = 0.5


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

    def encode(self) -> bytes:
        """Return the line to send."""
        fields = asdict(self)
        if self.zone is None:
            del fields["zone"]  # which 0.8 does not know
        return json.dumps(fields).encode("ascii") + b"\n"

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
        self._is_conversation = False

    def begin_conversation(self) -> socket.socket:
        """Tell the client that a conversation begins, and return the connection. No line is sent any more."""
        self._send({"begin": True})
        self._is_conversation = True
        return self._connection

    def write(self, kind: Kind, text: str) -> None:
        """Send a piece of output. Raises ConnectionAbortedError if the client is gone."""
        self._send({kind: text})

    def end(self, status: int) -> None:
        """Send the exit status, the last line."""
        if not self._is_conversation:
            self._send({"exit": status})

    def is_wanted(self) -> bool:
        """Tell whether the client is still connected. Data after its request is discarded."""
        try:
            while self._connection.recv(_RECEIVED_SIZE_BYTES, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _send(self, fields: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(fields).encode("ascii") + b"\n")
        except OSError:
            # Not BrokenPipeError: rich would take that for an error of our own standard output.
            raise ConnectionAbortedError("the client is gone") from None


Run = Callable[[ControlRequest, ControlReply], int]
"""Function that runs a command, sends its output and returns its exit status. Called in a thread per client."""


class ControlServer(Closable, ProcessBound):
    """Server that runs commands for other processes of this user.

    Create it after opening the store, close it before the store.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        """Listen in a store's folder. Raises StorageError if no socket can be created there."""
        self._run = run
        self._path = folder.absolute() / NAME
        self._listener = _listen(self._path)
        self._made = _inode(self._path)
        self._woken, self._wake = socket.socketpair()
        self._clients: dict[socket.socket, threading.Thread] = {}
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
            threads = list(self._clients.values())
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
            while all(key.fileobj is not self._woken for key, _ in selector.select()):
                try:
                    connection, _ = self._listener.accept()
                except BlockingIOError:
                    continue  # the client went away
                except OSError:
                    time.sleep(_ACCEPT_AGAIN_S)  # too many open files: wait until some are closed
                    continue
                self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        connection.settimeout(_REQUEST_WAIT_S)
        if not _is_same_user(connection):
            connection.close()
            return
        with self._changing:
            self._clients = {client: thread for client, thread in self._clients.items() if thread.is_alive()}
            is_full = len(self._clients) >= limits.MAX_CONTROL_CONNECTIONS
            if not is_full:
                thread = threading.Thread(target=self._serve, args=(connection,), name="control client", daemon=True)
                try:
                    thread.start()
                    self._clients[connection] = thread
                except RuntimeError:  # the system has no more threads
                    is_full = True
        if is_full:
            with connection, suppress(ConnectionAbortedError):
                _refuse(
                    ControlReply(connection),
                    f"{limits.MAX_CONTROL_CONNECTIONS} commands are already running: stop some, or wait",
                )

    def _serve(self, connection: socket.socket) -> None:
        try:
            _answer(connection, self._run)
        except (ConnectionAbortedError, StoreClosedError):
            pass  # the client is gone; or the store is closed, and a reply without an exit status says so
        finally:
            with self._changing:
                connection.close()


def _answer(connection: socket.socket, run: Run) -> None:
    reply = ControlReply(connection)
    try:
        request = ControlRequest.decode(_read_line(connection))
    except ValueError as error:
        _refuse(reply, str(error))
        return
    connection.settimeout(None)  # a client may read slowly: a pager
    reply.end(run(request, reply))


def _refuse(reply: ControlReply, reason: str) -> None:
    reply.write("err", f"cablestore: {reason}\n")
    reply.end(2)


def _read_line(connection: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            received = connection.recv(_RECEIVED_SIZE_BYTES)
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


# --- clients --------------------------------------------------------------------------------------


def connect(folder: Path) -> socket.socket | None:
    """Connect to the process of this user that has the store in `folder` open. Returns None if there is none."""
    path = folder.absolute() / NAME
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.lstat().st_uid == os.geteuid():
            with _address(path) as address:
                connection.connect(address)
            if _is_same_user(connection):
                return connection
    except OSError:  # there is no socket, or a killed process left it
        pass
    connection.close()
    return None


def ask(connection: socket.socket, request: ControlRequest) -> Iterator[tuple[str, Any]]:
    """Send a request and yield the fields of the reply, `exit` last. Raises OwnerGoneError if the reply is cut off."""
    with suppress(OSError):  # a server that stops reading says why in its reply
        connection.sendall(request.encode())
    lines = _lines(connection)
    while True:
        try:
            [(kind, value)] = json.loads(next(lines, b"")).items()
        except (OSError, ValueError, AttributeError, RecursionError):
            raise OwnerGoneError(
                "the process that has the store open ended before this command. Stored posts stay stored: check them "
                "before you repeat the command"
            ) from None
        yield kind, value
        if kind == "exit":
            return


def begin_conversation(connection: socket.socket, request: ControlRequest) -> None:
    """Send a request and wait until its conversation begins. Nothing that is sent later was read.

    Raises OwnerGoneError if there is no answer, and CableStoreError with the server's reason if it refuses.
    """
    connection.settimeout(_BEGIN_WAIT_S)
    line = bytearray()
    try:
        connection.sendall(request.encode())
        while not line.endswith(b"\n"):
            line += connection.recv(1) or b"{}\n"
        [(kind, value)] = json.loads(line).items()
    except (OSError, ValueError, AttributeError, RecursionError):
        raise OwnerGoneError(
            "the process that has the store open gave no answer: it has just ended, or hangs"
        ) from None
    if kind != "begin":
        raise CableStoreError(str(value).strip().removeprefix("cablestore: "))


def _lines(connection: socket.socket) -> Iterator[bytes]:
    """Yield the lines of a reply.

    Each wait is short, because Python handles a Ctrl-C from just before only after the wait.
    """
    connection.settimeout(_CTRL_C_SEEN_S)
    begun: list[bytes] = []
    while True:
        try:
            received = connection.recv(_RECEIVED_SIZE_BYTES)
        except TimeoutError:
            continue
        if not received:
            return
        first, *more = received.split(b"\n")
        begun.append(first)
        for line in more:
            yield b"".join(begun)
            begun = [line]


# --- sockets --------------------------------------------------------------------------------------


def _listen(path: Path) -> socket.socket:
    """Return a listening socket. It replaces one of a killed process, for only one process has the store open."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            path.unlink()
        with _address(path) as address:
            listener.bind(address)
        path.chmod(_MODE)  # before it listens: nobody can connect yet
        listener.listen(limits.MAX_CONTROL_CONNECTIONS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StorageError(f"no control socket can be created at {path}: {error.strerror or error}") from None
    return listener


@contextmanager
def _address(path: Path) -> Iterator[str]:
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


def _is_same_user(connection: socket.socket) -> bool:
    """Tell whether the peer process runs as this user. Systems other than Linux rely on the socket's mode."""
    if sys.platform != "linux":
        return True
    credentials = struct.Struct("3i")
    _, uid, _ = credentials.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    return bool(uid == os.geteuid())
