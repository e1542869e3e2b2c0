"""Disks without write access: read-only ones, full ones, and folders of another user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

NOBODY: Final = 65534


def snapshot(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return inode, size and time of change of everything in a folder."""
    found = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {path: (state.st_ino, state.st_size, state.st_ctime_ns) for path, state in found.items()}


@contextmanager
def read_only_disk(folder: Path, mount: Path) -> Iterator[Path]:
    """Mount a folder at `mount` as a read-only disk."""
    mount.mkdir()
    _mount("--bind", str(folder), str(mount))
    try:
        _mount("-o", "remount,ro,bind", str(mount))
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


@contextmanager
def full_disk(folder: Path, mount: Path) -> Iterator[Path]:
    """Copy a folder to a separate disk at `mount`, and fill its free space."""
    mount.mkdir()
    size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    _mount("-t", "tmpfs", "-o", f"size={size_bytes + 2**20}", "tmpfs", str(mount))
    try:
        copy = shutil.copytree(folder, mount / folder.name)
        with (mount / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass
        assert os.statvfs(mount).f_bavail == 0
        yield copy
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def _mount(*arguments: str) -> None:
    made = subprocess.run(["mount", *arguments], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no right to mount a disk here: {made.stderr.decode().strip()}")


@contextmanager
def foreign_copy(folder: Path) -> Iterator[Path]:
    """Copy a folder to one that all users may read and only its owner may write. Only its owner may read the key file."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can be another user")
    if subprocess.run(
        as_nobody(sys.executable, "-c", "import cablestore"), capture_output=True, check=False
    ).returncode:
        pytest.skip("another user cannot read this Python and this checkout")
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        copy = shutil.copytree(folder, Path(scratch) / folder.name)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o400 if path.name == "identity" else 0o444)
        yield copy


def as_nobody(*command: str) -> list[str]:
    """Return a command that runs another one as a user without files."""
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
