"""The command `connect`: show the peers that `serve` stays connected to, or connect to them at once."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from cablestore.cli.options import with_store
from cablestore.cli.output import Output
from cablestore.cli.stores import required_node
from cablestore.errors import NodeError
from cablestore.remote.node import PeerDial
from cablestore.store.store import CableStore


@click.command()
@click.option("--now", is_flag=True, help="Connect immediately to peers that are not connected.")
@with_store
def connect(store: CableStore, out: Output, now: bool) -> None:
    """Show the peers that `serve` stays connected to.

    For each peer that is not connected, the table shows the reason, and when the next attempt starts. Sending SIGUSR1 to
    `serve` has the same effect as --now.

    Example: `cablestore connect --now`
    """
    dials = required_node(store).dials(now=now)
    if not dials:
        raise NodeError("the running `serve` has no peers to connect to. Restart it with --connect HOST:PORT")
    out.table(("peer", "state", "reason"), [_row(dial, now=now) for dial in dials])


def _row(dial: PeerDial, *, now: bool) -> dict[str, Any]:
    again_in_s = None if dial.is_connected else 0.0 if now else round(dial.again_in_s, 1)
    waiting = f"next attempt in {again_in_s:.0f} s" if again_in_s else "connecting"
    fields = asdict(dial)
    return {
        "peer": fields.pop("address"),
        "state": "connected" if dial.is_connected else waiting,
        **fields,
        "again_in_s": again_in_s,
    }


COMMANDS: Final = (connect,)
