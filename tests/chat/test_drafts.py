"""Drafts survive the end of the client, however it ends, and the terminal is usable afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from terminals import CTRL_Q, Screen, Start, Terminal
from waiting import wait_until

from cablestore import CableStore
from cablestore.remote.unix_socket import NAME as SOCKET

BEGUN = "a long text that I began"


def start_typing(start_chat: Start, *arguments: str) -> Terminal:
    client = start_chat("-s", "ann", *arguments)
    sees = Screen(client)
    sees.shows("Write a message")
    client.press(BEGUN)
    sees.shows(BEGUN)
    return client


def draft_of(path: Path) -> str:
    with CableStore.open(path, create=False) as store:
        return store.local.draft("default")


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "status"), [(signal.SIGHUP, 0), (signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_client_cleanly(start_chat: Start, tmp_path: Path, number: int, status: int) -> None:
    """The test includes a signal while a window is open."""
    client = start_typing(start_chat)
    client.press("\x1bOP")
    wait_until(lambda: "Keys and commands" in client.text)
    os.kill(client.process.pid, number)
    assert client.process.wait() == status
    wait_until(lambda: client.is_restored)
    client.wait()
    assert "Traceback" not in client.text
    assert not (tmp_path / "ann" / SOCKET).exists()
    assert draft_of(tmp_path / "ann") == BEGUN


def test_a_closed_window_ends_the_client_cleanly(start_chat: Start, tmp_path: Path) -> None:
    client = start_typing(start_chat)
    assert (tmp_path / "ann" / SOCKET).exists()
    assert client.close_window() == 0
    assert not (tmp_path / "ann" / SOCKET).exists()
    assert draft_of(tmp_path / "ann") == BEGUN


@pytest.mark.thorough
def test_a_draft_is_written_to_the_disk_during_typing(start_chat: Start, tmp_path: Path) -> None:
    """A killed client therefore loses no text. Sent text leaves no draft."""
    client = start_typing(start_chat)
    wait_until(lambda: any(BEGUN.encode() in file.read_bytes() for file in (tmp_path / "ann").rglob("*.log")))
    client.process.kill()
    client.wait()
    assert draft_of(tmp_path / "ann") == BEGUN
    client = start_chat("-s", "ann")
    sees = Screen(client)
    sees.shows(BEGUN)
    client.press("\r")
    sees.shows("Write a message")
    assert client.end(CTRL_Q) == 0
    assert draft_of(tmp_path / "ann") == ""
