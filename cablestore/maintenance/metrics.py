"""Metrics of maintenance for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cablestore.maintenance.backup_schedule import BackupState


class MaintenanceMetrics(Collector):
    """Metrics of the regular backups and of the removal of old posts, computed at each request."""

    def __init__(self, backup: Callable[[], BackupState], removed: Callable[[], int]) -> None:
        self._backup = backup
        self._removed = removed

    def collect(self) -> Iterator[Metric]:
        """Yield the present values. Without regular backups, values of backups are left out."""
        state = self._backup()
        if state.to:
            yield CounterMetricFamily("cablestore_backup_failures", "Failed attempts to back up", state.failures)
        yield CounterMetricFamily(
            "cablestore_removed_posts", "Posts removed because they were older than `keep`", self._removed()
        )
