"""Paths where a store cannot be opened: the error is a CableStoreError with the path, and no files remain."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from cablestore import CableStore
from cablestore.aio import AsyncCableStore
from cablestore.errors import ArgumentError, CableStoreError, OpenError, StorageError
from cablestore.store.closed import ClosedStore

NOBODY: Final = 65_534

PATHS: Final[dict[str, tuple[Any, type[CableStoreError], str]]] = {
    "a number": (5, ArgumentError, "got int"),
    "nothing": (None, ArgumentError, "got NoneType"),
    "bytes": (b"store", ArgumentError, "got bytes"),
    "a list": (["store"], ArgumentError, "got list"),
    "empty": ("", ArgumentError, "empty"),
    "NUL": ("a\0b", ArgumentError, "NUL"),
    "NUL in a path": (Path("a\0b"), ArgumentError, "NUL"),
    "half a character": ("\ud800", ArgumentError, "characters"),
    "Latin-1": (os.fsdecode(b"caf\xe9"), ArgumentError, "UTF-8"),
    "long name": ("n" * 256, ArgumentError, "too long"),
    "long path": ("n/" * 3000, ArgumentError, "too long"),
    "file": ("FILE", OpenError, "a file"),
    "below a file": ("FILE/store", ArgumentError, "a file, not a folder"),
    "dangling": ("DANGLING", ArgumentError, "a link to missing, which does not exist"),
    "below a dangling link": ("DANGLING/a/store", ArgumentError, "a link to missing, which does not exist"),
    "loop": ("LOOP", ArgumentError, "link to itself"),
    "below a loop": ("LOOP/store", ArgumentError, "link to itself"),
    "home": ("~/store", ArgumentError, "only a shell"),
    "URI": ("s3://bucket/store", ArgumentError, "not on this machine"),
    "URI as a path": (Path("s3://bucket/store"), ArgumentError, "neither a path nor a URI"),
    "malformed URI": ("s3:/bucket/store", ArgumentError, "neither a path nor a URI"),
    "other folder": ("OTHER", OpenError, "contains notes.txt"),
    "device": ("/dev/null", OpenError, "a file"),
    "root": ("/", ArgumentError, "root of the file system"),
    "below a device": ("/dev/null/store", ArgumentError, "a file, not a folder"),
    "below proc": ("/proc/store", StorageError, "/proc/store"),
}

WAYS: Final[dict[str, Callable[[Any], object]]] = {
    "open": CableStore.open,
    "open without making": lambda path: CableStore.open(path, create=False),
    "open and upgrade": lambda path: CableStore.open(path, upgrade=True),
    "asyncio": lambda path: asyncio.run(_opened(path)),
    "rebuild": lambda path: ClosedStore(path).rebuild(),
}


async def _opened(path: Any) -> None:
    await AsyncCableStore.open(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with the files, folders and links that a path may lead to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    (tmp_path / "OTHER").mkdir()
    (tmp_path / "OTHER" / "notes.txt").touch()
    (tmp_path / "DANGLING").symlink_to("missing")
    (tmp_path / "LOOP").symlink_to("LOOP")
    return tmp_path


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", PATHS)
def test_an_unusable_path_raises_a_short_error(folder: Path, kind: str, way: str) -> None:
    path, error, words = PATHS[kind]
    before = sorted(folder.rglob("*"))
    if way in {"open without making", "rebuild"} and kind == "below proc":
        error, words = OpenError, "no store"
    with pytest.raises(error) as found:
        WAYS[way](path)
    message = str(found.value)
    assert words in message
    assert message.isprintable()
    assert len(message) < 400
    assert sorted(folder.rglob("*")) == before


def test_a_removed_current_folder_raises_an_error(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(ArgumentError, match="current folder is not accessible"):
        CableStore.open("store")
    CableStore.open(folder / "store").close()


def test_a_link_to_a_folder_is_followed(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    with CableStore.open("link") as store:
        store.post("default", "x")
    with CableStore.open("real", create=False) as store:
        assert [message.text for message in store.messages("default").messages] == ["x"]


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o500])
def test_a_folder_without_write_permission_raises_an_error(mode: int) -> None:
    """The test runs in a process without the rights of root, who may use every folder."""
    program = (
        "import os, sys; from cablestore import CableStore; CableStore.open('first').close()\n"
        f"if os.geteuid() == 0: os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "from cablestore.errors import CableStoreError\n"
        "for path in 'shut', 'shut/store':\n"
        "    try: CableStore.open(path)\n"
        "    except CableStoreError as error: print(error)\n"
        "    try: CableStore.open(path, create=False)\n"
        "    except CableStoreError: pass\n"
    )
    with TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        shut = Path(scratch) / "shut"
        shut.mkdir()
        shut.chmod(mode)
        if os.geteuid() == 0:
            os.chown(shut, NOBODY, NOBODY)
        ended = subprocess.run([sys.executable, "-c", program], cwd=scratch, capture_output=True, text=True, check=True)
    assert [line.count("Permission denied") for line in ended.stdout.splitlines()] == [1, 1]
