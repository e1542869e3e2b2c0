"""Writes deploy/monitoring/dashboard.json, a dashboard for Grafana: `make docs`. A test compares it with the output.

Import the file in Grafana, and select the Prometheus data source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).parent.parent / "deploy" / "monitoring" / "dashboard.json"
_WIDTH: Final = 24
"""Columns of Grafana's grid."""
_OF = '{instance=~"$instance"}'


class Panel(NamedTuple):
    """Graph or number. `queries` maps legends to expressions. In these, `@` represents the selected instances."""

    title: str
    unit: str
    queries: dict[str, str]
    is_number: bool = False


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Overview": (
        Panel("Ready", "short", {"{{instance}}": "cablestore_ready@"}, is_number=True),
        Panel("Version", "short", {"{{version}}": "cablestore_build_info@"}, is_number=True),
        Panel("Peers", "short", {"{{instance}}": "cablestore_peers@"}, is_number=True),
        Panel("Free disk space", "bytes", {"{{instance}}": "cablestore_disk_free_bytes@"}, is_number=True),
        Panel("Age of the last backup", "s", {"{{instance}}": "cablestore_backup_age_seconds@"}, is_number=True),
        Panel("Posts", "short", {"{{instance}}": "sum by (instance) (cablestore_store_posts@)"}, is_number=True),
    ),
    "Peers": (
        Panel(
            "Peers",
            "short",
            {
                "connected": "cablestore_peers@",
                "silent": "cablestore_silent_peers@",
                "unreachable": "cablestore_unreachable_peers@",
            },
        ),
        Panel(
            "Connections per minute",
            "short",
            {
                "opened by {{by}}": "60 * rate(cablestore_connections_total@[5m])",
                "rejected: {{limit}}": "60 * rate(cablestore_refused_connections_total@[5m])",
                "vanished": "60 * rate(cablestore_vanished_peers_total@[5m])",
            },
        ),
        Panel(
            "Bytes of open and closed connections",
            "bytes",
            {
                "received": "cablestore_received_bytes_total@ + cablestore_open_received_bytes@",
                "sent": "cablestore_sent_bytes_total@ + cablestore_open_sent_bytes@",
            },
        ),
    ),
    "Requests and posts": (
        Panel("Requests per second", "short", {"{{type}}": "rate(cablestore_requests_total@[5m])"}),
        Panel(
            "Answer time, 99th percentile",
            "s",
            {"{{type}}": "histogram_quantile(0.99, sum by (le, type) (rate(cablestore_answer_seconds_bucket@[5m])))"},
        ),
        Panel("Received posts per second", "short", {"{{verdict}}": "rate(cablestore_posts_in_total@[5m])"}),
    ),
    "Queues and lag": (
        Panel("Lag of the event loop", "s", {"{{instance}}": "cablestore_loop_lag_seconds@"}),
        Panel(
            "Queued bytes",
            "bytes",
            {"to peers": "cablestore_queued_bytes@", "to be stored": "cablestore_ingest_queued_bytes@"},
        ),
        Panel(
            "Waiting posts and answers",
            "short",
            {
                "answers": "cablestore_reads_waiting@",
                "posts to fetch": "cablestore_wanted_hashes@",
                "posts from the future": "cablestore_early_posts@",
                "postponed posts": "cablestore_postponed_posts@",
            },
        ),
        Panel("Rejected posts", "short", {"{{reason}}": "increase(cablestore_rejected_posts_total@[5m])"}),
    ),
    "Store and disk": (
        Panel("Disk", "bytes", {"free": "cablestore_disk_free_bytes@", "store": "cablestore_store_disk_bytes@"}),
        Panel("Posts", "short", {"{{type}}": "cablestore_store_posts@"}),
        Panel("Failed writes", "short", {"{{instance}}": "increase(cablestore_failed_writes_total@[5m])"}),
    ),
    "Reconciliation": (
        Panel(
            "Reconciliations per minute",
            "short",
            {"{{side}} {{outcome}}": "60 * rate(cablestore_reconcile_sessions_total@[5m])"},
        ),
        Panel("Posts per second", "short", {"{{direction}}": "rate(cablestore_reconcile_posts_total@[5m])"}),
        Panel("Bytes per second", "Bps", {"{{direction}} {{kind}}": "rate(cablestore_reconcile_bytes_total@[5m])"}),
    ),
    "Process": (
        Panel(
            "Memory", "bytes", {"{{instance}}": 'process_resident_memory_bytes{job="cablestore",instance=~"$instance"}'}
        ),
        Panel(
            "Processor",
            "percentunit",
            {"{{instance}}": 'rate(process_cpu_seconds_total{job="cablestore",instance=~"$instance"}[5m])'},
        ),
        Panel(
            "File descriptors", "short", {"{{instance}}": 'process_open_fds{job="cablestore",instance=~"$instance"}'}
        ),
    ),
}


def expressions() -> list[str]:
    """Return the queries of all panels."""
    return [_expression(query) for row in ROWS.values() for panel in row for query in panel.queries.values()]


def _expression(query: str) -> str:
    return query.replace("@", _OF)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": _place(0, top, _WIDTH, 1), "panels": []})
        width, height = _WIDTH // len(row), 4 if row[0].is_number else 8
        panels += [_drawn(panel, _place(column * width, top + 1, width, height)) for column, panel in enumerate(row)]
        top += 1 + height
    return {
        "uid": "cablestore",
        "title": "cablestore",
        "tags": ["cablestore"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": [_DATA_SOURCE, _INSTANCE]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_DATA_SOURCE: Final = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
_INSTANCE: Final = {
    "name": "instance",
    "label": "Instance",
    "type": "query",
    "datasource": _SOURCE,
    "query": "label_values(cablestore_build_info, instance)",
    "refresh": 2,
    "includeAll": True,
    "multi": True,
    "current": {"text": "All", "value": "$__all"},
}


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _drawn(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": _expression(query), "legendFormat": legend, "datasource": _SOURCE}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }
    if panel.is_number:
        found["options"] = {"textMode": "name" if panel.title == "Version" else "auto"}
    return found


def text() -> str:
    """Return the content of the file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
