"""Client processes on terminals, on a store that a process `serve` has open."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from remote_stores import owner_of
from serving import HERE, KEY, Served, cablestore, hang
from terminals import CTRL_Q, Screen, Start, Terminal
from waiting import wait_until

from cablestore import CableStore, connect
from cablestore.peers import Invitation

Serve = Callable[..., Served]
F4 = "\x1bOS"


def texts_in(folder: Path, channel: str = "default") -> list[str]:
    with CableStore.open(folder, create=False) as store:
        assert store.check().problems == []
        return [message.text for message in store.messages(channel, newest_first=False).messages]


def open_client(start_chat: Start, *arguments: str) -> tuple[Terminal, Screen]:
    client = start_chat(*arguments)
    screen = Screen(client)
    screen.shows("Write a message")
    return client, screen


@pytest.mark.thorough
def test_two_clients_and_a_peer_exchange_messages(start_chat: Start, serving: Serve, tmp_path: Path) -> None:
    """Both clients work through one `serve`. They see each other's posts, its peers and the invitation to it."""
    key = tmp_path / "key"
    key.write_text(KEY)
    server = serving(tmp_path / "store", "--create", "--listen", HERE, "--cabal-key", f"@{key}")
    address = server.address
    ann, ann_sees = open_client(start_chat, "-s", "store")
    two, two_sees = open_client(start_chat, "-s", "store")
    two_sees.shows("no peers yet")
    two_sees.shows(address)
    ann.type("/nick ann")
    two_sees.shows("yet   ann")
    ann.type("is anybody here?")
    two_sees.shows("ann is anybody here?")
    two.type("/topic introductions")
    ann_sees.shows("#default  introductions")
    two.type("/join garden")
    two_sees.shows("No messages yet")
    two.type("only weeds")
    ann_sees.shows("#garden")

    bob, bob_sees = open_client(start_chat, "-s", "bob", "--connect", address, "--cabal-key", f"@{key}")
    bob_sees.shows("ann is anybody here?")
    bob.type("/nick bob")
    bob.type("I am")
    ann_sees.shows("bob I am")
    for screen in (ann_sees, two_sees):
        screen.shows("1 peer")
    ann.press(F4)
    ann_sees.shows("Invitation to this cabal")
    assert Invitation.parse(ann_sees.finds(r"cable:[0-9a-f]{64}\?peer=[0-9.:]+")) == Invitation(
        bytes.fromhex(KEY), (Invitation.parse(f"cable:?peer={address}").peers)
    )

    assert cablestore("post", "default", "from a command", store=tmp_path / "store").returncode == 0
    two.type("/join default")
    two_sees.shows("ann from a command")
    for client in (bob, two):
        assert client.end(CTRL_Q) == 0
    ann.press("\x1b")
    ann_sees.shows("no peers yet")
    assert ann.end(CTRL_Q) == 0
    assert server.stop() == 0
    assert texts_in(tmp_path / "store") == ["is anybody here?", "I am", "from a command"]
    assert texts_in(tmp_path / "store", "garden") == ["only weeds"]


@pytest.mark.thorough
def test_a_client_continues_after_serve_was_killed_and_restarted(
    start_chat: Start, serving: Serve, tmp_path: Path
) -> None:
    """The client reports it, keeps typed text, and continues automatically with all missed changes."""
    server = serving(tmp_path / "store", "--create", "--listen", HERE)
    server.address  # noqa: B018 - it is ready
    client, sees = open_client(start_chat, "-s", "store")
    client.type("before")
    wait_until(lambda: "before" in cablestore("log", "default", store=tmp_path / "store").stdout)
    server.stop(signal.SIGKILL)
    sees.shows("not connected: `serve` has exited")
    client.type("while it is gone")
    sees.shows("Your input is kept")
    client.press("\x0e")  # the next channel
    sees.shows("while it is gone")
    assert cablestore("post", "default", "from a command", store=tmp_path / "store").returncode == 0
    again = serving(tmp_path / "store", "--listen", HERE)
    sees.shows("no peers yet")
    sees.shows("from a command")
    sees.shows(again.address)
    client.type("")
    wait_until(lambda: "while it is gone" in cablestore("log", "default", store=tmp_path / "store").stdout)
    assert client.end(CTRL_Q) == 0
    assert again.stop() == 0
    assert texts_in(tmp_path / "store") == ["before", "from a command", "while it is gone"]


