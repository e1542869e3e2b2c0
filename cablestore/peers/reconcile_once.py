"""Reconciling with one store, once: connect, talk as often as it takes, let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cablestore import limits
from cablestore.errors import NodeError, PeerRefusedError, ReconcileError
from cablestore.peers.reconcile_link import Link, LostError, SilentError
from cablestore.peers.reconciler import is_limit
from cablestore.peers.report import ReconcileReport
from cablestore.peers.settings import Address
from cablestore.reconcile.messages import Purpose, Terms

if TYPE_CHECKING:
    from cablestore.peers.node import Node


async def reconcile_once(
    node: Node,
    address: Address,
    *,
    since_ms: int,
    over_cable: bool,
    is_audit: bool,
    progress: Callable[[int], None] | None,
    report: ReconcileReport,
) -> ReconcileReport:
    """Reconcile with a peer, once; see `Node.reconcile_once`."""
    began_s = node.loop.time()
    terms = node.reconciling.own_terms().narrowed(Terms(from_ms=since_ms))
    purpose = Purpose.AUDIT if is_audit else Purpose.RECONCILE
    link: Link = await (_met(node, address) if over_cable else node.own_port.connect(address))
    try:
        await _talk_to_the_end(node, link, terms, purpose, progress, report)
    except (LostError, SilentError) as error:
        if report.received_comparing_size_bytes:
            raise
        where = "a store that reconciles" if over_cable else "the reconciliation port of a store"
        raise NodeError(f"{address} does not answer as {where} does: {error}") from None
    except ReconcileError as error:
        if isinstance(error, PeerRefusedError):
            raise type(error)(error.reason, f"{address}: {error}") from None
        raise ReconcileError(f"{address}: {error}") from None
    finally:
        report.seconds = node.loop.time() - began_s
        link.end("reconciled")
        await asyncio.wait({link.closed}, timeout=limits.END_TIMEOUT_S + 1)
    return report


async def _talk_to_the_end(
    node: Node,
    link: Link,
    terms: Terms,
    purpose: Purpose,
    progress: Callable[[int], None] | None,
    report: ReconcileReport,
) -> None:
    """Talk; again where there is more than one talk may find, as long as posts move."""
    moved = -1
    while True:
        try:
            if purpose is Purpose.AUDIT:
                await node.reconciling.talk(link, terms, report, purpose, progress)
            else:
                await node.reconciling.all_of(link, terms, report, progress)
        except ReconcileError as error:
            before, moved = moved, report.posts_sent + report.posts_received
            if not is_limit(error) or moved == before:
                raise
        else:
            return


async def _met(node: Node, address: Address) -> Link:
    """Connect to a Cable port, and wait until both sides know of each other that they reconcile. Raises NodeError."""
    node.once.add(address)
    try:
        connection = await node.connect(address)
        node.reconciling.greet(connection)
        await asyncio.wait({connection.met}, timeout=limits.GREETING_TIMEOUT_S)
    finally:
        node.once.discard(address)
    if not (connection.met.done() and connection.met.result()):
        connection.end("it does not reconcile")
        why = connection.closed.result() if connection.closed.done() else "it is no cablestore, or does not reconcile"
        raise NodeError(f"{address} was not recognised within {limits.GREETING_TIMEOUT_S:g} s: {why}")
    return connection
