"""Loader: several processes write segments of sorted rows to one LevelDB. `read_back` compares them later.

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

from cablestore.files import ObjectFolder
from cablestore.index.leveldb import LevelDB, join_tables
from cablestore.index.processes import process_pool
from cablestore.limits import PART_ROWS
from cablestore.reindex.row_segments import RowSegment, read_rows

_ROWS_WRITTEN: Final = 1_000


def load(
    segments: Sequence[RowSegment],
    folder: ObjectFolder,
    scratch: Path,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Path:
    """Load the segments in `folder`, which are in order of keys, into a LevelDB in `scratch`. Returns its path.

    `progress` is called with the number of rows loaded since the last call. Raises StorageError if writing fails,
    CorruptExportError for a damaged segment.
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
    """Write segments to a LevelDB at `path`. Returns the number of rows."""
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
    mark.write_text(content, encoding="utf-8")
    return rows
