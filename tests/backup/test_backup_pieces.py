"""Pieces of a backup: where they end, and items that a piece of its kind cannot contain."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from backing_up import opened, require_equal, rows_of
from forging import put, sign
from history import AUTHORS
from people import ANN, BOB, raws
from pyarrow.fs import LocalFileSystem

from cablestore import CableStore, limits
from cablestore.backup import backup, read_backup, restore, restore_points, verify_backup
from cablestore.backup.manifest import PieceKind
from cablestore.backup.pieces import PieceWriter, cut
from cablestore.errors import BackupError, IdentityError
from cablestore.files import folder_of
from cablestore.files.remote import RemoteFolder
from cablestore.index.local import DROPPED, local_key

USUAL = 100
ROWS = [(b"%05d" % number, random.Random(number).randbytes(20)) for number in range(3_000)]
"""Rows of a quarter of the usual size."""


def test_a_piece_has_a_quarter_to_four_times_of_the_usual_size() -> None:
    pieces = list(cut(ROWS, USUAL))
    assert [row for piece in pieces for row in piece] == ROWS
    assert {min(map(len, pieces[:-1])), max(map(len, pieces))} == {1, 16}
    assert 3.5 < len(ROWS) / len(pieces) < 4.5
    smaller = [(key, value[:-1]) for key, value in ROWS]
    assert min(map(len, list(cut(smaller, USUAL))[:-1])) == 2, "one row is less than a quarter"
    assert list(cut([], USUAL)) == []
    assert list(cut(ROWS[:1], USUAL)) == [ROWS[:1]]


def test_a_new_row_changes_only_its_own_piece() -> None:
    before = list(cut(ROWS, USUAL))
    after = list(cut([*ROWS[:1_500], (b"01499+", b"y" * 20), *ROWS[1_500:]], USUAL))
    assert sum(piece not in before for piece in after) <= 3


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("posts", [1]),
        ("posts", [b"post", [b"key", b"value"]]),
        ("rows", [1]),
        ("rows", [[b"!local!x!"]]),
        ("rows", [[b"!local!x!", "text"]]),
        ("rows", [["!local!x!", b""]]),
        ("arrivals", [[b"!local!x!", b""]]),
    ],
)
def test_an_item_of_another_kind_is_damage(tmp_path: Path, kind: PieceKind, items: list[Any]) -> None:
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        store.post("default", "x")
        backup(store, out)
    row = (b"key", b"value")
    pieces = PieceWriter(folder_of(out), {}, again=True).add(kind, [row] * len(items), 10**6, lambda _: items)
    manifest = read_backup(folder_of(out))
    put(out, replace(manifest, pieces=(*manifest.pieces, *pieces)))
    sign(out, AUTHORS[0])
    with pytest.raises(BackupError, match=r"contains an item that is not a (row of this kind|post)"):
        restore(out, tmp_path / "restored", identity=AUTHORS[0])
    assert [problem.file for problem in verify_backup(out)[1]] == [pieces[0].file]


def test_a_backup_in_an_object_store_is_verified_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only locks of the object store are on this disk. pyarrow's file system of this disk stands for the store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "objects").mkdir()
    place = RemoteFolder("s3://bucket/backup", (LocalFileSystem(), str(tmp_path / "objects")))
    with opened(tmp_path / "store") as store:
        store.post("default", "x")
        with pytest.raises(BackupError, match="cannot write the key to a URI"):
            backup(store, place, with_key=True)
        assert not (tmp_path / "cache").exists()
        assert backup(store, place).is_full
        store.post("default", "y")
        messages: list[str] = []

        def meanwhile(_: int) -> None:
            with pytest.raises(BackupError, match="in use by another process") as caught:
                verify_backup(place)
            messages.append(str(caught.value))

        report = backup(store, place, progress=meanwhile)
        assert (report.is_full, report.points, len(messages) > 0) == (False, 1, True)
        expected = rows_of(store)
    assert verify_backup(place)[1] == []
    assert [point.is_newest for point in restore_points(place)[0]] == [True]
    restore(place, tmp_path / "restored", identity=AUTHORS[0])
    assert rows_of(tmp_path / "restored") == expected
    assert len(list((tmp_path / "cache" / "cablestore" / "backups").iterdir())) == 1


def test_rows_of_a_dropped_post_are_omitted_if_its_main_row_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BACKUP_ROWS_SIZE_BYTES", 1)
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        first = BOB.text("default", "first")
        store.ingest(raws(first, *(ANN.text("default", f"{number}", links=(first.hash,)) for number in range(3))))
        store.moderation.drop(users=[ANN.key], private=True)
        store.moderation.sweep()
        backup(store, out)
        require_equal(store, out, tmp_path / "whole")
    place = folder_of(out)
    lost = next(p for p in read_backup(place).of("rows") if bytes.fromhex(p.first).startswith(local_key(DROPPED)))
    (out / lost.file).unlink()
    report = restore(out, tmp_path / "restored", identity=AUTHORS[0], salvage=True)
    assert (report.is_authentic, [problem.file for problem in report.problems]) == (True, [lost.file])
    assert report.rejected == {}
    with opened(tmp_path / "restored") as store:
        assert store.check().is_clean
    gone = bytes.fromhex(lost.first).rsplit(b"!", 1)[1]
    left = [key for key, _ in rows_of(tmp_path / "restored") if key.startswith(b"!local!dropped")]
    assert left
    assert not any(key.endswith(gone) for key in left)


def test_a_store_with_a_damaged_key_is_backed_up_without_a_signature(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    with CableStore.open(path) as store:
        store.post("default", "x")
    assert backup(path, out, with_key=True).is_signed
    (path / "identity").write_text("damaged")
    assert not backup(path, out).is_signed
    (out / "identity").write_text("damaged too")
    report = backup(path, out)
    assert (report.has_key, report.mended) == (True, 0)
    assert [problem.file for problem in verify_backup(out)[1]] == ["identity"]
    with pytest.raises(IdentityError):
        backup(path, out, with_key=True)
    (out / "identity").unlink()
    with CableStore.open(tmp_path / "other") as other:
        other.post("default", "y")
    (out / "identity").write_bytes((tmp_path / "other" / "identity").read_bytes())
    (out / "identity").chmod(0o600)
    with pytest.raises(BackupError, match=r"is not the key .* of this backup"):
        restore(out, tmp_path / "restored")


def test_progress_is_reported_every_thousand_posts(tmp_path: Path) -> None:
    posts = [ANN.text("default", f"{number}") for number in range(1_001)]
    done: list[int] = []
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*posts), verify=False)
        backup(store, tmp_path / "backup", progress=done.append)
    assert done == [1_000, 1]
