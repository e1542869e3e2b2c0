"""`cablestore archive ...` in separate processes, and a wire that counts the bytes of a seed, for tests of archives."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Self

from archives import FIRST_MS
from commands import run_command
from people import Person
from serving import environment
from waiting import LIMIT_S

from cablestore import CableStore, Post
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.index import VerifiedIndex, verify_index
from cablestore.archive.format.period import WEEK_MS, Period
from cablestore.archive.format.profile import RFC61
from cablestore.limits import PIECE_SIZE_BYTES
from cablestore.protocol.dialect import LEGACY

HERE: Final = "127.0.0.1"
CABAL_KEY: Final = "5a" * 32
_NOT_A_MEMBER: Final = "127.0.0.2"
"""Address from which a wire connects to a seed.

A seed also connects to its peers, at their source address and listening port. No member listens here. With 127.0.0.1 a
seed could reach a member without the wire.
"""
_CHUNK_SIZE_BYTES: Final = 16_384


def command(*arguments: object, store: Path | None = None) -> list[str]:
    """Return the command line of `cablestore archive ARGUMENTS`."""
    of_store = () if store is None else ("-s", store)
    return [sys.executable, "-m", "cablestore", "archive", *map(str, (*arguments, *of_store))]


def started(*arguments: object, store: Path | None = None, output: Path | None = None) -> subprocess.Popen[str]:
    """Start the command with its output in a pipe or a file. The caller ends it."""
    with output.open("w") if output else nullcontext(subprocess.PIPE) as stdout:
        return subprocess.Popen(
            command(*arguments, store=store), stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment()
        )


def archive(*arguments: object, store: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends."""
    return run_command(command(*arguments, store=store)[3:], environment())


def run_json(*arguments: object, store: Path | None = None) -> list[dict[str, Any]]:
    """Run the command with --json, and return its output. It must succeed."""
    done = archive(*arguments, "--json", store=store)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def imported_weeks(lines: Iterable[dict[str, Any]]) -> list[int]:
    """Return the beginnings of the weeks of imported archives, in order of import."""
    return [line["from_ms"] for line in lines if "from_ms" in line]


class Seed:
    """`cablestore archive seed` during the `with` block."""

    def __init__(self, folder: Path, community: str, *arguments: object) -> None:
        self.process = started("seed", folder, "--community", community, "--listen", f"{HERE}:0", "--json", *arguments)

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        found = json.loads(line)
        self.magnet: str = found["magnet"]
        self.port: int = found["port"]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.process.terminate()
        errors = self.process.communicate(timeout=LIMIT_S)[1]
        assert kind or (self.process.returncode, errors) == (0, "")


