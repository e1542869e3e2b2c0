"""Written files are readable only by their user, regardless of the umask, unless they are shared with a group."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cablestore import CableStore
from cablestore.archive.content.store import ContentStore
from cablestore.backup import backup, restore
from cablestore.cli import cli
from cablestore.export import read_manifest
from cablestore.files import LocalFolder
from cablestore.sds import CausalLog


@pytest.fixture(autouse=True, params=[0o000, 0o022])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def wide(folder: Path) -> list[str]:
    """Return the entries of a folder with permissions for others, including the folder itself."""
    return [f"{path}: {path.stat().st_mode:o}" for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


MAKERS: dict[str, Callable[[Path, CableStore], object]] = {
    "store": lambda path, _: _fill(path),
    "export": lambda path, store: store.export(path),
    "backup": lambda path, store: backup(store, path),
    "restored": lambda path, store: (backup(store, path.with_name("backup")), restore(path.with_name("backup"), path)),
    "causal logs": lambda path, _: CausalLog.open(path).close(),
    "content store": lambda path, _: _put(path),
}


def _fill(path: Path) -> None:
    with CableStore.open(path) as store:
        store.post("default", "a text")
        store.update_search_index()
        store.rebuild()
        store.post("default", "another")


def _put(path: Path) -> None:
    with ContentStore.open(path) as store:
        store.put([b"bytes"])


@pytest.mark.parametrize("maker", MAKERS)
def test_created_files_are_private(tmp_path: Path, store: CableStore, maker: str) -> None:
    store.post("default", "a text")
    MAKERS[maker](tmp_path / "made", store)
    assert wide(tmp_path / "made") == []


@pytest.mark.parametrize("maker", MAKERS)
def test_folders_are_usable_even_with_a_umask_that_restricts_the_user(
    tmp_path: Path, store: CableStore, maker: str
) -> None:
    """Scripts set `umask 177` to write a key."""
    store.post("default", "a text")
    os.umask(0o177)
    made = tmp_path / "made"
    MAKERS[maker](made, store)
    folders = (made, *(path for path in made.rglob("*") if path.is_dir()))
    assert [f"{path}: {path.stat().st_mode:o}" for path in folders if stat.S_IMODE(path.stat().st_mode) != 0o700] == []


AGAIN = {name: MAKERS[name] for name in ("store", "backup", "causal logs", "content store")}
AGAIN["export"] = lambda path, _: read_manifest(path)


@pytest.mark.parametrize("maker", AGAIN)
def test_files_readable_by_others_become_private_with_a_warning(
    tmp_path: Path, store: CableStore, maker: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = tmp_path / "made"
    MAKERS[maker](made, store)
    _open_up(made)
    with caplog.at_level(logging.WARNING, "cablestore.files"):
        for _ in range(2):
            AGAIN[maker](made, store)
    assert [record.getMessage() for record in caplog.records] == [
        f"{made} was readable by other users (mode 0755) and is now private. `cablestore share` lets its group read it"
    ]
    assert wide(made) == []


def _open_up(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.name != "identity":
            path.chmod(0o755 if path.is_dir() else 0o644)


def _share(*arguments: object) -> int:
    return CliRunner().invoke(cli, ["share", *map(str, arguments)]).exit_code


def test_shared_files_stay_shared(tmp_path: Path) -> None:
    made = tmp_path / "made"
    _fill(made)
    assert _share(made) == 0
    _fill(made)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in made.rglob("*") if path.name != "identity"}
    assert modes == {0o750, 0o640}
    assert stat.S_IMODE((made / "identity").stat().st_mode) == 0o600
    assert _share("--private", made) == 0
    assert wide(made) == []


def test_a_foreign_folder_is_not_shared(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    assert _share(tmp_path) == 2


def test_files_in_a_local_folder_are_private(tmp_path: Path) -> None:
    LocalFolder(tmp_path / "new").write("file", b"bytes")
    assert wide(tmp_path / "new") == []
