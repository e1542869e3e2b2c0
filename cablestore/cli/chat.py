"""The command `chat`: opens stores, or reaches those that `serve` has open, and shows them on the terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from cablestore.chat.hosting import HostedNode, Hosting
from cablestore.cli.options import all_of, store_option
from cablestore.cli.output import safe
from cablestore.cli.remote import talk
from cablestore.cli.serve import join_with_seed
from cablestore.cli.serve_options import AddressType, invited, joining_options, settings_of
from cablestore.cli.service import run_on_loop
from cablestore.cli.stores import open_store, open_upgraded
from cablestore.cli.values import PathValue, channel_name
from cablestore.errors import CableStoreError, OwnerGoneError, StoreLockedError
from cablestore.extras import naming_extras
from cablestore.peers import Address

if TYPE_CHECKING:
    from cablestore.chat.cabal import Cabal
    from cablestore.chat.remote_cabal import RemoteCabal

_OF_A_NODE: Final = (
    "listen",
    "connect",
    "invitation",
    "cabal_key",
    "channels",
    "prologue",
    "separate_static_key",
)
"""Options that say how a node is run."""


class CabalChoice(NamedTuple):
    """A store to show, and how its node is run; None without one."""

    path: Path
    hosting: Hosting | None
    seed: str | None
    node_options: tuple[str, ...]
    """Options of a node that were given."""


class FurtherCabal(click.ParamType[tuple[Path, Path | None]]):
    """STORE or STORE=FILE."""

    name = "cabal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Path, Path | None]:
        """Return the paths of the store and of the invitation."""
        if isinstance(value, tuple):
            return value  # it was converted already
        store, _, invitation = str(value).partition("=")
        path: Path = PathValue().convert(store, param, ctx)
        return path, Path(invitation) if invitation else None


_options: Final[Callable[[Any], Any]] = all_of(
    store_option("Folder of the store, made if it is missing"),
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
@joining_options
@click.option("--create", is_flag=True, hidden=True, expose_value=False)  # earlier versions told of it
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

    On a store that a running `serve` has open, the client works through it and uses its connections; several clients
    can do so at once. Otherwise the client opens the store and is a peer itself. Without addresses and invitations it
    is offline then, and shows what is in the store.

    Options can also be set in the environment, as CABLESTORE_CHAT_CABAL_KEY and so on.
    """
    with naming_extras("a client on the terminal needs"):
        from cablestore.chat.app import ChatApp  # noqa: PLC0415 - needs an extra
    is_answered = sys.stdin is not None and (sys.stdin.isatty() or str(chosen["invitation"]) == "-")
    if not (sys.stdout.isatty() and is_answered):
        raise click.UsageError("chat needs a terminal for input and output; `cablestore log` prints messages")
    choices = [_chosen_cabal(path, listen, connect, chosen)]
    for further, invitation in others:
        more = chosen | {"cabal_key": None, "invitation": invitation}
        choices.append(_chosen_cabal(further, (), (), more))
    if not sys.stderr.isatty():  # Textual draws there, but errors may go to a file or nowhere
        setattr(sys, "__stderr__", sys.stdout)  # noqa: B010 - typed as final
    if not sys.stdin.isatty():  # the invitation was read from it
        _take_keys_from_the_screen()
    logging.getLogger("cablestore").addHandler(logging.NullHandler())  # a line of a log would break the screen
    with ExitStack() as stack:
        app = ChatApp([_open_cabal(stack, choice) for choice in choices], channel=channel or "", light=light)
        run_on_loop(app.run_async)
    return app.return_code or 0


def _take_keys_from_the_screen() -> None:
    """Make the terminal of the screen the standard input, where Textual reads keys."""
    try:
        terminal = os.open(os.ttyname(sys.stdout.fileno()), os.O_RDWR | os.O_NOCTTY)
    except OSError as error:
        raise click.UsageError(
            f"chat cannot read keys from the terminal that it shows: {error.strerror}. Put the invitation into a file, "
            "and name it with --invitation FILE"
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


def _open_cabal(stack: ExitStack, choice: CabalChoice) -> Cabal:
    """Open a store, or reach the process that serves it. It is closed with the stack."""
    from cablestore.chat.open_cabal import OpenCabal  # noqa: PLC0415 - other commands do not need it

    label = choice.path.resolve().name
    try:
        store = stack.enter_context(open_upgraded(choice.path))
    except StoreLockedError as error:
        return _served_cabal(stack, choice, label, error)
    if choice.seed is not None:
        join_with_seed(store, choice.seed)
    node = None if choice.hosting is None else HostedNode(store, choice.hosting)
    open_cabal = OpenCabal(store, label, node)
    stack.callback(open_cabal.close)
    return open_cabal


def _served_cabal(stack: ExitStack, choice: CabalChoice, label: str, locked: StoreLockedError) -> Cabal:
    """Reach the process that serves a store. Raises `locked` if the one that has it open serves nobody."""
    from cablestore.chat.remote_cabal import RemoteCabal  # noqa: PLC0415 - other commands do not need it

    path = choice.path.absolute()
    try:
        remote = RemoteCabal(partial(talk, path), label)
    except OwnerGoneError:
        raise locked from None
    stack.callback(_end, remote, path)
    if choice.node_options:
        raise click.UsageError(
            f"`serve` has the store at {choice.path} open, and connects it to peers. Leave out "
            f"{', '.join(choice.node_options)}, or end `serve` first"
        )
    return remote


def _end(remote: RemoteCabal, path: Path) -> None:
    """Close a cabal. Drafts that `serve` did not get, because it is gone, are put into the store, or shown."""
    remote.close()
    drafts = remote.unsent_drafts
    if not drafts:
        return
    try:
        with open_store(path, create=False) as store:
            for channel, text in drafts.items():
                store.local.set_draft(channel, text)
    except CableStoreError as error:
        click.echo(f"cablestore: what you began to write is not in the store: {error}", err=True)
        for channel, text in drafts.items():
            click.echo(f"  #{safe(channel)}: {safe(text)}", err=True)


COMMANDS: Final = (chat,)
