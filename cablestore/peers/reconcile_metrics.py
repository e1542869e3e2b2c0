"""Metrics of reconciliation for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from cablestore.peers.report import ReconcileReport

OUTCOMES: Final = ("done", "refused", "limit", "lost", "silent", "storage", "fault", "stopped")
_ROUNDS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 20, 50, 100, 1000)
_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)
_DIFFERENCES: Final = (0, 1, 10, 100, 1_000, 10_000, 100_000)


class ReconcileMetrics:
    """Counts talks when they are over."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"cablestore_reconcile_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"cablestore_reconcile_{name}", text, buckets=buckets, registry=registry)

        self._sessions = counter("sessions", "Reconciliations, by who began them and how they ended", "side", "outcome")
        self._posts = counter("posts", "Posts of reconciliations: sent, and received and new", "direction")
        self._bytes = counter("bytes", "Bytes of reconciliations", "direction", "kind")
        self._audits = counter("audits", "Audits that we asked for")
        self._hidden = counter("hidden_ranges", "Ranges of time in which audits found what no reconciliation finds")
        self._rounds = histogram("rounds", "Payloads compared", _ROUNDS)
        self._seconds = histogram("seconds", "From hello to the end", _BUCKETS_S)
        for side in ("us", "them"):  # what is 0 is told, too
            for outcome in OUTCOMES:
                self._sessions.labels(side, outcome)
        for direction in ("sent", "received"):
            self._posts.labels(direction)
            for kind in ("comparing", "posts"):
                self._bytes.labels(direction, kind)
        self._differences = histogram("differences", "Posts that only one side had", _DIFFERENCES)

    def ended(self, report: ReconcileReport, outcome: str, *, is_ours: bool, is_audit: bool) -> None:
        """Count one talk."""
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
