"""Two chat clients over UDP with 30% loss of datagrams. One is killed and restarted. In the end both logs are equal."""

from __future__ import annotations

import os
import random
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cablestore import CableStore, Text
from cablestore.protocol.body import TEXT
from cablestore.sds import COMPACT_FILTER, Backoff, CausalLog, PostChannel, RepairParameters, Send, Settings, causal_log

CHANNEL, LOSS, LINES = "default", 0.3, 15
DATAGRAM, HEADER = 1_200, 10  # bytes. The header: a random name of the message, number of the piece, number of pieces
SETTINGS = Settings(
    filter=COMPACT_FILTER,
    repair=RepairParameters(t_min_ms=200, t_max_ms=600),
    repair_backoff=Backoff(400, 2_000),
    resend=Backoff(300, 1_000),
    resend_possibly=Backoff(600, 2_000),
    resends=100,
    sync_interval_ms=700,
)
"""Timeouts far below the defaults, because messages between two processes on one machine are fast."""


class Lossy:
    """Link to one other client over UDP. It splits messages into datagrams, and a lost datagram loses its message."""

    def __init__(self, port: int, other: int) -> None:
        self._other = ("127.0.0.1", other)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", port))
        self._socket.settimeout(0.05)
        self._begun: dict[bytes, dict[int, bytes]] = {}

    def send(self, message: bytes) -> None:
        """Send a message as datagrams, and lose each datagram with the probability LOSS."""
        name, room = secrets.token_bytes(8), DATAGRAM - HEADER
        pieces = [message[at : at + room] for at in range(0, len(message), room)]
        for number, piece in enumerate(pieces):
            if random.random() >= LOSS:  # noqa: S311 - not a secret
                self._socket.sendto(name + bytes((number, len(pieces))) + piece, self._other)

    def receive(self) -> Iterator[bytes]:
        """Yield the message that the next datagram completes, if any."""
        try:
            data = self._socket.recv(DATAGRAM)
        except TimeoutError:
            return
        name, number, pieces = data[:8], data[8], data[9]
        begun = self._begun.setdefault(name, {})
        begun[number] = data[HEADER:]
        if len(begun) == pieces:
            yield b"".join(piece for _, piece in sorted(self._begun.pop(name).items()))
        while len(self._begun) > 100:  # the oldest message has lost a datagram
            del self._begun[next(iter(self._begun))]


def now_ms() -> int:
    """Return the current time in milliseconds."""
    return time.time_ns() // 1_000_000


def chat(store: CableStore, log: CausalLog, name: str, transport: Lossy) -> None:
    """Post lines and receive the lines of the other client until standard input ends. Print each new length of the log.

    At the end, print the messages of the log.
    """
    posts = PostChannel(store, log, CHANNEL, name, SETTINGS)
    own = list(store.posts_by(store.identity.public_key, post_type=TEXT))
    for post in own:  # if the previous process was killed, it may have stored lines that it did not send
        posts.send(post, now_ms())
    written, length, ticked_ms = len(own), 0, 0
    with selectors.DefaultSelector() as stdin:
        stdin.register(sys.stdin, selectors.EVENT_READ)
        while not stdin.select(0):
            for data in transport.receive():
                posts.receive(data, now_ms())
            if now_ms() >= ticked_ms + 100:
                ticked_ms = now_ms()
                posts.channel.tick(ticked_ms, random.random)
                if written < LINES:
                    written += 1
                    posts.send(store.post(CHANNEL, f"{name} says {written}"), ticked_ms)
            for sequence, effect in posts.outbox():  # delivered messages are now in the store
                if isinstance(effect, Send):
                    transport.send(effect.data)
                posts.confirm(sequence)
            counters = posts.channel.counters()
            if counters.logged != length:
                length = counters.logged
                print(length, flush=True)
    for message in posts.channel.log():
        line = store.get(bytes.fromhex(message.message_id))
        assert line is not None
        print(
            message.lamport_ms,
            message.message_id[:12],
            line.body.text if isinstance(line.body, Text) else line.type_name,
        )


def client(folder: str, name: str, port: str, other: str) -> None:
    """Run one client: a process with a store."""
    with CableStore.open(folder) as store, causal_log(store) as log:
        chat(store, log, name, Lossy(int(port), int(other)))


def start(folder: Path, name: str, *ports: int) -> subprocess.Popen[str]:
    """Start a client in a new process, and return the process."""
    command = [sys.executable, __file__, str(folder / name), name, *map(str, ports)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this script


def wait_for(process: subprocess.Popen[str], length: int) -> None:
    """Wait until a client's log contains at least `length` messages."""
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= length:
            return
    raise SystemExit("a client exited too early")


def main(folder: Path) -> None:
    """Start two clients, kill one with signal 9 after some messages, restart it, and compare their logs."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two,
    ):
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], two.getsockname()[1]
    ann, bob = start(folder, "ann", *ports), start(folder, "bob", *reversed(ports))
    wait_for(bob, LINES // 2)
    bob.kill()
    bob.communicate()
    print("killed bob, starting bob again")
    bob = start(folder, "bob", *reversed(ports))
    for process in (ann, bob):
        wait_for(process, 2 * (1 + LINES))  # each joins the channel before its first line
    logs = [process.communicate()[0].splitlines() for process in (ann, bob)]
    print(*logs[0], sep=os.linesep)
    assert logs[0] == logs[1], logs
    print(f"both logs contain the same {len(logs[0])} messages")


if __name__ == "__main__":
    if sys.argv[1:]:
        client(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
