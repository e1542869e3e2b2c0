"""External sort of records: sorted runs on the disk, and merging them. Records are compared as bytes.

A run's file is a sequence of blocks: size and CRC-32, each u32 big-endian, then a msgpack array of records of this
size.

`cablestore.index.runs` sorts rows in another way: its runs are split into ranges of keys, which several processes read
separately and sort in memory. Here one reader streams all runs once and can continue after any record.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgpack

from cablestore.errors import ExportError
from cablestore.files import atomic_file, storage_errors

_BLOCK_SIZE_BYTES: Final = 65_536
"""Memory of the merge for each run. A hundred million posts need 600 runs and 40 MB."""

_HEADER: Final = struct.Struct(">II")


def into_blocks(batches: Iterable[list[bytes]], most_bytes: int) -> Iterator[list[bytes]]:
    """Split records into blocks, regardless of batches. A block ends with the record that reaches `most_bytes`."""
    held: list[bytes] = []
    for batch in batches:
        held += batch
        ends = list(accumulate(map(len, held)))
        start = taken = 0
        while (stop := bisect_left(ends, taken + most_bytes) + 1) <= len(held):
            yield held[start:stop]
            start, taken = stop, ends[stop - 1]
        del held[:start]
    if held:
        yield held


def write_sorted(path: Path, records: list[bytes]) -> None:
    """Sort records and write them. The file gets its name when it is complete and on the disk."""
    records.sort()
    packer = msgpack.Packer()  # one buffer for all blocks
    with storage_errors(path), atomic_file(path) as file:
        for block in into_blocks([records], _BLOCK_SIZE_BYTES):
            data = packer.pack(block)
            file.write(_HEADER.pack(len(data), zlib.crc32(data)))
            file.write(data)


def merge(runs: Iterable[Path], after: bytes = b"") -> Iterator[list[bytes]]:
    """Merge sorted runs: yield their records that are greater than `after`, in order, in lists of any length.

    Raises ExportError for a damaged run.
    """
    readers = [_blocks(path) for path in runs]
    heads = [(_next_block(reader, after), reader) for reader in readers]
    while heads := [(block, reader) for block, reader in heads if block]:
        bound = min(block[-1] for block, _ in heads)
        merged: list[bytes] = []
        left = []
        for block, reader in heads:
            place = bisect_right(block, bound)
            merged += block[:place]
            left.append((block[place:] or _next_block(reader, after), reader))
        merged.sort()  # Python's sort merges sorted ranges
        yield merged
        heads = left


def _next_block(blocks: Iterator[list[bytes]], after: bytes) -> Sequence[bytes]:
    """Return the records greater than `after` of the next block that has such records, or () at the end."""
    for block in blocks:
        if block[-1] > after:
            return block[bisect_right(block, after) :]
    return ()


def _blocks(path: Path) -> Iterator[list[bytes]]:
    """Yield a run's blocks. The file is opened for each block, to limit the number of open files."""
    at = 0
    while True:
        with storage_errors(path), path.open("rb") as file:
            file.seek(at)
            header = file.read(_HEADER.size)
            size_bytes, crc = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
            data = file.read(size_bytes)
        if not header:
            return
        if len(header) < _HEADER.size or len(data) < size_bytes or zlib.crc32(data) != crc:
            raise ExportError(f"{path} is damaged. Remove {path.parent}, then run the command again")
        yield msgpack.unpackb(data)
        at += len(header) + len(data)
