"""Forked child processes of a test: their work and their results."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import LIMIT_S


def fork(work: Callable[[], object]) -> Callable[[], str]:
    """Run a function in a forked child process. Return a function that waits for its result or traceback as a string."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)  # a hung child process fails the test
        try:
            text = str(work())
        except BaseException:  # noqa: BLE001 - the error is reported
            text = traceback.format_exc()
        os.write(write, text.encode()[-4000:])
        os._exit(0)
    os.close(write)

    def result() -> str:
        with os.fdopen(read, "rb") as file:
            text = file.read().decode()
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child ended with {status}"
        return text

    return result


def run_forked(work: Callable[[], object]) -> str:
    """Run a function in a forked child process and wait for it."""
    return fork(work)()


@contextmanager
def idle_child() -> Iterator[int]:
    """Fork a child process that does nothing until the end of the `with` block."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def files_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return the identity, time and size of every file in a folder."""
    stats = {str(path): path.stat() for path in folder.rglob("*") if path.is_file()}
    return {name: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}
