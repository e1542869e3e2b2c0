"""Two client processes on separate terminals exchange messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stores import outdate
from terminals import CTRL_Q, CTRL_Y, Screen, Start, Terminal

from cablestore import CableStore


@pytest.mark.thorough
def test_two_clients_exchange_messages(start_chat: Start, tmp_path: Path) -> None:
    """Live in both directions: messages, names, topics, channels, deletions. Both stores contain them afterwards."""
    key = tmp_path / "key"
    key.write_text("5a" * 32)
    ann = start_chat("-s", "ann", "--listen", "127.0.0.1:0", "--cabal-key", f"@{key}")
    ann_sees = Screen(ann)
    address = ann_sees.finds(r"127\.0\.0\.1:[1-9]\d*")
    ann.type("/nick ann")
    ann_sees.shows("yet   ann")
    ann.type("is anybody here?")
    ann_sees.shows("ann is anybody here?")
    bob = start_chat("-s", "bob", "--connect", address, "--cabal-key", f"@{key}")
    bob_sees = Screen(bob)
    bob_sees.shows("ann is anybody here?")
    bob_sees.shows("1 peer")
    ann_sees.shows("1 peer")
    bob.type("/nick bob")
    bob.type("I am")
    ann_sees.shows("bob I am")
    ann.type("/topic introductions")
    bob_sees.shows("#default  introductions")
    bob.type("/join garden")
    bob_sees.shows("No messages yet")
    bob.type("only weeds")
    ann_sees.shows("▸ 1 other channel")
    ann.type("/join garden")
    ann_sees.shows("bob only weeds")
    bob.type("/delete")
    bob_sees.shows("Delete this message")
    bob.press(CTRL_Y)
    bob_sees.shows("No messages yet")
    ann_sees.shows("No messages yet")
    assert bob.end(CTRL_Q) == 0
    ann_sees.shows("no peers yet")
    ann.type("/dance")
    ann_sees.shows("Unknown command /dance")
    assert ann.end(CTRL_Q) == 0

    with CableStore.open(tmp_path / "ann", create=False) as store:
        assert [m.text for m in store.messages("default", newest_first=False).messages] == ["is anybody here?", "I am"]
        assert store.messages("garden").messages == []
        assert store.topic("default") == "introductions"
        assert {user.name for user in store.users()} == {"ann", "bob"}
        assert store.check().problems == []


@pytest.mark.thorough
def test_bad_input_is_reported_in_one_line(start_chat: Start, tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "ann"):  # by a program that does not serve it
        second = start_chat("-s", "ann")
        assert second.wait() == 2
    assert "is open in process" in second.text
    assert "Traceback" not in second.text
    third = start_chat("-s", "bob", "--listen", "203.0.113.1:1")
    assert third.wait() == 2
    assert "203.0.113.1:1" in third.text
    assert "Traceback" not in third.text
    piped = subprocess.run(
        [sys.executable, "-m", "cablestore", "chat", "-s", "cyd"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert piped.returncode == 2
    assert "chat needs a terminal" in piped.stderr
    assert not (tmp_path / "cyd").exists()


@pytest.mark.thorough
def test_an_invitation_is_read_from_a_pipe(tmp_path: Path) -> None:
    """If the invitation comes from a pipe, keys come from the terminal, and Ctrl+Q exits the client."""
    command = [sys.executable, "-m", "cablestore", "chat", "-s", "ann", "--invitation", "-"]
    client = Terminal(command, tmp_path, piped="cable:" + "5a" * 32)
    try:
        sees = Screen(client)
        sees.shows("Write a message")
        client.type("from the keyboard")
        sees.shows("from the keyboard")
        assert client.end(CTRL_Q) == 0
    finally:
        client.kill()
    with CableStore.open(tmp_path / "ann", create=False) as store:
        assert [message.text for message in store.messages("default").messages] == ["from the keyboard"]


@pytest.mark.thorough
def test_a_store_of_an_earlier_version_is_opened(start_chat: Start, tmp_path: Path) -> None:
    """The client first rebuilds the views of the store."""
    CableStore.open(tmp_path / "store").close()
    outdate(tmp_path / "store")
    client = start_chat("-s", "store")
    Screen(client).shows("Write a message")
    assert client.end(CTRL_Q) == 0
    with CableStore.open(tmp_path / "store", create=False) as store:
        assert store.check().problems == []
