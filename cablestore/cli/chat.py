"""The command `chat`: opens stores and shows them on the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from cablestore.chat.hosting import Hosting
from cablestore.cli.options import all_of, default_store
from cablestore.cli.serve import join_with_seed
from cablestore.cli.serve_options import AddressType, invited, peer_options, settings_of
from cablestore.cli.stores import open_upgraded
from cablestore.cli.values import PathValue, channel_name
from cablestore.extras import naming_extras
from cablestore.peers import Address

if TYPE_CHECKING:
    from cablestore.chat.open_cabal import OpenCabal


class Cabal(NamedTuple):
    """A store to show, and how its node is run; None without one."""

    path: Path
    hosting: Hosting | None
    seed: str | None


class FurtherCabal(click.ParamType[tuple[Path, Path | None]]):
    """STORE or STORE=FILE."""

    name = "cabal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Path, Path | None]:
        """Return the paths of the store and of the invitation."""
        if isinstance(value, tuple):
            return value  # it was converted already
        store, _, invitation = str(value).partition("=")
        path: Path = PathValue(is_store=True).convert(store, param, ctx)
        return path, Path(invitation) if invitation else None


_options: Final[Callable[[Any], Any]] = all_of(
    click.option(
        "-s",
        "--store",
        "path",
        type=PathValue(is_store=True),
        envvar="CABLESTORE_STORE",
        default=default_store,
        help="Folder of the store, made if it is missing [default: $CABLESTORE_STORE, or a folder in your user data].",
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
    click.option(
        "--also",
        "others",
        type=FurtherCabal(),
        multiple=True,
        metavar="STORE[=FILE]",
        help="Show a further cabal beside this one: the folder of its store, and a file with the invitation to it; "
        "repeatable.",
    ),
    click.option("--channel", type=channel_name, help="Channel to show first [default: default]."),
    click.option("--light", is_flag=True, help="Begin with dark text on a light background; F3 changes it."),
)


@click.command(context_settings={"auto_envvar_prefix": "CABLESTORE_CHAT"})
@_options
@peer_options
def chat(
    path: Path,
    listen: tuple[Address, ...],
    connect: tuple[Address, ...],
    others: tuple[tuple[Path, Path | None], ...],
    channel: str | None,
    light: bool,
    **chosen: Any,
) -> int:
    """Chat on this terminal. F1 shows the keys.

    Without addresses and invitations it is offline, and shows what is in the store. Options can also be set in the
    environment, as CABLESTORE_CHAT_CABAL_KEY and so on.
    """
    with naming_extras("a client on the terminal needs"):
        from cablestore.chat.app import ChatApp  # noqa: PLC0415 - needs an extra
    del chosen["create"]
    if not (sys.stdout.isatty() and (sys.stdin.isatty() or str(chosen["invitation"]) == "-")):
        raise click.UsageError("chat needs a terminal for input and output; `cablestore log` prints messages")
    cabals = [_cabal(path, listen, connect, chosen)]
    for further, invitation in others:
        more = chosen | {"cabal_key": None, "invitation": invitation}
        cabals.append(_cabal(further, (), (), more))
    logging.getLogger("cablestore").addHandler(logging.NullHandler())  # a line of a log would break the screen
    with ExitStack() as stack:
        app = ChatApp([_open_cabal(stack, cabal) for cabal in cabals], channel=channel or "", light=light)
        app.run()
    return app.return_code or 0


def _cabal(path: Path, listen: tuple[Address, ...], connect: tuple[Address, ...], chosen: dict[str, Any]) -> Cabal:
    chosen = dict(chosen)
    invitation = invited(chosen)
    if invitation is not None:
        connect = tuple(dict.fromkeys((*connect, *invitation.peers)))
    settings = replace(settings_of(chosen), reconciles=True)
    return Cabal(
        path,
        Hosting(settings, listen, connect) if listen or connect else None,
        invitation.seed.hex() if invitation is not None and invitation.seed else None,
    )


def _open_cabal(stack: ExitStack, cabal: Cabal) -> OpenCabal:
    """Open a store. It is closed with the stack."""
    from cablestore.chat.open_cabal import OpenCabal  # noqa: PLC0415 - needs an extra

    store = stack.enter_context(open_upgraded(cabal.path))
    if cabal.seed is not None:
        join_with_seed(store, cabal.seed)
    open_cabal = OpenCabal(store, cabal.path.resolve().name, cabal.hosting)
    stack.callback(open_cabal.close)
    return open_cabal


COMMANDS: Final = (chat,)
