"""Closed, full or unread standard streams: commands complete their work and return their usual status."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from terminals import CTRL_Q, Screen, Terminal
from waiting import LIMIT_S, wait_until

from cablestore import CableStore
from cablestore.cli import main
from cablestore.cli.commands import load_all

CABLESTORE: Final = f'"{sys.executable}" -m cablestore'
FULL: Final = "cannot write to standard output: No space left on device"
STREAMS: Final = {
    "no output": ">&-",
    "no errors": "2>&-",
    "nothing": "<&- >&- 2>&-",
    "full errors": "2>/dev/full",
    "a reader that stops": "| :",
}
"""Redirections of the shell that do not change the status of a command."""

ARGUMENTS: Final = {
    "keygen": "key",
    "name": "ann",
    "join": "garden",
    "leave": "default",
    "post": "default hello",
    "topic": "default all",
    "delete": "0000",
    "log": "default",
    "search": "hello",
    "show": "0000",
    "role": "0000 mod",
    "hide": "0000",
    "unhide": "0000",
    "drop": "0000",
    "undrop": "0000",
    "block": "0000",
    "unblock": "0000",
    "invite": "--new-key --peer a.example:1",
    "serve": "--listen nonsense",
    "inspect": "--listen nonsense",
    "reconcile": "127.0.0.1:1",
    "reindex": "missing --out new",
    "tables": "missing --out new",
    "prune": "--before 1d",
    "export": "exported",
    "import": "made",
    "verify-export": "made",
    "backup": "backed",
    "restore": "missing -s new",
    "import-irc": "2013-01-07.txt",
    "archive announce": "magnet:?",
    "archive content": "archives --listen nonsense",
    "archive content delete": "zDv --content-folder missing",
    "archive create": "weeks",
    "archive fetch": "magnet:? fetched",
    "archive import": "archives",
    "archive list": "archives",
    "archive make": "archives missing",
    "archive publish": "archives",
    "archive run": "archives --listen nonsense",
    "archive seed": "archives --community 00",
    "archive status": "archives",
    "archive verify": "archives",
    "demo": "--logs missing",
    "completion": "bash",
    "share": "store",
}
"""Arguments of the commands that need some. All others get only a store."""
INVALID: Final = frozenset(
    [
        "delete",
        "show",
        "role",
        "hide",
        "unhide",
        "drop",
        "undrop",
        "block",
        "unblock",
        "chat",
        "connect",
        "inspect",
        "peers",
        "policy",
        "serve",
        "sync",
        "reconcile",
        "reindex",
        "tables",
        "restore",
        "demo",
    ]
    + [
        f"archive {part}"
        for part in [
            "announce",
            "content",
            "content delete",
            "fetch",
            "import",
            "list",
            "make",
            "publish",
            "run",
            "seed",
            "status",
            "verify",
        ]
    ]
)
"""Commands for which these arguments are invalid, after all modules are loaded."""


def leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield the subcommands of a command, with their names."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for part in command.list_commands(context):
        found = command.get_command(context, part)
        assert found is not None
        yield from leaves(f"{name} {part}", found)


COMMANDS: Final = dict(leaf for name, command in load_all().items() for leaf in leaves(name, command))


def line_of(name: str) -> str:
    """Return the arguments for a test of the command."""
    arguments = f"{name} {ARGUMENTS.get(name, '')}"
    has_store = any(param.name == "path" for param in COMMANDS[name].params)
    return f"{arguments} -s store" if has_store and "-s " not in arguments else arguments


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store and input files of commands."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "2013-01-07.txt").write_text("[09:00] <ann> hello\n")
    with CableStore.open(folder / "store") as store:
        store.set_info(name="Me")
        for text in ("hello", "world"):
            store.post("default", text)
        store.export(folder / "made")
    with pytest.raises(SystemExit) as end:
        main(["archive", "create", f"{folder}/archives", "-s", f"{folder}/store"])
    assert not end.value.code
    return folder


def ended(folder: Path, line: str, **more: str) -> tuple[int, str]:
    """Run a line of bash. Returns the status of its first command, and its standard error."""
    found = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=os.environ | {"XDG_DATA_HOME": str(folder / "data")} | more,
    )
    return found.returncode, found.stderr


def tried(sample: Path, scratch: Path, name: str, streams: str) -> tuple[int, str, list[str]]:
    """Run a command on a copy of the sample. Returns its status, its errors and the files after it."""
    folder = shutil.copytree(sample, Path(tempfile.mkdtemp(dir=scratch)) / "copy")
    status, errors = ended(folder, f"{CABLESTORE} {line_of(name)} {streams}")
    made = sorted({str(path.relative_to(folder)) for path in folder.glob("*")})
    return status, errors, made


def require_status(name: str, kind: str, status: int, errors: str) -> None:
    assert status == (2 if name in INVALID else 0), (kind, errors)
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors


def test_the_arguments_of_these_tests_belong_to_existing_commands() -> None:
    assert set(ARGUMENTS) <= set(COMMANDS)


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_works_with_any_streams(
    sample: Path,
    tmp_path: Path,
    name: str,
    run: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    rng: random.Random,
) -> None:
    """The command leaves the same files as with usual streams. Its name determines the unusual ones."""
    monkeypatch.chdir(shutil.copytree(sample, tmp_path / "usual"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "usual" / "data"))
    run(*line_of(name).split())
    usual = sorted(path.name for path in Path().glob("*"))
    streams = rng.choice(("<&- >&- 2>/dev/full", STREAMS["a reader that stops"]))
    status, errors, made = tried(sample, tmp_path, name, streams)
    require_status(name, streams, status, errors)
    assert made == usual


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("no output", "export"),
        ("no output", "stats"),
        ("no errors", "archive create"),
        ("no errors", "hide"),
        ("nothing", "import"),
        ("nothing", "sync"),
        ("full errors", "backup"),
        ("full errors", "delete"),
        ("a reader that stops", "log"),
        ("a reader that stops", "users"),
    ],
)
def test_commands_of_each_kind_work_with_unusual_streams(sample: Path, tmp_path: Path, kind: str, name: str) -> None:
    """Commands that write a folder, print, or report bad input."""
    status, errors, _ = tried(sample, tmp_path, name, STREAMS[kind])
    require_status(name, kind, status, errors)


@pytest.mark.parametrize("command", ["--version", "dump -s store"])
def test_output_to_a_full_disk_is_reported_in_one_line_with_status_3(sample: Path, command: str) -> None:
    status, errors = ended(sample, f"{CABLESTORE} {command} >/dev/full")
    assert (status, len(errors.splitlines())) == (3, 1)
    assert FULL in errors


def test_a_command_completes_its_work_before_it_reports_a_full_disk(sample: Path, tmp_path: Path) -> None:
    status, errors = ended(sample, f"{CABLESTORE} import made -s '{tmp_path}/new' >/dev/full")
    assert (status, FULL in errors) == (3, True)
    with CableStore.open(tmp_path / "new", create=False) as store:
        assert len(store.messages("default").messages) == 2


def test_a_check_with_problems_reports_it_to_a_reader_that_stops(sample: Path, tmp_path: Path) -> None:
    shutil.copytree(sample / "made", tmp_path / "made")
    segment = next((tmp_path / "made").glob("posts-*"))
    segment.write_bytes(segment.read_bytes()[:-1])
    usual, _ = ended(tmp_path, f"{CABLESTORE} verify-export made")
    found, _ = ended(tmp_path, f"set -o pipefail; {CABLESTORE} verify-export made | :")
    assert usual == found != 0


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store whose listing does not fit into a pipe."""
    folder = tmp_path_factory.mktemp("long")
    with CableStore.open(folder / "store") as store:
        for number in range(1000):
            store.post("default", f"line {number} " + "x" * 100)
    return folder


