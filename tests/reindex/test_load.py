"""A part that was loaded is used again only if it is complete and has the same rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cablestore.files import folder_of
from cablestore.index.database import Row
from cablestore.index.leveldb import LevelDB
from cablestore.protocol.keys import after_prefix

pytest.importorskip("pyarrow")

from cablestore.reindex.load import load_part
from cablestore.reindex.row_segments import RowSegment, RowSegmentWriter

Change = Callable[[Path], object]


def rows_of(path: Path) -> list[Row]:
    with closing(LevelDB(path)) as database, database.snapshot() as state:
        return list(state.scan(b"!", after_prefix(b"!")))


def segment(folder: Path, name: str, rows: list[Row]) -> RowSegment:
    with RowSegmentWriter(folder_of(folder), name) as writer:
        writer.write(rows)
        return RowSegment.of(writer.finish({}))


@pytest.mark.parametrize(
    ("spoil", "is_used"),
    [
        (lambda path: None, True),
        (lambda path: path.with_suffix(".loaded").unlink(), False),
        (lambda path: path.with_suffix(".loaded").write_text("[]"), False),
        (lambda path: next(path.parent.glob("part.h*")).unlink(), False),
        (lambda path: next(path.parent.glob("part.h*")).write_bytes(bytes(32)), False),
    ],
    ids=["complete", "no mark", "mark of other rows", "no hashes", "other hashes"],
)
def test_a_loaded_part_is_reused_only_if_it_is_complete(tmp_path: Path, spoil: Change, is_used: bool) -> None:
    rows = [(b"!%06d" % number, b"value %d" % number) for number in range(2_500)]
    segments = (segment(tmp_path, "rows-0", rows[:1_200]), segment(tmp_path, "rows-1", rows[1_200:]))
    path = tmp_path / "part"
    assert load_part(path, folder_of(tmp_path), segments) == len(rows)
    assert rows_of(path) == rows
    shutil.rmtree(path)
    spoil(path)
    assert load_part(path, folder_of(tmp_path), segments) == len(rows)
    assert path.exists() is not is_used
    if not is_used:
        assert rows_of(path) == rows


def test_a_part_of_other_segments_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "part"
    for number in range(2):
        rows = [(b"!%d" % key, b"%d" % number) for key in range(3)]
        assert load_part(path, folder_of(tmp_path), (segment(tmp_path, f"rows-{number}", rows),)) == 3
        assert rows_of(path) == rows
