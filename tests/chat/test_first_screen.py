"""First screen of a newcomer: a client on a new store, alone and beside `serve`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from serving import HERE, KEY, Served
from terminals import CTRL_Q, CTRL_Y, Screen, Start, Terminal
from waiting import wait_until

from cablestore import CableStore

Serve = Callable[..., Served]


def vanishes(sees: Screen, part: str) -> None:
    wait_until(lambda: part not in sees.text, lambda: f"{part!r} in\n{sees.text}")


@pytest.mark.thorough("True")
@pytest.mark.parametrize("is_served", [False, True])
def test_the_first_screen_shows_the_key_and_the_next_steps(
    start_chat: Start, serving: Serve, tmp_path: Path, is_served: bool
) -> None:
    node = ("--listen", HERE, "--cabal-key", KEY)
    server = serving(tmp_path / "rakes", "--create", *node) if is_served else None
    if server is not None:
        server.address  # noqa: B018 - it is ready
    client = start_chat("-s", "rakes", *(() if is_served else node))
    sees = Screen(client)
    digits = sees.finds(r"Youare([0-9a-f]{8}),thefirstdigitsofyourkey")[6:14]
    for line in (
        "No messages yet: write the first one",
        "/nick NAME sets your name",
        "This is #default in the cabal rakes",
        "Connection: no peers yet",
        "F4 shows the invitation",
        "/join CHANNEL opens another channel",
        "F1 shows all keys and commands",
    ):
        sees.shows(line)
    client.type("/nick ann")
    sees.shows(f"You are ann, key {digits}")
    vanishes(sees, "sets your name")
    client.type("hello")
    sees.shows("ann hello")
    vanishes(sees, "You are ann")
    client.type("/join garden")
    sees.shows("No messages yet")
    assert "You are ann" not in sees.text
    assert client.end(CTRL_Q) == 0
    assert server is None or server.stop() == 0


@pytest.mark.thorough
def test_the_first_screen_explains_how_to_connect_even_on_a_small_screen(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store\u202e"):
        pass
    client = Terminal([sys.executable, "-m", "cablestore", "chat", "-s", "store\u202e"], tmp_path, (50, 9))
    try:
        sees = Screen(client)
        sees.shows("No messages yet: write the first one")
        sees.shows("You are ")
        assert "\u202e".encode() not in client.bytes
        assert client.end(CTRL_Q) == 0
    finally:
        client.kill()
    client = Terminal([sys.executable, "-m", "cablestore", "chat", "-s", "other"], tmp_path, (80, 24))
    try:
        Screen(client).finds("Youareoffline.Toreachothers,starttheclientwith--listen,--connector--invitation")
        assert client.end(CTRL_Q) == 0
    finally:
        client.kill()


@pytest.mark.thorough
def test_the_first_screen_returns_when_the_only_message_is_deleted(start_chat: Start, tmp_path: Path) -> None:
    client = start_chat("-s", "store")
    sees = Screen(client)
    sees.shows("You are ")
    client.type("only mine")
    sees.shows("only mine")
    vanishes(sees, "You are ")
    client.type("/delete")
    sees.shows("Delete this message")
    client.press(CTRL_Y)
    sees.shows("You are ")
    assert client.end(CTRL_Q) == 0
