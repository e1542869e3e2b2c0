"""The tutorials: the commands of each page run in order in a new folder, and print the output on the page."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from documents import blocks, blocks_in_order
from folders import ROOT
from inspecting import request
from serving import environment, fetch
from terminals import Terminal, screen_of
from waiting import wait_until

CHAT_CLIENT = "docs/tutorial/chat-client.md"
PEER = "docs/tutorial/run-a-peer.md"
INSIDE = "docs/tutorial/see-how-a-store-works.md"
PREFIX: Final = Path(sys.prefix)
OTHERS = re.compile(
    r"\b[0-9a-f]{6,}\b|\b\d\d:\d\d\b|\w+ \d+ \w+ 20\d\d|─+|[0-9,]+(?= rows| bytes)", flags=re.IGNORECASE
)
"""Hashes, keys, times, sizes and rules across the terminal, which differ between runs."""


def is_printed(page: str, printed: str) -> bool:
    """Return True if the output matches the page. `...` matches any text; white space and `OTHERS` are ignored."""
    expected, got = ("\n".join(OTHERS.sub("?", text).split()) + "\n" for text in (page, printed))
    return doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS)


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def test_outputs_are_compared_without_variable_parts() -> None:
    assert is_printed("5ab64a 21:11 <ann> hello\n", "77c001 00:59 <ann> hello")
    assert not is_printed("5ab64a 21:11 <ann> hello\n", "77c001 00:59 <5ab64a12> hello")
    assert is_printed("a hash: 5ab64a\n", "a hash: fccecb\n"), "one of 300 hashes contains no decimal digit"
    assert not is_printed("6 posts came\n", "5 posts came\n")


# --- a chat client --------------------------------------------------------------------------------


class Reader:
    """Reader of the first tutorial: one folder, one growing file, a Python shell, and the terminals of two people."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.terminals: dict[str, Terminal] = {}
        self._places = {"13333": free_port(), "192.0.2.7": "127.0.0.1", "0.0.0.0": "127.0.0.1"}

    def save(self, code: str) -> None:
        """Append a block to the file."""
        with (self.folder / "chat.py").open("a") as file:
            file.write(code + "\n\n")

    def type_in_python(self, session: str) -> None:
        """Enter a session into `python -i chat.py`, and compare its output with the page."""
        typed = [line for line in session.splitlines() if line.startswith((">>>", "..."))]
        shown = [line for line in session.splitlines() if not line.startswith((">>>", "..."))]
        done = subprocess.run(
            [".venv/bin/python", "-i", "chat.py"],
            cwd=self.folder,
            env=environment(),
            input="\n".join(line[4:] for line in typed) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Error" not in done.stderr, done.stderr
        assert is_printed("\n".join(shown), done.stdout), (session, done.stdout)

    def type(self, line: str) -> None:
        """Enter a line into a shell. A line that starts the client opens a new terminal."""
        for written, here in self._places.items():
            line = line.replace(written, here)
        words = shlex.split(line)
        if line == "python3 -m venv .venv":
            (self.folder / ".venv").symlink_to(PREFIX, target_is_directory=True)
        elif words[0] == ".venv/bin/pip":
            assert words[1:] == ["install", "PATH-OF-CABLESTORE[cli]", "prompt_toolkit"]  # already installed
        elif words[:2] == [".venv/bin/python", "chat.py"]:
            self.terminals[words[2]] = Terminal([str(self.folder / words[0]), *words[1:]], self.folder)
        elif line != ".venv/bin/python -i chat.py":  # its session is the next block
            subprocess.run(line, shell=True, cwd=self.folder, env=environment(), check=True, capture_output=True)

    def end(self, name: str) -> None:
        """Press Ctrl-D in a person's terminal."""
        assert self.terminals.pop(name).end() == 0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path)
    yield found
    for terminal in found.terminals.values():
        terminal.kill()


def talk(reader: Reader) -> None:
    """Follow step 5: write in both terminals, try the commands, end one client, write in the other, restart one."""
    ann, bob = reader.terminals["ann"], reader.terminals["bob"]
    for each in (ann, bob):
        each.shows("<ann> hello, world")
    bob.type("hello, ann")
    digits = ann.shows(r"(\w{6}) \d\d:\d\d <bob> hello, ann")[1]
    ann.type("hello, bob")
    bob.shows("<ann> hello, bob")
    bob.type("/topic tea alone")
    ann.shows("#default: tea alone")
    bob.type(f"/delete {digits}")
    ann.shows(f"{digits} is deleted")
    ann.type("/name anna")
    bob.shows("is called anna")
    ann.type("/name ann")
    reader.end("bob")
    ann.type("you are gone")
    ann.shows("<ann> you are gone")


