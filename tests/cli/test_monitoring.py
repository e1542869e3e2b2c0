"""The files in `deploy/monitoring`: alert rules and a dashboard that use only metrics and labels that exist."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from folders import ROOT
from prometheus_client.parser import text_string_to_metric_families
from serving import HERE, Served, cablestore, fetch
from waiting import wait_until

MONITORING = ROOT / "deploy" / "monitoring"
ALERTS = MONITORING / "alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
WRITER = runpy.run_path(str(ROOT / "docs" / "dashboard.py"))
OF_PROMETHEUS = {"up": {"job", "instance"}}
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""
FUNCTIONS = {
    "and", "by", "changes", "histogram_quantile", "increase", "on", "predict_linear", "rate", "sum", "unless",
}  # fmt: skip


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """Return the values of the labels of each metric of a running `serve` whose store was backed up and checked, and has a quota."""
    folder = tmp_path_factory.mktemp("monitoring")
    assert cablestore("init", store=folder / "a").returncode == 0
    assert cablestore("post", "default", "text", store=folder / "a").returncode == 0
    assert cablestore("backup", folder / "backup", store=folder / "a").returncode == 0
    assert cablestore("check", store=folder / "a").returncode == 0
    one = Served(folder / "a", "--listen", HERE, "--metrics", HERE, "--max-store-size", "1GB")
    try:
        assert one.address
        page = fetch(f"http://{one.hear('metrics')}/metrics")[1]
        assert one.stop() == 0
    finally:
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
    return found


def names_in(expression: str) -> set[str]:
    """Return the names of metrics and functions in an expression: not labels, strings, and numbers."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|\b(by|on) \([^)]*\)', " ", expression)
    return set(re.findall(r"(?<![\w.])[a-z_][a-z_0-9]*(?![\w.])", bare)) - FUNCTIONS


def check_expression(expression: str, labels: dict[str, dict[str, set[str]]]) -> None:
    """Check that metrics, labels and their values exist, and that the brackets match."""
    assert expression.count("(") == expression.count(")")
    metrics = names_in(expression)
    assert metrics
    known = {name: set(values) for name, values in labels.items()} | OF_PROMETHEUS
    assert metrics <= known.keys(), expression
    allowed = SCRAPED | {"le"}.union(*(known[name] for name in metrics))
    grouped = {
        label for names in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in re.split(r",\s*", names)
    }
    assert grouped <= allowed, expression
    for name, _, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', expression):
        assert name in allowed, expression
        if name not in SCRAPED:
            values = set().union(*(labels[metric].get(name, set()) for metric in metrics))
            assert set(value.split("|")) <= values, expression


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_a_rule_is_complete_and_uses_existing_metrics(
    rule: dict[str, Any], labels: dict[str, dict[str, set[str]]]
) -> None:
    assert (
        {"alert", "expr", "labels", "annotations"} <= rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    )
    assert re.fullmatch(r"Cablestore[A-Z][A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"[1-9]\d*[mhd]", rule.get("for", "1m"))
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "action"}
    for text in rule["annotations"].values():
        assert re.sub(r"\{\{ \$(labels\.instance|value( \| humanize(1024|Duration))?) \}\}", "", text).count("{") == 0
    check_expression(rule["expr"], labels)


def test_the_file_of_rules_has_the_format_of_prometheus() -> None:
    document = yaml.safe_load(ALERTS.read_text())
    assert document.keys() == {"groups"}
    assert [group.keys() for group in document["groups"]] == [{"name", "rules"}]
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) > 15


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_accepts_the_rules() -> None:
    found = subprocess.run(["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_documents_list_each_alert() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text().partition("## Alerts")[2].partition("## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    assert listed == [rule["alert"] for rule in RULES]


def test_the_dashboard_matches_its_program() -> None:
    assert (MONITORING / "dashboard.json").read_text() == WRITER["text"]() == WRITER["text"]()


def test_the_dashboard_uses_existing_metrics(labels: dict[str, dict[str, set[str]]]) -> None:
    document = json.loads((MONITORING / "dashboard.json").read_text())
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert expressions == WRITER["expressions"]()
    for expression in expressions:
        check_expression(expression, labels)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24


def test_label_values_have_one_spelling(labels: dict[str, dict[str, set[str]]]) -> None:
    free = {("cablestore_build_info", "version"), ("cablestore_build_info", "python")}
    for name, values in labels.items():
        for label, found in values.items():
            if name.startswith("cablestore_") and label != "le" and (name, label) not in free:
                assert all(re.fullmatch(r"[a-z0-9_]+", value) for value in found), (name, label, found)


def test_disk_and_backup_are_measured(tmp_path: Path, labels: dict[str, dict[str, set[str]]]) -> None:
    assert {
        "cablestore_disk_free_bytes",
        "cablestore_store_disk_bytes",
        "cablestore_backup_age_seconds",
        "cablestore_check_age_seconds",
        "cablestore_build_info",
    } <= labels.keys()
    one = Served(tmp_path / "a", "--create", "--listen", HERE, "--metrics", HERE)
    try:
        assert one.address
        assert "\ncablestore_backup_age_seconds " not in fetch(f"http://{one.hear('metrics')}/metrics")[1]
        before = one.metric("cablestore_store_disk_bytes")
        assert cablestore("post", "default", "x" * 4_000, store=one.store).returncode == 0
        wait_until(lambda: one.metric("cablestore_store_disk_bytes") > before)
        assert one.metric("cablestore_disk_free_bytes") > 0
        assert cablestore("backup", tmp_path / "backup", store=one.store).returncode == 0
        assert "\ncablestore_backup_age_seconds " in fetch(f"http://{one.hear('metrics')}/metrics")[1]
        assert "\ncablestore_check_age_seconds " not in fetch(f"http://{one.hear('metrics')}/metrics")[1]
        assert cablestore("check", store=one.store).returncode == 0
        assert "\ncablestore_check_age_seconds " in fetch(f"http://{one.hear('metrics')}/metrics")[1]
        assert one.stop() == 0
    finally:
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()