class Wire:
    """Wire between members and a seed during the `with` block. It counts every byte, and limits the rate."""

    def __init__(self, seed_port: int, rate_bytes_per_s: int = 0) -> None:
        self.to_members_bytes = 0
        self.rate_bytes_per_s = rate_bytes_per_s
        self.hang_ups = 0
        """Number of the next connections that are closed immediately."""
        self._seed_port = seed_port
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server((HERE, 0))
        self.endpoint: tuple[str, int] = self._listener.getsockname()
        self.address = f"{HERE}:{self.endpoint[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    @contextmanager
    def held(self) -> Iterator[None]:
        """Send nothing to members during the `with` block."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _start(self, work: Any, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # the socket is closed
            while True:
                member, _ = self._listener.accept()
                if self.hang_ups:
                    self.hang_ups -= 1
                    member.close()
                    continue
                try:
                    seed = socket.create_connection((HERE, self._seed_port), source_address=(_NOT_A_MEMBER, 0))
                except OSError:
                    member.close()
                    continue
                with self._lock:
                    self._sockets += [member, seed]
                # Buffers are small, so the bytes that a killed member lost were on the wire, or at libtorrent.
                seed.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK_SIZE_BYTES)
                member.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK_SIZE_BYTES)
                self._start(self._to_seed, member, seed)
                self._start(self._to_member, seed, member)

    def _to_seed(self, member: socket.socket, seed: socket.socket) -> None:
        with suppress(OSError):
            while data := member.recv(_CHUNK_SIZE_BYTES):
                seed.sendall(data)
        _hang_up(seed)

    def _to_member(self, seed: socket.socket, member: socket.socket) -> None:
        with suppress(OSError):
            while data := seed.recv(_CHUNK_SIZE_BYTES):
                self._open.wait()
                with self._lock:  # before sending: a member with its last byte may end, and is checked immediately
                    self.to_members_bytes += len(data)
                member.sendall(data)
                if self.rate_bytes_per_s:
                    time.sleep(len(data) / self.rate_bytes_per_s)
        _hang_up(member)


def _hang_up(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)


# --- stores and folders ----------------------------------------------------------------------------


def digest(path: Path) -> str:
    """Return the digest of a store that must be valid."""
    with CableStore.open(path, create=False) as store:
        report = store.check()
        assert report.is_clean, [str(problem) for problem in report.problems]
        return store.dump_digest()


def made_store(path: Path, posts: Iterable[Post]) -> str:
    """Create a store with posts. Return its public key, which names the community of its archives."""
    with CableStore.open(path) as store:
        store.ingest([post.raw for post in posts], verify=False)
        return store.identity.public_key.hex()


def long_history(weeks: int, per_week: int) -> list[Post]:
    """Return texts of three people. In each week some are deleted late in the next week."""
    people = [Person(name) for name in ("ann", "bob", "cyd")]
    rng = random.Random(5)
    posts: list[Post] = []
    for week in range(weeks):
        begin_ms = FIRST_MS + week * WEEK_MS
        step_ms = WEEK_MS // (per_week + 1)
        texts = [
            (
                author := rng.choice(people),
                author.text("default", f"{week} {n} ".ljust(600, "."), at=begin_ms + n * step_ms),
            )
            for n in range(per_week)
        ]
        posts += [text for _, text in texts]
        for author in people:
            own = [text for by, text in texts if by is author][:2]
            posts.append(author.delete(*own, at=begin_ms + 2 * WEEK_MS - 1 - week))
    return posts


def posts_of(path: Path, period: Period | None = None) -> dict[bytes, bytes]:
    """Return all posts of a store by their hashes, or those of a period."""
    found = {}
    with CableStore.open(path, create=False) as store, store.snapshot() as snapshot:
        for post in snapshot.reader.posts():
            if period is None or period.holds(post.timestamp_ms):
                found[post.hash] = post.raw
    return found


def index_of(folder: Path, community: str, key: str | None = None) -> VerifiedIndex:
    """Return the index of a community in a folder, which must be its control node's."""
    files = ArchiveFolder(folder / community)
    data = files.index_bytes()
    assert data is not None
    return verify_index(
        data,
        RFC61,
        bytes.fromhex(community),
        LEGACY,
        data_size_bytes=files.data_size_bytes(),
        key=bytes.fromhex(key) if key else None,
    )


def whole_pieces_bytes(folder: Path, made: Path, community: str) -> int:
    """Return the size of the pieces of `data` that a folder has unchanged."""
    path = ArchiveFolder(folder / community).data_path
    here, whole = path.read_bytes() if path.exists() else b"", bytes_of(made, community)[0]
    pieces = (slice(start, start + PIECE_SIZE_BYTES) for start in range(0, len(whole), PIECE_SIZE_BYTES))
    return sum(len(whole[piece]) for piece in pieces if here[piece] == whole[piece])


def bytes_of(folder: Path, community: str) -> tuple[bytes, bytes]:
    """Return `data` and `index` of a community in a folder."""
    files = ArchiveFolder(folder / community)
    return files.data_path.read_bytes(), files.index_path.read_bytes()
