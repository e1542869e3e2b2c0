"""The socket of a process that has a store open: which clients it takes, how it answers any bytes, and how it ends."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
from waiting import LIMIT_S, wait_until

from cablestore import CableStore, limits
from cablestore.cli import cli
from cablestore.cli.control_client import ask
from cablestore.cli.control_socket import ControlReply, ControlRequest, ControlServer
from cablestore.cli.remote import control
from cablestore.errors import StorageError
from cablestore.remote.unix_socket import NAME, connect

HELLO = ControlRequest("sds status", {}, json=True, width=80, terminal=False)


def said(folder: Path, line: bytes) -> list[dict[str, Any]]:
    """Return what the socket answers to any bytes."""
    connection = connect(folder)
    assert connection is not None
    with connection:
        connection.settimeout(LIMIT_S)
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
        found: list[dict[str, Any]] = []
        with connection.makefile("rb") as file, suppress(ConnectionResetError):  # it did not want to read all of it
            found.extend(map(json.loads, file))
        return found


def line(**fields: Any) -> bytes:
    return (
        json.dumps(
            {"command": "sds status", "params": {}, "json": False, "width": 80, "terminal": False} | fields
        ).encode()
        + b"\n"
    )


INVITE: dict[str, Any] = {"peers": [], "key": None, "new_key": False, "admins": [], "mods": []}


def test_a_file_of_that_name_is_left_alone(folder: Path) -> None:
    (folder / NAME).write_text("mine")
    with CableStore.open(folder) as store, pytest.raises(StorageError, match="no control socket can be created at"):
        control(store, folder)
    assert (folder / NAME).read_text() == "mine"
    assert connect(folder) is None


def test_only_the_same_user_gets_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CableStore.open(folder) as store, control(store, folder):
        assert stat.S_IMODE((folder / NAME).lstat().st_mode) == 0o600
        ours = os.geteuid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: ours + 1)
            assert connect(folder) is None  # a socket that is not ours is not spoken to
        if sys.platform == "linux":
            with socket.socket(socket.AF_UNIX) as stranger, monkeypatch.context() as patch:
                patch.setattr(os, "geteuid", lambda: ours + 1)
                stranger.connect(str(folder / NAME))
                stranger.settimeout(LIMIT_S)
                with suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    "hostile",
    [
        b"\n",
        b"",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'"text"\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"a":' * 100_000 + b"\n",
        b"1" * 10_000 + b"\n",
        b"x" * (limits.MAX_CONTROL_REQUEST_SIZE_BYTES + 1),
        line(more=1),
        line(command=5),
        line(command=["post"]),
        line(command="dump"),
        line(command="rebuild"),
        line(command="__class__"),
        line(params=[]),
        line(params={"path": "/"}),
        line(params={"store": "x"}),
        line(params={"self": None}),
        line(json=1),
        line(width=0),
        line(width=-1),
        line(width=10**9),
        line(width=80.5),
        line(width=True),
        line(terminal="yes"),
        line(colours="windows"),
        line(colours=[]),
        line(command="post"),
        line(command="invite"),
        line(command="invite", params=INVITE | {"peers": "x"}),
        line(command="invite", params=INVITE | {"peers": [1]}),
        line(command="invite", params=INVITE | {"peers": ["\udc80"]}),
        line(command="invite", params=INVITE | {"key": {}}),
        line(command="invite", params=INVITE | {"new_key": None}),
        line(command="invite", params=INVITE | {"new_key": 10**30}),
        line(command="invite", params=INVITE | {"admins": ["\0"]}),
    ],
    ids=lambda line: repr(line[:150]),
)
def test_hostile_lines_have_status_2(folder: Path, hostile: bytes) -> None:
    with CableStore.open(folder) as store, control(store, folder):
        before = store.dump_digest()
        *errors, last = said(folder, hostile)
        assert last == {"exit": 2}
        assert errors
        assert all(kind in ("err", "usage") for error in errors for kind in error)
        assert store.dump_digest() == before
        assert said(folder, line())[-1] == {"exit": 0}


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield all commands with their names, those of groups too."""
    for name in group.list_commands(click.Context(group)):
        command = group.resolve_command(click.Context(group), [name])[1]
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} ")
        else:
            assert command is not None
            yield from ((each, command) for each in {name, path + name})


def usual_value(param: click.Parameter) -> Any:
    if param.multiple or param.nargs == -1:
        return ["x"] if param.required else []
    default = param.to_info_dict().get("default")
    return "x" if param.required else default if isinstance(default, str | int | None) else None


VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**53,
    0.5,
    "",
    "x",
    "\0",
    "@",
    "-",
    [],
    ["x"],
    ["", "\udc80"],
    [1],
    {},
    {"x": []},
]


