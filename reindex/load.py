"""Loader: several processes write segments of sorted rows to one LevelDB, read the rows back and compare them.

LevelDB cannot ingest finished files. So each process writes one part, a range of keys, to a LevelDB of its own; the
tables of all parts together are then one database. A finished part is not written again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from contextlib import closing
from pathlib import Path
from typing import Final

import msgpack

from cablestore.errors import ReindexError
from cablestore.files import ObjectFolder
from cablestore.index.leveldb import LevelDB, join_tables
from cablestore.index.processes import process_pool
from cablestore.index.runs import AFTER_ALL
from cablestore.limits import PART_ROWS
from cablestore.reindex.row_segments import RowDigest, RowSegment, read_rows

_ROWS_WRITTEN: Final = 1_000


def load(
    segments: Sequence[RowSegment],
    folder: ObjectFolder,
    scratch: Path,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Path:
    """Load the segments in `folder`, which are in order of keys, into a LevelDB in `scratch`. Returns its path.

    `progress` is called with the number of rows loaded and compared since the last call. Raises StorageError if writing
    fails, CorruptExportError for a damaged segment, ReindexError if the database does not hold what was written.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    parts = share_out(segments)
    paths = [scratch / f"part-{number:06d}" for number in range(len(parts))]
    work = [(path, folder, tuple(part)) for path, part in zip(paths, parts, strict=True)]
    number = min(os.cpu_count() or 1, len(parts))
    if number == 1:
        for arguments in work:
            progress(load_part(*arguments))
    else:
        with process_pool(number) as pool:
            for finished in as_completed([pool.submit(load_part, *arguments) for arguments in work]):
                progress(finished.result())
    path = scratch / "joined"
    shutil.rmtree(path, ignore_errors=True)
    join_tables(paths, path)
    return path


def share_out(segments: Sequence[RowSegment]) -> list[list[RowSegment]]:
    """Split the segments into parts of about `limits.PART_ROWS` rows, each a range of keys."""
    parts: list[list[RowSegment]] = [[]]
    rows = 0
    for segment in segments:
        if rows >= PART_ROWS:
            parts.append([])
            rows = 0
        parts[-1].append(segment)
        rows += segment.rows
    return parts


def load_part(path: Path, folder: ObjectFolder, segments: tuple[RowSegment, ...]) -> int:
    """Write segments to a LevelDB at `path`, read them back and compare. Returns the number of rows."""
    rows = sum(segment.rows for segment in segments)
    mark = path.with_suffix(".loaded")
    content = json.dumps([segment.blake3 for segment in segments])
    if mark.exists() and mark.read_text(encoding="utf-8") == content:
        return rows
    mark.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    with closing(LevelDB(path, create=True)) as database:
        for segment in segments:
            for block in read_rows(folder, segment):
                for at in range(0, len(block), _ROWS_WRITTEN):
                    database.write(dict(block[at : at + _ROWS_WRITTEN]), sync=False)
        _compare(database, segments)
    mark.write_text(content, encoding="utf-8")
    return rows


def _compare(database: LevelDB, segments: Sequence[RowSegment]) -> None:
    """Read the rows of each segment back and compare their number and BLAKE3."""
    with database.snapshot() as state:
        starts = [segment.first for segment in segments[1:]]
        for segment, stop in zip(segments, [*starts, AFTER_ALL], strict=True):
            digest = RowDigest()
            # Rows missing at the end of the range show in their number.
            for rows in state.blocks(segment.first, stop):
                digest.add(msgpack.packb(rows), len(rows))
            if (digest.rows, digest.hexdigest()) != (segment.rows, segment.digest):
                raise ReindexError(
                    f"the database does not hold the rows of {segment.file}: {digest.rows:,} rows were read back, "
                    f"{segment.rows:,} were expected, or they differ. Check the disk and run again"
                )
