"""Metrics of a node: their values, and the buckets of histograms that the documentation lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from peering import memory
from prometheus_client import CollectorRegistry

from cablestore.peers import Node
from cablestore.peers.metrics import Metrics, NodeLoad, ReconcileMetrics
from cablestore.peers.report import ReconcileReport

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


def buckets(registry: CollectorRegistry) -> dict[str, set[float]]:
    """Return the finite bounds of each histogram."""
    found: dict[str, set[float]] = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name.endswith("_bucket") and sample.labels["le"] != "+Inf":
                found.setdefault(family.name, set()).add(float(sample.labels["le"]))
    return found


def test_the_documented_buckets_are_those_of_the_histograms() -> None:
    with memory() as store:
        metrics = Metrics(store, NodeLoad)
        ReconcileMetrics(metrics.registry)
        rows = re.findall(r"^\| `(\w+)`.*\| a histogram .*[Bb]uckets: ([\d., ]+\d)", PAGE, flags=re.MULTILINE)
        assert {name: set(map(float, found.split(", "))) for name, found in rows} == buckets(metrics.registry)


def test_a_node_that_does_not_run_has_no_load() -> None:
    with memory() as store:
        load = Node(store).load()
    assert load == NodeLoad()
    assert (load.quota, load.quota_room_bytes, load.policy_command_failure) == ("off", None, "")
    assert {value for value in load if isinstance(value, int)} == {0}


@pytest.mark.parametrize(("is_ours", "side"), [(True, "us"), (False, "them")])
@pytest.mark.parametrize("is_audit", [False, True])
def test_a_reconciliation_is_counted_with_all_its_values(is_ours: bool, side: str, is_audit: bool) -> None:
    registry = CollectorRegistry()
    report = ReconcileReport(
        posts_sent=1,
        posts_received=2,
        here_only=3,
        there_only=4,
        rounds=5,
        sent_comparing_size_bytes=6,
        received_comparing_size_bytes=7,
        sent_posts_size_bytes=8,
        received_posts_size_bytes=9,
        differing_ms=[(0, 1), (5, 6)],
        seconds=10.0,
    )
    ReconcileMetrics(registry).ended(report, "lost", is_ours=is_ours, is_audit=is_audit)
    found = {
        (sample.name.removeprefix("cablestore_reconcile_"), *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.value and not sample.name.endswith(("_bucket", "_created"))
    }
    assert found == {
        ("sessions_total", side, "lost"): 1,
        ("posts_total", "sent"): 1,
        ("posts_total", "received"): 2,
        ("bytes_total", "sent", "comparing"): 6,
        ("bytes_total", "received", "comparing"): 7,
        ("bytes_total", "sent", "posts"): 8,
        ("bytes_total", "received", "posts"): 9,
        ("hidden_ranges_total",): 2,
        ("rounds_count",): 1,
        ("rounds_sum",): 5,
        ("seconds_count",): 1,
        ("seconds_sum",): 10,
        ("differences_count",): 1,
        ("differences_sum",): 7,
    } | ({("audits_total",): 1} if is_ours and is_audit else {})
