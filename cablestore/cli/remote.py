"""Commands on a store that another process has open: they run there, over `cablestore.cli.control_client`."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from io import TextIOBase
from pathlib import Path
from typing import Any, Final, Literal, cast

import click
from rich.console import Console

from cablestore.cli.commands import load_all
from cablestore.cli.control_client import ask
from cablestore.cli.control_socket import MAX_WIDTH, ControlReply, ControlRequest, ControlServer, Param
from cablestore.cli.output import Output, zone_named
from cablestore.errors import CableStoreError, StorageError, StoreClosedError, StoreLockedError
from cablestore.extras import naming_extras
from cablestore.remote.node import WatchedNode
from cablestore.remote.unix_socket import connect
from cablestore.store.store import CableStore

_LOG: Final = logging.getLogger("cablestore.node")
_HEIGHT: Final = 25
"""Lines of the client's terminal. No output depends on it, but without it rich would ask the server's terminal."""


_BEGIN_WAIT_S: Final = 1.0
"""How long a process that has just opened the store may take until it runs commands for others."""
_LOOK_EVERY_S: Final = 0.05
_HERE: Final = frozenset({"path", "as_json", "read_only", "require_mount"})
"""Parameters that are not sent to the process that has the store open."""


@dataclass(frozen=True, slots=True)
class _Offer:
    command: click.Command
    serve: Callable[..., Any]
    """Function that does the command's work, with `store`, `out` and the command's parameters."""


_OFFERS: Final[dict[str, _Offer]] = {}
_LATER: Final[list[Callable[[], object]]] = []
_LOADING: Final = threading.Lock()


def offered_later(load: Callable[[], object]) -> None:
    """Call `load` once a command is asked for that is not known. It imports modules with offered commands."""
    _LATER.append(load)


def offered(
    serve: Callable[..., Any] | None = None, *, name: str | None = None
) -> Callable[[click.Command], click.Command]:
    """Let a command run in the process that has the store open, if that process runs commands for others.

    Use this decorator above `click.command`. `serve` does the command's work on an open store, given as `store`; by
    default it is the function under `with_store`. `name` distinguishes a command of a group from others of its name.
    """

    def offer(command: click.Command) -> click.Command:
        local = command.callback
        if local is None or command.name is None:
            raise TypeError(f"{command} has no function to run")
        offered_as = name or command.name

        @wraps(local)
        def here_or_there(*, path: Path, as_json: bool, **params: Any) -> Any:
            try:
                return local(path=path, as_json=as_json, **params)
            except StoreLockedError:
                sent = {name: value for name, value in params.items() if name not in _HERE}
                status = forward(path, offered_as, sent, Output(as_json=as_json))
                if status is None:
                    raise
                return status

        command.callback = here_or_there
        _OFFERS[offered_as] = _Offer(command, serve or inspect.unwrap(local))
        return command

    return offer


def offered_command(function: Callable[..., Any]) -> click.Command:
    """Make a command of a function, and offer it with its defaults."""
    return offered()(click.command()(function))


# --- the client's side ----------------------------------------------------------------------------


def forward(path: Path, command: str, params: Mapping[str, Any], out: Output) -> int | None:
    """Run a command in the process that has the store open. Returns its exit status, None if no process runs it."""
    connection = _connect_to_owner(path)
    if connection is None:
        return None
    console = out.console
    request = ControlRequest(
        command,
        {name: _plain(value) for name, value in params.items()},
        json=out.as_json,
        width=max(1, min(console.width, MAX_WIDTH)),
        terminal=console.is_terminal,
        colours=console.color_system,
        no_colours=console.no_color,
        zone=os.environ.get("TZ") or None,
    )
    with connection:
        for kind, value in ask(connection, request, _say_waiting):
            if kind == "exit":
                return int(value)
            if kind == "err":
                click.echo(str(value), err=True, nl=False)
            else:
                _print(out, kind, str(value))
                if not out.is_wanted():
                    with suppress(OSError):  # the process ends a listing early, and still sends its status
                        connection.shutdown(socket.SHUT_WR)
    raise AssertionError


def _connect_to_owner(path: Path) -> socket.socket | None:
    """Connect to the process that has the store open, which may have just begun. Returns None if there is none."""
    until_s = time.monotonic() + _BEGIN_WAIT_S
    while (connection := connect(path)) is None and time.monotonic() < until_s:
        time.sleep(_LOOK_EVERY_S)
    return connection


def _say_waiting(text: str) -> None:
    click.echo(f"cablestore: {text}", err=True)


def _plain(value: Any) -> Param:
    """Return a parameter as a JSON value. The other process may have another working folder."""
    if isinstance(value, tuple):
        return [str(_plain(each)) for each in value]
    return str(value) if isinstance(value, Path) else cast(Param, value)


def _print(out: Output, kind: str, text: str) -> None:
    if kind == "usage":
        raise click.UsageError(text)
    if kind == "note":
        out.note(text)
    else:
        out.console.file.write(text)
        out.console.file.flush()


# --- the server's side ----------------------------------------------------------------------------


def control(
    store: CableStore, folder: Path, node: WatchedNode | None = None, owner: str = "serve", *, loads_later: bool = False
) -> ControlServer:
    """Run commands for other processes on an open store, and serve programs. Close the returned server before the store.

    `node` connects the store to peers, and `owner` is the command that has the store open: clients show both. Commands
    are loaded now, before the files may be those of another version and descriptors run out; with `loads_later` in a
    thread, while somebody waits for a first picture. Raises StorageError if no socket can be created in the store's
    folder.
    """
    loading = threading.Thread(target=_load_offered, name="control-load", daemon=True)
    from cablestore.serving import StoreServer  # noqa: PLC0415 - most commands do not need it

    server = ControlServer(folder, partial(run_request, store, loading), programs=StoreServer(store, owner, node=node))
    loading.start()
    if not loads_later:
        loading.join()
    return server


@contextmanager
def controlled(
    store: CableStore, folder: Path, node: WatchedNode | None = None, owner: str = "serve", *, loads_later: bool = False
) -> Iterator[None]:
    """Run commands for other processes, and serve programs, during the body, if the file system supports sockets."""
    with ExitStack() as stack:
        try:
            stack.enter_context(control(store, folder, node, owner, loads_later=loads_later))
        except StorageError as error:
            _LOG.warning("other commands cannot use the store meanwhile", extra={"reason": str(error)})
        yield


def _load_offered() -> None:
    load_all()
    with suppress(CableStoreError):  # an extra is missing: its commands say so when they are asked for
        _load_offered_later()


def run_request(store: CableStore, loading: threading.Thread, request: ControlRequest, reply: ControlReply) -> int:
    """Run a command, when all are loaded, and send its output and errors to the client. Returns the exit status."""
    try:
        loading.join()
        with naming_extras():
            offer = _offer(request.command)
            params = _params(offer.command, request.params)
            return int(offer.serve(store=store, out=_RemoteOutput(request, reply), **params) or 0)
    except click.UsageError as error:
        reply.write("usage", error.format_message())
        return error.exit_code
    except StoreClosedError:
        raise
    except CableStoreError as error:
        reply.write("err", f"cablestore: {error}\n")
        return error.exit_status


def _load_offered_later() -> None:
    for load in _LATER:
        load()


def _offer(command: str) -> _Offer:
    with _LOADING:  # a command is known before its module is whole
        if command not in _OFFERS:
            _load_offered_later()
    offer = _OFFERS.get(command)
    if offer is None:
        raise CableStoreError(f"{command!r} cannot run while another process has the store open")
    return offer


def _params(command: click.Command, given: dict[str, Param]) -> dict[str, Any]:
    """Return the parameters as click passes them to the command's function, without prompts on the terminal."""
    own = {param.name: param for param in command.params if param.name not in {*_HERE, None}}
    if own.keys() != given.keys():
        raise CableStoreError(
            f"the process that has the store open knows {command.name} with other parameters: run the same version "
            "of cablestore in both"
        )
    with click.Context(command, info_name=command.name) as context:
        return {name: _converted(context, own[name], value) for name, value in given.items()}