@pytest.mark.thorough
def test_a_client_continues_after_serve_was_hanging(start_chat: Start, serving: Serve, tmp_path: Path) -> None:
    """The client reports it on its own, keys work, typed text is kept, and it continues automatically."""
    server = serving(tmp_path / "store", "--create", "--listen", HERE)
    server.address  # noqa: B018 - it is ready
    client, sees = open_client(start_chat, "-s", "store")
    client.type("before")
    wait_until(lambda: "before" in cablestore("log", "default", store=tmp_path / "store").stdout)
    hang(server.process)
    try:
        sees.shows("not connected: `serve` does not answer")
        client.type("while it hangs")
        sees.shows("Your input is kept")
        client.press("\x0e")  # the next channel
        client.press("!")
        sees.shows("while it hangs!")
    finally:
        server.process.send_signal(signal.SIGCONT)
    sees.shows("no peers yet")
    assert cablestore("post", "default", "from a command", store=tmp_path / "store").returncode == 0
    sees.shows("from a command")
    client.type("")
    wait_until(lambda: "while it hangs!" in cablestore("log", "default", store=tmp_path / "store").stdout)
    assert client.end(CTRL_Q) == 0
    assert server.stop() == 0
    assert texts_in(tmp_path / "store") == ["before", "from a command", "while it hangs!"]


@pytest.mark.thorough
def test_a_client_exits_while_serve_hangs_during_a_call(start_chat: Start, serving: Serve, tmp_path: Path) -> None:
    """The client shows and reports the unsent text."""
    server = serving(tmp_path / "store", "--create", "--listen", HERE)
    server.address  # noqa: B018 - it is ready
    client, sees = open_client(start_chat, "-s", "store")
    hang(server.process)
    try:
        client.type("is it sent?")
        sees.shows("does not answer. The call was not run")
        assert client.end(CTRL_Q) == 0
        assert "#default: is it sent?" in client.text
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert cablestore("post", "default", "after", store=tmp_path / "store").returncode == 0
    assert server.stop() == 0
    assert texts_in(tmp_path / "store") == ["after"]  # the client has abandoned the other post, so it is not sent later


@pytest.mark.thorough
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_client_that_exits_after_serve_keeps_its_draft(
    start_chat: Start, serving: Serve, tmp_path: Path, is_taken: bool
) -> None:
    """The draft is written to the store, or printed if another process has the store."""
    server = serving(tmp_path / "store", "--create", "--listen", HERE)
    server.address  # noqa: B018 - it is ready
    client, sees = open_client(start_chat, "-s", "store")
    client.press("half a sentence")
    sees.shows("half a sentence")
    assert server.stop() == 0
    sees.shows("not connected")
    if is_taken:
        with CableStore.open(tmp_path / "store", create=False) as store:
            assert client.end(CTRL_Q) == 0
            assert store.local.draft("default") == ""
        assert "#default: half a sentence" in client.text
    else:
        assert client.end(CTRL_Q) == 0
        with CableStore.open(tmp_path / "store", create=False) as store:
            assert store.local.draft("default") == "half a sentence"


