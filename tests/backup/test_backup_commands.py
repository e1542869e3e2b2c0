"""The commands `backup` and `restore`: their output, invalid input, and a store that another process has open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backing_up import rows_of
from folders import SUPPORT
from s3 import S3Server
from waiting import LIMIT_S

from cablestore import CableStore
from cablestore.backup import backup
from cablestore.documents import with_checksum
from cablestore.files import folder_of
from cablestore.sds import causal_log

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with CableStore.open(path) as opened:
        post = opened.post("default", "x")
        opened.moderation.hide(posts=[post.hash], private=True)
    return path


@pytest.mark.thorough
def test_a_backup_is_created_checked_and_restored(tmp_path: Path, store: Path, run: Run) -> None:
    out = tmp_path / "backup"
    status, printed, notes = run("backup", out, "-s", store)
    assert (status, "backed up 2 posts and 1 local-only post," in printed) == (0, True)
    assert "Keep a copy of the file identity" in " ".join(notes.split())
    status, printed, _ = run("backup", out, "-s", store, "--json", "--with-key")
    reports = json.loads(printed)
    assert (status, reports["full"], reports["has_key"], reports["written"]) == (0, False, True, 0)
    assert run("backup", out, "--check")[:2] == (0, "2 posts in 3 files: no problems found\n")
    status, printed, notes = run("restore", out, "-s", tmp_path / "restored", "--json")
    assert (status, notes, json.loads(printed)["local_only"]) == (0, "", 1)
    assert rows_of(tmp_path / "restored") == rows_of(store)
    with CableStore.open(store) as opened:
        key = opened.identity.public_key.hex()
    assert key in "".join(run("restore", out, "-s", tmp_path / "noted")[2].split())
    assert f"signedby{key}" in "".join(run("backup", out, "--check")[2].split())
    assert run("restore", out, "-s", tmp_path / "own key", "--key", store / "identity")[2] == ""
    next(out.glob("rows-*")).write_bytes(b"damaged")
    status, printed, _ = run("backup", out, "--check", "--json")
    reports = json.loads(printed.splitlines()[-1])
    assert (status, reports["problems"], reports["signed_by"]) == (1, 1, key)
    assert run("backup", out, "--full", "-s", store)[0] == 0
    assert run("backup", out, "--check")[0] == 0


def test_bad_input_is_rejected_in_one_line_with_status_2(tmp_path: Path, store: Path, run: Run) -> None:
    out = tmp_path / "backup"
    backup(store, out)
    (tmp_path / "bad-key").write_text("no key")
    (tmp_path / "bad-key").chmod(0o600)
    for words, expected in (
        (("backup", out, "--check", "--full"), "--check writes nothing"),
        (("backup", tmp_path, "-s", store), "is not a backup: it contains"),
        (("backup", out, "-s", tmp_path / "nowhere"), "no store found"),
        (("backup", tmp_path / "nowhere", "--check"), "no backup found"),
        (("backup", "s3://user:secret@b/f", "-s", store), "s3"),
        (("restore", out, "-s", store), "is already a store"),
        (("restore", out, "-s", tmp_path / "new"), "--without-local-only"),
        (("restore", out, "-s", tmp_path / "new", "--key", tmp_path / "bad-key"), "an identity"),
        (("restore", store, "-s", tmp_path / "new"), "is not a finished backup"),
    ):
        status, printed, errors = run(*words)
        assert (status, printed) == (2, ""), words
        assert expected in errors
        assert "Traceback" not in errors
    assert not (tmp_path / "new" / "STORE").exists()


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "endless number": (lambda fields: fields.update(through=float("inf")), "JSON is malformed"),
    "negative": (lambda fields: fields.update(through=-1), "through: expected whole number >= 0"),
    "a flag for a number": (lambda fields: fields.update(sealed=True), "sealed: expected whole number, got boolean"),
    "half a byte": (lambda fields: fields["pieces"][0].update(last="abc"), "pieces[0].last: expected string matching"),
    "no pieces": (lambda fields: fields.pop("pieces"), "missing required field pieces"),
    "another kind": (lambda fields: fields["pieces"][0].update(kind="x" * 999), "invalid enum value 'xxx"),
    "dialect": (lambda fields: fields.update(dialect="klingon"), "its dialect 'klingon' is unknown"),
    "another field": (lambda fields: fields.update(more=0), "its fields are not those of this format"),
    "a text in its place": (lambda fields: fields.update(format="2"), "format: expected whole number, got string"),
}


def with_damage(manifest: bytes, name: str) -> bytes:
    """Return a manifest with a damage, and with a checksum that matches."""
    fields = json.loads(manifest)
    del fields["blake3"]
    DAMAGES[name][0](fields)
    return with_checksum(fields)


@pytest.mark.parametrize("damage", [*DAMAGES, "nested", "bytes", "list", "no checksum"])
def test_a_damaged_manifest_is_reported_in_one_line(tmp_path: Path, store: Path, run: Run, damage: str) -> None:
    out = tmp_path / "backup"
    backup(store, out)
    file = out / "backup.json"
    others = {"nested": b"[" * 100_000, "bytes": b"\xff", "list": b"[]", "no checksum": b"{}"}
    file.write_bytes(others.get(damage) or with_damage(file.read_bytes(), damage))
    for words in (("backup", out, "--check"), ("backup", out, "-s", store), ("restore", out, "-s", tmp_path / "new")):
        status, printed, errors = run(*words)
        assert (status, printed, errors.count("\n")) == (2, "", 1), errors
        assert "backup.json is damaged: " in errors
        assert DAMAGES.get(damage, (None, ""))[1] in errors
        assert len(errors) < 400 + len(str(file))


@pytest.mark.thorough
def test_a_store_that_another_process_has_open_is_backed_up(tmp_path: Path, store: Path) -> None:
    """The process with the open store runs the command, in the folder of the requesting process."""
    with CableStore.open(store) as opened, causal_log(opened) as log:
        log.channel("room", "ann").send(b"x", 1)
    child = [sys.executable, str(SUPPORT / "control_child.py"), str(store)]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        (tmp_path / "here").mkdir()
        reports = []
        for words in (["backup", "copy", "--json"], ["backup", "copy", "--check", "--json"], ["backup", "../store"]):
            command = [sys.executable, "-m", "cablestore", *words, "-s", str(store)]
            found = subprocess.run(
                command, cwd=tmp_path / "here", capture_output=True, text=True, check=False, timeout=LIMIT_S
            )
            reports.append((found.returncode, found.stdout, found.stderr))
        owner.stdin.close()
        assert owner.wait(LIMIT_S) == 0
    assert [status for status, _, _ in reports] == [0, 0, 2]
    assert json.loads(reports[0][1])["posts"] == 2
    assert json.loads(reports[1][1]).items() >= {"posts": 2, "files": 4, "problems": 0}.items()
    assert "is not a backup" in reports[2][2]
    assert backup(store, tmp_path / "here" / "copy").written == 0


@pytest.mark.thorough
def test_a_backup_is_written_to_an_object_store_and_restored(
    tmp_path: Path, store: Path, run: Run, s3: S3Server
) -> None:
    place = s3.uri("backups/one")
    status, _, errors = run("backup", place, "-s", store, "--with-key")
    assert (status, "the key is never sent" in errors) == (2, True)
    assert run("backup", place, "-s", store)[0] == 0
    with CableStore.open(store) as opened:
        gone = opened.post("default", "gone")
        opened.delete(gone.hash)
    status, printed, _ = run("backup", place, "-s", store, "--json")
    assert (status, json.loads(printed)["full"]) == (0, False)
    assert run("backup", place, "--check")[0] == 0
    folder = folder_of(place)
    for name in folder.names("posts-*"):  # as after an incomplete copy of a bucket
        folder.write(name, b"")
    assert run("backup", place, "--check")[0] == 1
    status, printed, _ = run("backup", place, "-s", store, "--json")
    assert (status, json.loads(printed)["mended"] > 0) == (0, True)
    assert run("backup", place, "--check")[0] == 0
    assert run("restore", place, "-s", tmp_path / "restored", "--key", store / "identity")[0] == 0
    assert rows_of(tmp_path / "restored") == rows_of(store)
