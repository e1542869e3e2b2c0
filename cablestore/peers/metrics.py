"""Metrics of a node for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cablestore.files import disk_usage
from cablestore.index.last_backup import last_backup
from cablestore.index.last_check import last_check
from cablestore.index.last_records import LastRecord
from cablestore.index.verdict import Verdict
from cablestore.peers.rejected_posts import RejectionReason
from cablestore.peers.report import ReconcileReport
from cablestore.protocol.message import MESSAGE_NAMES, Request
from cablestore.store.options import system_clock_ms
from cablestore.store.store import CableStore

_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

REFUSING: Final = ("peers", "address", "handshakes", "descriptors", "banned", "policy")
"""Reasons for which connections are rejected: limits, bans, and the policy."""
OUTCOMES: Final = ("done", "refused", "limit", "lost", "silent", "storage", "fault", "stopped")
_ROUNDS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 20, 50, 100, 1000)
_RECONCILE_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)
_DIFFERENCES: Final = (0, 1, 10, 100, 1_000, 10_000, 100_000)


class NodeLoad(NamedTuple):
    """Load of a node at one moment."""

    peers: int = 0
    silent_peers: int = 0
    """Connected peers that do not answer."""
    unreachable_peers: int = 0
    """Addresses that the node should be connected to and is not."""
    live_requests: int = 0
    queued_size_bytes: int = 0
    """Bytes that peers have not read."""
    received_size_bytes: int = 0
    sent_size_bytes: int = 0
    """Bytes received and sent on the open connections."""
    reads_waiting: int = 0
    ingest_queued_size_bytes: int = 0
    wanted_hashes: int = 0
    early_posts: int = 0
    """Posts that were rejected as too far ahead, and are requested again later."""
    postponed_posts: int = 0
    """Posts that the policy postponed, and are requested again later."""
    judged_posts: int = 0
    """Posts that wait for the policy command."""
    policy_command_failure: str = ""
    """Why the policy command does not judge posts, or ""."""
    quota: str = "off"
    """State of the quota: off, ok, near, full or exceeded."""
    quota_room_bytes: int | None = None
    """Bytes until the quota is reached, negative beyond it. None without a quota."""


class Metrics(Collector):
    """Metrics of a node. An exporter reads them from `registry`."""

    def __init__(self, store: CableStore, load: Callable[[], NodeLoad]) -> None:
        self._store = store
        self._load = load
        self.registry: Final = CollectorRegistry()
        self.registry.register(self)
        requests = Counter("cablestore_requests", "Requests of peers", ["type"], registry=self.registry)
        seconds = Histogram(
            "cablestore_answer_seconds",
            "Seconds from the start of an answer to the last item read from the store",
            ["type"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        # Cached, because a look-up by labels costs as much as the rest of counting.
        names = {kind: _label(MESSAGE_NAMES[kind]) for kind in get_args(Request)}
        self.requests: Final = {kind: requests.labels(name) for kind, name in names.items()}
        self.answer_seconds: Final = {kind: seconds.labels(name) for kind, name in names.items()}
        posts = Counter(
            "cablestore_posts_in", "Posts received from peers, by verdict", ["verdict"], registry=self.registry
        )
        self.posts_in: Final = {verdict: posts.labels(_label(verdict.value)) for verdict in Verdict}
        rejected = Counter(
            "cablestore_rejected_posts",
            "Posts that the policy or the quota rejected or postponed, by reason",
            ["reason"],
            registry=self.registry,
        )
        self.rejected_posts: Final = {reason: rejected.labels(reason.value) for reason in RejectionReason}
        connections = Counter(
            "cablestore_connections", "Connections, opened by us or by them", ["by"], registry=self.registry
        )
        self.connections: Final = {True: connections.labels("us"), False: connections.labels("them")}
        """The key is True if this node connected."""
        self.vanished: Final = Counter(
            "cablestore_vanished_peers", "Connections closed because the peer did not answer", registry=self.registry
        )
        refused = Counter(
            "cablestore_refused_connections",
            "Rejected connections of peers, by reason",
            ["limit"],
            registry=self.registry,
        )
        self.refused: Final = {limit: refused.labels(limit) for limit in REFUSING}
        self._received = Counter(
            "cablestore_received_bytes", "Bytes received on closed connections", registry=self.registry
        )
        self._sent = Counter("cablestore_sent_bytes", "Bytes sent on closed connections", registry=self.registry)
        self.failed_writes = 0
        """Failures to store posts of peers, except for failed writes, which the store counts."""

    def disconnected(self, received_size_bytes: int, sent_size_bytes: int) -> None:
        """Count the bytes of a closed connection. Open connections have separate metrics."""
        self._received.inc(received_size_bytes)
        self._sent.inc(sent_size_bytes)

    def collect(self) -> Iterator[Metric]:
        """Yield the present values of the node and its store. Called from the exporter's thread."""
        load = self._load()
        gauges = {
            "cablestore_peers": ("Connected peers", load.peers),
            "cablestore_silent_peers": ("Connected peers that do not answer", load.silent_peers),
            "cablestore_unreachable_peers": (
                "Disconnected peers to which this node should be connected",
                load.unreachable_peers,
            ),
            "cablestore_live_requests": ("Live requests of peers", load.live_requests),
            "cablestore_queued_bytes": ("Queued bytes that peers have not read", load.queued_size_bytes),
            "cablestore_open_received_bytes": ("Bytes received on open connections", load.received_size_bytes),
            "cablestore_open_sent_bytes": ("Bytes sent on open connections", load.sent_size_bytes),
            "cablestore_reads_waiting": ("Reads that wait for the reading thread", load.reads_waiting),
            "cablestore_ingest_queued_bytes": ("Bytes of posts that wait to be stored", load.ingest_queued_size_bytes),
            "cablestore_wanted_hashes": ("Posts to fetch from peers", load.wanted_hashes),
            "cablestore_early_posts": (
                "Posts rejected as too far in the future, to be requested again",
                load.early_posts,
            ),
        }
        gauges |= {
            "cablestore_postponed_posts": (
                "Posts that the policy postponed, to be requested again",
                load.postponed_posts,
            ),
            "cablestore_judged_posts": ("Posts that wait for the policy command", load.judged_posts),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value)
        room = GaugeMetricFamily("cablestore_quota_room_bytes", "Bytes until the quota of the store is reached")
        if load.quota_room_bytes is not None:
            room.add_metric([], load.quota_room_bytes)
        yield room
        yield CounterMetricFamily(
            "cablestore_failed_writes",
            "Failed writes to the store, and failures to store posts of peers",
            self._store.write_state.failed_writes + self.failed_writes,
        )
        stats = self._store.stats()
        posts = GaugeMetricFamily("cablestore_store_posts", "Stored posts", labels=["type"])
        for kind, count in stats.posts.items():
            posts.add_metric([_label(kind)], count)
        yield posts
        sizes = GaugeMetricFamily("cablestore_store_view_bytes", "Bytes of a view's rows", labels=["view"])
        for view, size in stats.views.items():
            sizes.add_metric([view], size.size_bytes)
        yield sizes
        yield from _of_disk(self._store.path)
        yield GaugeMetricFamily("cablestore_store_channels", "Channels in the store", stats.channels)
        yield GaugeMetricFamily(
            "cablestore_store_events", "Number of the latest entry of the arrival log", stats.last_sequence
        )


