"""Commands and programs with too few file descriptors: an error says what to do, and the store does not change."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from people import ANN
from waiting import LIMIT_S

import cablestore
from cablestore import CableStore
from cablestore.index.database import Row

COMMANDS = (
    "log default",
    "search word",
    "archive create {folder}/archives",
    *(
        pytest.param(command, marks=pytest.mark.thorough)
        for command in (
            "post default again",
            "check",
            "export {folder}/export",
            "backup {folder}/backup",
            "rebuild",
        )
    ),
)
NODES = ("sync 127.0.0.1:9", "serve --listen 127.0.0.1:0")


def run(limits: str, command: str, store: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with limits of open files: options of `ulimit`. It writes to a new folder."""
    folder = tempfile.mkdtemp(dir=store.parent)
    arguments = [*command.format(folder=folder).split(), "--store", str(store)]
    shell = f'ulimit {limits} && exec "$@"'
    process = ["sh", "-c", shell, "sh", sys.executable, "-m", "cablestore", *arguments]
    return subprocess.run(process, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with CableStore.open(tmp_path / "store", identity=ANN.identity) as store:
        store.post("default", "a word")
    return tmp_path / "store"


def rows(store: Path) -> list[Row]:
    with CableStore.open(store) as opened:
        return list(opened.dump())


@pytest.mark.parametrize("command", [*NODES, *COMMANDS])
@pytest.mark.parametrize("limit", [pytest.param(7, marks=pytest.mark.thorough), 31])
def test_a_command_with_too_few_descriptors_reports_it_and_does_nothing(store: Path, command: str, limit: int) -> None:
    before = rows(store)
    done = run(f"-n {limit}", command, store)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"cablestore: the limit of open files is too low: {limit}. Raise it to at least 32 (`ulimit -n`)\n"
    )
    assert rows(store) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_need_few_descriptors_and_raise_a_soft_limit(store: Path, command: str) -> None:
    for limits in ("-n 32", "-Sn 7"):
        done = run(limits, command, store)
        assert done.returncode == 0, done.stderr
    with CableStore.open(store) as opened:
        assert "a word" in [message.text for message in opened.messages("default").messages]


PROGRAM = """
import os, resource, sys
import cablestore
from cablestore import CableStore
from cablestore.errors import StorageError

def use():
    if sys.argv[1] == "offer":
        with CableStore.open(sys.argv[2]) as store, cablestore.offer(store):
            pass
    else:
        with cablestore.connect(sys.argv[2]) as store:
            store.messages("default")

use()  # all modules are loaded
lowest = os.open(os.devnull, os.O_RDONLY)
os.close(lowest)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for limit in range(lowest, lowest + 20):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        use()
        print("ok")
    except StorageError as error:
        print(error)
"""


@pytest.mark.parametrize("call", ["offer", "connect"])
def test_a_program_with_too_few_descriptors_receives_an_error_with_advice(store: Path, call: str) -> None:
    command = [sys.executable, "-c", PROGRAM, call, str(store)]
    with ExitStack() as owner:
        if call == "connect":
            owner.enter_context(cablestore.offer(owner.enter_context(CableStore.open(store))))
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    *failed, last = done.stdout.splitlines()
    assert last == "ok"
    errors = [line for line in failed if line != "ok"]
    assert errors
    assert all("Too many open files. Raise the limit of open files (`ulimit -n`)" in line for line in errors)
