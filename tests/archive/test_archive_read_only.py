"""Archives in folders that are not writable: a read-only disk, a full disk, and a folder of another user."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from archive_network import HERE, Seed, archive, command, digest, made_store, run_json
from archives import some_weeks
from disks import as_nobody, foreign_copy, full_disk, read_only_disk, snapshot
from waiting import LIMIT_S

from cablestore import CableStore

WEEKS = 2
ModerationPosition = Callable[[Path, Path], AbstractContextManager[Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Create a control node's store and its archives. Returns both folders and the public key."""
    path = tmp_path_factory.mktemp("made")
    community = made_store(path / "control", some_weeks(weeks=WEEKS, per_week=40))
    run_json("create", path / "archives", store=path / "control")
    return path / "control", path / "archives", community


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.thorough("read_only_disk", "full_disk")
@pytest.mark.parametrize("place", [read_only_disk, full_disk])
def test_archives_on_an_unwritable_disk_are_imported_and_seeded(
    made: tuple[Path, Path, str], tmp_path: Path, place: ModerationPosition
) -> None:
    _, archives, community = made
    CableStore.open(tmp_path / "member").close()
    CableStore.open(tmp_path / "another").close()
    with place(archives, tmp_path / "disk") as folder:
        before = contents(folder)
        first = archive("import", folder, "--control", community, store=tmp_path / "member")
        assert first.returncode == 0, first.stderr
        assert len(first.stdout.splitlines()) == WEEKS
        assert f"imported {WEEKS} archives" in first.stderr
        assert "cannot save the list of imported archives" in " ".join(first.stderr.split())
        [*again] = run_json("import", folder, "--control", community, store=tmp_path / "member")
        assert [line["new"] for line in again if "new" in line] == [0] * WEEKS
        with Seed(folder, community) as seed:
            run_json(
                *("fetch", seed.magnet, tmp_path / "got", "--control", community, "--peer", f"{HERE}:{seed.port}"),
                store=tmp_path / "another",
            )
        assert contents(folder) == before
    assert digest(tmp_path / "member") == digest(tmp_path / "another")


def test_archives_of_another_user_are_imported(made: tuple[Path, Path, str]) -> None:
    _, archives, community = made
    with foreign_copy(archives) as folder:
        mine = folder.with_name("mine")
        mine.mkdir(mode=0o777)
        mine.chmod(0o777)
        run = as_nobody(*command("import", folder, "--control", community, store=mine / "store"))
        init = as_nobody(*command(store=mine / "store")[:3], "init", "-s", str(mine / "store"))
        subprocess.run(init, check=True, capture_output=True, timeout=LIMIT_S)
        found = subprocess.run(run, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert found.returncode == 0, found.stderr
        assert len(found.stdout.splitlines()) == WEEKS


@pytest.mark.thorough
def test_archives_are_created_from_a_read_only_store(made: tuple[Path, Path, str], tmp_path: Path) -> None:
    control, archives, community = made
    before = snapshot(control)
    with read_only_disk(control, tmp_path / "disk") as disk:
        [found] = run_json("create", tmp_path / "archives", "--read-only", store=disk)
    assert found["archives"] == WEEKS
    for name in ("data", "index"):
        assert (tmp_path / "archives" / community / name).read_bytes() == (archives / community / name).read_bytes()
    assert snapshot(control) == before