@pytest.mark.parametrize(
    "command", ["log default -n 1000", "log default -n 1000 --json", "log default -f", "dump", "search line -n 100"]
)
def test_a_listing_ends_when_its_reader_stops(long_store: Path, command: str) -> None:
    line = f"set -o pipefail; {CABLESTORE} {command} -s store | head -c 1 >&2"
    assert ended(long_store, line)[0] == 0


def test_a_listing_beside_serve_ends_when_its_reader_stops(long_store: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(long_store, tmp_path / "copy")
    serving = subprocess.Popen(
        [sys.executable, "-m", "cablestore", "serve", "-s", "store", "--listen", "127.0.0.1:0"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until((folder / "store" / "control.sock").exists)
        for command in ("log default -n 1000 -f", "stats --json", "search line"):
            line = f"set -o pipefail; {CABLESTORE} {command} -s store | head -c 1 >&2"
            assert ended(folder, line)[0] == 0
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(LIMIT_S) == 0


@pytest.mark.thorough("2>&-", ">&-")
@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_serve_runs_with_closed_streams(sample: Path, tmp_path: Path, closed: str) -> None:
    folder = shutil.copytree(sample, tmp_path / "copy")
    line = f"exec {CABLESTORE} serve -s store --listen 127.0.0.1:0 {closed}"
    serving = subprocess.Popen(["bash", "-c", line], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until((folder / "store" / "control.sock").exists)
        status, errors = ended(folder, f"{CABLESTORE} post default three -s store {closed}")
        assert (status, errors) == (0, "")
        descriptors = Path(f"/proc/{serving.pid}/fd")
        assert all((descriptors / str(number)).readlink() == Path(os.devnull) for number in range(3))
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(LIMIT_S) == 0
    with CableStore.open(folder / "store") as store:
        assert store.check().problem_count == 0
        assert [message.text for message in store.messages("default").messages] == ["three", "world", "hello"]


def test_the_client_draws_on_its_screen_without_standard_error(sample: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sample, tmp_path / "copy")
    line = f"exec {CABLESTORE} chat -s store 2>&-"
    terminal = Terminal(["bash", "-c", line], folder)
    try:
        Screen(terminal).shows("hello")
        assert terminal.end(CTRL_Q) == 0
    finally:
        terminal.kill()


def test_a_file_is_never_opened_with_the_number_of_a_standard_stream(tmp_path: Path) -> None:
    """Output of libraries to descriptors 1 and 2 would overwrite such a file."""
    program = (
        "import os, pathlib, sys\n"
        "from cablestore.streams import open_standard_streams\n"
        "open_standard_streams()\n"
        "file = open('database', 'w+')\n"
        "print('printed'); os.write(1, b'out'); os.write(2, b'err'); os.system('echo child; echo child >&2')\n"
        "print(file.fileno(), pathlib.Path('database').read_bytes(), file=open('found', 'w'))\n"
    )
    status, _ = ended(tmp_path, f'"{sys.executable}" -c "{program}" <&- >&- 2>&-')
    number, content = (tmp_path / "found").read_text().split()
    assert (status, int(number) > 2, content) == (0, True, "b''")


def test_output_to_a_pipe_that_does_not_block_is_complete(long_store: Path) -> None:
    """Other programs that share a pipe or terminal can set its mode."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    command = [sys.executable, "-m", "cablestore", "log", "default", "-n", "1000", "-s", str(long_store / "store")]
    process = subprocess.Popen(command, stdout=writing, stderr=subprocess.DEVNULL)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor
        lines = pipe.read().splitlines()
    assert (process.wait(LIMIT_S), len(lines)) == (0, 1000)
