"""An export that is interrupted, killed or stopped by a full disk continues or restarts, without overwriting files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exporting import SMALL, files_of, files_of_export, in_memory, some_posts, stored
from history import AUTHORS, Model
from inside import write_rows
from people import ANN, raws
from waiting import LIMIT_S

from cablestore import LEGACY, CableStore, Post
from cablestore.errors import CorruptStoreError, ExportError
from cablestore.export import Filters, read_manifest, verify_export
from cablestore.export.manifest import read_arrivals
from cablestore.index.reader import data_key
from cablestore.protocol.body import DELETE
from cablestore.protocol.post import SIGNED_FROM

# --- interruption ----------------------------------------------------------------------------------


CHILD = """
import os, signal, sys
from pathlib import Path
from cablestore import CableStore

store, out, when, instant = sys.argv[1:]
replace, count = Path.replace, 0

def dying(self, target):
    global count
    count += 1
    if count == int(instant) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(self, target)
    if count == int(instant) and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)

with CableStore.open(store, create=False) as opened:
    Path.replace = dying
    opened.export(Path(out), segment_size_bytes=2000, run_size_bytes=3000)
"""


@pytest.mark.thorough("before-6")
@pytest.mark.parametrize(("when", "instant"), [("before", 6), ("after", 5)])
def test_an_export_continues_after_any_kill(tmp_path: Path, when: str, instant: int) -> None:
    """Each child process dies after a few files and the next continues, until one finishes."""
    with stored(tmp_path / "store") as store:
        store.export(tmp_path / "straight", segment_size_bytes=2000, run_size_bytes=3000)
    out = tmp_path / "out"
    command = [sys.executable, "-c", CHILD, str(tmp_path / "store"), str(out), when, str(instant)]
    seen: dict[str, tuple[int, int]] = {}
    kills = 0
    while kills < 30:
        child = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
        finished = {}
        if (out / "unfinished.json").exists():
            work = json.loads((out / "unfinished.json").read_text())
            names = [segment["file"] for segment in work["segments"] if segment["kind"] == "posts"]
            if not work["is_merged"]:
                names += [f"run-{number:06d}" for number in range(len(work["runs"]))]
            finished = {name: (out / name).stat() for name in names}
        elif child.returncode == 0:
            finished = {path.name: path.stat() for path in out.iterdir()}
        for name, known in seen.items():
            if name in finished:
                assert (finished[name].st_ino, finished[name].st_mtime_ns) == known, f"{name} was written again"
        seen |= {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in finished.items()}
        if child.returncode == 0 or (out / "manifest.json").exists():
            break
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
        kills += 1
        with pytest.raises(ExportError, match=r"unfinished|is not an export"):
            read_manifest(out)
    assert kills > 2
    (out / "unfinished.json").unlink(missing_ok=True)
    assert files_of(out) == files_of(tmp_path / "straight")
    assert read_arrivals(out) == read_arrivals(tmp_path / "straight")


class Interrupt:
    """Progress callback that interrupts after N posts."""

    def __init__(self, posts: int) -> None:
        self.left = posts

    def __call__(self, posts: int) -> None:
        self.left -= posts
        if self.left <= 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("posts", [1, 40])
def test_an_interrupted_export_is_right_after_the_store_changed(tmp_path: Path, posts: int) -> None:
    out = tmp_path / "out"
    with stored(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            store.export(out, progress=Interrupt(posts), **SMALL)
        with pytest.raises(ExportError, match=r"unfinished export\. Run the same export again"):
            read_manifest(out)
        store.ingest(raws(ANN.text("default", "new")))
        store.export(out, **SMALL)
        store.export(tmp_path / "straight", **SMALL)
        assert files_of(out) == files_of(tmp_path / "straight")


def test_other_arguments_restart_an_interrupted_export(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with stored(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            store.export(out, progress=Interrupt(40), **SMALL)
        filters = Filters(authors=frozenset([AUTHORS[0].public_key]))
        store.export(out, filters=filters, **SMALL)
        store.export(tmp_path / "straight", filters=filters, **SMALL)
        assert files_of(out) == files_of(tmp_path / "straight")


def test_a_skeleton_imported_after_an_interruption_is_exported(tmp_path: Path, whole: Path) -> None:
    """An import writes skeletons without an entry in the arrival log."""
    deletions = [post for post in some_posts() if post.type == DELETE]
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*(post for post in some_posts() if post.hash not in Model(some_posts()).dead)), verify=False)
        before = store.last_sequence
        with pytest.raises(KeyboardInterrupt):
            store.export(tmp_path / "out", progress=Interrupt(40), **SMALL)
        summary = store.import_exports([whole])
        assert summary.skeletons > 0
        assert store.last_sequence == before
        store.export(tmp_path / "out", **SMALL)
        assert len(deletions) > 1
    assert files_of(tmp_path / "out") == files_of_export(some_posts(), tmp_path / "straight")


@pytest.mark.parametrize("name", ["manifest.json", "notes.txt", "file", "both"])
def test_existing_files_are_not_overwritten(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    with in_memory(LEGACY, some_posts()) as store:
        if name == "file":
            out.write_text("mine")
        elif name == "both":
            with pytest.raises(KeyboardInterrupt):
                store.export(out, progress=Interrupt(1), **SMALL)
            (out / "notes.txt").write_text("mine")
        else:
            out.mkdir()
            (out / name).write_text("mine")
        with pytest.raises(ExportError, match=r"finished export|contains other files: notes|is a file"):
            store.export(out, **SMALL)
    kept = out if name == "file" else out / ("notes.txt" if name == "both" else name)
    assert kept.read_text() == "mine"


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no identity": lambda fields: fields.pop("identity"),
    "endless runs": lambda fields: fields.update(runs=[float("inf")]),
    "many runs": lambda fields: fields.update(runs=[10**30] * 9),
    "number of runs": lambda fields: fields.update(runs=len(fields["runs"])),
    "surrogate": lambda fields: fields.update(read_to="\ud800"),
    "no hash": lambda fields: fields.update(read_to="zz"),
}


@pytest.mark.parametrize("damage", [*DAMAGES, "nested", "list"])
def test_an_export_with_a_damaged_progress_file_restarts(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    notes = out / "unfinished.json"
    with stored(tmp_path / "store") as store:
        store.export(tmp_path / "straight", **SMALL)
        with pytest.raises(KeyboardInterrupt):
            store.export(out, progress=Interrupt(1), **SMALL)
        fields = json.loads(notes.read_text())
        DAMAGES.get(damage, len)(fields)
        notes.write_text({"nested": "[" * 100_000, "list": "[1]"}.get(damage, json.dumps(fields)))
        store.export(out, **SMALL)
    assert files_of(out) == files_of(tmp_path / "straight")


@pytest.mark.parametrize("more", [b"", b"x"])
def test_an_export_restarts_if_a_finished_segment_is_lost_or_changed(tmp_path: Path, more: bytes) -> None:
    out = tmp_path / "out"
    with stored(tmp_path / "store") as store:
        posts = sum(store.export(tmp_path / "straight", **SMALL).posts.values())
        with pytest.raises(KeyboardInterrupt):
            store.export(out, progress=Interrupt(posts + 1), **SMALL)
        segment = out / json.loads((out / "unfinished.json").read_text())["segments"][0]["file"]
        whole = segment.read_bytes()
        segment.unlink()
        if more:
            segment.write_bytes(whole + more)
        store.export(out, **SMALL)
    assert files_of(out) == files_of(tmp_path / "straight")


def test_an_interrupted_export_that_others_could_read_becomes_private(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with stored(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            store.export(out, progress=Interrupt(1), **SMALL)
        out.chmod(0o755)
        store.export(out, **SMALL)
    assert out.stat().st_mode & 0o077 == 0


def test_a_concurrent_export_to_the_same_folder_is_rejected(tmp_path: Path) -> None:
    with in_memory(LEGACY, some_posts()) as store:

        def progress(_: int) -> None:
            with pytest.raises(ExportError, match="another process is exporting to"):
                store.export(tmp_path / "out")

        store.export(tmp_path / "out", progress=progress)
    assert verify_export(tmp_path / "out").is_clean


FULL = """
import resource, signal, sys
from pathlib import Path
from cablestore import CableStore
from cablestore.errors import StorageError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with CableStore.open(sys.argv[1], create=False) as store:
    # No file may grow beyond this, which the kernel says with the same kind of error as a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    try:
        store.export(Path(sys.argv[2]))
    except StorageError as error:
        print(error)
