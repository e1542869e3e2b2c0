"""Commands while another process has the store open, with real processes and sockets."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from commands import run_command
from folders import SUPPORT
from serving import HERE, Served, hang
from terminals import on_a_terminal
from waiting import LIMIT_S

import cablestore as cablestore_package
from cablestore import CableStore, connect, offer
from cablestore.remote.unix_socket import NAME
from cablestore.store.changes import UnreadChanged

CHILD = SUPPORT / "control_child.py"
HASTY = "from cablestore import limits; limits.REMOTE_TIMEOUT_S = 4.0; from cablestore.__main__ import main; main()"
"""Code of a command with a short timeout."""


def cablestore(*arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    return run_command(arguments, environment(store))


def environment(store: Path) -> dict[str, str]:
    return os.environ | {"CABLESTORE_STORE": str(store), "PYTHONUNBUFFERED": "1"}


@contextmanager
def holding(store: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process that has the store open and serves it."""
    command = [sys.executable, str(CHILD), str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield child
        assert child.stdin is not None
        with suppress(BrokenPipeError):
            child.stdin.close()
        assert child.wait(LIMIT_S) in (0, -signal.SIGKILL)


@contextmanager
def following(store: Path, *options: str, is_hasty: bool = False) -> Iterator[subprocess.Popen[str]]:
    program = ["-c", HASTY] if is_hasty else ["-m", "cablestore"]
    command = [sys.executable, *program, "log", "default", "--follow", "--json", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(store)
    ) as follower:
        try:
            yield follower
        finally:
            follower.kill()


def texts(follower: subprocess.Popen[str], number: int) -> list[str]:
    assert follower.stdout is not None
    return [json.loads(follower.stdout.readline())["text"] for _ in range(number)]


def first_hash(folder: Path, *, by_me: bool) -> str:
    with CableStore.open(folder) as store:
        found = store.messages("default", 10, newest_first=False).messages
        return next(m.hash.hex() for m in found if (m.author == store.identity.public_key) is by_me)


READING = [
    ["channels"],
    ["users"],
    ["users", "--channel", "default"],
    ["log", "default"],
    ["log", "default", "-n", "2", "--oldest"],
    ["log", "default", "--causal"],
    ["log", "default", "--after", "1h"],
    ["log", "default", "--before", "2023-01-01"],
    ["log", "nowhere"],
    ["stats"],
    ["identity"],
    ["show", "HASH"],
    ["show", "HA"],
    ["show", "zz"],
    ["show", "0" * 64],
    ["delete", "HASH"],
    ["delete", "abcdef0123"],
    ["post", "x" * 65, "text"],
    ["post", "", "text"],
    ["topic", "default", "x" * 513],
    ["name", "x" * 33],
    ["log", "default", "-n", "0"],
    ["log", "default", "--after", "yesterday"],
    ["identity", "--export", "."],
    ["name", "\udcff"],
    ["log", "\udcff"],
    ["post", "default", "\udcff"],
]


@pytest.mark.thorough
def test_output_and_errors_beside_a_server_are_identical(
    folder: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = first_hash(folder, by_me=False)
    for words in READING:
        words[:] = [digest if word == "HASH" else digest[:8] if word == "HA" else word for word in words]
    commands = [*READING, *([*words, "--json"] for words in READING[:6])]

    monkeypatch.setenv("CABLESTORE_STORE", str(folder))
    with holding(folder):
        served = [run(*words) for words in commands]
    with CableStore.open(folder) as store:
        assert store.check().is_clean
    alone = [run(*words) for words in commands]
    for words, one, other in zip(commands, served, alone, strict=True):
        assert one == other, words
    assert {status for status, _, _ in served} == {0, 2}
    assert not any("Traceback" in errors for _, _, errors in served)


@pytest.mark.thorough
def test_writing_commands_have_the_same_output_beside_a_server(
    folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two equal stores, the same commands: the output differs only in hashes and times."""
    mirror = tmp_path / "mirror"
    shutil.copytree(folder, mirror)
    mine = first_hash(folder, by_me=True)
    day = [
        (["name", "Somebody"], ""),
        (["post", "new", "hello,", "world"], ""),
        (["post", "new"], "from\na pipe \U0001f469 \x1b[2J\n"),
        (["post", "new", ""], "x" * 4097),
        (["topic", "new", "all", "about"], ""),
        (["topic", "new"], ""),
        (["topic", "new", ""], ""),
        (["leave", "default"], ""),
        (["join", "default"], ""),
        (["delete", mine[:10]], ""),
        (["users", "--channel", "default"], ""),
        (["show", mine], ""),
        (["identity", "--export", str(tmp_path / "key")], ""),
    ]

    def without_hashes(text: str) -> str:
        return "".join("#" if c in "0123456789abcdef" else c for c in text)

    with holding(folder):
        for number, (words, given) in enumerate(day):
            more = ["--json"] if number % 3 == 0 else []
            found = []
            for store in (folder, mirror):
                monkeypatch.setenv("CABLESTORE_STORE", str(store))
                monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode()), "utf-8"))
                found.append(run(*words, *more))
                (tmp_path / "key").unlink(missing_ok=True)
            served, alone = ((status, without_hashes(out), without_hashes(errors)) for status, out, errors in found)
            assert served == alone, words
    with CableStore.open(folder) as one, CableStore.open(mirror) as other:
        assert one.check().is_clean
        for channel in ("default", "new"):
            assert [m.text for m in one.messages(channel).messages] == [
                m.text for m in other.messages(channel).messages
            ]
        assert one.stats().posts == other.stats().posts


@pytest.mark.thorough
def test_a_terminal_shows_the_same_colours_and_columns(folder: Path) -> None:
    cases: list[tuple[list[str], dict[str, str]]] = [
        (["log", "default"], {"TZ": "Asia/Tokyo"}),
        (["log", "default"], {"NO_COLOR": "1"}),
        (["channels"], {"TERM": "dumb"}),
        (["log", "nowhere"], {}),
    ]
    alone = [on_a_terminal(words, folder, columns=60, **more) for words, more in cases]
    with holding(folder):
        served = [on_a_terminal(words, folder, columns=60, **more) for words, more in cases]
    assert served == alone
    assert [b"\x1b[" in said for said in served] == [True, True, False, True]


@pytest.mark.thorough
def test_a_follower_shows_posts_of_other_clients_and_of_the_owner(folder: Path) -> None:
    with holding(folder) as holder, following(folder, "-n", "1") as one, following(folder, "-n", "2") as two:
        assert texts(one, 1) == ["mine"]
        assert texts(two, 2)[-1] == "mine"
        assert cablestore("post", "default", "from a client", store=folder).returncode == 0
        assert cablestore("post", "other", "elsewhere", store=folder).returncode == 0
        assert holder.stdin is not None
        holder.stdin.write("from the holder\n")
        holder.stdin.flush()
        for follower in (one, two):
            assert texts(follower, 2) == ["from a client", "from the holder"]
            follower.send_signal(signal.SIGINT)
            assert follower.wait(LIMIT_S) == 130
            assert follower.stderr is not None
            assert follower.stderr.read().strip() == "interrupted: stored data is kept"


def test_a_follower_continues_when_a_file_disappears_before_it_is_checked(folder: Path) -> None:
    """The writing LevelDB process removes files at any time. A dangling link simulates such a file."""
    (folder / "generation-000001" / "gone").symlink_to(folder / "nowhere")
    with following(folder, "-n", "1") as follower:
        assert texts(follower, 1) == ["mine"]
        assert cablestore("post", "default", "more", store=folder).returncode == 0
        assert texts(follower, 1) == ["more"]


@pytest.mark.thorough
def test_a_follower_continues_when_a_server_opens_the_store(folder: Path) -> None:
    with following(folder, "-n", "1") as follower:
        assert texts(follower, 1) == ["mine"]
        with holding(folder):
            for word in ("one", "two"):
                assert cablestore("post", "default", word, store=folder).returncode == 0
                assert texts(follower, 1) == [word]


@pytest.mark.thorough
@pytest.mark.parametrize("is_killed", [True, False])
def test_the_exit_of_a_server_is_reported_in_one_line_with_status_3(folder: Path, is_killed: bool) -> None:
    with holding(folder) as holder, following(folder, "-n", "1") as follower:
        assert texts(follower, 1) == ["mine"]
        if is_killed:
            holder.kill()
        else:
            assert holder.stdin is not None
            holder.stdin.close()
        assert follower.wait(LIMIT_S) == 3
        assert follower.stderr is not None
        [line] = follower.stderr.read().splitlines()
        ended = f"cablestore: process {holder.pid}, which had the store open, ended before it answered. The "
        assert line.removeprefix(ended) in ("read changed nothing", "call was not run")
        holder.wait(LIMIT_S)
    assert (folder / NAME).exists() is is_killed
    # The socket of a killed process does not block: commands open the store, and the next server replaces it.
    assert cablestore("post", "default", "after", store=folder).returncode == 0
    with holding(folder):
        assert '"after"' in cablestore("log", "default", "-n", "1", "--json", store=folder).stdout
    assert not (folder / NAME).exists()


@contextmanager
def waiting_for(holder: subprocess.Popen[str], folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command beside a stopped process until it reports that it waits."""
    with subprocess.Popen(
        [sys.executable, "-c", HASTY, *command], stderr=subprocess.PIPE, text=True, env=environment(folder)
    ) as client:
        assert client.stderr is not None
        expected = f"cablestore: waiting for process {holder.pid}, which has the store open, but does not answer\n"
        assert client.stderr.readline() == expected
        yield client


@pytest.mark.thorough("9", "None")
@pytest.mark.parametrize("end", [None, signal.SIGINT, signal.SIGKILL])
def test_an_abandoned_command_is_not_run_later(folder: Path, end: signal.Signals | None) -> None:
    with holding(folder) as holder:
        hang(holder)
        try:
            with waiting_for(holder, folder, "post", "default", "given up") as client:
                if end is not None:
                    client.send_signal(end)
                status = client.wait(LIMIT_S)
                assert client.stderr is not None
                said = client.stderr.read()
        finally:
            holder.send_signal(signal.SIGCONT)
        assert status == {None: 3, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}[end]
        assert ("does not answer. Nothing was run" in said) is (end is None)
        assert cablestore("post", "default", "later", store=folder).returncode == 0
    with CableStore.open(folder) as store:
        assert [message.text for message in store.messages("default").messages][:2] == ["later", "mine"]


@pytest.mark.thorough
def test_a_command_about_the_node_of_a_hanging_owner_times_out(folder: Path) -> None:
    with holding(folder) as holder:
        hang(holder)
        try:
            with waiting_for(holder, folder, "connect") as client:
                assert client.wait(LIMIT_S) == 3
                assert client.stderr is not None
                assert "does not answer. Nothing was run" in client.stderr.read()
        finally:
            holder.send_signal(signal.SIGCONT)


def test_a_command_times_out_if_its_owner_hangs(folder: Path) -> None:
    with holding(folder) as holder, following(folder, "-n", "1", is_hasty=True) as follower:
        assert texts(follower, 1) == ["mine"]
        hang(holder)
        try:
            assert follower.wait(LIMIT_S) == 3
        finally:
            holder.send_signal(signal.SIGCONT)
        assert follower.stderr is not None
        given_up = f"cablestore: process {holder.pid} has the store open, but does not answer. The read changed nothing"
        assert follower.stderr.read().splitlines()[-1] == given_up


@pytest.mark.thorough
def test_a_long_command_does_not_time_out(folder: Path) -> None:
    """The process that runs the command answers pings."""
    with holding(folder) as holder, following(folder, "-n", "1", is_hasty=True) as follower:
        assert texts(follower, 1) == ["mine"]
        time.sleep(3)
        assert holder.stdin is not None
        holder.stdin.write("after a while\n")
        holder.stdin.flush()
        assert texts(follower, 1) == ["after a while"]


def test_a_stale_socket_does_not_hide_the_owner_of_the_store(folder: Path) -> None:
    with holding(folder) as holder:
        holder.kill()
    with CableStore.open(folder):
        found = cablestore("channels", store=folder)
    assert found.returncode == 2
    assert f"is open in process {os.getpid()}" in found.stderr


@pytest.mark.thorough
def test_commands_that_need_a_closed_store_report_that_it_is_open(folder: Path) -> None:
    with CableStore.open(folder) as store, offer(store):
        found = cablestore("rebuild", store=folder)
        assert found.returncode == 2
        assert "Only one process at a time" in found.stderr
        assert cablestore("check", store=folder).returncode == 0


@pytest.mark.thorough
def test_an_open_store_can_be_maintained(folder: Path) -> None:
    with holding(folder):
        served = cablestore("dump", "--digest", store=folder)
        assert cablestore("compact", store=folder).returncode == 0
        assert "posts" in cablestore("prune", "--keep", "1", store=folder).stdout
        rest = cablestore("dump", "--digest", store=folder).stdout
    assert (served.returncode, served.stderr) == (0, "")
    assert served.stdout != rest == cablestore("dump", "--digest", store=folder).stdout


@pytest.mark.thorough
def test_a_store_with_a_long_path_is_served(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "t"
    scratch.mkdir()
    long = tmp_path.joinpath(*["a folder with a very long name \u00e9" * 3] * 3)
    long.parent.mkdir(parents=True)
    folder.rename(long)
    with holding(long):
        assert stat.S_IMODE((long / NAME).stat().st_mode) == 0o600
        found = cablestore("post", "default", "x", store=long)
        assert (found.returncode, found.stderr) == (0, "")
        monkeypatch.chdir(long)
        assert "mine" in cablestore("log", "default", store=Path()).stdout
    assert not list(long.parent.glob("cablestore-*"))


@pytest.mark.thorough
def test_many_concurrent_clients_write(folder: Path) -> None:
    def client(number: int) -> int:
        found = cablestore("post", "default", f"number {number}", store=folder)
        assert found.stderr == ""
        return found.returncode

    with holding(folder) as holder:
        assert holder.stdin is not None
        for number in range(50):
            holder.stdin.write(f"own {number}\n")
        holder.stdin.flush()
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(client, range(8))) == {0}
    with CableStore.open(folder) as store:
        assert store.check(signatures=True).is_clean
        found = [m.text for m in store.messages("default", 1000).messages]
        assert sorted(text for text in found if text.startswith("number")) == sorted(f"number {n}" for n in range(8))


def test_the_progress_of_a_command_is_not_printed_by_the_server(folder: Path, tmp_path: Path) -> None:
    """The terminal and the log of the owner are separate from those of the command."""
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, str(CHILD), str(folder)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"FORCE_COLOR": "1"},
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            for arguments in ([], ["--check"]):
                done = cablestore("backup", str(tmp_path / "backup"), *arguments, store=folder)
                assert done.returncode == 0, done.stderr
            child.communicate(timeout=LIMIT_S)
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.thorough
def test_serve_handles_all_commands_after_its_program_files_are_replaced(
    folder: Path, tmp_path: Path, serving: Callable[..., Served]
) -> None:
    """An upgrade in place: the process continues with its loaded modules."""
    shutil.copytree(Path(cablestore_package.__file__).parent, tmp_path / "copy" / "cablestore")
    copied = {"PYTHONPATH": str(tmp_path / "copy"), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    served = serving(folder, "--listen", HERE, **copied)
    assert served.address
    shutil.rmtree(tmp_path / "copy")
    for words in (
        ["post", "default", "after"],
        ["log", "default"],
        ["search", "after"],
        ["export", str(tmp_path / "export")],
        ["import", str(tmp_path / "export")],
        ["backup", str(tmp_path / "backup")],
        ["archive", "create", str(tmp_path / "archives")],
        ["prune", "--keep", "1"],
        ["compact"],
    ):
        done = cablestore(*words, store=folder)
        assert done.returncode == 0, (words, done.stderr)
    with connect(folder) as store:
        start = store.cursor
        store.mark_read("default")
        assert next(store.changes(after=start, timeout_s=LIMIT_S)) == UnreadChanged("default")
        assert store.rebuild().has_all_posts
        assert store.check().is_clean
    assert served.stop() == 0


@pytest.mark.thorough
def test_commands_use_the_store_that_a_program_offers(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store, offer(store):
        done = cablestore("post", "garden", "hello", store=tmp_path / "store")
        assert (done.returncode, done.stderr) == (0, "joined garden\n")
        assert [message.text for message in store.messages("garden").messages] == ["hello"]
