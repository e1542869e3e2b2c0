"""The target folder of a restore: files that are added during the restore are kept, regardless of the outcome."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from backing_up import opened, require_equal, rows_of

from cablestore.backup import backup, restore
from cablestore.errors import BackupError, StorageError
from cablestore.index.header import RESTORING


@pytest.fixture
def out(tmp_path: Path) -> Path:
    with opened(tmp_path / "store") as store:
        store.post("default", "x")
        backup(store, tmp_path / "backup", with_key=True)
    return tmp_path / "backup"


def put(target: Path, *names: str) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(name)


def left_in(target: Path) -> dict[str, str]:
    files = (path for path in target.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(target)): path.read_text() for path in files}


@pytest.mark.parametrize("error", [KeyboardInterrupt, StorageError])
def test_a_failed_restore_removes_only_its_own_files(tmp_path: Path, out: Path, error: type[BaseException]) -> None:
    target = tmp_path / "restored"

    def meanwhile(_: int) -> None:
        put(target, "notes.txt", "dir/x", "identity", "sds/y")
        raise error

    with pytest.raises(error):
        restore(out, target, progress=meanwhile)
    assert left_in(target) == {name: name for name in ("notes.txt", "dir/x", "identity", "sds/y")}
    assert not (target / RESTORING).exists()
    with pytest.raises(BackupError, match="overwrites nothing"):
        restore(out, target)


@pytest.mark.parametrize("names", [("notes.txt", "dir/x"), ("identity",), ("RESTORING/x", "identity", "notes.txt")])
def test_a_restore_does_not_change_a_rejected_target(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Files that are added between the first check of the target and its lock are rejected too."""
    target = tmp_path / "restored"
    open_ = os.open

    def slow_open(path: Path, *arguments: int, **options: int) -> int:
        if Path(path) == target / "lock":
            put(target, *names)
        return open_(path, *arguments, **options)

    monkeypatch.setattr(os, "open", slow_open)
    with pytest.raises(BackupError, match="overwrites nothing"):
        restore(out, target)
    assert left_in(target) == {name: name for name in names}


def test_a_restore_does_not_overwrite_files_added_during_it(tmp_path: Path, out: Path) -> None:
    target = tmp_path / "restored"
    with pytest.raises(BackupError, match=r"during the restore: identity\. A restore overwrites nothing\. Choose"):
        restore(out, target, progress=lambda _: put(target, "identity", "notes.txt"))
    assert left_in(target) == {"identity": "identity", "notes.txt": "notes.txt"}


def test_other_files_beside_a_restored_store_are_kept(tmp_path: Path, out: Path) -> None:
    target = tmp_path / "restored"
    restore(out, target, progress=lambda _: put(target, "notes.txt"))
    assert rows_of(target) == rows_of(tmp_path / "store")
    assert (target / "notes.txt").read_text() == "notes.txt"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_restore_that_cannot_move_its_store_leaves_no_files(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A generation, the key and the header are moved. One of the moves fails."""
    target = tmp_path / "restored"
    replace = Path.replace
    moves = []

    def failing_replace(self: Path, to: Path) -> Path:
        if Path(to).parent == target:
            moves.append(self.name)
            if len(moves) == number:
                raise OSError(errno.EIO, "Input/output error")
        return replace(self, to)

    with monkeypatch.context() as context:
        context.setattr(Path, "replace", failing_replace)
        with pytest.raises(StorageError, match="cannot move the restored store"):
            restore(out, target)
    assert len(moves) == number
    assert [path.name for path in target.iterdir()] == ["lock"]
    with opened(tmp_path / "store") as store:
        shutil.rmtree(target)
        require_equal(store, out, target)
