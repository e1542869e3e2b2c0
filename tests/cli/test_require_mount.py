"""Option --require-mount: commands do not write to a folder whose disk is not mounted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from serving import HERE, Served, cablestore

from cablestore import CableStore
from cablestore.cli import main

_MOUNTED = Path("/dev/shm")


def run(*arguments: object) -> int:
    """Run a command with --require-mount. Returns its exit status."""
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments), "--require-mount"])
    assert isinstance(end.value.code, int)
    return end.value.code


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


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    CableStore.open(tmp_path / "store").close()
    return tmp_path / "store"


@pytest.mark.parametrize("command", ["backup", "export"])
def test_a_target_that_is_not_on_a_mounted_disk_is_rejected(
    closed: Path, unmounted: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = unmounted / "target"
    assert (run(command, "-s", closed, target), target.exists()) == (2, False)
    assert capsys.readouterr().err.startswith(f"cablestore: {target} is not on a mounted disk")


@pytest.mark.parametrize("command", [("init",), ("serve", "--create", "--listen", "127.0.0.1:0")])
def test_a_store_is_not_created_on_an_unmounted_disk(unmounted: Path, command: tuple[str, ...]) -> None:
    assert run(*command, "-s", unmounted / "disk" / "store") == 2
    assert not (unmounted / "disk").exists()


def test_a_target_below_a_mount_point_is_used(closed: Path, mounted: Path) -> None:
    assert run("backup", "-s", closed, mounted / "new" / "backup") == 0
    assert run("init", "-s", mounted / "store") == 0


def test_the_target_of_a_link_must_be_on_a_mounted_disk(unmounted: Path, mounted: Path) -> None:
    (unmounted / "disk").symlink_to(mounted)
    assert run("init", "-s", unmounted / "disk" / "store") == 0
    (mounted / "back").symlink_to(unmounted)
    assert run("init", "-s", mounted / "back" / "store") == 2


@pytest.mark.thorough("backup", "archive create --public")
@pytest.mark.parametrize("command", [("backup",), ("archive", "create", "--public")], ids=" ".join)
def test_the_option_also_applies_to_commands_run_by_the_owner_of_the_store(
    closed: Path, unmounted: Path, mounted: Path, command: tuple[str, ...]
) -> None:
    """The option belongs to the command of the user: the process with the open store does not know it."""
    served = Served(closed, "--listen", HERE)
    try:
        assert served.address
        for target, options in ((unmounted / "any", ()), (mounted / "new", ("--require-mount",))):
            done = cablestore(*command, target, *options, store=closed)
            assert (done.returncode, done.stderr) == (0, "")
        assert cablestore(*command, unmounted / "new", "--require-mount", store=closed).returncode == 2
        assert not (unmounted / "new").exists()
    finally:
        assert served.stop() == 0
        served.process.communicate()
