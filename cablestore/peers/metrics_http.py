"""A node's metrics and health over HTTP: see `status_pages`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from prometheus_client import Gauge
from prometheus_client.registry import Collector

from cablestore import limits
from cablestore.peers.address import Address
from cablestore.peers.health import Health, State, Status
from cablestore.peers.heartbeat import Heartbeat
from cablestore.peers.node import Node
from cablestore.peers.status_pages import StatusPages


@contextmanager
def exporter(
    node: Node,
    address: Address,
    *,
    client_timeout_s: float = limits.METRICS_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Address]:
    """Serve a node's metrics and health while the block runs. Use it inside the `async with` of the node.

    Yields the address, with the assigned port for port 0. Raises NodeError if it cannot listen on the address.

    >>> async with Node(store) as node:
    ...     with exporter(node, Address("127.0.0.1", 9464)) as address:
    ...         ...
    """
    with StatusPages(address, client_timeout_s=client_timeout_s) as pages, shown(pages, node, clock):
        yield pages.address


@contextmanager
def shown(pages: StatusPages, node: Node, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Show the status of a running node on status pages while the block runs, and the state `stopping` afterwards."""
    heartbeat = Heartbeat(node.parts.context.loop, clock)
    pages.show(RunningStatus(node, heartbeat))
    try:
        yield
    finally:
        pages.show_phase(State.STOPPING)
        heartbeat.end()


class RunningStatus(Status):
    """Status of a running node."""

    def __init__(self, node: Node, heartbeat: Heartbeat) -> None:
        super().__init__()
        self._node = node
        self._heartbeat = heartbeat
        lag = Gauge("cablestore_loop_lag_seconds", "Seconds by which the event loop is late", registry=self.registry)
        lag.set_function(lambda: heartbeat.lag_s)
        # A registry has the interface of a collector.
        self.registry.register(cast(Collector, node.parts.context.metrics.registry))

    def health(self) -> Health:
        """Return the present health, with the load of the node."""
        return self._node.health(self._heartbeat.lag_s)
