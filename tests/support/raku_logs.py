"""A year of real chat."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest


def logs_of(data: Path, folder: Path, channels: frozenset[str] | None) -> Path:
    """Unpack logs of the year, of these channels or of all."""
    packed = data / "irc" / "raku.tar.xz"
    if not packed.exists():
        pytest.skip("no raku.tar.xz")
    with tarfile.open(packed) as found:
        wanted = [
            member
            for member in found
            if member.isfile() and "/2022/" in member.name and (not channels or member.name.split("/")[-3] in channels)
        ]
        found.extractall(folder, wanted, filter="data")
    return folder
