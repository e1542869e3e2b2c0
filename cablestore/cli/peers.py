"""The command `peers`: show the connected peers of `serve`, disconnect them, and ban them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click
from rich.table import Table

from cablestore.cli.live import follow
from cablestore.cli.options import with_store
from cablestore.cli.output import Output, size
from cablestore.cli.status import duration_since
from cablestore.cli.stores import required_node
from cablestore.errors import NotFoundError
from cablestore.plurals import counted
from cablestore.remote.node import PeerStatus, WatchedNode
from cablestore.store.store import CableStore

_COLUMNS: Final = ("peer", "key", "since", "in_step", "in", "out", "queued", "answers")
_SHOWN_DIGITS: Final = 16
"""Number of digits of a key in the table. Commands also accept fewer digits."""


@click.command()
@click.argument("action", type=click.Choice(["list", "kick", "ban", "unban", "bans"]), default="list")
@click.argument("names", metavar="[PEER]...", nargs=-1)
@click.option("--live", is_flag=True, help="Show the table and update it until Ctrl-C.")
@with_store
def peers(store: CableStore, out: Output, action: str, names: tuple[str, ...], live: bool) -> None:
    """Show, disconnect or ban the peers of `serve`.

    `list` shows the address and key of each peer, the duration of the connection, and the rates in and out. `in step`
    is `yes` if both stores have the same posts. `queued` is the data that the peer has not read. `answers` is `yes`, or
    how long the peer has not answered, such as `not for 30 s`.

    `kick` disconnects a peer, which may connect again. `ban` also rejects later connections of the peer's key, or of
    its host if the peer has no key. A ban remains after a restart, until `unban`. `bans` lists all bans.

    PEER is an address or a host that `list` shows, or at least the first 4 digits of a key. To ban a peer that is not
    connected, use its IP address or its complete key.

    Example: `cablestore peers --live`
    """
    if bool(names) is (action in ("list", "bans")):
        raise click.UsageError(
            f"`peers {action}` does not accept PEER" if names else f"missing argument PEER of `peers {action}`"
        )
    if live and action != "list":
        raise click.UsageError("--live shows the list and cannot be combined with another action")
    node = required_node(store)
    match action:
        case "list" if live:
            follow(node, out, lambda: _shown(node, out))
        case "list":
            out.table(_COLUMNS, _rows(node, out))
        case "bans":
            rows = [
                {"banned": ban.peer, "since_ms": ban.since_ms, "since": out.when(ban.since_ms)} for ban in node.bans()
            ]
            out.table(("banned", "since"), rows)
        case _:
            for name in names:
                _ACTIONS[action](node, out, name)


def _kick(node: WatchedNode, out: Output, name: str) -> None:
    found = node.kick(name)
    out.say(f"disconnected {counted(len(found), 'connection')}: {', '.join(found)}", disconnected=found)
    kept = {str(dial.address) for dial in node.dials()} & set(found)
    if kept:
        out.note(
            f"`serve` connects again to {', '.join(sorted(kept))}, because of --connect. Use `ban` to prevent this"
        )


def _ban(node: WatchedNode, out: Output, name: str) -> None:
    for banned in node.ban(name):
        out.say(f"banned {banned}. `cablestore peers unban {banned}` accepts it again", banned=banned)


def _unban(node: WatchedNode, out: Output, name: str) -> None:
    if not node.unban(name):
        raise NotFoundError(f"{name} is not banned. `cablestore peers bans` lists the bans")
    out.say(f"unbanned {name}", unbanned=name)


_ACTIONS: Final = {"kick": _kick, "ban": _ban, "unban": _unban}


def _rows(node: WatchedNode, out: Output) -> list[dict[str, Any]]:
    status = node.status()
    row_of = _fields if out.as_json else _row
    return [] if status is None else [row_of(peer) for peer in status.peers]


def _fields(peer: PeerStatus) -> dict[str, Any]:
    fields = asdict(peer)
    return {"peer": fields.pop("address"), **fields}


def _row(peer: PeerStatus) -> dict[str, Any]:
    return {
        "peer": peer.address,
        "key": None if peer.key is None else peer.key[:_SHOWN_DIGITS],
        "since": duration_since(peer.since_ms),
        "in_step": {None: None, True: "yes", False: "no"}[peer.is_in_step],
        "in": f"{size(peer.received_bytes_per_s)}/s",
        "out": f"{size(peer.sent_bytes_per_s)}/s",
        "queued": size(peer.queued_size_bytes),
        "answers": f"not for {peer.no_answer_s} s" if peer.no_answer_s else "yes",
    }


def _shown(node: WatchedNode, out: Output) -> Table | None:
    rows = _rows(node, out)
    if out.draws:
        return out.drawn(_COLUMNS, rows)
    out.table(_COLUMNS, rows)
    return None


COMMANDS: Final = (peers,)
