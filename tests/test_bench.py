"""Every benchmark runs, at a tiny size. Use `make bench` for measurements."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT_S, wait_until

BENCH = Path(__file__).resolve().parent.parent / "bench"
SCRIPTS: dict[str, tuple[str, ...]] = {
    "aio.py": (),
    "answering.py": (),
    "archive.py": (),
    "backup.py": (),
    "channels.py": (),
    "client.py": (),
    "content.py": (),
    "cost.py": (),
    "export.py": (),
    "fairness.py": (),
    "importing.py": (),
    "ingest.py": (),
    "inspection.py": (),
    "maintenance.py": (),
    "make_export.py": ("OUT", "--posts", "400", "--exports", "2"),
    "moderation.py": (),
    "networks.py": (),
    "peers.py": (),
    "reconcile.py": (),
    "reconcile_store.py": (),
    "reindex.py": ("--folder", "OUT"),
    "remote.py": (),
    "run.py": ("answering.py",),
    "scale.py": (),
    "sds.py": (),
    "sds_flood.py": (),
    "sds_simulator.py": ("--participants", "5", "--messages", "10", "--seconds", "10"),
    "search.py": (),
    "starting.py": (),
    "stranger.py": ("--json",),
    "terminal_client.py": (),
    "torrent.py": (),
    "week.py": ("--json", "OUT"),
}
PARTS = {"common.py", "week_load.py", "week_servers.py"}
"""Modules that scripts import."""
NEEDS = {
    "content.py": "aiohttp",
    "inspection.py": "jinja2",
    "reindex.py": "pyspark",
    "search.py": "apsw",
    "terminal_client.py": "textual",
    "torrent.py": "libtorrent",
}
MEASURE_NOTHING = {"cost.py", "make_export.py", "run.py", "sds_simulator.py", "week.py"}


def test_every_benchmark_is_tested() -> None:
    assert {path.name for path in BENCH.glob("*.py")} == SCRIPTS.keys() | PARTS


def test_the_runner_runs_every_script_that_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location("bench_run", BENCH / "run.py")
    assert spec is not None
    assert spec.loader is not None
    runner: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    for quick in (False, True):
        assert runner.plan(quick=quick).keys() == SCRIPTS.keys() - MEASURE_NOTHING


@pytest.mark.thorough(
    "aio.py",
    "archive.py",
    "backup.py",
    "channels.py",
    "client.py",
    "content.py",
    "export.py",
    "fairness.py",
    "importing.py",
    "inspection.py",
    "maintenance.py",
    "make_export.py",
    "moderation.py",
    "networks.py",
    "peers.py",
    "reconcile.py",
    "reconcile_store.py",
    "reindex.py",
    "scale.py",
    "sds.py",
    "sds_flood.py",
    "sds_simulator.py",
    "search.py",
    "starting.py",
    "stranger.py",
    "terminal_client.py",
    "torrent.py",
    "week.py",
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_runs(tmp_path: Path, script: str) -> None:
    if importlib.util.find_spec(NEEDS.get(script, "cablestore")) is None:
        pytest.skip(f"{NEEDS[script]} is not installed")
    arguments = [str(tmp_path / "out") if each == "OUT" else each for each in SCRIPTS[script]]
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *arguments],
        cwd=tmp_path, env=os.environ | {"CABLESTORE_BENCH": "tiny", "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("cost.py", ["nowhere.json"]),
        ("importing.py", ["nowhere"]),
        ("ingest.py", ["many"]),
        ("make_export.py", ["out", "--posts", "1"]),
        ("networks.py", ["--json", "file/figures.json"]),
        ("networks.py", ["--posts", "1"]),
        ("reindex.py", ["--folder", "file"]),
        ("reindex.py", ["--json", "file/figures.json"]),
        ("run.py", ["answering.py", "nothing.py"]),
        ("week.py", ["0"]),
        ("week.py", ["--json", "file/figures.json"]),
        ("week.py", ["--posts", "1"]),
        ("run.py", ["make_export.py"]),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(tmp_path: Path, script: str, arguments: list[str]) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, str(BENCH / script), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(f"{script}: ")
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("is_ctrl_c", [False, True])
def test_an_interrupted_benchmark_leaves_no_files(tmp_path: Path, is_ctrl_c: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, str(BENCH / "run.py"), "answering.py"],
        env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: any(tmp_path.glob("*/*")) or process.poll() is not None)
    if is_ctrl_c:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    assert process.wait(LIMIT_S) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_documents_contain_the_table_of_costs() -> None:
    done = subprocess.run([sys.executable, str(BENCH / "cost.py")], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 5, "a head, a rule, three sizes"
    assert done.stdout.strip() in (BENCH.parent / "docs" / "explanation" / "COST.md").read_text(encoding="utf-8")