def test_parameters_of_any_type_are_answered(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the thread that answers would be an error of this test."""
    monkeypatch.chdir(tmp_path)
    accepted: set[str] = set()
    with CableStore.open(folder) as store, control(store, folder):
        for name, command in commands(cli):
            params = {str(param.name): param for param in command.params if param.name not in {"path", "as_json"}}
            usual = {key: usual_value(param) for key, param in params.items()}
            if "cannot run while" in str(said(folder, line(command=name, params=usual))):
                continue
            accepted.add(name)
            for key, value in product(params, VALUES):
                [*_, answer] = said(folder, line(command=name, params=usual | {key: value}))
                assert answer.get("exit") in (0, 1, 2, 3), (name, key, value, answer)
    assert {"connect", "invite", "sds status"} <= accepted


def test_odd_requests_that_are_right_are_answered(folder: Path) -> None:
    with CableStore.open(folder) as store, control(store, folder):
        assert said(folder, line()[:-1])[-1] == {"exit": 0}  # the line feed may be missing where nothing follows
        assert said(folder, line() + b"and more")[-1] == {"exit": 0}
        assert said(folder, line(width=1))[-1] == {"exit": 0}


def test_more_clients_than_max_control_connections_are_refused(folder: Path) -> None:
    """limits.MAX_CONTROL_CONNECTIONS; the places of clients that leave are free again."""
    with CableStore.open(folder) as store, control(store, folder):
        waiting = [connect(folder) for _ in range(limits.MAX_CONTROL_CONNECTIONS)]
        assert None not in waiting
        [error, last] = said(folder, line())
        assert "commands are already running" in error["err"]
        assert last == {"exit": 2}
        for connection in waiting:
            assert connection is not None
            connection.close()
        wait_until(lambda: said(folder, line())[-1:] == [{"exit": 0}])


def while_wanted(_: ControlRequest, reply: ControlReply) -> int:
    """Run until the client is gone."""
    reply.write("out", "begun")
    while reply.is_wanted():
        time.sleep(0.01)
    return 0


def flooding(_: ControlRequest, reply: ControlReply) -> int:
    """Send until the client is gone, or reads no more."""
    while True:
        reply.write("out", "x" * 4000)


def client_of(folder: Path) -> socket.socket:
    """Return a client whose command has begun."""
    connection = connect(folder)
    assert connection is not None
    connection.settimeout(LIMIT_S)
    connection.sendall(HELLO.encode())
    assert connection.recv(1)
    return connection


def clients() -> int:
    return sum(thread.name == "control client" for thread in threading.enumerate())


def test_a_client_that_goes_away_ends_what_runs_for_it(folder: Path) -> None:
    with CableStore.open(folder), ControlServer(folder, while_wanted):
        quiet, talking = client_of(folder), client_of(folder)
        talking.sendall(b"more " * 100)
        assert clients() == 2
        quiet.close()
        wait_until(lambda: clients() == 1)
        talking.close()
        wait_until(lambda: clients() == 0)


def unserved(request: ControlRequest, reply: ControlReply) -> int:
    raise AssertionError("no request was complete")


def test_a_client_that_sends_nothing_is_disconnected(folder: Path) -> None:
    with CableStore.open(folder), ControlServer(folder, unserved, request_timeout_s=0.1):
        connection = connect(folder)
        assert connection is not None
        with connection:
            connection.settimeout(LIMIT_S)
            assert connection.recv(1) == b""


def test_a_client_that_sends_its_request_byte_by_byte_is_disconnected(folder: Path) -> None:
    """limits.CONTROL_REQUEST_TIMEOUT_S is for the whole request."""
    with CableStore.open(folder), ControlServer(folder, unserved, request_timeout_s=0.3):
        connection = connect(folder)
        assert connection is not None
        with connection:
            connection.settimeout(0.05)
            wait_until(lambda: is_over_after_a_byte(connection))


def is_over_after_a_byte(connection: socket.socket) -> bool:
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.send(b" ")
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_closing_ends_everything_and_can_be_repeated(folder: Path) -> None:
    with CableStore.open(folder) as store:
        server = ControlServer(folder, flooding)
        stuck = [client_of(folder), client_of(folder)]  # they read no more: their threads wait for them
        server.close()
        server.close()
        assert connect(folder) is None
        assert not (folder / NAME).exists()
        for connection in stuck:
            connection.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("control")]
        with control(store, folder):
            assert said(folder, line())[-1] == {"exit": 0}


def test_a_newer_server_keeps_its_socket(folder: Path) -> None:
    """A process that releases the store late does not remove the socket of the next one."""
    with CableStore.open(folder) as store:
        old = control(store, folder)
        with control(store, folder):
            old.close()
            assert said(folder, line())[-1] == {"exit": 0}
        assert not (folder / NAME).exists()


def test_replies_that_are_none_are_an_error_of_ours(folder: Path) -> None:
    def nonsense(_: ControlRequest, reply: ControlReply) -> int:
        reply._connection.sendall(b"[1]\n")
        return 0

    with ControlServer(folder, nonsense):
        connection = connect(folder)
        assert connection is not None
        with connection, pytest.raises(StorageError, match="ended before this command"):
            list(ask(connection, HELLO))


def test_a_command_with_a_deadline_begins_before_it_or_never(folder: Path) -> None:
    """Clients that are gone before their command begins: `test_a_command_that_was_given_up_is_not_run_later`."""
    with CableStore.open(folder), ControlServer(folder, unserved):
        assert said(folder, line(deadline_s=time.monotonic() - 0.001)) == [{"alive": True}]
        for wrong in (line(deadline_s="soon"), line(deadline_s=[]), line(deadline_s=True)):
            assert said(folder, wrong)[-1] == {"exit": 2}


def test_closing_waits_for_a_client_that_was_just_answered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = threading.Thread.run

    def slowly(self: threading.Thread) -> None:
        run(self)
        if self.name == "control client":
            time.sleep(0.2)

    monkeypatch.setattr(threading.Thread, "run", slowly)
    with ControlServer(folder, lambda _request, _reply: 0):
        assert said(folder, HELLO.encode()) == [{"exit": 0}]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("control")]