def _label(text: str) -> str:
    """Return the value of a label for a term: words in lower case with underscores."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower())


def _of_disk(path: Path | None) -> Iterator[Metric]:
    """Yield metrics of the store's folder and its disk, without values for a store in memory."""
    usage = None if path is None else disk_usage(path)
    backup = None if path is None else last_backup(path)
    check = None if path is None else last_check(path)
    for name, text, value in (
        ("cablestore_disk_free_bytes", "Free space on the disk of the store", usage and usage.free_size_bytes),
        ("cablestore_store_disk_bytes", "Size of the store's folder on the disk", usage and usage.store_size_bytes),
        ("cablestore_backup_age_seconds", "Seconds since the last complete backup", _age_s(backup)),
        ("cablestore_check_age_seconds", "Seconds since the last complete check", _age_s(check)),
    ):
        family = GaugeMetricFamily(name, text)
        if value is not None:
            family.add_metric([], value)
        yield family


def _age_s(record: LastRecord | None) -> float | None:
    return None if record is None else max(0.0, (system_clock_ms() - record.at_ms) / 1000)


class ReconcileMetrics:
    """Counters of finished reconciliations."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"cablestore_reconcile_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"cablestore_reconcile_{name}", text, buckets=buckets, registry=registry)

        self._sessions = counter(
            "sessions", "Finished reconciliations, by the side that began them and by outcome", "side", "outcome"
        )
        self._posts = counter("posts", "Posts sent, and new posts received, in reconciliations", "direction")
        self._bytes = counter("bytes", "Bytes sent and received in reconciliations", "direction", "kind")
        self._audits = counter("audits", "Audits that this node requested")
        self._hidden = counter(
            "hidden_ranges", "Time ranges in which audits found differences that no reconciliation finds"
        )
        self._rounds = histogram("rounds", "Payloads compared in a reconciliation", _ROUNDS)
        self._seconds = histogram("seconds", "Seconds from hello to the end of a reconciliation", _RECONCILE_BUCKETS_S)
        for side in ("us", "them"):  # also show counters that are 0
            for outcome in OUTCOMES:
                self._sessions.labels(side, outcome)
        for direction in ("sent", "received"):
            self._posts.labels(direction)
            for kind in ("comparing", "posts"):
                self._bytes.labels(direction, kind)
        self._differences = histogram("differences", "Posts that only one side of a reconciliation had", _DIFFERENCES)

    def ended(self, report: ReconcileReport, outcome: str, *, is_ours: bool, is_audit: bool) -> None:
        """Count one reconciliation."""
        self._sessions.labels("us" if is_ours else "them", outcome).inc()
        self._posts.labels("sent").inc(report.posts_sent)
        self._posts.labels("received").inc(report.posts_received)
        self._bytes.labels("sent", "comparing").inc(report.sent_comparing_size_bytes)
        self._bytes.labels("received", "comparing").inc(report.received_comparing_size_bytes)
        self._bytes.labels("sent", "posts").inc(report.sent_posts_size_bytes)
        self._bytes.labels("received", "posts").inc(report.received_posts_size_bytes)
        self._audits.inc(is_audit and is_ours)
        self._hidden.inc(len(report.differing_ms))
        self._rounds.observe(report.rounds)
        self._seconds.observe(report.seconds)
        self._differences.observe(report.here_only + report.there_only)