"""


@pytest.mark.parametrize("limit_size_bytes", [300, 4000])
def test_an_export_to_a_full_disk_fails_and_can_be_repeated(tmp_path: Path, limit_size_bytes: int) -> None:
    with stored(tmp_path / "store"):
        pass
    command = [sys.executable, "-c", FULL, str(tmp_path / "store"), str(tmp_path / "out"), str(limit_size_bytes)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert child.returncode == 0, child.stderr
    assert str(tmp_path / "out") in child.stdout
    assert "free space" in child.stdout
    with CableStore.open(tmp_path / "store", create=False) as store:
        store.export(tmp_path / "out")
    assert verify_export(tmp_path / "out").is_clean


DAMAGE: dict[str, Callable[[Post], tuple[bytes, bytes]]] = {
    "cut": lambda post: (data_key(post.hash_hex), post.raw[:90]),
    "of no type": lambda post: (data_key(post.hash_hex), with_type(post, 77)),
    "under half a hash": lambda post: (data_key(post.hash_hex[:32]), post.raw),
    "under no hash": lambda post: (data_key(b"zz"), post.raw),
}
"""Damaged rows of a post: key and value."""


def with_type(post: Post, number: int) -> bytes:
    at = SIGNED_FROM + 1 + 32 * post.raw[SIGNED_FROM]
    return post.raw[:at] + bytes((number,)) + post.raw[at + 1 :]


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_post_aborts_the_export(tmp_path: Path, how: str) -> None:
    with in_memory(LEGACY, some_posts()) as store:
        key, value = DAMAGE[how](next(iter(store.posts_by(AUTHORS[0].public_key))))
        write_rows(store, {key: value})
        for filters in (None, Filters(after_ms=0)):
            with pytest.raises(CorruptStoreError, match=r"cablestore rebuild"):
                store.export(tmp_path / "out", filters=filters)
