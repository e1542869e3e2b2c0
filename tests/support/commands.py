"""`cablestore` in processes that are forked from one that has loaded it: Python and the modules start once."""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from waiting import LIMIT_S

_ASKING: Final = threading.Lock()


def run_command(
    arguments: Sequence[str], environment: Mapping[str, str], given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m cablestore ARGUMENTS` to its end; `given` is its standard input."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write((given or "").encode())
        stdin.seek(0)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            with _ASKING:
                files = [file.fileno() for file in (theirs, stdin, stdout, stderr)]
                socket.send_fds(_forking(os.getpid()), [b"."], files)
            theirs.close()
            ours.settimeout(LIMIT_S)
            with ours.makefile("rw") as asked:
                json.dump([list(arguments), str(Path.cwd()), dict(environment)], asked)
                print(file=asked, flush=True)
                status = int(asked.readline())
        said = []
        for file in (stdout, stderr):
            file.seek(0)
            said.append(file.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(arguments, status, *said)


@cache
def _forking(_: int) -> socket.socket:
    """Start the process that forks. It ends with the one that started it."""
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen([sys.executable, __file__, str(number)], pass_fds=[number], start_new_session=True)
    atexit.register(process.wait)
    atexit.register(ours.close)  # before it waits
    return ours


def _fork_for_each(requests: socket.socket) -> None:
    """Fork a process for each request, which forks the command and sends its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        _, files, *_ = socket.recv_fds(requests, 1, 4)
        if not files:
            os._exit(0)
        if not os.fork():
            break
        for file in files:
            os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    answers = socket.socket(fileno=files[0])
    with answers.makefile("rw") as asked:
        arguments, folder, environment = json.loads(asked.readline())
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=asked, flush=True)
            os._exit(0)
    answers.close()
    for number, file in enumerate(files[1:]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments


if __name__ == "__main__":
    from cablestore.cli.commands import load_all

    load_all()
    _fork_for_each(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("cablestore", run_name="__main__", alter_sys=True)
