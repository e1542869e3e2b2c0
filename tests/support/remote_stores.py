"""Stores that are used over a connection, for tests."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from serving import environment
from waiting import LIMIT_S

from cablestore import CableStore
from cablestore.remote import RemoteStore, messages
from cablestore.remote.link import Link
from cablestore.remote.messages import Begun, Call, Changed, Offer, ToProgram, ToStore
from cablestore.remote.node import WatchedNode
from cablestore.remote.unix_socket import Listener
from cablestore.serving import StoreServer


@contextmanager
def remote_of(store: CableStore) -> Iterator[RemoteStore]:
    """Yield an open store, also one in memory, over a pair of sockets."""
    with StoreServer(store, "test") as server, connected(server) as remote:
        yield remote


def served_in(folder: Path, store: CableStore, node: WatchedNode | None = None) -> StoreServer:
    """Serve an open store, also one in memory, at a socket in a folder, like `serve`."""
    return StoreServer(store, "serve", Listener(folder), node=node)


def connected(server: StoreServer) -> RemoteStore:
    """Return a store that a server serves."""
    ours, theirs = socket.socketpair()
    with theirs:
        server.adopt(theirs)
    return RemoteStore(Link.over(ours))


def child(role: str, path: Path) -> subprocess.Popen[str]:
    """Start a process of `remote_child` and wait until it works."""
    command = [sys.executable, str(Path(__file__).with_name("remote_child.py")), role, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


@contextmanager
def owner_of(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that opens a store and offers it."""
    process = child("owner", path)
    with process:
        yield process
        process.kill()


class RawProgram:
    """Program that sends any messages."""

    def __init__(self, server: StoreServer, first: bytes | None = None) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(LIMIT_S)
        with theirs:
            server.adopt(theirs)
        self.socket.sendall(messages.line(messages.own_hello()) if first is None else first)
        self._file = self.socket.makefile("rb")
        self.offer = messages.read_line(self._file.readline(), Offer)

    def send(self, *sent: ToStore) -> None:
        self.socket.sendall(b"".join(messages.frame(each, 1 << 30) for each in sent))

    def receive(self) -> ToProgram | None:
        """Return the next message, None at the end."""
        head = self._file.read(messages.HEADER.size)
        if len(head) < messages.HEADER.size:
            return None
        return messages.to_program(self._file.read(*messages.HEADER.unpack(head)))

    def answer(self) -> ToProgram | None:
        """Return the next message that is not a report of the state or of a beginning."""
        while isinstance(found := self.receive(), Changed | Begun):
            pass
        return found

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def call(number: int, method: str, *arguments: object, snapshot: int = 0, deadline_s: float = math.inf) -> Call:
    return Call(number, method, msgspec.Raw(msgspec.msgpack.encode(arguments)), deadline_s, snapshot)
