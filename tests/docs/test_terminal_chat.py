"""The terminal chat client: two people in two processes, each with a separate terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from folders import ROOT
from terminals import Terminal

from cablestore.peers import Address, Invitation

CLIENT = ROOT / "examples" / "terminal_chat.py"
Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts the client, always in the same folder."""
    started: list[Terminal] = []

    def begin(*arguments: str, piped: str | None = None) -> Terminal:
        started.append(Terminal([sys.executable, CLIENT, *arguments], tmp_path, piped=piped))
        return started[-1]

    yield begin
    for terminal in started:
        terminal.kill()


def test_two_clients_exchange_messages(start: Start, tmp_path: Path) -> None:
    """Messages, topics, names and deletions arrive live in both directions. Missed messages arrive later.

    The history outlives the process. Bob reads an invitation, first from standard input, then from a file.
    """
    key = bytes.fromhex("5a" * 32)
    (tmp_path / "key").write_text(str(Invitation(key)))
    ann = start("ann", "--listen", "127.0.0.1:0", "--invitation", "key")
    address = ann.shows(r"listening on (\S+)\s")[1]
    ann.shows("#default: ")
    ann.type("is anybody here?")
    invitation = str(Invitation(key, (Address.parse(address),)))
    (tmp_path / "invitation").write_text(invitation)
    bob = start("bob", "--invitation", "-", piped=invitation)
    bob.shows(r"\w{6} \d\d:\d\d <ann> is anybody here\?")
    bob.type("I am")
    slip = ann.shows(r"(\w{6}) \d\d:\d\d <bob> I am")[1]
    ann.type("/topic introductions")
    bob.shows("#default: introductions")
    ann.type("/name anna")
    bob.shows(r"\w{6} is called anna")
    bob.type(f"/delete {slip}")
    ann.shows(f"{slip} is deleted")
    assert bob.end() == 0
    ann.type("you are gone")
    ann.shows("<anna> you are gone")
    bob = start("bob", "--invitation", "invitation")
    bob.shows("<anna> you are gone")
    assert bob.end() == 0
    assert ann.end() == 0

    alone = start("bob")
    alone.shows("<anna> you are gone")
    shown = alone.text
    assert "#default: introductions" in shown
    assert "<anna> is anybody here?" in shown
    assert "I am" not in shown
    alone.type("/nonsense")
    alone.shows("/name NAME, /topic TEXT")
    alone.type("/name " + "x" * 33)
    alone.shows("33")
    alone.type("\x1b[2Jstill here")
    assert alone.end() == 0


@pytest.mark.thorough
def test_bad_input_is_reported_in_one_line(start: Start, tmp_path: Path) -> None:
    first = start("ann")
    first.shows("#default: ")
    second = start("ann")
    assert second.wait() == 1
    assert "is open in process" in second.text
    assert "Traceback" not in second.text
    (tmp_path / "invitation").write_text("cable:abab")
    for given, reason in (
        ("invitation", "expected a cabal key of 64 hex digits, got 4 characters"),
        ("gone", "No such file"),
    ):
        third = start("bob", "--invitation", given)
        assert third.wait() == 1
        assert reason in third.text
        assert "Traceback" not in third.text
    fourth = start("bob", "--connect", "nowhere:x")
    assert fourth.wait() == 1
    assert "Traceback" not in fourth.text
    assert not (tmp_path / "bob").exists()
    assert first.end() == 0
