"""Metrics of maintenance for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cablestore.maintenance.backup_schedule import BackupState
from cablestore.store.options import system_clock_ms


class MaintenanceMetrics(Collector):
    """Values of the regular backups and of the removal of old posts, read when they are requested."""

    def __init__(
        self, backup: Callable[[], BackupState], removed: Callable[[], int], clock: Callable[[], int] = system_clock_ms
    ) -> None:
        self._backup = backup
        self._removed = removed
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield the present values. Without regular backups, there are no values for them."""
        state = self._backup()
        if state.to:
            yield GaugeMetricFamily(
                "cablestore_backup_age_seconds",
                "Age of the last complete backup, +Inf without one",
                state.age_s(self._clock()),
            )
            yield GaugeMetricFamily(
                "cablestore_backup_last_success_timestamp_seconds",
                "Time of the last complete backup, 0 without one",
                (state.last_ms or 0) / 1000,
            )
            yield CounterMetricFamily("cablestore_backup_failures", "Failed attempts to back up", state.failures)
        yield CounterMetricFamily(
            "cablestore_removed_posts", "Posts removed because they were older than `keep`", self._removed()
        )
