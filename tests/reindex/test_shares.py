"""The division of work on large histories, so that memory does not grow with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cablestore import limits
from cablestore.errors import ExportError
from cablestore.export.segment import SegmentWriter
from cablestore.files import folder_of
from cablestore.index.derive import Derivation
from cablestore.index.packing import pack
from cablestore.index.parallel import partitions_for
from cablestore.index.runs import Sorter
from cablestore.views import CATALOG

pytest.importorskip("pyarrow")

from cablestore.reindex.load import share_out
from cablestore.reindex.row_segments import RowSegment, read_rows


@pytest.mark.parametrize(("size_bytes", "runs"), [(limits.MAX_RUN_SIZE_BYTES - 1, 0), (limits.MAX_RUN_SIZE_BYTES, 1)])
def test_a_run_is_written_when_memory_is_full(tmp_path: Path, size_bytes: int, runs: int) -> None:
    derivation = Derivation(CATALOG)
    sorter = Sorter(derivation, CATALOG, tmp_path)
    derivation.size_bytes = size_bytes
    sorter.make_room(0.5)
    assert len(sorter.runs) == len(list(tmp_path.iterdir())) == runs
    assert derivation.size_bytes == (0 if runs else size_bytes)


def test_a_partition_has_at_most_partition_posts() -> None:
    assert partitions_for(0) == partitions_for(limits.PARTITION_POSTS - 1) == 1
    for posts in (limits.PARTITION_POSTS, 10 * limits.PARTITION_POSTS + 1, 10**9):
        assert posts / partitions_for(posts) <= limits.PARTITION_POSTS


def segment(number: int, rows: int) -> RowSegment:
    key = b"!%06d" % number
    return RowSegment(f"rows-{number:06d}.seg", key, key + b"~", rows, 1, "", "", {})


def test_a_part_ends_with_the_segment_that_fills_it() -> None:
    quarter = limits.PART_ROWS // 4
    segments = [segment(number, quarter) for number in range(10)]
    parts = share_out(segments)
    assert [each for part in parts for each in part] == segments
    assert [len(part) for part in parts] == [4, 4, 2]
    assert share_out([segment(0, limits.PART_ROWS)]) == [[segment(0, limits.PART_ROWS)]]


def test_a_segment_of_other_items_is_rejected(tmp_path: Path) -> None:
    for item in (1, b"ab", [b"key"], [b"key", b"value", b"more"]):
        with SegmentWriter(tmp_path / "rows.seg", 1) as writer:
            writer.write_packed(pack([[b"key", b"value"], item]))
            written = writer.close()
        found = RowSegment("rows.seg", b"", b"", 2, written.size_bytes, written.blake3, "", {})
        with pytest.raises(ExportError, match="does not contain rows"):
            list(read_rows(folder_of(tmp_path), found))
