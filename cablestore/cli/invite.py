"""The command `invite`, which prints an invitation."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from cablestore.cli.options import common_options, full_users
from cablestore.cli.output import Output
from cablestore.cli.stores import node_of, open_or_connect
from cablestore.cli.values import cabal_key_hex, text_value
from cablestore.errors import NodeError
from cablestore.index.header import peek
from cablestore.moderation import Seed, UserRole
from cablestore.peers import Address, Invitation
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.keys import parse_hex
from cablestore.store.store import CableStore


@text_value("address", str)
def _peer(text: str) -> str:
    """Return the address of a peer that other machines can reach, as a string."""
    try:
        address = Address.parse(text)
    except NodeError as error:
        raise ValueError(str(error)) from None
    return str(Invitation(None, (address,)).peers[0])


def _with_store_if_any(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options. The command gets `store` and `out`.

    Without --store, `store` is None if a cabal key is given and the default store does not exist.
    """

    @common_options
    @wraps(function)
    def command(*args: Any, path: Path, **kwargs: Any) -> Any:
        is_default = click.get_current_context().get_parameter_source("path") is ParameterSource.DEFAULT
        with ExitStack() as stack:
            does_without = is_default and (kwargs["new_key"] or kwargs["key"]) and peek(path) is None
            store = None if does_without else stack.enter_context(open_or_connect(path))
            return function(*args, store=store, **kwargs)

    return command


@click.command(context_settings={"auto_envvar_prefix": "CABLESTORE_INVITE"})
@click.option(
    "--peer",
    "peers",
    type=_peer,
    multiple=True,
    metavar="HOST:PORT",
    help="Address at which peers reach a member; repeatable [default: the peers of the running `serve`].",
)
@click.option(
    "--cabal-key",
    "key",
    type=cabal_key_hex,
    metavar="@FILE|HEX",
    help="Shared key of all members. Use a file: every user of the machine can see the command line [default: the "
    "key of the running `serve`].",
)
@click.option("--new-key", is_flag=True, help="Generate a new cabal key, for a new cabal.")
@click.option(
    "--admin", "admins", multiple=True, metavar="USER", help="Add an admin to the moderation seed; repeatable."
)
@click.option("--mod", "mods", multiple=True, metavar="USER", help="Add a mod to the moderation seed; repeatable.")
@_with_store_if_any
def invite(
    store: CableStore | None,
    out: Output,
    peers: tuple[str, ...],
    key: str | None,
    new_key: bool,
    admins: tuple[str, ...],
    mods: tuple[str, ...],
) -> None:
    """Print an invitation to the cabal for new members.

    The invitation is one line: the cabal key, addresses of peers, and a moderation seed. The seed consists of the
    store's seed and the users of --admin and --mod. A new cabal does not need a store: USER is then a complete public
    key. `chat`, `serve`, `sync` and `reconcile` accept the invitation with --invitation. Send the invitation over a
    channel that you trust.

    Example: `cablestore invite --peer chat.example:13333 > invitation`
    """
    if new_key and key is not None:
        raise click.UsageError("--new-key cannot be combined with --cabal-key")
    node = None if store is None else node_of(store)
    served = None if node is None else node.state
    if new_key:
        cabal_key: bytes | None = secrets.token_bytes(KEY_SIZE_BYTES)
    elif key is not None:
        cabal_key = bytes.fromhex(key)
    elif served is not None:
        cabal_key = served.cabal_key
    else:
        raise click.UsageError(
            "missing cabal key: use --cabal-key @FILE, use --new-key for a new cabal, or run `cablestore serve` first"
        )
    addresses = map(Address.parse, peers or (() if served is None else served.connect))
    roles = _roles(store, admins, mods)
    seed = Seed(tuple(roles.items()), 0).write()
    _print(out, Invitation(cabal_key, tuple(dict.fromkeys(addresses)), seed), roles)


def _roles(store: CableStore | None, admins: tuple[str, ...], mods: tuple[str, ...]) -> dict[bytes, UserRole]:
    """Return the roles in the store's seed, unless it is revoked, and the roles of further users."""
    if store is None:
        found = dict.fromkeys((parse_hex(text, "without a store, USER") for text in mods), UserRole.MOD)
        return found | dict.fromkeys((parse_hex(text, "without a store, USER") for text in admins), UserRole.ADMIN)
    seed = store.moderation.seed
    known = dict(seed.roles) if seed is not None and seed.revoked_at_ms is None else {}
    known |= dict.fromkeys(full_users(store, mods), UserRole.MOD)
    return known | dict.fromkeys(full_users(store, admins), UserRole.ADMIN)


def _print(out: Output, invitation: Invitation, roles: dict[bytes, UserRole]) -> None:
    out.say(
        str(invitation),
        invitation=str(invitation),
        peers=[str(peer) for peer in invitation.peers],
        is_encrypted=invitation.cabal_key is not None,
        roles={user.hex(): role.name.lower() for user, role in roles.items()},
    )
    if invitation.cabal_key is None:
        out.note("the invitation lacks a cabal key, because `serve` runs without it. Connections are not encrypted")
    else:
        out.note("anyone with this invitation can join the cabal and read its messages")
    if not invitation.peers:
        out.note("the invitation does not contain peers. Use --peer HOST:PORT to add the address of a member")


COMMANDS: Final = (invite,)
