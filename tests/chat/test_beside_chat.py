"""Store that a client has open, without `serve`: commands and further clients of the same user work on it."""

from __future__ import annotations

import json
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import HERE, cablestore
from terminals import CTRL_Q, Screen, Start, Terminal
from waiting import wait_until

from cablestore import CableStore

SOCKET = "control.sock"


def ready(client: Terminal) -> Screen:
    screen = Screen(client)
    screen.shows("Write a message")
    return screen


def owner_among(clients: list[tuple[Terminal, Screen]], store: Path) -> tuple[Terminal, Screen] | None:
    """Return the client that has the store open, or None."""
    owner = (store / "lock").read_text().strip()
    return next((pair for pair in clients if str(pair[0].process.pid) == owner), None)


def quit_client(client: Terminal) -> None:
    assert client.end(CTRL_Q) == 0


def test_commands_work_beside_a_client(start_chat: Start, tmp_path: Path) -> None:
    """Writes of commands appear on the screen. The socket is private, and is removed with the client."""
    store = tmp_path / "store"
    client = start_chat("-s", "store", "--listen", HERE, "--cabal-key", "5a" * 32)
    sees = ready(client)
    assert stat.S_IMODE((store / SOCKET).lstat().st_mode) == 0o600
    for words in (
        ("post", "default", "from a command"),
        ("search", "command"),
        ("export", str(tmp_path / "export")),
        ("import", str(tmp_path / "export")),
    ):
        done = cablestore(*words, store=store)
        assert done.returncode == 0, (words, done.stderr)
    sees.shows("from a command")
    client.type("to all")
    wait_until(lambda: "to all" in cablestore("log", "default", store=store).stdout)
    invitation = json.loads(cablestore("invite", "--json", store=store).stdout.splitlines()[0])
    assert invitation["invitation"].startswith("cable:" + "5a" * 32)
    connect = cablestore("connect", store=store)
    assert "no running `serve` has" not in connect.stderr
    assert "has no peers to connect to" in connect.stderr
    assert client.end(CTRL_Q) == 0
    assert not (store / SOCKET).exists()
    assert "to all" in cablestore("log", "default", store=store).stdout


@pytest.mark.thorough
def test_other_clients_continue_after_the_first_one_ends(start_chat: Start, tmp_path: Path) -> None:
    """One client opens the store. The other works through it, and opens it after the first one ends or is killed."""
    with ThreadPoolExecutor(3) as pool:
        clients = list(pool.map(lambda _: start_chat("-s", "store"), range(3)))
    screens = [ready(client) for client in clients]
    clients[0].type("hello from one")
    clients[1].type("hello from two")
    for sees in screens:
        sees.shows("hello from one")
        sees.shows("hello from two")
    left = list(zip(clients, screens, strict=True))
    for number, end in enumerate((Terminal.kill, quit_client), 1):
        gone = wait_until(lambda: owner_among(left, tmp_path / "store"))
        assert gone is not None
        left.remove(gone)
        end(gone[0])
        text = f"after {number}"

        def is_written(text: str = text) -> bool:
            return cablestore("post", "default", text, store=tmp_path / "store").returncode == 0

        wait_until(lambda: owner_among(left, tmp_path / "store"))
        wait_until(is_written)
        for client, sees in left:
            sees.shows(text)
            client.type(f"typed {number}")
            sees.shows(f"typed {number}")
    (client, _), *_ = left
    assert client.end(CTRL_Q) == 0
    with CableStore.open(tmp_path / "store", create=False) as store:
        assert store.check().problems == []
    assert not (tmp_path / "store" / SOCKET).exists()


@pytest.mark.thorough
def test_the_socket_of_a_killed_client_does_not_block_others(start_chat: Start, tmp_path: Path) -> None:
    client = start_chat("-s", "store")
    ready(client)
    client.process.send_signal(signal.SIGKILL)
    client.wait()
    assert (tmp_path / "store" / SOCKET).exists()
    assert cablestore("post", "default", "by itself", store=tmp_path / "store").returncode == 0
    again = start_chat("-s", "store")
    ready(again).shows("by itself")
    assert cablestore("post", "default", "and through it", store=tmp_path / "store").returncode == 0
    assert again.end(CTRL_Q) == 0
    assert not (tmp_path / "store" / SOCKET).exists()


@pytest.mark.thorough
@pytest.mark.parametrize("is_online", [True, False], ids=["online", "offline"])
def test_options_of_a_node_apply_when_the_client_opens_the_store(
    start_chat: Start, tmp_path: Path, is_online: bool
) -> None:
    """The options apply when the client opens the store itself. They have no effect if the first client has no node."""
    options = ("-s", "store", "--listen", HERE)
    first = start_chat(*options[: 4 if is_online else 2])
    ready(first)
    second = start_chat(*options)
    if is_online:
        sees = ready(second)
        assert first.end(CTRL_Q) == 0
        sees.finds(r"127\.0\.0\.1:[1-9]\d*")
        assert second.end(CTRL_Q) == 0
    else:
        assert second.wait() == 2
        assert "Remove --listen, or stop `chat` first" in " ".join(second.text.split())
        assert first.end(CTRL_Q) == 0
