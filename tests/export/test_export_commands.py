"""`cablestore export`, `import` and `verify-export`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from exporting import export, some_posts, stored
from history import AUTHORS, NOW_MS, Model
from waiting import LIMIT_S

from cablestore import DRAFT8, CableStore
from cablestore.arguments import checked_window
from cablestore.export import read_manifest, verify_export


def test_the_commands_export_verify_and_import(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    source, target, out, part = (tmp_path / name for name in ("source", "target", "out", "part"))
    with stored(source) as store:
        digest = store.dump_digest()
    status, said, _ = run("export", out, "--store", source, "--json")
    assert status == 0
    assert json.loads(said)["content_blake3"] == read_manifest(out).content_blake3
    status, said, _ = run("verify-export", out, "--signatures")
    assert (status, "no problems found" in said) == (0, True)
    status, said, _ = run("import", out, "--store", target, "--json")
    assert (status, set(json.loads(said)["verdicts"])) == (0, {"accepted"})
    with CableStore.open(target, create=False) as store:
        assert store.dump_digest() == digest
    status, said, _ = run("import", out, "--store", target)
    assert status == 0
    assert "posts duplicate" in said
    key = AUTHORS[0].public_key
    arguments = ["--channel", "default", "--author", key.hex(), "--after", "2000-01-01", "--before", "1d"]
    assert run("export", part, "--store", source, *arguments)[0] == 0
    filters = read_manifest(part).filters
    assert filters is not None
    assert (filters.channels, filters.authors) == (frozenset({"default"}), frozenset({key}))
    after_ms, before_ms = checked_window(filters.after_ms, filters.before_ms)
    assert 0 < after_ms < NOW_MS < (before_ms or 0)


def test_commands_report_errors_with_an_exit_status(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]], copy: Path
) -> None:
    assert run("export", tmp_path / "out", "--store", tmp_path / "nothing")[0] == 2
    with stored(tmp_path / "store"):
        pass
    status, _, error = run("export", copy, "--store", tmp_path / "store")
    assert (status, "finished export" in error) == (2, True)
    status, _, error = run("verify-export", tmp_path)
    assert (status, "is not an export" in error) == (2, True)
    assert run("import", tmp_path, "--store", tmp_path / "new")[0] == 2
    assert not (tmp_path / "new").exists()
    export([], tmp_path / "draft8", DRAFT8)
    assert run("import", tmp_path / "draft8", "--store", tmp_path / "store")[0] == 2
    assert run("import", copy, tmp_path / "draft8", "--store", tmp_path / "new")[0] == 2
    name = read_manifest(copy).segments[0].file
    (copy / name).unlink()
    status, said, _ = run("verify-export", copy)
    assert (status, f"✗ {name}" in said) == (1, True)
    status, said, _ = run("verify-export", copy, "--json")
    assert status == 1
    assert json.loads(said.splitlines()[0])["file"] == name


@pytest.mark.thorough
def test_an_interrupted_export_has_exit_status_130(tmp_path: Path) -> None:
    """Ctrl-C ends the command with status 130, and the same command continues the export."""
    with stored(tmp_path / "store"):
        pass
    code = """
import os, signal, sys
from cablestore import cli
from cablestore.export import exporter

def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return iter(())

exporter.merge, merge = interrupted, exporter.merge
cli.main(["export", sys.argv[1], "--store", sys.argv[2]])
"""
    command = [sys.executable, "-c", code, str(tmp_path / "out"), str(tmp_path / "store")]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert child.returncode == 130, child.stderr
    command = [sys.executable, "-m", "cablestore", "export", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert child.returncode == 0, child.stderr
    assert verify_export(tmp_path / "out", signatures=True).posts == len(Model(some_posts()).live)
