"""The command `chat`: opens stores and shows them on the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cablestore.cli.options import all_of, default_store
from cablestore.cli.serve_options import AddressType, peer_options, settings_of
from cablestore.cli.stores import open_store
from cablestore.cli.values import PathValue, channel_name
from cablestore.extras import naming_extras
from cablestore.peers import Address

if TYPE_CHECKING:
    from cablestore.chat.session import Session


_options: Final[Callable[[Any], Any]] = all_of(
    click.option(
        "-s",
        "--store",
        "paths",
        type=PathValue(is_store=True),
        multiple=True,
        envvar="CABLESTORE_STORE",
        help="Folder of the store, made if it is missing; repeatable: each is a cabal in the list of channels "
        "[default: $CABLESTORE_STORE, or a folder in your user data].",
    ),
    click.option(
        "--listen", type=AddressType(), multiple=True, metavar="HOST:PORT", help="Accept peers here; repeatable."
    ),
    click.option(
        "--connect",
        type=AddressType(to_connect=True),
        multiple=True,
        metavar="HOST:PORT",
        help="Stay connected to this peer; repeatable.",
    ),
    click.option("--channel", type=channel_name, help="Channel to show first [default: default]."),
    click.option("--light", is_flag=True, help="Begin with dark text on a light background; F3 changes it."),
)


@click.command(context_settings={"auto_envvar_prefix": "CABLESTORE_CHAT"})
@_options
@peer_options
def chat(
    paths: tuple[Path, ...],
    listen: tuple[Address, ...],
    connect: tuple[Address, ...],
    channel: str | None,
    light: bool,
    **chosen: Any,
) -> int:
    """Chat on this terminal. F1 shows the keys.

    Options can also be set in the environment, as CABLESTORE_CHAT_CABAL_KEY and so on.
    """
    with naming_extras("a client on the terminal needs"):
        from cablestore.chat.app import ChatApp  # noqa: PLC0415 - needs an extra
        from cablestore.chat.hosting import Hosting  # noqa: PLC0415 - the same
    del chosen["create"]
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("chat needs a terminal for input and output; `cablestore log` prints messages")
    paths = paths or (default_store(),)
    if len(paths) > 1 and (listen or connect):
        raise click.UsageError("--listen and --connect are for one store: with several, run `cablestore serve` on each")
    settings = replace(settings_of(chosen), reconciles=True)
    hosting = Hosting(settings, listen, connect) if listen or connect else None
    logging.getLogger("cablestore").addHandler(logging.NullHandler())  # a line of a log would break the screen
    with ExitStack() as stack:
        app = ChatApp(_sessions(stack, paths, hosting), channel=channel or "", light=light)
        app.run()
    return app.return_code or 0


def _sessions(stack: ExitStack, paths: Sequence[Path], hosting: Any) -> list[Session]:
    """Open the stores. They are closed with the stack."""
    from cablestore.chat.session import Session  # noqa: PLC0415 - needs an extra

    found: list[Session] = []
    for path in paths:
        store = stack.enter_context(open_store(path))
        found.append(Session(store, path.name, hosting))
        stack.callback(found[-1].close)
    return found


COMMANDS: Final = (chat,)
