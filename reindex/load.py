"""Loader: several processes write segments of sorted rows to one LevelDB. `read_back` compares them later.

LevelDB cannot ingest finished files. So each process writes one part, a range of keys, to a separate LevelDB. The
tables of all parts together form one database. A finished part is not written again.

The hashes of the posts of a part are written to a file beside it, because the arrival log lists them. Reading all posts
again for their hashes would take seconds per million.
"""

from __future__ import annotations

import json
import shutil
from binascii import unhexlify
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import closing
from pathlib import Path
from typing import Final

import blake3

from cablestore.files import ObjectFolder, folder_of, make_folder
from cablestore.index.cores import usable_cores
from cablestore.index.database import Row
from cablestore.index.leveldb import LevelDB
from cablestore.index.leveldb_manifest import join_tables
from cablestore.index.processes import process_pool
from cablestore.index.reader import DATA_PREFIX
from cablestore.limits import PART_ROWS
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.reindex.row_segments import RowSegment, read_rows

_HASHES: Final = ".hashes"
_ROWS_WRITTEN: Final = 1_000


def load(
    segments: Sequence[RowSegment],
    folder: ObjectFolder,
    scratch: Path,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Path:
    """Load the segments in `folder`, which are in order of keys, into a LevelDB in `scratch`. Return its path.

    `progress` is called with the number of rows loaded since the last call. Raises StorageError if writing fails,
    ExportError for a damaged segment.
    """
    make_folder(scratch)
    parts = share_out(segments)
    paths = _paths(scratch, len(parts))
    work = [(path, folder, tuple(part)) for path, part in zip(paths, parts, strict=True)]
    number = min(usable_cores(), len(parts))
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


def _paths(scratch: Path, parts: int) -> list[Path]:
    return [scratch / f"part-{number:06d}" for number in range(parts)]


def share_out(segments: Sequence[RowSegment]) -> list[list[RowSegment]]:
    """Split segments into parts of about `limits.PART_ROWS` rows. Each part is a range of keys."""
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
    """Write segments to a LevelDB at `path`, and the hashes of their posts beside it. Return the number of rows."""
    rows = sum(segment.rows for segment in segments)
    mark, hashes = path.with_suffix(".loaded"), path.with_suffix(_HASHES)
    content = [segment.blake3 for segment in segments]
    if mark.exists() and hashes.exists() and mark.read_text(encoding="utf-8") == _marked(content, hashes):
        return rows
    mark.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    found: list[bytes] = []
    with closing(LevelDB(path, create=True)) as database, database.bulk_writer() as writer:
        for segment in segments:
            for block in read_rows(folder, segment):
                for at in range(0, len(block), _ROWS_WRITTEN):
                    writer.put(block[at : at + _ROWS_WRITTEN])
                found.append(_hashes_in(block))
    folder_of(path.parent).write(hashes.name, b"".join(found), sync=False)
    mark.write_text(_marked(content, hashes), encoding="utf-8")
    return rows


def _marked(content: list[str], hashes: Path) -> str:
    return json.dumps([*content, blake3.blake3(hashes.read_bytes()).hexdigest()])


def _hashes_in(block: list[Row]) -> bytes:
    if not block[0][0].startswith(DATA_PREFIX):  # all keys of a block have one prefix: a segment begins at each prefix
        return b""
    return unhexlify(b"".join([key[len(DATA_PREFIX) :] for key, _ in block]))


def loaded_hashes(segments: Sequence[RowSegment], scratch: Path) -> Iterator[bytes]:
    """Yield the hashes of all posts that `load` loaded from the segments in `scratch`, in order."""
    for path in _paths(scratch, len(share_out(segments))):
        hashes = path.with_suffix(_HASHES).read_bytes()
        for at in range(0, len(hashes), HASH_SIZE_BYTES):
            yield hashes[at : at + HASH_SIZE_BYTES]
