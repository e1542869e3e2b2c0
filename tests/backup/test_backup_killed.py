"""Backups or restores that are killed at any moment: the last backup is complete, and the next run continues."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from backing_up import opened, rows_of
from folders import SUPPORT
from history import AUTHORS, NOW_MS
from people import ANN, raws
from waiting import LIMIT_S

from cablestore import CableStore, limits
from cablestore.backup import backup, restore, verify_backup
from cablestore.errors import BackupError, CableStoreError, OpenError
from cablestore.sds import causal_log

CHILD = SUPPORT / "backup_child.py"
STEPS = [("before", 1), ("after", 1), ("before", 4), ("after", 7), ("done", 1), ("removed", 1), ("removed", 2)]


def command(work: str, store: Path, out: Path, when: str = "", number: int = 0) -> list[str]:
    return [sys.executable, str(CHILD), work, str(store), str(out), when, str(number)]


def killed(work: str, store: Path, out: Path, when: str, number: int) -> bool:
    """Run a child process that kills itself at a step. Return False if it has no such step."""
    child = subprocess.run(command(work, store, out, when, number), capture_output=True, check=False, timeout=LIMIT_S)
    assert child.returncode in (0, -signal.SIGKILL), child.stderr.decode()
    return child.returncode != 0


@pytest.fixture(autouse=True)
def many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let backups of this process have as many files as those of the child processes."""
    monkeypatch.setattr(limits, "BACKUP_POSTS_SIZE_BYTES", 2_000)
    monkeypatch.setattr(limits, "BACKUP_ROWS_SIZE_BYTES", 1_000)


def kill_after(seconds: float, work: str, store: Path, out: Path) -> bool:
    """Run a child process and kill it after `seconds`. Return True if it was still running."""
    with subprocess.Popen(command(work, store, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        time.sleep(seconds)
        child.kill()
    return child.returncode != 0


def grow(path: Path, number: int) -> None:
    """Store posts, delete one, and write to a causal log."""
    posts = [ANN.text("default", f"{number} {n} {'x' * 90}", at=NOW_MS - 10_000 + number) for n in range(60)]
    with opened(path) as store, causal_log(store) as log:
        store.ingest(raws(*posts))
        store.ingest(raws(ANN.delete(*posts[:7], at=NOW_MS - 5_000 + number)))
        hidden = store.post("default", f"{number}")
        store.moderation.hide(posts=[hidden.hash], private=True)
        log.channel("room", "ann").send(b"%d" % number, NOW_MS + number)


def check(path: Path, out: Path, known: bytes | None) -> None:
    """Check that a folder has the backup with the known manifest, or that of the current store."""
    if known is None and not (out / "backup.json").exists():
        with pytest.raises(BackupError):
            verify_backup(out)
        return
    assert verify_backup(out)[1] == []
    if (out / "backup.json").read_bytes() != known:
        restored = path.parent / "restored"
        restore(out, restored, identity=AUTHORS[0])
        assert rows_of(restored) == rows_of(path)
        shutil.rmtree(restored)


@pytest.mark.thorough
@pytest.mark.parametrize(("when", "number"), STEPS)
def test_a_backup_killed_at_any_step_keeps_the_last_backup(tmp_path: Path, when: str, number: int) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    known = None
    kills = 0
    for round_ in range(2):
        grow(path, round_)
        kills += killed("backup", path, out, when, number)
        check(path, out, known)
        backup(path, out, identity=AUTHORS[0])
        check(path, out, b"")
        known = (out / "backup.json").read_bytes()
    assert kills >= 1


@pytest.mark.thorough
def test_files_of_a_killed_backup_are_not_written_again(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    grow(path, 0)
    assert killed("backup", path, out, "after", 6)
    left = {file.name: file.stat().st_mtime_ns for file in out.glob("*.seg")}
    assert len(left) == 6
    backup(path, out, identity=AUTHORS[0])
    assert left.items() <= {file.name: file.stat().st_mtime_ns for file in out.glob("*.seg")}.items()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_backups_killed_at_random_times_keep_the_last_backup(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path, out = tmp_path / "store", tmp_path / "backup"
    known = None
    for number in range(3):
        grow(path, number)
        kill_after(rng.uniform(0, 0.1), "backup", path, out)
        check(path, out, known)
        if rng.random() < 0.5:
            backup(path, out, identity=AUTHORS[0])
        known = (out / "backup.json").read_bytes() if (out / "backup.json").exists() else None
    backup(path, out, identity=AUTHORS[0])
    check(path, out, b"")


RESTORE_STEPS = [("done", 1), ("before", 2), ("before", 5), ("before", 6), ("before", 7), ("before", 8), ("after", 8)]
"""Steps: posts stored; the new database, the key, the causal logs and the header moved out of RESTORING."""


@pytest.mark.thorough
@pytest.mark.parametrize(("when", "number"), RESTORE_STEPS)
def test_a_restore_killed_at_any_step_is_completed_by_the_next(tmp_path: Path, when: str, number: int) -> None:
    """The target is not a store, or it is complete. A second restore creates the complete store."""
    path, out, target = tmp_path / "store", tmp_path / "backup", tmp_path / "restored"
    grow(path, 0)
    backup(path, out, identity=AUTHORS[0])
    killed("restore", target, out, when, number)
    if not (target / "STORE").exists():
        for create in (False, True) if target.exists() and any(target.iterdir()) else (False,):
            with pytest.raises(OpenError, match=r"no store found|not a store yet: a restore"):
                CableStore.open(target, create=create)
        restore(out, target, identity=AUTHORS[0])
    assert rows_of(target) == rows_of(path)
    with opened(target) as store, causal_log(store) as log:
        assert store.check().is_clean
        assert [message.content for message in log.channel("room", "ann").log()] == [b"0"]
    assert not (target / "RESTORING").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_restores_killed_at_random_times_are_completed_by_the_next(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path, out, target = tmp_path / "store", tmp_path / "backup", tmp_path / "restored"
    for number in range(3):
        grow(path, number)
    backup(path, out, identity=AUTHORS[0])
    for _ in range(3):
        if kill_after(rng.uniform(0, 0.15), "restore", target, out) and not (target / "STORE").exists():
            with pytest.raises(CableStoreError):
                CableStore.open(target, create=False)
        if (target / "STORE").exists():
            assert rows_of(target) == rows_of(path)
            shutil.rmtree(target)
    if not target.exists() or not (target / "STORE").exists():
        restore(out, target, identity=AUTHORS[0])
    assert rows_of(target) == rows_of(path)