def _converted(context: click.Context, param: click.Parameter, value: Param) -> Any:
    is_optional = not param.required and param.to_info_dict().get("default") is None
    if (value is None and not is_optional) or isinstance(value, list) is not (param.nargs == -1 or param.multiple):
        raise click.BadParameter(f"{value!r} is not possible", context, param)
    try:
        converted = param.type_cast_value(context, value)
    except ValueError as error:  # a path with a NUL character
        raise click.BadParameter(f"{value!r}: {error}", context, param) from None
    except (TypeError, AttributeError):
        raise click.BadParameter(f"{value!r:.40} has the wrong type", context, param) from None
    if param.required and converted == ():
        raise click.MissingParameter(ctx=context, param=param)
    return converted


class _RemoteOutput(Output):
    """Output to a client, formatted for its terminal."""

    def __init__(self, request: ControlRequest, reply: ControlReply) -> None:
        console = Console(
            file=cast(Any, _Stream(reply)),
            highlight=False,
            soft_wrap=True,
            width=request.width,
            height=_HEIGHT,
            force_terminal=request.terminal,
            color_system=cast(Literal["standard", "256", "truecolor"] | None, request.colours),
            no_color=request.no_colours,
        )
        super().__init__(as_json=request.json, quiet=True, console=console, zone=zone_named(request.zone))
        self._reply = reply

    def note(self, text: str) -> None:
        if not self.as_json:
            self._reply.write("note", text)

    def is_wanted(self) -> bool:
        return self._reply.is_wanted()


class _Stream(TextIOBase):
    """File whose text a client prints."""

    def __init__(self, reply: ControlReply) -> None:
        self._reply = reply

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._reply.write("out", text)
        return len(text)
