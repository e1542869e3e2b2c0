"""Forged data in a backup without the key: the authentic rest is restored, and its store works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from backing_up import hashes_of, opened
from forging import add_posts, add_rows, put, sign
from history import AUTHORS, NOW_MS
from people import ANN
from waiting import LIMIT_S

from cablestore import CableStore, Identity
from cablestore.backup import backup, read_backup, restore, verify_backup
from cablestore.backup.manifest import BackupManifest
from cablestore.errors import BackupError, IdentityError
from cablestore.files import folder_of
from cablestore.index import arrival_log
from cablestore.index.reader import PRIVATE_PREFIX

STRANGER: Final = Identity.derive("forged", "stranger")
ENTRY: Final = b"\x01" + b"z" * 32
ROWS: Final = {
    "sealed with nothing": ("rows", (PRIVATE_PREFIX + b"ab" * 32, b"x" * 100)),
    "sealed by a stranger": ("rows", (PRIVATE_PREFIX + b"cd" * 32, STRANGER.seal(b"a text"))),
    "entry without a number": ("arrivals", (arrival_log.LOG_PREFIX, b"")),
    "entry with the last number": ("arrivals", (arrival_log.LOG_PREFIX + b"9" * 16, ENTRY)),
    "entry of nothing": ("arrivals", (arrival_log.LOG_PREFIX + b"0" * 14 + b"99", b"\xc1")),
}


def now() -> int:
    return NOW_MS + 1


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a backup of a store with a post and a local-only one."""
    with opened(tmp_path / "store") as store:
        store.post("default", "public")
        store.moderation.hide(posts=[store.post("default", "hidden").hash], private=True)
        backup(store, tmp_path / "backup")
    return tmp_path / "backup"


def require_restored(tmp_path: Path, out: Path, *, salvage: bool = False) -> None:
    with opened(tmp_path / "store") as store:
        known = hashes_of(store)
    report = restore(out, tmp_path / "restored", identity=AUTHORS[0], salvage=salvage, clock=now)
    assert (report.is_complete, report.is_authentic, report.sealed) == (False, False, 1)
    with opened(tmp_path / "restored") as store:
        assert hashes_of(store) == known
        store.post("default", "and it can be written")
        assert store.check(signatures=True).is_clean


@pytest.mark.parametrize("kind", ROWS)
def test_rows_that_a_store_cannot_contain_are_not_restored(tmp_path: Path, out: Path, kind: str) -> None:
    piece, row = ROWS[kind]
    add_rows(out, piece, row)  # type: ignore[arg-type]  # a kind of piece
    require_restored(tmp_path, out)


def test_a_forged_post_is_rejected_without_local_only_posts(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.post("default", "public")
        known = hashes_of(store)
        backup(store, tmp_path / "backup")
    add_posts(tmp_path / "backup", ANN.text("default", "forged").raw[:-1] + b"?")
    report = restore(tmp_path / "backup", tmp_path / "restored", identity=AUTHORS[0], clock=now)
    assert (report.is_complete, report.is_authentic, report.sealed) == (False, False, 0)
    with opened(tmp_path / "restored") as store:
        assert hashes_of(store) == known
        assert store.check(signatures=True).is_clean


@pytest.mark.parametrize("through", [10**16 - 1, 2**63 - 1, 10**30])
def test_an_impossible_number_of_entries_does_not_prevent_a_restore(tmp_path: Path, out: Path, through: int) -> None:
    put(out, replace(read_backup(folder_of(out)), through=through))
    require_restored(tmp_path, out)


CHANGES: Final[dict[str, Callable[[BackupManifest], BackupManifest]]] = {
    "signed by a stranger": lambda manifest: manifest.signed(STRANGER),
    "with the key of a stranger": lambda manifest: replace(manifest, key=STRANGER.public_key.hex()).signed(STRANGER),
    "with half a key": lambda manifest: replace(manifest, key="ab"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_backup_of_another_key_is_rejected_and_salvaged(tmp_path: Path, out: Path, kind: str) -> None:
    put(out, CHANGES[kind](read_backup(folder_of(out))))
    with pytest.raises(IdentityError, match="--salvage"):
        restore(out, tmp_path / "refused", identity=AUTHORS[0], clock=now)
    require_restored(tmp_path, out, salvage=True)


def test_the_wrong_key_is_rejected(tmp_path: Path, out: Path) -> None:
    sign(out, STRANGER)
    with pytest.raises(BackupError, match="name the right one"):
        restore(out, tmp_path / "restored", identity=STRANGER, unverified=True, clock=now)
    assert not list(tmp_path.glob("restored/*.json"))


def test_a_piece_that_is_listed_twice_is_damage(tmp_path: Path, out: Path) -> None:
    manifest = read_backup(folder_of(out))
    put(out, replace(manifest, pieces=manifest.pieces * 2))
    with pytest.raises(BackupError, match=r"backup\.json is damaged: it lists a piece twice"):
        restore(out, tmp_path / "restored", identity=AUTHORS[0], clock=now)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.thorough(
    "identity-device", "identity-folder", "identity-pipe", "posts-device", "posts-folder", "posts-pipe"
)
@pytest.mark.parametrize("make", [endless, os.mkfifo, Path.mkdir], ids=["device", "pipe", "folder"])
@pytest.mark.parametrize("name", ["backup.json", "identity", "posts"])
def test_devices_pipes_and_folders_are_not_read(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    """The restore runs in a process with a timeout and little memory.

    A device returns endless zeros, and a pipe blocks.
    """
    with CableStore.open(tmp_path / "store") as store:
        store.post("default", "public")
        backup(store, tmp_path / "backup", with_key=True)
    [path] = (tmp_path / "backup").glob(f"{name}*")
    path.unlink()
    make(path)
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "from cablestore.__main__ import main; main()"
    )
    for command in (["backup", "backup", "--check"], ["restore", "backup", "-s", "restored"]):
        run = [sys.executable, "-c", program, *command]
        ended = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert ended.returncode in {1, 2}, ended.stderr
        assert path.name in ended.stdout + ended.stderr


def test_a_file_that_grew_is_not_read(tmp_path: Path, out: Path) -> None:
    """The file is sparse here, and larger than the memory."""
    [path] = out.glob("posts*")
    with path.open("r+b") as file:
        file.truncate(1 << 42)
    assert [problem.file for problem in verify_backup(out, clock=now)[1]] == [path.name]
    report = restore(out, tmp_path / "restored", identity=AUTHORS[0], salvage=True, clock=now)
    assert [problem.file for problem in report.problems] == [path.name]