def meet_again(reader: Reader) -> None:
    ann, bob = reader.terminals["ann"], reader.terminals["bob"]
    bob.shows("<ann> you are gone")
    bob.type("I am back")
    ann.shows("<bob> I am back")
    reader.end("bob")
    reader.end("ann")


def test_the_sessions_print_the_output_of_the_page(reader: Reader) -> None:
    """Runs the blocks of the page up to the first start of the client."""
    sessions = 0
    for language, text in blocks_in_order(CHAT_CLIENT):
        if language == "python":
            reader.save(text)
        elif language == "pycon":
            reader.type_in_python(text)
            sessions += 1
        elif "chat.py ann" not in text:
            for line in text.splitlines():
                reader.type(line)
        else:
            break
    assert sessions == 4


@pytest.mark.thorough
def test_the_chat_client_works_at_each_step_of_the_page(reader: Reader) -> None:
    """Both people follow all steps with one store each. ann writes in step 1, bob fetches in step 4."""
    for language, text in blocks_in_order(CHAT_CLIENT):
        if language == "python":
            reader.save(text)
        elif language == "pycon":
            reader.type_in_python(text)
        else:
            for line in text.splitlines():
                reader.type(line)
                if "chat.py bob --connect" in line:
                    talk(reader)
                    reader.type(line)
                if "chat.py bob" in line:
                    meet_again(reader)
                if "invite" in line and "chat.py" not in line:
                    assert (reader.folder / "invitation").stat().st_mode & 0o077 == 0
    assert not reader.terminals


def test_the_chat_client_of_the_page_equals_the_example() -> None:
    page = "\n\n\n".join(block.rstrip("\n") for block in blocks(CHAT_CLIENT)) + "\n"
    assert page == (ROOT / "examples" / "terminal_chat.py").read_text()


# --- a peer ---------------------------------------------------------------------------------------


