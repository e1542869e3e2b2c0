"""Metrics of a node for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cablestore.index.verdict import Outcome, Verdict
from cablestore.protocol.message import MESSAGE_NAMES, Request

if TYPE_CHECKING:
    from cablestore.peers.connection import Connection
    from cablestore.peers.node import Node

_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics(Collector):
    """Counts what a node does. `registry` is what an exporter takes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.registry: Final = CollectorRegistry()
        self.registry.register(self)
        requests = Counter("cablestore_requests", "Requests of peers", ["type"], registry=self.registry)
        latency = Histogram(
            "cablestore_answer_seconds",
            "From a request's turn to its last known row",
            ["type"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        # Looked up once: by its labels it costs as much as the rest of counting.
        names = {kind: MESSAGE_NAMES[kind].replace(" ", "_") for kind in get_args(Request)}
        self._requests = {kind: requests.labels(name) for kind, name in names.items()}
        self._latency = {kind: latency.labels(name) for kind, name in names.items()}
        posts = Counter(
            "cablestore_posts_in", "Posts of peers, by what became of them", ["verdict"], registry=self.registry
        )
        self._posts = {verdict: posts.labels(verdict.value.replace(" ", "_")) for verdict in Verdict}
        connections = Counter("cablestore_connections", "Connections", ["by"], registry=self.registry)
        self._connections = {True: connections.labels("us"), False: connections.labels("them")}
        self._received = Counter("cablestore_received_bytes", "Bytes of peers", registry=self.registry)
        self._sent = Counter("cablestore_sent_bytes", "Bytes to peers", registry=self.registry)
        self.failed_writes = 0
        """How often posts of peers could not be stored: after the first time the store takes no more until reopened."""

    def asked(self, request: Request) -> None:
        """Count a request."""
        self._requests[type(request)].inc()

    def answered(self, request: Request, seconds: float) -> None:
        """Count how long an answer took."""
        self._latency[type(request)].observe(seconds)

    def stored(self, outcomes: Iterable[Outcome]) -> None:
        """Count posts by verdict."""
        for outcome in outcomes:
            self._posts[outcome.verdict].inc()

    def connected(self, *, is_ours: bool) -> None:
        """Count a connection."""
        self._connections[is_ours].inc()

    def disconnected(self, connection: Connection) -> None:
        """Count its bytes: those of open connections are added when the metrics are read."""
        self._received.inc(connection.received_size_bytes)
        self._sent.inc(connection.sent_size_bytes)

    def collect(self) -> Iterator[Metric]:
        """Yield what is read off the node at this moment. Called from the exporter's thread."""
        node = self._node
        connections = list(node.connections)
        gauges = {
            "cablestore_peers": ("Peers that are connected", len(connections)),
            "cablestore_live_requests": ("Live requests of peers", node.live.count),
            "cablestore_queued_bytes": (
                "Bytes that peers have not read",
                sum(c.queued_size_bytes for c in connections),
            ),
            "cablestore_open_received_bytes": (
                "Bytes of open connections",
                sum(c.received_size_bytes for c in connections),
            ),
            "cablestore_open_sent_bytes": ("Bytes to open connections", sum(c.sent_size_bytes for c in connections)),
            "cablestore_reads_waiting": ("Answers that wait for the store", node.reads.waiting),
            "cablestore_ingest_queued_bytes": ("Posts that wait to be stored", node.writes.queued_size_bytes),
            "cablestore_wanted_hashes": ("Posts that are to be fetched", len(node.sync.fetches.wanted)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value)
        yield CounterMetricFamily(
            "cablestore_failed_writes", "Times that the disk refused posts of peers", self.failed_writes
        )
        stats = node.store.stats()
        posts = GaugeMetricFamily("cablestore_store_posts", "Posts of the store", labels=["type"])
        for kind, count in stats.posts.items():
            posts.add_metric([kind], count)
        yield posts
        sizes = GaugeMetricFamily("cablestore_store_view_bytes", "Bytes of a view's rows", labels=["view"])
        for view, size in stats.views.items():
            sizes.add_metric([view], size.size_bytes)
        yield sizes
        yield GaugeMetricFamily("cablestore_store_channels", "Channels of the store", stats.channels)
        yield GaugeMetricFamily("cablestore_store_events", "Number of the latest event", stats.last_sequence)
