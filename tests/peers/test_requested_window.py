"""The window of a node: older posts are not requested, and a window may be longer than the time since 1970."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from by_hand import on_loop
from peering import HOST, QUICK, Network, memory, network, sync_of, until
from people import ANN
from reconciling_nodes import once

from cablestore.peers import Address, Node
from cablestore.store.options import system_clock_ms

HOUR_MS = 3_600_000


async def synced(node: Node, peer: Node, net: Network) -> None:
    await sync_of(node, net.addresses[peer])


async def reconciled_once(node: Node, peer: Node, _: Network) -> None:
    await once(node, await peer.reconcile_port.listen(Address(HOST, 0)))


async def reconciled_by_schedule(node: Node, peer: Node, net: Network) -> None:
    node.reconcile_port.keep_connected(await peer.reconcile_port.listen(Address(HOST, 0)))
    await until(lambda: any(record.getMessage() == "reconciled" for record in net.log.records))


@pytest.mark.parametrize(("window_ms", "expected"), [(10 * HOUR_MS, ["new"]), (2**60, ["new", "old", "oldest"])])
@pytest.mark.parametrize("by", [synced, reconciled_once, reconciled_by_schedule])
@on_loop
async def test_a_node_requests_only_its_window(
    by: Callable[[Node, Node, Network], Awaitable[None]], window_ms: int, expected: list[str]
) -> None:
    now_ms = system_clock_ms()
    dates = {"oldest": 0, "old": now_ms - 20 * HOUR_MS, "new": now_ms - HOUR_MS}
    posts = [ANN.text("default", text, at=at) for text, at in dates.items()]
    stores = memory("a", posts=posts, clock=system_clock_ms), memory("b", clock=system_clock_ms)
    async with network(*stores, settings=replace(QUICK, window_ms=window_ms)) as net:
        one, other = net.nodes
        await by(other, one, net)
        await until(lambda: len(other.store.messages("default").messages) >= len(expected))
        assert [message.text for message in other.store.messages("default").messages] == expected