class Peers:
    """The commands of the page in a folder. `serve` runs until it is stopped, on free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports: dict[str, str] = {}
        self.served: list[subprocess.Popen[str]] = []

    def type(self, line: str, page: str) -> None:
        """Enter a line into a shell, and compare its output with the page."""
        for written, port in self.ports.items():
            line = line.replace(written, port)
        if line.startswith("cablestore serve"):
            self._serve(line)
        elif line.split()[1] in ("log", "stats") or line.startswith("curl "):  # posts of other users arrive later
            wait_until(lambda: is_printed(page, self._run(line)), lambda: f"{page}\nis not\n{self._run(line)}")
        else:
            found = self._run(line)
            assert is_printed(page, found), (line, page, found)

    def _run(self, line: str) -> str:
        if line.startswith("curl "):
            status, text = fetch(line.split()[1])
            assert status == 200
            return text
        line = line.replace("cablestore", f"{shlex.quote(sys.executable)} -m cablestore", 1)
        terminal = Terminal(["env", "-u", "CABLESTORE_STORE", "sh", "-c", line], self.folder)
        assert terminal.wait() == 0, (line, terminal.text)
        return "\n".join(screen_of(terminal.bytes, terminal.size[0]))

    def _serve(self, line: str) -> None:
        listening = re.findall(r"(?:--listen|--metrics) (\S+)", line)
        words = [sys.executable, "-m", *shlex.split(line), "--json"]
        process = subprocess.Popen(
            ["127.0.0.1:0" if word in listening else word for word in words],
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.served.append(process)
        assert process.stdout is not None
        for _ in listening:
            addresses = json.loads(process.stdout.readline())
            written = re.search(rf"--{'metrics' if 'metrics' in addresses else 'listen'} (\S+)", line)
            assert written is not None
            self.ports[written[1]] = next(iter(addresses.values()))
        store = words[words.index("-s") + 1]
        wait_until((self.folder / store / "control.sock").exists)

    def stop(self) -> None:
        """Press Ctrl-C in each terminal that runs `serve`."""
        while self.served:
            process = self.served.pop()
            process.send_signal(signal.SIGINT)
            assert process.wait() == 128 + signal.SIGINT
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    found = Peers(tmp_path)
    yield found
    for process in found.served:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def typed_and_printed(session: str) -> list[tuple[str, str]]:
    """Return each command of a block with the lines below it."""
    return [(found[0], found[1]) for found in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, flags=re.MULTILINE)]


@pytest.mark.thorough
def test_the_commands_of_the_peer_page_work(peers: Peers) -> None:
    commands = list[str]()
    for step in re.split(r"^## Step \d", (ROOT / PEER).read_text(), flags=re.MULTILINE)[1:]:
        if "Stop both peers with Ctrl-C" in step:
            peers.stop()
        for session in re.findall(r"```console\n(.*?)```", step, flags=re.DOTALL):
            for command, printed in typed_and_printed(session):
                commands.append(command)
                peers.type(command, printed)
    assert sum("cablestore" in command for command in commands) > 10
    assert len(bytes.fromhex((peers.folder / "cabal-key").read_text())) == 32
    served = next(command for command in commands if "--listen" in command)
    peers.type(served, "")  # "Start `serve` again as in step 2"
    peers.type("cablestore log default -s home", "...this peer is always here...and this one is not...")
    peers.stop()
    shutil.rmtree(peers.folder / "backup")


# --- how a store works ----------------------------------------------------------------------------


class Looking:
    """The commands of the page in a folder, and the page that `inspect` shows, as JSON."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self._digits: dict[str, str] = {}

    def type(self, line: str, page: str) -> None:
        """Enter a line into a shell, and compare its output with the page."""
        for written, here in self._digits.items():
            line = line.replace(written, here)
        words = [sys.executable, "-m", *shlex.split(line)]
        if words[3] == "inspect":
            self._show([*words, "--listen", "127.0.0.1:0", "--json", "--no-open"])
            return
        done = subprocess.run(words, cwd=self.folder, env=environment(), capture_output=True, text=True, check=True)
        assert is_printed(page, done.stdout + done.stderr) or is_printed(page, done.stderr + done.stdout), (line, done)
        posted = r"posted \((\w+)\)"
        self._digits |= dict(zip(re.findall(posted, page), re.findall(posted, done.stdout), strict=True))

    def _show(self, words: list[str]) -> None:
        self.process = subprocess.Popen(words, cwd=self.folder, env=environment(), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._url, _, self._token = json.loads(self.process.stdout.readline())["inspect"].partition("/?token=")

    def read(self, path: str) -> dict[str, Any]:
        """Return the data of a page."""
        found: dict[str, Any] = request(f"{self._url}{path}", token=self._token).json
        return found

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each view on the overview."""
        return {each["view"]: each["rows"] for each in self.read("/?format=json")["views"]}

    def end(self) -> None:
        """Press Ctrl-C in the terminal of the page."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait() == 128 + signal.SIGINT
        self.close()

    def close(self) -> None:
        """End the page."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture
def looking(tmp_path: Path) -> Iterator[Looking]:
    found = Looking(tmp_path)
    yield found
    found.close()


def test_the_commands_of_the_store_page_print_its_output(looking: Looking) -> None:
    text = (ROOT / INSIDE).read_text()
    counted = {
        view: (int(before), int(after))
        for view, before, after in re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \|", text, flags=re.MULTILINE)
    }
    assert len(counted) == 10
    for number, step in enumerate(re.split(r"^## Step \d", text, flags=re.MULTILINE)[1:], 1):
        for session in re.findall(r"```console\n(.*?)```", step, flags=re.DOTALL):
            for command, printed in typed_and_printed(session):
                looking.type(command, printed)
        if number in {2, 3}:
            found = looking.rows()
            assert {view: found.get(view, 0) for view in counted} == {
                view: rows[number - 2] for view, rows in counted.items()
            }
    nodes = looking.read("/graph?name=default&format=json")["nodes"]
    assert [node["state"] for node in nodes] == ["stored", "stored", "deleted", "stored"]
    assert [node["is_head"] for node in nodes] == [False, False, False, True]
    assert {each["kind"] for each in looking.read("/log?format=json")["events"]} == {"accepted", "deleted"}
    looking.end()
