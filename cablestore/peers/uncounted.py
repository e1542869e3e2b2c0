"""What a node counts with where prometheus-client, of the extra cablestore[serve], is not installed: nothing is kept.

It has the few names of prometheus-client that `metrics` uses. Nothing can read metrics without it either.
"""

from __future__ import annotations

from typing import Any, Self


class Metric:
    """Metric that is never read."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def labels(self, *_: str) -> Self:
        """Return this metric."""
        return self

    def inc(self, amount: float = 1) -> None:
        """Count nothing."""

    def observe(self, amount: float) -> None:
        """Count nothing."""

    def add_metric(self, labels: list[str], value: float) -> None:
        """Keep nothing."""


Counter = Histogram = CounterMetricFamily = GaugeMetricFamily = Metric


class Collector:
    """Collector that no registry reads."""


class CollectorRegistry:
    """Registry that nothing reads."""

    def register(self, collector: Collector) -> None:
        """Keep nothing."""
