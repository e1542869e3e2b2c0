"""The tutorials, as they are on their pages: their programs, their sessions, their commands."""

from __future__ import annotations

import doctest
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from documents import blocks
from folders import ROOT
from serving import environment, fetch
from terminals import Terminal
from waiting import wait_until

from cablestore import CableStore
from cablestore.peers import Address, Invitation

CHAT_CLIENT = "docs/tutorial/chat-client.md"
PEER = "docs/tutorial/run-a-peer.md"
OTHERS = re.compile(r"\b[0-9a-f]{6} \d\d:\d\d (?:<[0-9a-f]{32}>)?|'[0-9a-f]{6}'")
"""Hashes, times and keys, which differ from run to run."""


class Checker(doctest.OutputChecker):
    """Compares output without what differs from run to run."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(OTHERS.sub("?", want), OTHERS.sub("?", got), optionflags)


def test_the_chat_client_grows_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each session runs with the code up to its step, in one folder."""
    monkeypatch.chdir(tmp_path)
    steps, sessions = blocks(CHAT_CLIENT), blocks(CHAT_CLIENT, "pycon")
    assert (len(steps), len(sessions)) == (5, 4)
    for number, session in enumerate(sessions, 1):
        names: dict[str, Any] = {"__name__": "chat"}
        exec(compile("\n\n".join(steps[:number]), "chat.py", "exec"), names)
        found = doctest.DocTestParser().get_doctest(session, names, f"step {number}", CHAT_CLIENT, 0)
        assert found.examples
        told: list[str] = []
        result = doctest.DocTestRunner(Checker(), verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE).run(
            found, out=told.append
        )
        assert result.failed == 0, "".join(told)


def test_the_chat_client_of_the_page_is_the_example() -> None:
    page = "\n\n\n".join(block.rstrip("\n") for block in blocks(CHAT_CLIENT)) + "\n"
    assert page == (ROOT / "examples" / "terminal_chat.py").read_text()


def test_two_terminals_talk_with_the_commands_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "chat.py").write_text("\n\n".join(blocks(CHAT_CLIENT)))
    commands = [line for text in blocks(CHAT_CLIENT, "sh") for line in text.splitlines() if "chat.py" in line]
    listening = next(shlex.split(line) for line in commands if "--listen" in line)
    connecting = next(shlex.split(line) for line in commands if "--connect" in line)
    ann = Terminal([sys.executable, *listening[1:-1], "127.0.0.1:0"], tmp_path)
    try:
        bob = Terminal([sys.executable, *connecting[1:-1], ann.shows(r"listening on (\S+)\s")[1]], tmp_path)
        try:
            bob.shows("is called ann")
            bob.type("hello, ann")
            ann.shows("<bob> hello, ann")
            assert (bob.end(), ann.end()) == (0, 0)
        finally:
            bob.kill()
    finally:
        ann.kill()


def test_two_terminals_talk_with_an_invitation(tmp_path: Path) -> None:
    (tmp_path / "chat.py").write_text("\n\n".join(blocks(CHAT_CLIENT)))
    commands = [line for text in blocks(CHAT_CLIENT, "sh") for line in text.splitlines() if "invitation" in line]
    inviting, listening, joining = (line.replace(".venv/bin/", f"{Path(sys.executable).parent}/") for line in commands)
    CableStore.open(tmp_path / "ann").close()
    subprocess.run(inviting, shell=True, cwd=tmp_path, check=True, capture_output=True)
    file = tmp_path / "invitation"
    invitation = Invitation.read(file)
    assert [str(peer) for peer in invitation.peers] == ["192.0.2.7:13333"]
    assert file.stat().st_mode & 0o077 == 0
    file.write_text(str(replace(invitation, peers=())))
    ann = Terminal(shlex.split(listening.replace("0.0.0.0:13333", "127.0.0.1:0")), tmp_path)
    try:
        address = Address.parse(ann.shows(r"listening on (\S+)\s")[1])
        file.write_text(str(replace(invitation, peers=(address,))))
        bob = Terminal(shlex.split(joining), tmp_path)
        try:
            bob.shows("is called ann")
            bob.type("hello, ann")
            ann.shows("<bob> hello, ann")
            assert (bob.end(), ann.end()) == (0, 0)
        finally:
            bob.kill()
    finally:
        ann.kill()


class Peers:
    """The commands of the page in a folder. What serves goes on; its ports are free ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports: dict[str, str] = {}
        self.served: list[subprocess.Popen[str]] = []

    def run(self, line: str) -> str:
        for written, port in self.ports.items():
            line = line.replace(written, port)
        if line.startswith("cablestore serve"):
            return self._serve(line)
        if line.startswith("curl "):
            status, text = fetch(line.split()[1])
            assert status == 200
            return text
        line = line.replace("cablestore", f"{shlex.quote(sys.executable)} -m cablestore")
        done = subprocess.run(
            line, shell=True, cwd=self.folder, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout

    def _serve(self, line: str) -> str:
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
            told = json.loads(process.stdout.readline())
            written = re.search(rf"--{'metrics' if 'metrics' in told else 'listen'} (\S+)", line)
            assert written is not None
            self.ports[written[1]] = next(iter(told.values()))
        return ""

    def stop(self) -> list[int]:
        """End what serves, and return its statuses."""
        for process in self.served:
            process.terminate()
        return [process.wait() for process in self.served]


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    found = Peers(tmp_path)
    yield found
    for process in found.served:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_peer_is_run_as_the_page_says(peers: Peers) -> None:
    steps = re.split(r"^## Step \d", (ROOT / PEER).read_text(), flags=re.MULTILINE)[1:]
    assert len(steps) == 5
    lines = [re.findall(r"^\$ (.*)$", step, flags=re.MULTILINE) for step in steps]
    assert all(lines)
    for line in lines[0]:
        peers.run(line)
    assert len((peers.folder / "cabal-key").read_text()) == 64
    served, *rest = lines[1]
    peers.run(served)
    assert "this peer is always here" in [peers.run(line) for line in rest][-1]
    served, [here, post, there] = lines[2][0], lines[2][1:]
    peers.run(served)
    wait_until((peers.folder / "laptop" / "control.sock").exists)
    wait_until(lambda: re.search("keeper +this peer is always here", peers.run(here)))
    peers.run(post)
    wait_until(lambda: "and this one is not" in peers.run(there))
    stats, health = [peers.run(line) for line in lines[3]]
    assert stats.startswith("5 posts in 1 channels")
    assert json.loads(health)["status"] == "ok"
    assert peers.stop() == [0, 0]
    check, *backup = [peers.run(line) for line in lines[4]]
    assert "all is well" in check
    assert all(backup)
