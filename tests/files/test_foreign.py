"""Files and folders that operating systems create in any folder are harmless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cablestore import CableStore
from cablestore.archive.content.store import ContentStore
from cablestore.backup import backup, restore, verify_backup
from cablestore.errors import CableStoreError
from cablestore.files import LocalFolder, is_foreign
from cablestore.sds import CausalLog
from cablestore.store.closed import ClosedStore

NAMES = [
    *(".DS_Store", "._STORE", "._000005.ldb", "@eaDir", "Thumbs.db", "desktop.ini", "lost+found", ".nfs00000001"),
    *(".Trash-1000", ".snapshot", "#recycle", ".stfolder", ".sync", ".fseventsd", ".Spotlight-V100"),
    *("System Volume Information", "$RECYCLE.BIN", ".fuse_hidden0000000100000001"),
]


def _store(path: Path, _: CableStore) -> None:
    with CableStore.open(path) as store:
        store.post("default", "a text")
        store.rebuild()
        assert store.check().is_clean
    ClosedStore(path).rebuild()


def _content(path: Path, _: CableStore) -> None:
    with ContentStore.open(path) as store:
        store.put([b"bytes"])


def _backup(path: Path, store: CableStore) -> None:
    store.post("default", "a text")
    backup(store, path)
    verify_backup(path)


def _restore(path: Path, store: CableStore) -> None:
    backup(store, path.with_name("backup"), full=True)
    if not (path / "STORE").exists():
        restore(path.with_name("backup"), path)
    CableStore.open(path, create=False).close()


WORK: dict[str, Callable[[Path, CableStore], object]] = {
    "store": _store,
    "content store": _content,
    "backup": _backup,
    "restore": _restore,
    "causal logs": lambda path, _: CausalLog.open(path).close(),
}


@pytest.mark.parametrize("as_folders", [False, True], ids=["files", "folders"])
@pytest.mark.parametrize("work", WORK)
def test_entries_of_operating_systems_are_harmless(
    tmp_path: Path, store: CableStore, work: str, as_folders: bool
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    for _ in range(2):  # in a new folder, and in all created folders
        for folder in [target, *(path for path in target.rglob("*") if path.is_dir() and not _is_below(path, target))]:
            for name in NAMES:
                (folder / name).mkdir(exist_ok=True) if as_folders else (folder / name).write_bytes(b"not ours")
        WORK[work](target, store)
        assert {path.name for path in target.iterdir()} >= set(NAMES)


def _is_below(path: Path, target: Path) -> bool:
    return any(is_foreign(part) for part in path.relative_to(target).parts)


@pytest.mark.parametrize("name", NAMES)
def test_an_export_accepts_a_folder_with_entries_of_operating_systems(
    tmp_path: Path, store: CableStore, name: str
) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / name).touch()
    store.post("default", "a text")
    store.export(tmp_path / "export")
    with CableStore.open(tmp_path / "other") as other:
        assert other.import_exports([tmp_path / "export"]).posts == 2
    assert (tmp_path / "export" / name).exists()


def test_a_backup_is_recognized_beside_files_of_the_user(tmp_path: Path, store: CableStore) -> None:
    for _ in range(2):
        backup(store, tmp_path / "backup")
        (tmp_path / "backup" / "README").touch()


@pytest.mark.parametrize("make", [CableStore.open, ContentStore.open])
def test_a_folder_with_files_of_the_user_is_rejected(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(CableStoreError, match=r"contains photo\.jpg"):
        make(tmp_path)


def test_a_local_folder_does_not_list_entries_of_operating_systems(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).touch()
    assert LocalFolder(tmp_path).is_empty()
    (tmp_path / "ours").touch()
    assert LocalFolder(tmp_path).names() == ["ours"]
