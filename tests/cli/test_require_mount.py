"""With --require-mount nothing is written to a folder whose disk is not mounted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result

from cablestore import CableStore
from cablestore.cli import cli

_MOUNTED = Path("/dev/shm")  # noqa: S108 - a mount point of every Linux


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments), "--require-mount"])


@pytest.fixture
def mounted() -> Iterator[Path]:
    if not _MOUNTED.is_mount():
        pytest.skip(f"{_MOUNTED} is not a mount point")
    with TemporaryDirectory(dir=_MOUNTED) as folder:
        yield Path(folder)


@pytest.fixture
def unmounted(tmp_path: Path) -> Path:
    if any(path.is_mount() for path in tmp_path.parents[:-1]):
        pytest.skip(f"{tmp_path} is on a mounted disk")
    return tmp_path


@pytest.mark.parametrize("command", ["backup", "export"])
def test_a_target_on_no_mounted_disk_is_refused(store: CableStore, unmounted: Path, command: str) -> None:
    store.close()
    result = run(command, "-s", store.path, unmounted / "target")
    assert (result.exit_code, (unmounted / "target").exists()) == (2, False)
    assert f"{unmounted / 'target'} is not on a mounted disk" in result.stderr


@pytest.mark.parametrize("command", [("init",), ("serve", "--create", "--listen", "127.0.0.1:0")])
def test_no_store_is_made_on_a_disk_that_is_not_mounted(unmounted: Path, command: tuple[str, ...]) -> None:
    assert run(*command, "-s", unmounted / "disk" / "store").exit_code == 2
    assert not (unmounted / "disk").exists()


def test_a_target_below_a_mount_point_is_used(store: CableStore, mounted: Path) -> None:
    store.close()
    assert run("backup", "-s", store.path, mounted / "new" / "backup").exit_code == 0
    assert run("init", "-s", mounted / "store").exit_code == 0


def test_a_link_counts_as_the_place_it_leads_to(unmounted: Path, mounted: Path) -> None:
    (unmounted / "disk").symlink_to(mounted)
    assert run("init", "-s", unmounted / "disk" / "store").exit_code == 0
    (mounted / "back").symlink_to(unmounted)
    assert run("init", "-s", mounted / "back" / "store").exit_code == 2
