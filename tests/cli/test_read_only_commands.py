"""Commands with --read-only on unwritable disks, and their errors without it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from disks import as_nobody, foreign_copy, full_disk, read_only_disk, snapshot
from people import ANN, raws
from serving import cablestore
from waiting import LIMIT_S

from cablestore import CableStore, offer
from cablestore.index import meta
from cablestore.index.leveldb import LevelDB
from cablestore.index.packing import pack, unpack
from cablestore.sds.log import CausalLog

Run = Callable[..., tuple[int, str, str]]

TEXTS = 20
READING = (
    "log default",
    "channels",
    "users",
    "search word",
    "stats",
    "check",
    "dump --digest",
    "moderation",
    "identity",
    "generations",
    "sds status",
    "export OUT/export",
    "backup OUT/backup",
    "archive create OUT/archives",
)
WRITING = (
    "post default x",
    "join other",
    "prune --keep 1",
    "compact",
    "rebuild",
    "hide USER",
    "serve",
    "init",
    "import X",
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store"
    with CableStore.open(path) as store, CausalLog.open(path) as log:
        store.ingest(raws(*(ANN.text("default", f"word {i}") for i in range(TEXTS))))
        store.set_name("Own")
        store.update_search_index()
        log.channel("channel", "sender").send(b"a message", now_ms=1)
    return path


def read(run: Run, store: Path, scratch: Path) -> dict[str, str]:
    """Run all commands that read. Returns their output."""
    printed = {}
    for command in READING:
        status, printed[command], problem = run(
            *command.replace("OUT", str(scratch)).split(), "--read-only", "-s", store
        )
        assert status == 0, (command, problem)
    return printed


def assert_right(printed: dict[str, str]) -> None:
    assert len(printed["log default"].splitlines()) == TEXTS
    assert len(printed["search word"].splitlines()) == TEXTS
    assert "no problems found" in printed["check"]
    assert "channel" in printed["sds status"]
    assert f"exported {TEXTS + 1} posts" in printed["export OUT/export"]


def test_commands_read_from_a_read_only_disk(template: Path, tmp_path: Path, run: Run) -> None:
    before = snapshot(template)
    with read_only_disk(template, tmp_path / "disk") as disk:
        for command in ("stats", "export OUT", "backup OUT", "post default x"):
            status, _, problem = run(*command.replace("OUT", str(tmp_path / "refused")).split(), "-s", disk)
            assert status == 3
            assert problem.count("\n") == 1
            assert "Read-only file system. To read, export or back it up unchanged, use --read-only" in problem
        assert_right(read(run, disk, tmp_path))
        again = run("backup", tmp_path / "backup", "--json", "--read-only", "-s", disk)[1]
        assert json.loads(again)["full"] is False
    assert snapshot(template) == before


def test_commands_read_from_a_full_disk(template: Path, tmp_path: Path, run: Run) -> None:
    with full_disk(template, tmp_path / "disk") as store:
        status, _, problem = run("stats", "-s", store)
        assert status == 3
        assert "use --read-only" in problem
        before = snapshot(store)
        assert_right(read(run, store, tmp_path))
        assert snapshot(store) == before


def test_commands_read_a_store_of_another_user(template: Path) -> None:
    with foreign_copy(template) as store:
        scratch = store.with_name("out")
        scratch.mkdir()
        scratch.chmod(0o777)
        command = [sys.executable, "-m", "cablestore", "stats", "-s", str(store)]
        rejected = subprocess.run(as_nobody(*command), capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert rejected.returncode == 3
        assert "Permission denied. To read, export or back it up unchanged, use --read-only" in rejected.stderr
        before = snapshot(store)
        for arguments in ("search word", f"backup {scratch}/backup"):
            run = [sys.executable, "-m", "cablestore", *arguments.split(), "--read-only", "-s", str(store)]
            found = subprocess.run(as_nobody(*run), capture_output=True, text=True, check=False, timeout=LIMIT_S)
            assert found.returncode == 0, found.stderr
        assert snapshot(store) == before


@pytest.mark.parametrize("command", WRITING)
def test_a_writing_command_does_not_accept_the_option(template: Path, command: str, run: Run) -> None:
    status, _, problem = run(*command.split(), "--read-only", "-s", template)
    assert status == 2
    assert "No such option" in problem


def test_generations_are_listed_but_not_changed(template: Path, run: Run) -> None:
    before = snapshot(template)
    for option in ("--remove kept", "--back-to generation-000001", "--recover generation-000001"):
        assert run("generations", *option.split(), "--read-only", "-s", template)[:2] == (2, "")
    assert snapshot(template) == before


def test_a_missing_search_index_is_reported(template: Path, tmp_path: Path, run: Run) -> None:
    store = shutil.copytree(template, tmp_path / "store", ignore=shutil.ignore_patterns("search.sqlite*"))
    status, out, problem = run("search", "word", "--read-only", "-s", store)
    assert (status, out) == (3, "")
    assert "cannot use the search index" in problem
    assert not [*store.glob("search.sqlite*")]


def test_a_store_with_views_of_another_version_can_be_exported(template: Path, tmp_path: Path, run: Run) -> None:
    store = shutil.copytree(template, tmp_path / "store")
    (generation,) = store.glob("generation-*")
    database = LevelDB(generation)
    with database.snapshot() as state:
        value = unpack(state.get(meta.META_KEY) or b"")
    value["views"] = dict.fromkeys(value["views"], 99)
    database.write({meta.META_KEY: pack(value)}, sync=True)
    database.close()
    status, out, problem = run("log", "default", "--read-only", "-s", store)
    assert (status, out) == (2, "")
    assert "Copy a store on a read-only disk to another disk first" in problem
    assert run("export", tmp_path / "export", "--read-only", "-s", store)[0] == 0


def test_read_only_commands_work_beside_a_server(template: Path, tmp_path: Path, run: Run) -> None:
    """The process that has the store open reads for the command."""
    store = shutil.copytree(template, tmp_path / "store")
    with CableStore.open(store) as opened, offer(opened):
        status, out, _ = run("log", "default", "--read-only", "-s", store)
        assert (status, len(out.splitlines())) == (0, TEXTS)
        found = cablestore("check", "--read-only", store=store)
        assert (found.returncode, found.stderr) == (0, "")
        status, _, problem = run("rebuild", "-s", store)
        assert status == 2
        assert "is open in" in problem
    assert not list(store.glob("checkpoint-*"))
