"""`cablestore reconcile`, and `serve` that reconciles, in separate processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from archive_network import digest
from people import ANN, START_MS, raws
from serving import HERE, KEY, OTHER_KEY, Served, cablestore, environment, fetch
from talking import conversation, live, two_halves, vanishing
from waiting import LIMIT_S

from cablestore import CableStore, Dialect, Post
from cablestore.protocol.dialect import DRAFT8, LEGACY

Start = Callable[..., Served]


def stored(path: Path, posts: Iterable[Post], dialect: Dialect = LEGACY) -> Path:
    with CableStore.open(path, dialect=dialect) as store:
        store.ingest(raws(*posts), verify=False)
    return path


def json_of(result: subprocess.CompletedProcess[str], status: int = 0) -> dict[str, Any]:
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def refused(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("cablestore: ")
    return result.stderr


@pytest.mark.thorough
def test_reconcile_exchanges_posts_with_serve_at_both_ports(tmp_path: Path, serving: Start) -> None:
    """Posts move both ways, at both ports, with a key. Without --create the store must exist; a wrong key is rejected."""
    here, there = (
        stored(tmp_path / name, half) for name, half in zip("ab", two_halves(conversation(300)), strict=True)
    )
    secret = ("--cabal-key", KEY)
    one = serving(here, "--listen", HERE, "--reconcile-listen", HERE, "--metrics", HERE, *secret)
    port, cable = one.hear("reconciling"), one.address
    found = json_of(cablestore("reconcile", port, "--json", *secret, store=there))
    assert found["posts_received"] > 20
    assert found["posts_sent"] > 20
    assert found["rounds"] >= 2
    assert found["refused"] == found["missing"] == found["unasked"] == 0
    again = json_of(cablestore("reconcile", cable, "--cable", "--json", *secret, store=there))
    assert (again["posts_received"], again["posts_sent"], again["rounds"]) == (0, 0, 1)
    for_people = cablestore("reconcile", port, *secret, store=tmp_path / "c")
    assert "no store" in refused(for_people) or "--create" in for_people.stderr
    for_people = cablestore("reconcile", port, "--create", *secret, store=tmp_path / "c")
    assert "new posts, sent 0 in" in for_people.stdout
    assert "cannot connect to" in refused(cablestore("reconcile", port, "--cabal-key", OTHER_KEY, store=there))
    assert one.metric("cablestore_reconcile_sessions_total", side="them", outcome="done") == 3
    assert len(one.logged("reconciled", outcome="done")) == 3
    assert fetch(f"http://{one.hear('metrics')}/healthz")[0] == 200
    assert one.stop() == 0
    assert digest(here) == digest(there)
    with CableStore.open(here) as whole, CableStore.open(tmp_path / "c") as late:
        assert live(whole) == live(late)


@pytest.mark.thorough
def test_two_processes_of_serve_stay_in_step(tmp_path: Path, serving: Start) -> None:
    halves = two_halves(conversation(300))
    here, there = (stored(tmp_path / name, half) for name, half in zip("ab", halves, strict=True))
    one = serving(here, "--reconcile-listen", HERE)
    two = serving(there, "--reconcile-connect", one.hear("reconciling"), "--reconcile-every", "1s", "--metrics", HERE)
    while not two.metric("cablestore_reconcile_sessions_total", side="us", outcome="done"):
        assert two.process.poll() is None
    assert (one.stop(), two.stop()) == (0, 0)
    assert digest(here) == digest(there)


@pytest.mark.thorough
def test_an_audit_has_status_1_if_posts_were_crafted_to_stay_unfound(tmp_path: Path, serving: Start) -> None:
    base = [ANN.text("default", f"{i}", at=START_MS + 1000 * i) for i in range(500)]
    hidden = vanishing(lambda i: ANN.text("spam", f"{i}", at=START_MS - 10**6 + 1000 * i))
    one = serving(stored(tmp_path / "a", base + hidden), "--reconcile-listen", HERE)
    port, there = one.hear("reconciling"), stored(tmp_path / "b", base)
    assert json_of(cablestore("reconcile", port, "--json", store=there))["posts_received"] == 0
    result = cablestore("reconcile", port, "--audit", "--json", store=there)
    summary = json_of(result, 1)
    ranges = [json.loads(line) for line in result.stdout.splitlines()[:-1]]
    assert summary["by_design"] is True
    assert len(ranges) == summary["differing_ranges"] > 0
    assert ranges[0]["from_ms"] <= hidden[0].timestamp_ms
    assert ranges[-1]["until_ms"] > hidden[-1].timestamp_ms
    for_people = cablestore("reconcile", port, "--audit", store=there)
    assert for_people.returncode == 1
    assert "crafted so that reconciliation cannot find" in for_people.stdout
    fewer = stored(tmp_path / "c", base[::2])
    by_itself = json_of(cablestore("reconcile", port, "--audit", "--json", "--after", "2000-01-01", store=fewer))
    assert by_itself["there_only"] >= 250, "a comparison of ordinary differences must find the other posts too"
    assert by_itself["by_design"] is False


@pytest.mark.thorough
def test_impossible_requests_print_one_line(tmp_path: Path, serving: Start) -> None:
    here = stored(tmp_path / "a", conversation(10))
    one = serving(stored(tmp_path / "b", [], DRAFT8), "--listen", HERE, "--reconcile-listen", HERE)
    assert "the dialects differ: legacy was requested, this store has draft8" in refused(
        cablestore("reconcile", one.hear("reconciling"), store=here)
    )
    assert "cannot connect" in refused(cablestore("reconcile", "127.0.0.1:1", store=here))
    strange = serving(tmp_path / "c", "--create", "--listen", HERE, "--no-reconcile")
    assert "was not recognized" in refused(cablestore("reconcile", strange.address, "--cable", store=here))
    for options in (["--reconcile-listen", HERE, "--no-reconcile"], ["--reconcile-every", "0s", "--listen", HERE]):
        result = cablestore("serve", *options, store=here)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


@pytest.mark.thorough
def test_a_full_disk_ends_reconciliation_and_leaves_a_valid_store(tmp_path: Path, serving: Start) -> None:
    """The process must not write files of more than 600 kB, which simulates a full disk."""
    texts = [ANN.text("default", f"{i}" + "x" * 3_900) for i in range(600)]
    one = serving(stored(tmp_path / "a", texts), "--reconcile-listen", HERE)
    port = one.hear("reconciling")
    command = ["bash", "-c", 'ulimit -f 600; exec "$@"', "_", sys.executable, "-m", "cablestore"]
    command += ["reconcile", port, "--create", "-s", str(tmp_path / "b")]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False, timeout=LIMIT_S)
    assert result.returncode == 3
    assert "writing failed" in result.stderr
    assert "Traceback" not in result.stderr
    with CableStore.open(tmp_path / "b") as store:
        assert store.check().is_clean
    found = json_of(cablestore("reconcile", port, "--json", store=tmp_path / "b"))
    assert found["posts_received"] <= 600
    assert one.stop() == 0
    assert one.logged("reconciled", outcome="refused"), "the peer did not receive the reason"
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