KILLED = 4
"""Number of clients. One remaining thread or file of each would exceed what the node creates on first use."""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_serve_releases_the_threads_and_files_of_a_killed_client(
    start_chat: Start, serving: Serve, tmp_path: Path
) -> None:
    server = serving(tmp_path / "store", "--create", "--listen", HERE)
    server.address  # noqa: B018 - it is ready

    def held() -> tuple[int, int]:
        process = Path("/proc", str(server.process.pid))
        return len(list((process / "task").iterdir())), len(list((process / "fd").iterdir()))

    threads, files = held()
    clients = [open_client(start_chat, "-s", "store") for _ in range(KILLED)]
    words = [f"my last words {number}" for number in range(KILLED)]
    for (client, _), text in zip(clients, words, strict=True):
        client.type(text)
        for _, sees in clients:
            sees.shows(text)
    # Each client has one thread that reads and one that writes; a connection is a file.
    assert held()[0] >= threads + 2 * KILLED
    assert held()[1] >= files + KILLED
    for client, _ in clients:
        client.kill()
    wait_until(
        lambda: held()[0] < threads + KILLED and held()[1] < files + KILLED, lambda: f"{held()}, {threads}, {files}"
    )
    other, other_sees = open_client(start_chat, "-s", "store")
    other.type("who was that?")
    other_sees.shows("who was that?")
    assert other.end(CTRL_Q) == 0
    assert server.stop() == 0
    assert texts_in(tmp_path / "store") == [*words, "who was that?"]


@pytest.mark.thorough
def test_a_client_uses_own_and_served_stores_together(start_chat: Start, serving: Serve, tmp_path: Path) -> None:
    server = serving(tmp_path / "garden club", "--create", "--listen", HERE)
    server.address  # noqa: B018 - it is ready
    assert cablestore("post", "roses", "red", store=tmp_path / "garden club").returncode == 0
    client, sees = open_client(start_chat, "-s", "mine", "--also", "garden club")
    sees.shows("garden club")
    sees.shows("#roses")
    client.type("to myself")
    sees.shows("to myself")
    client.press("\x0e")
    sees.shows("red")
    client.type("and white")
    sees.shows("and white")
    assert server.stop() == 0
    sees.shows("not connected")
    client.press("\x10")
    sees.shows("to myself")
    client.type("still here")
    sees.shows("still here")
    assert client.end(CTRL_Q) == 0
    assert texts_in(tmp_path / "mine") == ["to myself", "still here"]
    assert texts_in(tmp_path / "garden club", "roses") == ["red", "and white"]


@pytest.mark.thorough
def test_options_of_a_node_are_rejected_in_one_line(start_chat: Start, serving: Serve, tmp_path: Path) -> None:
    server = serving(tmp_path / "store", "--create", "--listen", HERE)
    invitation = tmp_path / "invitation"
    invitation.write_text(f"cable:{KEY}?peer={server.address}")
    invitation.chmod(0o600)
    for options, named in (
        (["-s", "store", "--listen", HERE], "--listen"),
        (["-s", "store", "--connect", server.address], "--connect"),
        (["-s", "store", "--invitation", str(invitation)], "--invitation"),
        (["-s", "store", "--cabal-key", KEY, "--channels", "x"], "--cabal-key, --channels"),
        (["-s", "mine", "--also", f"store={invitation}"], "--invitation"),
    ):
        client = start_chat(*options)
        assert client.wait() == 2
        assert "`serve` has the store at" in client.text
        assert f"Remove {named}, or stop `serve` first" in re.sub(r"\s+", " ", client.text)
        assert "Traceback" not in client.text
        assert KEY not in client.text
    assert server.stop() == 0


@pytest.mark.thorough
def test_the_help_mentions_a_running_serve() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "cablestore", "chat", "--help"], capture_output=True, text=True, check=True
    )
    assert "a running `serve` has the store open" in re.sub(r"\s+", " ", found.stdout)


@pytest.mark.thorough
def test_a_client_works_through_a_program_that_offers_its_store(start_chat: Start, tmp_path: Path) -> None:
    """The program has no node, and may end and return as `serve` does."""
    with owner_of(tmp_path / "store"):
        client, sees = open_client(start_chat, "-s", "store")
        sees.shows("offline")
        client.type("hello")
        sees.shows("hello")
        with connect(tmp_path / "store") as store:
            assert [message.text for message in store.messages("default").messages] == ["hello"]
    sees.shows("not connected: the other program has exited. Start it again. The client")
    with owner_of(tmp_path / "store"):
        sees.shows("offline")
        client.type("again")
        sees.shows("again")
    assert client.end(CTRL_Q) == 0
    assert texts_in(tmp_path / "store") == ["hello", "again"]
