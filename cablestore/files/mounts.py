"""Checking that a disk is mounted. Otherwise, its mount point is an empty folder of the root file system."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from cablestore.errors import ArgumentError
from cablestore.files.folder import ObjectFolder

_TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


def require_mount(target: Path | ObjectFolder) -> None:
    """Raise ArgumentError unless a folder, which may be missing, is on or below a mount point other than /.

    Object stores are not checked.
    """
    if isinstance(target, ObjectFolder):
        if not target.is_local:
            return
        target = target.path
    try:
        path = target.resolve()
        mounted = _mount_points()
    except (OSError, RuntimeError) as error:  # a removed disk, or a loop of symbolic links
        raise ArgumentError(f"cannot access {target}: {error}. Mount its disk first") from None
    if not any(each in mounted or (not mounted and os.path.ismount(each)) for each in (path, *path.parents[:-1])):
        raise ArgumentError(f"{target} is not on a mounted disk: only / is mounted above it. Mount the disk first")


def _mount_points() -> frozenset[Path]:
    """Return all mount points, including bind mounts, or an empty set if they are unknown."""
    try:
        lines = _TABLE.read_bytes().splitlines()
    except FileNotFoundError:  # not on Linux
        return frozenset()
    fields = (_ESCAPE.sub(lambda code: bytes((int(code[1], 8),)), line.split(b" ")[4]) for line in lines)
    return frozenset(Path(os.fsdecode(field)) for field in fields)
