"""The command `connect`: show the peers that `serve` stays connected to, or connect to them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import click

from cablestore.cli.options import with_own_store
from cablestore.cli.output import Output
from cablestore.cli.remote import offered
from cablestore.errors import NodeError
from cablestore.peers import DialState, Node
from cablestore.store.store import CableStore


class _ServedNode(NamedTuple):
    node: Node
    loop: asyncio.AbstractEventLoop


_SERVED: Final[WeakKeyDictionary[CableStore, _ServedNode]] = WeakKeyDictionary()


@contextmanager
def dialling(store: CableStore, node: Node, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have `connect` know the node that this process serves a store with, and the loop of it, during the body."""
    _SERVED[store] = _ServedNode(node, loop)
    try:
        yield
    finally:
        del _SERVED[store]


@offered()
@click.command()
@click.option("--now", is_flag=True, help="Connect at once to those that are not connected.")
@with_own_store
def connect(store: CableStore, out: Output, now: bool) -> None:
    """Show the peers that `serve` stays connected to.

    The table has why the last attempt failed or the last connection ended, and when the next attempt begins. SIGUSR1
    does the same as --now.
    """
    served = _SERVED.get(store)
    if served is None:
        raise NodeError("no `serve` has this store open: start it with --connect HOST:PORT")
    states = served.node.dials()
    if not states:
        raise NodeError("`serve` stays connected to no peer: start it with --connect HOST:PORT")
    if now:
        served.loop.call_soon_threadsafe(served.node.dial_now)
    out.table(("peer", "state", "reason"), [_row(state, now=now) for state in states])


def _row(state: DialState, *, now: bool) -> dict[str, Any]:
    again_in_s = None if state.is_connected else 0.0 if now else round(state.again_in_s, 1)
    waiting = f"next attempt in {again_in_s:.0f} s" if again_in_s else "connecting"
    return {
        "peer": str(state.address),
        "state": "connected" if state.is_connected else waiting,
        "reason": state.reason,
        "is_connected": state.is_connected,
        "only_reconciles": state.only_reconciles,
        "again_in_s": again_in_s,
    }


COMMANDS: Final = (connect,)
