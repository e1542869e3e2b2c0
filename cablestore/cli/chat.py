"""The command `chat`: opens stores, or connects to the processes that have them open, and starts the client."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from platformdirs import user_config_path

from cablestore.chat.hosting import Hosting
from cablestore.chat.settings import ChatSettings, settings_in
from cablestore.cli.client_store import CabalChoice, open_cabal
from cablestore.cli.config_file import read_tables
from cablestore.cli.options import all_of, store_option
from cablestore.cli.output import safe
from cablestore.cli.serve_options import AddressType, invited, joining_options, settings_of
from cablestore.cli.service import StopSignals, run_on_loop
from cablestore.cli.values import ParamType, PathValue, channel_name
from cablestore.errors import ArgumentError
from cablestore.extras import naming_extras
from cablestore.peers import Address

if TYPE_CHECKING:
    from cablestore.chat.app import ChatApp

_OF_A_NODE: Final = (
    "listen",
    "connect",
    "invitation",
    "cabal_key",
    "channels",
    "prologue",
    "separate_static_key",
)
"""Options of the client's node."""


class FurtherCabal(ParamType[tuple[Path, Path | None]]):
    """Further cabal, STORE or STORE=FILE. FILE contains the invitation to it."""

    name = "cabal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Path, Path | None]:
        """Return the paths of the store and of the invitation."""
        if isinstance(value, tuple):
            return value  # already converted
        store, _, invitation = str(value).partition("=")
        path: Path = PathValue().convert(store, param, ctx)
        return path, Path(invitation) if invitation else None


def _own_file() -> Path | None:
    """Return the user's settings file of the client, or None if it does not exist."""
    try:
        path = user_config_path("cablestore", appauthor=False) / "chat.toml"
    except RuntimeError:  # the user has no name, and HOME is not set
        return None
    return path if os.path.lexists(path) else None


def _read_settings(_: click.Context, __: click.Parameter, path: Path | None) -> ChatSettings:
    """Return the settings in a file, by default the user's settings file. Raises UsageError if they are invalid."""
    path = path or _own_file()
    if path is None:
        return ChatSettings()
    try:
        return settings_in(read_tables(path))
    except ArgumentError as error:
        raise click.UsageError(f"{path}: {safe(str(error))}") from None


_options: Final[Callable[[Any], Any]] = all_of(
    store_option("Folder of the store, created if it does not exist"),
    click.option(
        "--listen",
        type=AddressType(),
        multiple=True,
        metavar="HOST:PORT",
        help="Accept connections of peers on this address; repeatable.",
    ),
    click.option(
        "--connect",
        type=AddressType(to_connect=True),
        multiple=True,
        metavar="HOST:PORT",
        help="Stay connected to this peer; repeatable.",
    ),
    click.option(
        "--also",
        "others",
        type=FurtherCabal(),
        multiple=True,
        metavar="STORE[=FILE]",
        help="Also show this cabal: the folder of its store, and a file with the invitation to it; repeatable.",
    ),
    click.option("--channel", type=channel_name, help="Channel to show first [default: default]."),
    click.option(
        "--light/--dark", default=None, help="Initial theme; overrides the settings. A key toggles the theme."
    ),
    click.option(
        "--config",
        "settings",
        type=PathValue(),
        is_eager=True,
        callback=_read_settings,
        help="TOML file with the theme, the bell, notifications and keys "
        "[default: cablestore/chat.toml in your settings folder].",
    ),
)


@click.command(context_settings={"auto_envvar_prefix": "CABLESTORE_CHAT"})
@_options
@joining_options
def chat(
    path: Path,
    listen: tuple[Address, ...],
    connect: tuple[Address, ...],
    others: tuple[tuple[Path, Path | None], ...],
    channel: str | None,
    light: bool | None,
    settings: ChatSettings,
    **chosen: Any,
) -> int:
    """Chat in this terminal. /help shows keys and commands.

    If a running `serve` has the store open, the client connects to it and uses its peers. Several clients can do so at
    once. Otherwise the first client opens the store and acts as a peer. Further clients and other commands connect to
    it. Without addresses and invitations, the client is offline and shows the stored messages.

    Environment variables such as CABLESTORE_CHAT_CABAL_KEY also set options.

    Example: `cablestore chat --invitation FILE`
    """
    with naming_extras("a client on the terminal needs"):
        from cablestore.chat.app import ChatApp  # noqa: PLC0415 - needs an extra
    is_answered = sys.stdin is not None and (sys.stdin.isatty() or str(chosen["invitation"]) == "-")
    if not (sys.stdout.isatty() and is_answered):
        raise click.UsageError(
            "chat needs a terminal for input and output. Use `cablestore log` to print messages without a terminal"
        )
    choices = [_chosen_cabal(path, listen, connect, chosen)]
    for further, invitation in others:
        more = chosen | {"cabal_key": None, "invitation": invitation}
        choices.append(_chosen_cabal(further, (), (), more))
    if not sys.stderr.isatty():  # Textual draws on standard error, which is redirected
        setattr(sys, "__stderr__", sys.stdout)  # noqa: B010 - typed as final
    if not sys.stdin.isatty():  # the invitation was read from standard input
        _read_keys_from_screen()
    logging.getLogger("cablestore").addHandler(logging.NullHandler())  # log lines would corrupt the screen
    if light is not None:
        settings = replace(settings, theme="light" if light else "dark")
    with ExitStack() as stack:
        app = ChatApp([open_cabal(stack, choice) for choice in choices], settings, channel=channel or "")
        with StopSignals() as signals:
            status = run_on_loop(partial(_run, app, signals))
        return signals.status or status


async def _run(app: ChatApp, signals: StopSignals) -> int:
    """Run the client until it exits. A signal ends it like Ctrl+Q, which saves drafts and restores the terminal."""
    received = signals.catch_on_loop()
    running = asyncio.create_task(app.run_async())
    first: set[asyncio.Future[Any]] = {running, received}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if received.done():
        app.call_later(app.action_quit)
    await running
    return app.return_code or 0


def _read_keys_from_screen() -> None:
    """Use the terminal of standard output as standard input, from which Textual reads keys."""
    try:
        terminal = os.open(os.ttyname(sys.stdout.fileno()), os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        raise click.UsageError(
            f"cannot read keys from the terminal: {error.strerror}. Save the invitation to a file, and use "
            "--invitation FILE"
        ) from None
    os.dup2(terminal, sys.stdin.fileno())
    os.close(terminal)


def _chosen_cabal(
    path: Path, listen: tuple[Address, ...], connect: tuple[Address, ...], chosen: dict[str, Any]
) -> CabalChoice:
    given = chosen | {"listen": listen, "connect": connect}
    node_options = tuple(f"--{name.replace('_', '-')}" for name in _OF_A_NODE if given[name])
    chosen = dict(chosen)
    invitation = invited(chosen)
    if invitation is not None:
        connect = tuple(dict.fromkeys((*connect, *invitation.peers)))
    settings = settings_of(chosen)
    return CabalChoice(
        path,
        Hosting(settings, listen, connect) if listen or connect else None,
        invitation.seed.hex() if invitation is not None and invitation.seed else None,
        node_options,
    )


COMMANDS: Final = (chat,)
